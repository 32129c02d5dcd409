//! Tests the push handler against a real server that writes bytes to a socket by hand, so that it can also misbehave.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use keylane_core::{Delivery, Draft, Frames};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

mod tls;

/// What the server does after it has read a request.
#[derive(Clone)]
enum Answer {
    /// Writes these bytes and keeps the connection.
    Keep(&'static str),
    /// Writes these bytes and closes the connection.
    Close(&'static str),
}

#[derive(Clone)]
struct Seen {
    connection: usize,
    head: String,
    body: Vec<u8>,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Answers every request the same way.
    async fn start(answer: Answer) -> Server {
        Server::bind("127.0.0.1:0", answer).await
    }

    async fn bind(address: &str, answer: Answer) -> Server {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let connections = AtomicUsize::new(0);
        let recorded = Arc::clone(&seen);
        #[allow(clippy::disallowed_methods, reason = "the server of a test is not one of Keylane's tasks")]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, connection, answer.clone(), Arc::clone(&recorded)));
            }
        });
        Server { port, seen }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/push?a=b", self.port)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no holder panics").clone()
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    connection: usize,
    answer: Answer,
    seen: Arc<Mutex<Vec<Seen>>>,
) {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        let head = String::from_utf8(buffer[..end].to_vec()).expect("visible ASCII");
        let mut request = Seen { connection, head, body: Vec::new() };
        let length: usize = request.header("content-length").map_or(0, |n| n.parse().expect("a number"));
        while buffer.len() < end + length {
            if stream.read_buf(&mut buffer).await.expect("the body follows") == 0 {
                return;
            }
        }
        request.body = buffer[end..end + length].to_vec();
        buffer.drain(..end + length);
        seen.lock().expect("no holder panics").push(request);
        match &answer {
            Answer::Keep(bytes) => stream.write_all(bytes.as_bytes()).await.expect("the client reads"),
            Answer::Close(bytes) => {
                let _client_may_be_gone = stream.write_all(bytes.as_bytes()).await;
                return;
            }
        }
    }
}

fn delivery(draft: &Draft<'_>) -> Delivery {
    let mut frames = Frames::default();
    frames.push(2, draft).expect("a valid draft");
    let frame = frames.iter().next().expect("one was pushed").1;
    Delivery::parse(Bytes::copy_from_slice(frame), 17, 2, 5, 0).expect("just encoded")
}

async fn push(handler: &HttpHandler, draft: &Draft<'_>, number: u32) -> Outcome {
    let (delivery, topic) = (delivery(draft), Arc::from("orders"));
    let attempt = Attempt { delivery: &delivery, topic: &topic, number };
    handler.handle(attempt).await
}

fn plain() -> Draft<'static> {
    Draft { id: "m-1", key: Some(b"user-1"), payload: Some(b"{\"n\": 1}"), ..Draft::default() }
}

fn handler_for(url: &str) -> HttpHandler {
    HttpHandler::new(HttpSettings { allow_private: true, ..HttpSettings::new(url) }).expect("a good URL")
}

async fn answered(answer: Answer) -> Outcome {
    let server = Server::start(answer).await;
    push(&handler_for(&server.url()), &plain(), 1).await
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// ING-5, MSG-1.
#[tokio::test]
async fn a_push_carries_the_payload_byte_for_byte_and_all_that_is_known_about_it() {
    let server = Server::start(Answer::Keep(OK)).await;
    let payload: Vec<u8> = (0..=255).collect();
    let draft = Draft {
        id: "m 1",
        key: Some(b"k%\xff\n"),
        payload: Some(&payload),
        headers: &[("source", b"a b"), ("x:y z", b"\x00"), ("source", b"c")],
        version: Some(7),
        ..Draft::default()
    };
    assert_eq!(push(&handler_for(&server.url()), &draft, 3).await, Outcome::Done);
    let seen = &server.seen()[0];
    assert!(seen.head.starts_with("POST /push?a=b HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.body, payload);
    for (name, value) in [
        ("Keylane-Id", "m%201"),
        ("Keylane-Key", "k%25%FF%0A"),
        ("Keylane-Topic", "orders"),
        ("Keylane-Partition", "2"),
        ("Keylane-Offset", "17"),
        ("Keylane-Attempt", "3"),
        ("Keylane-Epoch", "5"),
        ("Keylane-Version", "7"),
        ("Keylane-Header-source", "a%20b"),
        ("Keylane-Header-x%3Ay%20z", "%00"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{}", seen.head);
    }
    let sources = seen.head.matches("keylane-header-source: ").count();
    assert_eq!(sources, 2, "a header given twice is sent twice");
    assert_eq!(seen.header("traceparent").map(str::len), Some(55));
}

/// ING-5, MSG-2.
#[tokio::test]
async fn what_a_message_does_not_have_is_left_out() {
    let server = Server::start(Answer::Keep(OK)).await;
    let handler = handler_for(&server.url());
    let keyless = Draft { id: "a", ..Draft::default() };
    let empty_key = Draft { key: Some(b""), ..keyless };
    assert_eq!(push(&handler, &keyless, 1).await, Outcome::Done);
    assert_eq!(push(&handler, &empty_key, 1).await, Outcome::Done);
    let seen = server.seen();
    assert_eq!(seen[0].header("Keylane-Key"), None);
    assert_eq!(seen[0].header("Keylane-Version"), None);
    assert_eq!(seen[0].header("Content-Length"), Some("0"));
    assert!(seen[1].head.contains("keylane-key: \r\n"), "an empty key is a key: {}", seen[1].head);
}

/// ING-5.
#[tokio::test]
async fn a_message_keeps_its_own_trace_and_attempts_share_the_one_that_is_made() {
    let server = Server::start(Answer::Keep(OK)).await;
    let handler = handler_for(&server.url());
    let own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers: [(&str, &[u8]); 1] = [("Traceparent", own.as_bytes())];
    let traced = Draft { headers: &headers, ..plain() };
    push(&handler, &traced, 1).await;
    push(&handler, &plain(), 1).await;
    push(&handler, &plain(), 2).await;
    let seen = server.seen();
    let traces: Vec<&str> = seen.iter().filter_map(|s| s.header("traceparent")).collect();
    assert_eq!(traces[0], own);
    assert_eq!(traces[1][..36], traces[2][..36], "one trace");
    assert_ne!(traces[1][36..], traces[2][36..], "two spans");
}

/// ING-5, RTY-1.
#[tokio::test]
async fn success_is_done_the_three_reject_and_all_else_fails() {
    for (answer, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "done"),
        ("HTTP/1.1 204 No Content\r\n\r\n", "done"),
        ("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "rejected"),
        ("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", "rejected"),
        ("HTTP/1.1 415 Unsupported\r\nContent-Length: 0\r\n\r\n", "failed"),
        ("HTTP/1.1 422 Unprocessable\r\nContent-Length: 0\r\n\r\n", "rejected"),
        ("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "failed"),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "failed"),
        ("HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n", "failed"),
        ("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "failed"),
        ("HTTP/1.1 304 Not Modified\r\n\r\n", "failed"),
    ] {
        let outcome = answered(Answer::Keep(answer)).await;
        let found = match outcome {
            Outcome::Done => "done",
            Outcome::Rejected { .. } => "rejected",
            _ => "failed",
        };
        assert_eq!(found, expected, "{answer}");
    }
}

/// ING-5.
#[tokio::test]
async fn which_statuses_reject_can_be_chosen() {
    let server = Server::start(Answer::Keep("HTTP/1.1 409 Conflict\r\nContent-Length: 3\r\n\r\nold")).await;
    let handler = HttpHandler::new(HttpSettings {
        allow_private: true,
        reject: vec![409],
        ..HttpSettings::new(server.url())
    })
    .expect("a good URL");
    assert_eq!(push(&handler, &plain(), 1).await, Outcome::rejected("answered 409 Conflict: old"));
}

/// ING-5.
#[tokio::test]
async fn a_failure_says_what_was_answered_and_obeys_retry_after() {
    let answer = "HTTP/1.1 503 Unavailable\r\nRetry-After: 3\r\nTransfer-Encoding: chunked\r\n\r\n\
                  4\r\nback\r\n6\r\n soon\n\r\n0\r\n\r\n";
    assert_eq!(
        answered(Answer::Keep(answer)).await,
        Outcome::Failed {
            error: "answered 503 Service Unavailable: back soon".into(),
            retry_after: Some(Duration::from_secs(3)),
        }
    );
}

/// SEC-4, ING-5.
#[tokio::test]
async fn a_redirect_is_a_failure_and_is_not_followed() {
    let target = Server::start(Answer::Keep(OK)).await;
    let answer =
        format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", target.url());
    let outcome = answered(Answer::Keep(answer.leak())).await;
    assert_eq!(outcome, Outcome::failed("answered 307 Temporary Redirect"));
    assert_eq!(target.seen().len(), 0);
}

/// ING-5: a connection serves one push after another, whatever was answered on it.
#[tokio::test]
async fn connections_are_reused_after_bodies_of_every_kind() {
    for answer in [
        OK,
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 422 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 5\r\n\r\nhello",
    ] {
        let server = Server::start(Answer::Keep(answer)).await;
        let handler = handler_for(&server.url());
        for number in 1..=5 {
            push(&handler, &plain(), number).await;
        }
        let connections: Vec<usize> = server.seen().iter().map(|s| s.connection).collect();
        assert_eq!(connections, [0; 5], "{answer}");
    }
}

/// ING-5: little of a long answer is kept, and the next push works all the same.
#[tokio::test]
async fn a_long_answer_is_cut_short() {
    let body = "x".repeat(1 << 20);
    let answer = format!("HTTP/1.1 500 Oops\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let server = Server::start(Answer::Close(answer.leak())).await;
    let handler = handler_for(&server.url());
    for number in 1..=2 {
        let Outcome::Failed { error, .. } = push(&handler, &plain(), number).await else {
            panic!("a 500 is a failure");
        };
        assert!((2_000..3_000).contains(&error.len()), "{} bytes of error", error.len());
    }
}

/// ING-5: without a whole status line and headers there is no answer; with them the status has decided.
#[tokio::test]
async fn a_server_that_closes_before_its_headers_end_has_not_answered() {
    for cut in ["", "HTTP/1.1 20", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", "nonsense\r\n\r\n"] {
        let outcome = answered(Answer::Close(cut)).await;
        assert!(matches!(outcome, Outcome::Failed { .. }), "{cut:?}: {outcome:?}");
    }
}

/// ING-5.
#[tokio::test]
async fn a_body_that_breaks_off_does_not_change_what_the_status_said() {
    let done = "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhalf";
    assert_eq!(answered(Answer::Close(done)).await, Outcome::Done);
    let never_ends = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf";
    assert_eq!(answered(Answer::Keep(never_ends)).await, Outcome::Done);
    let failed = "HTTP/1.1 500 Oops\r\nContent-Length: 500\r\n\r\nhalf";
    assert_eq!(
        answered(Answer::Close(failed)).await,
        Outcome::failed("answered 500 Internal Server Error: half")
    );
}

/// ING-5, SEC-5: a wrong address must not make messages void, and the error must not show the secrets of its query.
#[tokio::test]
async fn nobody_there_is_a_failure_that_says_so() {
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://127.0.0.1:{}/orders", gone.local_addr().expect("bound").port());
    drop(gone);
    let with_secret = format!("{url}?token=secret#secret");
    let Outcome::Failed { error, .. } = push(&handler_for(&with_secret), &plain(), 1).await else {
        panic!("no answer is a failure");
    };
    assert!(error.contains(&url) && error.contains("refused"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

/// SEC-4.
#[tokio::test]
async fn private_addresses_are_called_only_if_that_is_allowed() {
    let server = Server::start(Answer::Keep(OK)).await;
    for host in [
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "10.0.0.1",
        "2130706433",
        "0x7f.1",
        "127.0.0.1.",
        "localhost",
        "LOCALHOST.",
        "app.localhost",
    ] {
        let url = format!("http://{host}:{}/", server.port);
        let error = HttpHandler::new(HttpSettings::new(&url)).err().expect("private");
        assert!(error.what.contains("allow_private"), "{error}");
    }
    assert_eq!(server.seen().len(), 0, "nothing was sent");
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost"] {
        let url = format!("http://{host}:{}/", server.port);
        assert_eq!(push(&handler_for(&url), &plain(), 1).await, Outcome::Done, "{host}");
    }
}

/// SEC-4: the warning comes before the first push.
#[tokio::test]
async fn a_name_that_leads_to_private_addresses_only_is_warned_of() {
    // `localhost` is also refused without a lookup; other names that lead to private addresses get the same warning.
    let named = HttpSettings::new("http://localhost:1/orders?token=hunter2");
    let warning = named.warning().await.expect("it leads to this machine");
    assert!(warning.contains("localhost") && warning.contains("allow_private"), "{warning}");
    assert!(!warning.contains("hunter2"), "{warning}");
    assert_eq!(HttpSettings { allow_private: true, ..named }.warning().await, None);
    assert_eq!(HttpSettings::new("http://no-such-name.invalid/").warning().await, None);
    assert_eq!(HttpSettings::new("http://1.1.1.1/").warning().await, None);
}

/// ING-5, SEC-5.
#[test]
fn a_url_that_cannot_be_pushed_to_is_named() {
    for (url, says) in [
        ("orders", "not a URL"),
        ("ftp://example.com/", "neither http:// nor https://"),
        ("http://", "not a URL"),
        ("https://ada:secret@example.com/", "user name or a password"),
    ] {
        let error = HttpHandler::new(HttpSettings::new(url)).err().expect("a bad URL");
        assert!(error.what.contains(says) && !error.what.contains("secret"), "{error}");
    }
}

/// ING-5: frameworks read a body by its content type.
#[tokio::test]
async fn every_payload_has_a_content_type() {
    let server = Server::start(Answer::Keep(OK)).await;
    let settings = HttpSettings { allow_private: true, ..HttpSettings::new(server.url()) };
    let plain_handler = HttpHandler::new(settings.clone()).expect("good settings");
    let told = HttpSettings { content_type: Some("text/csv".to_owned()), ..settings };
    let told = HttpHandler::new(told).expect("good settings");
    let own: [(&str, &[u8]); 1] = [("Content-Type", b"application/xml; charset=utf-8")];
    let odd: [(&str, &[u8]); 1] = [("content-type", b"a\nb")];
    let with = |payload, headers| Draft { id: "a", payload, headers, ..Draft::default() };
    for (handler, draft, expected) in [
        (&plain_handler, with(Some(&b"{\"n\": 1}"[..]), &[][..]), Some("application/json")),
        (&plain_handler, with(Some(b" 7 "), &[]), Some("application/json")),
        (&plain_handler, with(Some(b"{\"n\": 1"), &[]), Some("application/octet-stream")),
        (&plain_handler, with(Some(b""), &[]), Some("application/octet-stream")),
        // Bytes that are no text, though a reader that only looks for the quotes would not see it.
        (&plain_handler, with(Some(b"\"\xff\xfe\""), &[]), Some("application/octet-stream")),
        (&plain_handler, with(Some(b"{\"n\": \"\xed\xa0\x80\"}"), &[]), Some("application/octet-stream")),
        (&plain_handler, with(Some("{\"n\": \"\u{e9}\"}".as_bytes()), &[]), Some("application/json")),
        (&plain_handler, with(Some(b"7"), &odd), Some("application/json")),
        (&plain_handler, with(Some(b"7"), &own), Some("application/xml; charset=utf-8")),
        (&plain_handler, with(None, &[]), None),
        (&told, with(Some(b"7"), &[]), Some("text/csv")),
        (&told, with(Some(b"7"), &own), Some("application/xml; charset=utf-8")),
    ] {
        assert_eq!(push(handler, &draft, 1).await, Outcome::Done);
        let seen = server.seen();
        let seen = seen.last().expect("just pushed");
        assert_eq!(seen.header("Content-Type"), expected, "{draft:?}");
        assert_eq!(
            seen.head.to_ascii_lowercase().matches("\r\ncontent-type:").count(),
            usize::from(expected.is_some())
        );
    }
}

/// ING-5, SEC-5: a receiver can tell Keylane from a stranger.
#[tokio::test]
async fn a_push_carries_the_headers_of_the_config_and_its_signature() {
    let server = Server::start(Answer::Keep(OK)).await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let settings = HttpSettings {
        allow_private: true,
        headers: vec![("Authorization".to_owned(), "Bearer hunter2".to_owned())],
        sign: Some(secret.to_owned()),
        ..HttpSettings::new(server.url())
    };
    assert!(!format!("{settings:?}").contains("hunter2") && !format!("{settings:?}").contains(secret));
    let handler = HttpHandler::new(settings).expect("good settings");
    let draft = Draft { id: "m 1", ..plain() };
    assert_eq!(push(&handler, &draft, 1).await, Outcome::Done);
    assert_eq!(push(&handler, &draft, 2).await, Outcome::Done);
    for seen in server.seen() {
        assert_eq!(seen.header("Authorization"), Some("Bearer hunter2"));
        assert_eq!(seen.header("webhook-id"), Some("m%201"), "all attempts have one id");
        let at_s: u64 = seen.header("webhook-timestamp").expect("a time").parse().expect("seconds");
        let mut again = HeaderMap::new();
        Signer::new(secret)
            .expect("a secret")
            .sign(&mut again, "m%201", at_s, &seen.body)
            .expect("it can be sent");
        assert_eq!(seen.header("webhook-signature"), again["webhook-signature"].to_str().ok());
    }
}

/// ING-5, SEC-5.
#[test]
fn settings_that_cannot_be_used_are_named() {
    let with = |change: fn(&mut HttpSettings)| {
        let mut settings = HttpSettings::new("https://example.com/");
        change(&mut settings);
        HttpHandler::new(settings).err().expect("wrong settings")
    };
    let header = |settings: &mut HttpSettings, name: &str, value: &str| {
        settings.headers = vec![(name.to_owned(), value.to_owned())];
    };
    for (error, setting, says) in [
        (
            with(|settings| settings.content_type = Some("json".to_owned())),
            "content_type",
            "application/json",
        ),
        (with(|settings| settings.sign = Some("hunter2".to_owned())), "sign", "openssl rand"),
        (with(|settings| settings.ca = Some("nothing".to_owned())), "ca", "no certificate"),
        (with(|settings| settings.identity = Some((String::new(), String::new()))), "cert", "no certificate"),
    ] {
        assert_eq!(error.setting, setting);
        assert!(error.what.contains(says) && !error.what.contains("hunter2"), "{error}");
    }
    for (name, value, says) in [
        ("Content-Type", "a/b", "`content_type`"),
        ("Keylane-Id", "1", "sets itself"),
        ("webhook-id", "1", "sets itself"),
        ("Host", "a", "sets itself"),
        ("a b", "hunter2", "cannot be the name"),
        ("a", "hunter2\r\nb: c", "control character"),
    ] {
        let mut settings = HttpSettings::new("https://example.com/");
        header(&mut settings, name, value);
        let error = HttpHandler::new(settings).err().expect("wrong settings");
        assert_eq!(error.setting, "headers");
        assert!(error.what.contains(says) && !error.what.contains("hunter2"), "{error}");
    }
    let plain = HttpSettings { ca: Some(String::new()), ..HttpSettings::new("http://example.com/") };
    assert!(HttpHandler::new(plain).err().expect("no certificate").what.contains("http://"));
}
