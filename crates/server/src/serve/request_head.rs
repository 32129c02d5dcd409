//! Refuses request heads that a proxy and this server could read in two different ways (SEC-2). The check runs before
//! any other code looks at the request.

use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{StatusCode, Version, header};
use keylane::ErrorCode;

use super::raw_stream::{Lengths, SentHead};
use crate::http::Problem;

/// An error if a proxy and this server could disagree about which host the request is for, or where its body ends.
pub(crate) fn check(head: &Parts, sent: &SentHead) -> Result<(), Problem> {
    let hosts: Vec<_> = head.headers.get_all(header::HOST).iter().collect();
    match hosts[..] {
        [] if head.version < Version::HTTP_11 => {}
        [host] if is_authority(host.as_bytes()) => {}
        [_] => {
            return Err(ambiguous(
                "Host must be a name or an address, and may have a port: `Host: localhost:7400`",
            ));
        }
        _ => return Err(ambiguous(format!("there must be one header Host, and there are {}", hosts.len()))),
    }
    let encodings: Vec<_> = head.headers.get_all(header::TRANSFER_ENCODING).iter().collect();
    match encodings[..] {
        [] => Ok(()),
        [one] if !one.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Err(ambiguous("the one Transfer-Encoding that is taken is chunked"))
        }
        [_] if sent.lengths(head) == Lengths::Both => {
            Err(ambiguous("there are both Content-Length and Transfer-Encoding; send one of them"))
        }
        [_] => Ok(()),
        _ => Err(ambiguous("the one Transfer-Encoding that is taken is chunked, once")),
    }
}

/// Whether the connection must end after this request: a proxy in front may have seen another end of its body, and then
/// the next bytes are not the request that the proxy checked.
pub(super) fn is_last(head: &Parts, sent: &SentHead) -> bool {
    head.headers.contains_key(header::TRANSFER_ENCODING) && sent.lengths(head) != Lengths::One
}

fn is_authority(host: &[u8]) -> bool {
    !host.contains(&b'@') && Authority::try_from(host).is_ok_and(|authority| !authority.host().is_empty())
}

fn ambiguous(detail: impl Into<String>) -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        ErrorCode::AmbiguousHead,
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
        check(&head, &SentHead::default()).err().map(|problem| problem.detail)
    }

    /// SEC-2.
    #[test]
    fn a_head_that_can_be_read_in_two_ways_is_refused() {
        let host = ("host", "localhost");
        let new = Version::HTTP_11;
        for good in [
            &[host][..],
            &[("host", "[::1]:7400")],
            &[("host", "keylane.example:80")],
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
            (&[("host", "")], "Host"),
            (&[("host", "a b")], "Host"),
            (&[("host", "a/b")], "Host"),
            (&[("host", "me@localhost")], "Host"),
            (&[("host", "localhost, evil.example")], "Host"),
            (&[host, ("transfer-encoding", "gzip, chunked")], "chunked"),
            (&[host, ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")], "chunked"),
        ] {
            let said = says(bad, new).expect("refused");
            assert!(said.contains(what), "{bad:?}: {said}");
        }
    }
}
