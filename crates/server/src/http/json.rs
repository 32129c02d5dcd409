//! Makes successful answers in JSON. [`super::Problem`] makes the others.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON answer with status 200: an object with the one member `name`.
pub(crate) fn listed(name: &str, list: impl serde::Serialize) -> Response<Body> {
    json(StatusCode::OK, json!({ name: list }).to_string().into_bytes())
}
