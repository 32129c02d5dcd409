//! Errors as RFC 9457 problem+json (ING-7): every answer that is not a success has this form.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use keylane::{Error, ProduceError};
use serde::Serialize;
use serde_json::{Map, Value};

/// Seconds after which one may try again when there is no room: long enough for a group commit or a batch to end,
/// short enough that nobody idles.
const RETRY_AFTER: &str = "1";

/// An answer that is not a success.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) title: &'static str,
    pub(crate) detail: String,
    /// Further members of the answer, such as the lines that were not taken.
    pub(crate) more: Map<String, Value>,
}

/// A message of a request that was not taken.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Rejected {
    pub(crate) index: usize,
    pub(crate) error: String,
}

#[derive(Serialize)]
struct Wire<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(flatten)]
    more: &'a Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        Problem { status, code, title, detail: detail.into(), more: Map::new() }
    }

    pub(crate) fn bad_query(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "KL-1504", "the query makes no sense", detail)
    }

    /// Adds a member to the answer.
    pub(crate) fn with(mut self, name: &str, value: impl Serialize) -> Problem {
        let value = serde_json::to_value(value).expect("text, numbers and lists always serialize");
        self.more.insert(name.to_owned(), value);
        self
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let (status, title) = match &error {
            Error::Produce(error) => produce_status(error),
            Error::UnknownPipeline(_) => (StatusCode::NOT_FOUND, "there is no such pipeline"),
            Error::Broker(_) => match error.code() {
                "KL-1201" => (StatusCode::NOT_FOUND, "there is no such topic"),
                // A position or a partition that is not there, or a request that makes no sense.
                "KL-1106" | "KL-1108" => (StatusCode::BAD_REQUEST, "the broker refuses this"),
                _ => (StatusCode::SERVICE_UNAVAILABLE, "the broker cannot do this now"),
            },
            _ => (StatusCode::SERVICE_UNAVAILABLE, "this cannot be done now"),
        };
        Problem::new(status, error.code(), title, error.to_string())
    }
}

/// The status of a message that was not taken, when it decides the whole answer.
pub(crate) fn produce_status(error: &ProduceError) -> (StatusCode, &'static str) {
    match error {
        ProduceError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "the message is too large"),
        ProduceError::UnknownTopic(_) => (StatusCode::NOT_FOUND, "there is no such topic"),
        ProduceError::Invalid(_) => (StatusCode::BAD_REQUEST, "the message cannot be taken"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "there is no room now"),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let wire = Wire {
            r#type: format!("/errors/{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code,
            more: &self.more,
        };
        let body = serde_json::to_vec(&wire).expect("text and numbers always serialize");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
