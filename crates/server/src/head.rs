//! The head of a request, before anything else looks at it (SEC-2): what two readers could read in two ways is refused.

use axum::http::request::Parts;
use axum::http::{StatusCode, Version, header};

use crate::problem::Problem;

/// An error if servers and proxies could disagree about whom the request is for, or where it ends.
pub(crate) fn check(head: &Parts) -> Result<(), Problem> {
    let hosts = head.headers.get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && head.version >= Version::HTTP_11) {
        return Err(ambiguous(format!("there must be one header Host, and there are {hosts}")));
    }
    let encodings: Vec<_> = head.headers.get_all(header::TRANSFER_ENCODING).iter().collect();
    if encodings.is_empty() {
        return Ok(());
    }
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        return Err(ambiguous("there are both Content-Length and Transfer-Encoding".to_owned()));
    }
    match encodings[..] {
        [one] if one.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(ambiguous("the one Transfer-Encoding that is taken is chunked".to_owned())),
    }
}

fn ambiguous(detail: String) -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "KL-1222",
        "the head of the request can be read in two ways",
        detail,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn says(headers: &[(&str, &str)], version: Version) -> Option<String> {
        let mut request = Request::builder().version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).expect("a request").into_parts();
        check(&head).err().map(|problem| problem.detail)
    }

    /// SEC-2.
    #[test]
    fn a_head_that_can_be_read_in_two_ways_is_refused() {
        let host = ("host", "localhost");
        let new = Version::HTTP_11;
        for good in [
            &[host][..],
            &[host, ("content-length", "5")],
            &[host, ("transfer-encoding", "chunked")],
            &[host, ("transfer-encoding", "Chunked")],
        ] {
            assert_eq!(says(good, new), None, "{good:?}");
        }
        assert_eq!(says(&[], Version::HTTP_10), None, "HTTP/1.0 knows no Host");
        for (bad, what) in [
            (&[][..], "Host"),
            (&[host, host], "Host"),
            (&[host, ("content-length", "5"), ("transfer-encoding", "chunked")], "both"),
            (&[host, ("transfer-encoding", "gzip, chunked")], "chunked"),
            (&[host, ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")], "chunked"),
        ] {
            let said = says(bad, new).expect("refused");
            assert!(said.contains(what), "{bad:?}: {said}");
        }
    }
}
