//! Accepts connections, bounds their number and their time, and closes them (SEC-2).
//!
//! The server speaks HTTP/1.1 through hyper, whose timer covers the wait for a request's head on new and on idle
//! connections. A connection past the bound gets the answer 503 and is closed, so that its client learns the reason.
//! Requests of monitoring are answered even then, on a few reserved connections that must be quick.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use keylane::ErrorCode;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tower_service::Service;

use super::app::{App, Phase};
use super::file_limit::KEPT_BACK;
use super::leftover_body::LeftoverBody;
use super::linger::Linger;
use super::raw_stream::{HEAD_BYTES_MAX, RawStream, SentHead};
use super::refused_requests::Seen;
use super::request_head;
use super::tasks::{AGAIN, ServerTask, Tasks};
use super::write_timeout::WriteTimeout;
use crate::config::ServerConfig;
use crate::http::{Problem, Who, router};

/// Headers of a request at most.
pub(super) const HEADERS_MAX: usize = 100;
/// Bytes of a connection's read buffer at most, while a body arrives.
const BUFFER_BYTES_MAX: usize = 256 * 1024;
/// How long a client past the bound may take to send its request and to read its answer.
const BRIEF: Duration = Duration::from_secs(1);
/// Paths that are answered even past the bound, for monitoring.
const WATCHED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// Time between two log lines about refused connections at least.
const REFUSALS_TOLD_MS: u64 = 60_000;
/// How long the server waits for the rest of an unread body before it answers. If the rest arrives in time, as it does
/// for a short body, the connection can be kept. A longer wait would delay an answer that is already known.
const AT_HAND: Duration = Duration::from_millis(20);
/// Pause after a failed accept, mostly because no file descriptor is free. Without it the loop would spin on the same
/// failure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The connections that are still open when the server stops accepting.
pub(crate) struct Connections {
    graceful: GracefulShutdown,
    tasks: Tasks,
    places: Arc<Semaphore>,
}

impl Connections {
    /// Closes idle connections at once, waits at most `max` for running requests, and then closes the rest.
    pub(crate) async fn close(mut self, max: Duration) {
        let _ = tokio::time::timeout(max, self.graceful.shutdown()).await;
        self.tasks.end().await;
    }
}

/// Accepts connections until the server is closing. After a panic it begins anew, with the connections that are there.
pub(crate) async fn accept(listener: TcpListener, app: Arc<App>, config: ServerConfig) -> Connections {
    let places = Arc::new(Semaphore::new(config.connections));
    let mut connections = Connections { graceful: GracefulShutdown::new(), tasks: Tasks::default(), places };
    loop {
        let accepting = accept_into(&mut connections, &listener, &app, &config);
        match app.ended_tasks.supervise(ServerTask::Accept, accepting).await {
            Ok(()) => return connections,
            // Clients wait in the listener meanwhile.
            Err(_told) => tokio::time::sleep(AGAIN).await,
        }
    }
}

async fn accept_into(
    connections: &mut Connections,
    listener: &TcpListener,
    app: &Arc<App>,
    config: &ServerConfig,
) {
    let mut phase = app.phase.subscribe();
    let router = router(Arc::clone(app));
    let mut beyond = Beyond::default();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(config.idle_timeout)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    loop {
        let accepted = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase == Phase::Closing) => return,
            // Remove tasks that have ended; otherwise the set would grow with every connection.
            () = connections.tasks.one_ends() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Answers are small, and clients wait for them. With Nagle's algorithm, an answer could wait for the client's
        // delayed acknowledgement.
        let _ = stream.set_nodelay(true);
        match Arc::clone(&connections.places).try_acquire_owned() {
            Ok(place) => {
                let (asked, linger) = (Asked::by(peer, app, &router), Linger::default());
                let stream =
                    RawStream::new(WriteTimeout::new(stream, config.idle_timeout), asked.head.clone());
                let left = linger.clone();
                let service = service_fn(move |request| asked.clone().answer(left.clone(), request));
                let connection = http.serve_connection(TokioIo::new(stream), service);
                let connection = connections.graceful.watch(connection);
                let run = run(linger.during(connection), place);
                connections.tasks.spawn(supervised(Arc::clone(app), run));
            }
            Err(_) => {
                let gone = beyond.one_more(app, config.connections);
                let asked = Asked::by(peer, app, &router);
                let brief = brief(stream, asked, config.connections, gone);
                connections.tasks.spawn(supervised(Arc::clone(app), brief));
            }
        }
    }
}

/// Connections past the bound.
#[derive(Default)]
struct Beyond {
    /// When the last log line about refused connections was written.
    told_ms: Option<u64>,
    /// The newest of these connections. Dropping a sender closes its connection.
    newest: VecDeque<oneshot::Sender<()>>,
}

impl Beyond {
    /// Counts a connection past the bound, and logs it now and then. The receiver ends when newer connections need this
    /// one's place: clients that connect and send nothing must not keep out clients that ask at once.
    fn one_more(&mut self, app: &App, connections_max: usize) -> oneshot::Receiver<()> {
        app.metrics.connection_refused();
        let now_ms = app.clock.now_ms();
        if self.told_ms.is_none_or(|told_ms| now_ms >= told_ms + REFUSALS_TOLD_MS) {
            self.told_ms = Some(now_ms);
            tracing::warn!(
                max = connections_max,
                "connections are refused: as many as server.connections allows are open. keylane_http_connections_refused_total counts them"
            );
        }
        if self.newest.len() >= KEPT_BACK {
            self.newest.pop_front();
        }
        let (place, gone) = oneshot::channel();
        self.newest.push_back(place);
        gone
    }
}

/// Runs a connection. A panic where a request is answered ends its connection, and no other.
async fn supervised(app: Arc<App>, connection: impl Future<Output = ()>) {
    let _told = app.ended_tasks.supervise(ServerTask::Connection, connection).await;
}

/// Runs a connection to its end. A client that goes away or breaks the protocol is only worth a debug line.
async fn run<E: std::fmt::Display>(
    connection: impl Future<Output = Result<(), E>>,
    _place: OwnedSemaphorePermit,
) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// What is needed to answer the requests of one connection.
#[derive(Clone)]
struct Asked {
    app: Arc<App>,
    router: Router,
    peer: SocketAddr,
    head: SentHead,
}

impl Asked {
    fn by(peer: SocketAddr, app: &Arc<App>, router: &Router) -> Asked {
        Asked { app: Arc::clone(app), router: router.clone(), peer, head: SentHead::default() }
    }

    /// Answers one request: checks the caller's rights, calls the route, and records the answer and its duration.
    async fn answer(
        mut self,
        linger: Linger,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let app = &self.app;
        let started_us = app.clock.now_us();
        // A client that sends `Expect: 100-continue` has not sent its body yet, so there is nothing to discard.
        let asks_first = request.headers().contains_key(header::EXPECT);
        let (mut parts, body) = request.into_parts();
        let seen = Seen::of(&parts, self.peer);
        let (who, allowed) = match request_head::check(&parts, &self.head) {
            Ok(()) => app.access.check(&parts.method, &parts.uri, &parts.headers, self.peer),
            Err(problem) => (Who::unknown(), Err(problem)),
        };
        let may = allowed.is_ok();
        parts.extensions.insert(who.clone());
        let is_last = request_head::is_last(&parts, &self.head);
        let rest = LeftoverBody::new(body);
        let mut response = match allowed {
            Ok(()) => self.router.call(Request::from_parts(parts, rest.body())).await?,
            Err(problem) => problem.into_response(),
        };
        app.refused.tell(app, &seen, &who, may, &response);
        let gave_up = response.status() == StatusCode::REQUEST_TIMEOUT;
        let mut ends = is_last;
        if !asks_first && !gave_up && !rest.is_read() {
            let _longer = tokio::time::timeout(AT_HAND, app.bodies.discard(rest.body())).await;
            if !rest.is_read() {
                ends = true;
                linger.leave(rest.body());
            }
        }
        if ends {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        self.head.next();
        let took_us = app.clock.now_us() - started_us;
        app.metrics.answered(seen.route, response.status().as_u16(), took_us);
        Ok(response)
    }
}

/// Serves a connection past the bound: answers requests of monitoring, and any other request with 503. Then it reads
/// what the client has sent meanwhile, because closing on unread bytes would lose the answer, and closes.
async fn brief(stream: TcpStream, asked: Asked, connections_max: usize, gone: oneshot::Receiver<()>) {
    let linger = Linger::default();
    let left = linger.clone();
    let stream = RawStream::new(stream, asked.head.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (asked, left) = (asked.clone(), left.clone());
        async move {
            if WATCHED.contains(&request.uri().path()) {
                return asked.answer(left, request).await;
            }
            let problem = Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                ErrorCode::TooManyConnections,
                "there is no room now",
                format!("{connections_max} connections are open already (server.connections)"),
            );
            Ok::<_, Infallible>(problem.into_response())
        }
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        _ = gone => {}
        _ended = tokio::time::timeout(BRIEF, linger.during(connection)) => {}
    }
}
