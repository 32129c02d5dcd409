//! Chooses the `Content-Type` of a push (ING-5).
//!
//! Frameworks decide by `Content-Type` whether they read a body at all, so every push has one: the message's own header
//! `content-type`, else the one in the config, else `application/json` if the payload is JSON, else
//! `application/octet-stream`. A message without a payload has none.

use reqwest::header::HeaderValue;
use serde::de::IgnoredAny;

use crate::Attempt;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BYTES: HeaderValue = HeaderValue::from_static(OCTET_STREAM);
/// The header of a message that names its payload's type.
pub const CONTENT_TYPE: &str = "content-type";
/// The type of a payload for which nothing else is known.
pub const OCTET_STREAM: &str = "application/octet-stream";

/// The content type of a push; `otherwise` is the config's.
pub(super) fn content_type(attempt: &Attempt<'_>, otherwise: Option<&HeaderValue>) -> Option<HeaderValue> {
    let payload = attempt.payload()?;
    let own = attempt.headers().find(|(name, _)| is_content_type(name)).and_then(|(_, value)| {
        // A value that HTTP cannot carry is ignored; the payload can still be sent.
        HeaderValue::from_bytes(value).ok().filter(|value| !value.is_empty())
    });
    let found = own.or_else(|| otherwise.cloned());
    Some(found.unwrap_or_else(|| if is_json(payload) { JSON } else { BYTES }))
}

/// Whether a header of this name holds a content type.
pub fn is_content_type(name: &str) -> bool {
    name.eq_ignore_ascii_case(CONTENT_TYPE)
}

fn is_json(payload: &[u8]) -> bool {
    // What is skipped is not decoded, so that bytes which are no text at all would pass for JSON.
    std::str::from_utf8(payload).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// The config's content type, if it is well-formed. An error does not repeat the text, which may be a secret (SEC-5).
pub(super) fn checked_content_type(text: &str) -> Result<HeaderValue, String> {
    let shape = text.split_once('/').filter(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    HeaderValue::try_from(text)
        .ok()
        .filter(|_| shape.is_some())
        .ok_or_else(|| "this is not a content type such as \"application/json\"".to_owned())
}
