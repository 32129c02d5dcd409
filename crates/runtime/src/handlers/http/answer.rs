//! Turns the answer to a push into an outcome (ING-5).
//!
//! The status alone decides. The beginning of the body becomes the text of the error; the rest is read and dropped
//! within bounds, so that the connection can serve the next push.

use std::time::{Duration, UNIX_EPOCH};

use keylane_core::Outcome;
use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use reqwest::{Response, StatusCode};

/// Bytes of an answer that become the error's text: enough for a message and a few lines of a stack.
const TEXT_BYTES_MAX: usize = 2 * 1024;
/// Bytes that are read to keep a connection; for a longer body, a new connection is cheaper.
const DRAIN_BYTES_MAX: usize = 64 * 1024;
/// How long reading a body may take before the connection is given up instead. The status has decided by then, and a
/// lane must not wait for bytes that change nothing.
const DRAIN_WAIT: Duration = Duration::from_millis(500);
/// The longest `Retry-After` that is obeyed: a mistyped date must not stop a key for years.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The outcome that `answer` stands for. `now_ms` is the wall clock, for dates in the answer.
pub(super) async fn outcome(mut answer: Response, reject: &[u16], now_ms: u64) -> Outcome {
    let status = answer.status();
    if status.is_success() {
        read_away(&mut answer, 0).await;
        return Outcome::Done;
    }
    let retry_after = retry_after(answer.headers(), now_ms);
    let text = read_away(&mut answer, TEXT_BYTES_MAX).await;
    let error = error_text(status, &text).into();
    if reject.contains(&status.as_u16()) {
        Outcome::Rejected { error }
    } else {
        Outcome::Failed { error, retry_after }
    }
}

/// Reads the body to its end if it is short and quick, and returns its first `keep` bytes.
async fn read_away(answer: &mut Response, keep: usize) -> Vec<u8> {
    let mut kept = Vec::new();
    let too_long = answer.content_length().is_some_and(|length| length > DRAIN_BYTES_MAX as u64);
    let limit = if too_long { keep } else { DRAIN_BYTES_MAX };
    let read = async {
        let mut seen = 0;
        while seen < limit {
            // A body that breaks off changes nothing: the status came before it.
            let Ok(Some(chunk)) = answer.chunk().await else {
                return;
            };
            seen += chunk.len();
            kept.extend_from_slice(&chunk[..chunk.len().min(keep - kept.len())]);
        }
    };
    let _gave_up = tokio::time::timeout(DRAIN_WAIT, read).await.is_err();
    kept
}

/// One line for people. No control character of the answer, which is a stranger's, may reach a terminal (SEC-5).
fn error_text(status: StatusCode, body: &[u8]) -> String {
    let reason = status.canonical_reason().unwrap_or("");
    let body: String =
        String::from_utf8_lossy(body).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match (reason, body.trim()) {
        ("", "") => format!("answered {}", status.as_u16()),
        (reason, "") => format!("answered {} {reason}", status.as_u16()),
        ("", body) => format!("answered {}: {body}", status.as_u16()),
        (reason, body) => format!("answered {} {reason}: {body}", status.as_u16()),
    }
}

/// `Retry-After` as a wait: a number of seconds, or a date. A date is compared with the answer's own `Date` where there
/// is one, so that clocks that differ do no harm.
fn retry_after(headers: &HeaderMap, now_ms: u64) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number too large for a u64 counts as a wait without end.
        value.parse().map_or(RETRY_AFTER_MAX, Duration::from_secs)
    } else {
        let until = httpdate::parse_http_date(value).ok()?;
        let now = date(headers, DATE).unwrap_or(UNIX_EPOCH + Duration::from_millis(now_ms));
        until.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

fn date(headers: &HeaderMap, name: HeaderName) -> Option<std::time::SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(value: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, value.parse().expect("a value"));
        if let Some(date) = date {
            headers.insert(DATE, date.parse().expect("a value"));
        }
        // 1994-11-06 08:49:00, in the example of RFC 9110.
        retry_after(&headers, 784_111_740_000)
    }

    /// ING-5.
    #[test]
    fn retry_after_is_read_as_seconds_and_as_every_form_of_date() {
        assert_eq!(wait("7", None), Some(Duration::from_secs(7)));
        assert_eq!(wait("0", None), Some(Duration::ZERO));
        for date in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(wait(date, None), Some(Duration::from_secs(37)), "{date}");
        }
    }

    /// ING-5.
    #[test]
    fn a_date_counts_from_the_answers_own_clock() {
        let (until, date) = ("Mon, 07 Nov 1994 08:50:00 GMT", "Mon, 07 Nov 1994 08:49:50 GMT");
        assert_eq!(wait(until, Some(date)), Some(Duration::from_secs(10)));
    }

    /// ING-5.
    #[test]
    fn a_retry_after_in_the_past_is_now_and_one_too_far_is_a_day() {
        assert_eq!(wait("Sun, 06 Nov 1994 08:48:00 GMT", None), Some(Duration::ZERO));
        assert_eq!(wait("99999999999999999999999", None), Some(RETRY_AFTER_MAX));
        assert_eq!(wait("Sat, 06 Nov 2094 08:49:37 GMT", None), Some(RETRY_AFTER_MAX));
    }

    /// ING-5.
    #[test]
    fn a_retry_after_that_says_nothing_is_left_to_the_backoff() {
        for value in ["", "soon", "-1", "1.5", "+3"] {
            assert_eq!(wait(value, None), None, "{value:?}");
        }
    }

    /// SEC-5.
    #[test]
    fn control_characters_of_an_answer_do_not_reach_the_error() {
        let text = error_text(StatusCode::INTERNAL_SERVER_ERROR, b"\x1b[31mred\x07\r\nline\xff");
        assert_eq!(text, "answered 500 Internal Server Error: [31mred   line\u{fffd}");
    }
}
