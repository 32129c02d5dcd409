//! Errors as RFC 9457 problem+json (ING-7): every answer that is not a success has this form.

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

/// Seconds after which one may try again when there is no room: long enough for a group commit or a batch to end,
/// short enough that nobody idles.
const RETRY_AFTER: &str = "1";

/// An answer that is not a success.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: ErrorCode,
    pub(crate) title: &'static str,
    pub(crate) detail: String,
    /// Further members of the answer, such as the lines that were not taken.
    pub(crate) more: Vec<(&'static str, Box<RawValue>)>,
}

/// A message of a request that was not taken.
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

    /// What is wrong with a query, without the words of the library that reads it.
    pub(crate) fn of_query(error: &QueryRejection) -> Problem {
        let said = error.body_text();
        let said = said.trim_start_matches("Failed to deserialize query string: ");
        // The name of an unknown field stands in front of it, and in it.
        let said = said.find("unknown field").map_or(said, |at| &said[at..]);
        let said = said
            .replace(": invalid digit found in string", " must be a whole number from 0 on")
            .replace(": cannot parse integer from empty string", " must be a whole number from 0 on")
            .replace(": provided string was not `true` or `false`", " must be `true` or `false`")
            .replace(", expected one of ", "; known are ")
            .replace(", expected ", "; known is ");
        Problem::bad_query(said)
    }

    /// Names what may have been meant, where there is nothing of the name that was given.
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
                // A position or a partition that is not there, or a request that makes no sense.
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

/// The status of a message that was not taken, when it decides the whole answer.
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
        // For whoever tells of refusals: what is on its way to a client is not read again.
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
