//! Reads the part of a path that a client chooses, such as a topic's name, as text.

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use keylane::ErrorCode;

use super::problem::Problem;

/// The one part of a path that a client chooses, decoded.
pub(crate) struct PathPart(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathPart {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathPart, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => Ok(PathPart(text)),
            Err(_) => Err(Problem::new(
                StatusCode::NOT_FOUND,
                ErrorCode::NoSuchPath,
                "there is no such path",
                "the path is not UTF-8 once it is decoded, and nothing here is called so",
            )),
        }
    }
}
