//! Answers requests while the broker is being opened (ING-8). After a crash, reading a large log takes minutes, and a
//! supervisor that gets no answer from `/healthz` would kill the process.
//!
//! Most brokers open within a second. For that long, connections wait in the listener, so that a client that comes
//! early is served by the opened server and not refused. After that second, `/healthz` is answered with 200 and every
//! other path with 503. Each connection gets one answer and is closed, because the next request may find the server
//! open.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use keylane::ErrorCode;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::tasks::Tasks;
use crate::http::{Problem, alive};

/// Connections that are served at the same time: monitoring, and a few early clients. Others wait in the listener.
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take to send its request and to read its answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long no request is answered at first, because the broker may be open by then. Supervisors wait longer than this.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause after a failed accept, so that the loop does not spin on the same failure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Waits for `opening`, and meanwhile answers requests on `listener`.
pub(super) async fn meanwhile<T>(listener: &TcpListener, opening: impl Future<Output = T>) -> T {
    let mut opening = pin!(opening);
    if let Ok(opened) = tokio::time::timeout(PATIENCE, &mut opening).await {
        return opened;
    }
    let (places, mut tasks) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Tasks::default());
    let opened = loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
            (listener.accept().await, place)
        };
        tokio::select! {
            biased;
            opened = &mut opening => break opened,
            () = tasks.one_ends() => {}
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => tasks.spawn(answer(stream, place)),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    };
    // Each connection ends within `ANSWER_MAX`, so the server need not wait longer.
    let _all_places = tokio::time::timeout(ANSWER_MAX, places.acquire_many(CONNECTIONS_MAX as u32)).await;
    tasks.end().await;
    opened
}

async fn answer(stream: TcpStream, _place: OwnedSemaphorePermit) {
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<Response<Body>, Infallible>(match request.uri().path() {
            "/healthz" => alive().await,
            _ => opening().into_response(),
        })
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    let _late = tokio::time::timeout(ANSWER_MAX, connection).await;
}

fn opening() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Starting,
        "the server is starting",
        "the server is opening its broker, which takes a while for a large log; ask again in a moment",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    async fn ask(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers and closes");
        answer
    }

    /// ING-8: while a log takes minutes to open, `/healthz` says that the process is alive.
    #[tokio::test]
    async fn a_server_that_is_opening_its_log_says_that_it_is_alive_and_not_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (open, opened) = oneshot::channel();
        let asks = async {
            for _ in 0..3 {
                assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200 "));
            }
            let ready = ask(address, "/readyz").await;
            assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("KL-1221"), "{ready}");
            open.send(7).expect("it is waited for");
        };
        let (opened, ()) = tokio::join!(meanwhile(&listener, opened), asks);
        assert_eq!(opened, Ok(7));
    }

    /// ING-8: if the log opens at once, a client that asked before is answered by the opened server, and not refused.
    #[tokio::test]
    async fn a_server_that_opens_at_once_refuses_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (open, opened) = oneshot::channel();
        let early = async {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("it reads");
            open.send(7).expect("it is waited for");
            stream
        };
        let (opened, _early) = tokio::join!(meanwhile(&listener, opened), early);
        assert_eq!(opened, Ok(7));
        let (mut stream, _) = listener.accept().await.expect("the early one still waits");
        let mut asked = [0; 3];
        stream.read_exact(&mut asked).await.expect("what it asked");
        assert_eq!(&asked, b"GET");
    }
}
