//! Inspects the bytes of a connection before hyper reads them and after hyper has written them (SEC-2, ING-7).
//!
//! In: the head of each request is recorded as it was sent, because hyper drops a `Content-Length` beside a
//! `Transfer-Encoding`. A proxy in front may have used the dropped one, and would see another end of the body. Out: the
//! empty answer that hyper gives to an unreadable head is replaced by a problem document, like every other refusal.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use bytes::{Buf, Bytes};
use keylane::ErrorCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::http::Problem;

/// Bytes of a request's head at most: many times what clients send, and little compared with a body.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes that are read and dropped at a time while a refusal travels.
const AWAY_BYTES: usize = 16 * 1024;
/// Bytes of the buffer for a head that a connection keeps after the answer. Thousands of connections may be idle, and
/// each would keep the buffer of its largest head.
const KEPT_BYTES_MAX: usize = 8 * 1024;
/// How long the server reads on after it refused an unreadable head.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// The head of the request that is being answered, as it was sent.
#[derive(Debug, Clone, Default)]
pub(super) struct SentHead(Arc<Mutex<Sent>>);

#[derive(Debug, Default)]
struct Sent {
    bytes: Vec<u8>,
    /// The end of the head was seen, or the bound was reached.
    whole: bool,
}

/// Which headers of a request say where its body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lengths {
    /// Only `Transfer-Encoding`.
    One,
    /// Both `Transfer-Encoding` and `Content-Length`, which may disagree.
    Both,
    /// Not known, because the head was not recorded: for example, the client sent it before the previous answer.
    Unknown,
}

impl SentHead {
    /// Which headers said where the body ends, for a request with a `Transfer-Encoding`.
    pub(super) fn lengths(&self, head: &Parts) -> Lengths {
        let sent = self.0.lock().expect("no holder panics");
        let line = format!("{} {} ", head.method, head.uri);
        if !sent.whole || !sent.bytes.starts_with(line.as_bytes()) {
            return Lengths::Unknown;
        }
        let name = header::CONTENT_LENGTH.as_str().as_bytes();
        let is_length = |line: &[u8]| {
            line.len() > name.len()
                && line[name.len()] == b':'
                && line[..name.len()].eq_ignore_ascii_case(name)
        };
        match sent.bytes.split(|byte| *byte == b'\n').any(is_length) {
            true => Lengths::Both,
            false => Lengths::One,
        }
    }

    /// The request is answered: the bytes that arrive from now on belong to the next request.
    pub(crate) fn next(&self) {
        let mut sent = self.0.lock().expect("no holder panics");
        match sent.bytes.capacity() > KEPT_BYTES_MAX {
            true => sent.bytes = Vec::new(),
            false => sent.bytes.clear(),
        }
        sent.whole = false;
    }

    fn came(&self, bytes: &[u8]) {
        let mut sent = self.0.lock().expect("no holder panics");
        if sent.whole || bytes.is_empty() {
            return;
        }
        // The end of the head may be split across two reads.
        let from = sent.bytes.len().saturating_sub(END.len());
        let room = HEAD_BYTES_MAX.saturating_sub(sent.bytes.len());
        sent.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let end = sent.bytes[from..].windows(END.len()).position(|window| window == END);
        if let Some(end) = end {
            sent.bytes.truncate(from + end + END.len());
        }
        sent.whole = end.is_some() || sent.bytes.len() >= HEAD_BYTES_MAX;
    }
}

const END: &[u8] = b"\r\n\r\n";
/// The beginning of every answer.
const VERSION: &str = "HTTP/1.1 ";
/// The beginning of every answer with a status from 400 to 499.
const REFUSED: &str = "HTTP/1.1 4";

/// A stream that records heads of requests and replaces empty refusals.
pub(super) struct RawStream<S> {
    stream: S,
    head: SentHead,
    /// The part that is not written yet of the answer that replaces hyper's answer.
    instead: Bytes,
    /// Set when a head was refused: until this time, the shutdown reads and drops what the client sends.
    refused: Option<Pin<Box<Sleep>>>,
}

impl<S> RawStream<S> {
    pub(crate) fn new(stream: S, head: SentHead) -> RawStream<S> {
        RawStream { stream, head, instead: Bytes::new(), refused: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RawStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.head.came(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for RawStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.instead.is_empty() {
            match refusal(bytes) {
                Some(answer) => self.instead = answer,
                None => return Pin::new(&mut self.stream).poll_write(cx, bytes),
            }
            self.refused = Some(Box::pin(sleep(LINGER_MAX)));
        }
        let RawStream { stream, instead, .. } = &mut *self;
        while !instead.is_empty() {
            let written = ready!(Pin::new(&mut *stream).poll_write(cx, instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            instead.advance(written);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bytes {
            [one] => self.poll_write(cx, one),
            many => Pin::new(&mut self.stream).poll_write_vectored(cx, many),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Reads and drops the client's bytes after a refusal. Otherwise unread bytes would make the kernel reset the
    /// connection, and the client would lose the refusal.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let RawStream { stream, refused, .. } = &mut *self;
        ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
        let Some(longest) = refused else {
            return Poll::Ready(Ok(()));
        };
        let mut away = [0; AWAY_BYTES];
        while longest.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut away);
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// If `written` is hyper's answer to an unreadable head, the problem that replaces it. Hyper's answer has no body, and
/// all other refusals have one.
fn refusal(written: &[u8]) -> Option<Bytes> {
    // Every written byte passes here, so reject by the first bytes and do not scan the rest.
    if !written.starts_with(REFUSED.as_bytes()) {
        return None;
    }
    let text = std::str::from_utf8(written).ok()?;
    let status = text.strip_prefix(VERSION)?.get(..3)?.parse().ok()?;
    let status = StatusCode::from_u16(status).ok().filter(StatusCode::is_client_error)?;
    let is_bare =
        text.contains("\r\ncontent-length: 0\r\n") && text.find("\r\n\r\n")? + END.len() == text.len();
    is_bare.then(|| {
        let body = serde_json::to_vec(&problem(status)).expect("text and numbers always serialize");
        let mut answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        )
        .into_bytes();
        answer.extend_from_slice(&body);
        answer.into()
    })
}

fn problem(status: StatusCode) -> Problem {
    let detail = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => format!(
            "the request has more than {} headers, or they take more than {HEAD_BYTES_MAX} bytes; send fewer",
            super::listen::HEADERS_MAX
        ),
        StatusCode::URI_TOO_LONG => "the address of the request is too long".to_owned(),
        _ => "this is not HTTP/1.1: the request must begin like `GET /healthz HTTP/1.1`, with a header `Name: value` a line behind it; \
              if you speak TLS, this server does not"
            .to_owned(),
    };
    Problem::new(status, ErrorCode::UnreadableHead, "the head of the request cannot be read", detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn lengths(reads: &[&str]) -> Lengths {
        let head = SentHead::default();
        reads.iter().for_each(|bytes| head.came(bytes.as_bytes()));
        let request = Request::builder().method("POST").uri("/a").body(()).expect("a request");
        head.lengths(&request.into_parts().0)
    }

    /// SEC-2.
    #[test]
    fn a_head_is_read_as_it_was_sent_however_it_is_cut() {
        let one = "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nContent-Length: 5\r\n";
        let both = "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\ncontent-LENGTH: 5\r\n\r\n";
        for (text, wants) in [(one, Lengths::One), (both, Lengths::Both)] {
            for at in 0..text.len() {
                assert_eq!(lengths(&[&text[..at], &text[at..]]), wants, "cut at {at}");
            }
            let bytes: Vec<&str> = (0..text.len()).map(|at| &text[at..=at]).collect();
            assert_eq!(lengths(&bytes), wants, "byte by byte");
        }
        assert_eq!(lengths(&["0\r\n\r\n", one]), Lengths::Unknown, "the end of another body came with it");
        assert_eq!(lengths(&[&"x".repeat(HEAD_BYTES_MAX + 1)]), Lengths::Unknown);
    }

    /// SEC-2: an idle connection does not keep the room that a large head took.
    #[test]
    fn a_large_head_leaves_nothing_behind_in_memory() {
        let head = SentHead::default();
        for bytes in [1_000, HEAD_BYTES_MAX, 1_000] {
            head.came(&vec![b'x'; bytes]);
            head.next();
            let kept = head.0.lock().expect("no holder panics").bytes.capacity();
            assert!(kept <= KEPT_BYTES_MAX, "{kept} bytes are kept after a head of {bytes}");
        }
    }

    /// ING-7.
    #[test]
    fn only_an_answer_without_a_body_is_replaced() {
        let bare =
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let answer = refusal(bare).expect("replaced");
        assert!(String::from_utf8_lossy(&answer).contains("KL-1223"));
        for other in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            b"{\"payload\":\"HTTP/1.1 400 \"}",
            b"\xff",
        ] {
            assert_eq!(refusal(other), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
