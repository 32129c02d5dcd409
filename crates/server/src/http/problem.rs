//! Errors as RFC 9457 problem documents (ING-7). Every answer that is not a success has this form.

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use keylane::raw::ProduceError;
use keylane::{Error, ErrorCode};
use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::value::{RawValue, to_raw_value};

use crate::config::nearest;

/// Seconds after which a client may repeat a request that was answered 503: long enough for a group commit or a batch
/// to end, and short enough that the client is not idle for long.
const RETRY_AFTER: &str = "1";

/// An answer that is not a success.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: ErrorCode,
    pub(crate) title: &'static str,
    pub(crate) detail: String,
    /// Further members of the answer, such as the list of refused messages.
    pub(crate) more: Vec<(&'static str, Box<RawValue>)>,
}

/// A refused message of a request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Rejected {
    pub(crate) index: usize,
    pub(crate) error: String,
}

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        code: ErrorCode,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        Problem { status, code, title, detail: detail.into(), more: Vec::new() }
    }

    pub(crate) fn bad_query(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidQuery, "the query makes no sense", detail)
    }

    /// The problem of a query that cannot be read, in plain words instead of the library's.
    pub(crate) fn of_query(error: &QueryRejection) -> Problem {
        let said = error.body_text();
        let said = said.trim_start_matches("Failed to deserialize query string: ");
        // The library puts the name of an unknown field before its message, which contains the name anyway.
        let said = said.find("unknown field").map_or(said, |at| &said[at..]);
        let said = said
            .replace(": invalid digit found in string", " must be a whole number from 0 on")
            .replace(": cannot parse integer from empty string", " must be a whole number from 0 on")
            .replace(": provided string was not `true` or `false`", " must be `true` or `false`")
            .replace(", expected one of ", "; known are ")
            .replace(", expected ", "; known is ");
        Problem::bad_query(said)
    }

    /// If the problem is an unknown name, adds the known name that the client may have meant.
    pub(crate) fn with_nearest<'a>(mut self, name: &str, known: impl Iterator<Item = &'a str>) -> Problem {
        if self.status == StatusCode::NOT_FOUND
            && let Some(near) = nearest(name, known)
        {
            self.detail.push_str(&format!("; did you mean `{near}`?"));
        }
        self
    }

    /// Adds a member to the answer.
    pub(crate) fn with(mut self, name: &'static str, value: impl Serialize) -> Problem {
        let value = to_raw_value(&value).expect("text, numbers and lists always serialize");
        self.more.push((name, value));
        self
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let (status, title) = match &error {
            Error::Produce(error) => produce_status(error),
            Error::Accept(..) => (StatusCode::CONFLICT, "the partitions cannot be accepted"),
            Error::GroupInUse { .. } => (StatusCode::CONFLICT, "the group is in use"),
            Error::UnknownGroup(..) => (StatusCode::NOT_FOUND, "there is no such group"),
            Error::Upgrade(..) => (StatusCode::CONFLICT, "the journals cannot be upgraded"),
            Error::UnknownPipeline(_) => (StatusCode::NOT_FOUND, "there is no such pipeline"),
            Error::Broker(_) => match error.code() {
                ErrorCode::UnknownTopic => (StatusCode::NOT_FOUND, "there is no such topic"),
                ErrorCode::NoBackup => (StatusCode::CONFLICT, "no backup was made"),
                // The client asked for a position or a partition that does not exist, or sent a senseless request.
                ErrorCode::NoSuchPosition | ErrorCode::RequestRefused => {
                    (StatusCode::BAD_REQUEST, "the broker refuses this")
                }
                _ => (StatusCode::SERVICE_UNAVAILABLE, "the broker cannot do this now"),
            },
            _ => (StatusCode::SERVICE_UNAVAILABLE, "this cannot be done now"),
        };
        Problem::new(status, error.code(), title, error.to_string())
    }
}

/// Status and title of an answer that is decided by one refused message.
pub(crate) fn produce_status(error: &ProduceError) -> (StatusCode, &'static str) {
    match error {
        ProduceError::TooLarge { .. } | ProduceError::TooLargeThere(_) => {
            (StatusCode::PAYLOAD_TOO_LARGE, "the message is too large")
        }
        ProduceError::UnknownTopic(_) => (StatusCode::NOT_FOUND, "there is no such topic"),
        ProduceError::Invalid(_) | ProduceError::Keyless(_) => {
            (StatusCode::BAD_REQUEST, "the message cannot be taken")
        }
        ProduceError::Denied(_) => (StatusCode::SERVICE_UNAVAILABLE, "the broker does not let us"),
        ProduceError::Unavailable(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "the broker did not take the message")
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "there is no room now"),
    }
}

impl Serialize for Problem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &format_args!("/errors/{}", self.code))?;
        map.serialize_entry("title", self.title)?;
        map.serialize_entry("status", &self.status.as_u16())?;
        map.serialize_entry("detail", &self.detail)?;
        map.serialize_entry("code", self.code.as_str())?;
        for (name, value) in &self.more {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let body = serde_json::to_vec(&self).expect("text and numbers always serialize");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        // `refused_requests` reads the code from here, because it cannot read the body again.
        response.extensions_mut().insert(self.code);
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
