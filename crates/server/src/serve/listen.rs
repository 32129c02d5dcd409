//! Connections: accepted, bounded, timed, closed (SEC-2).
//!
//! HTTP/1.1 on hyper, whose timer covers the wait for a request's head, on a new connection and on an idle one. Past
//! the bound a connection is told 503 and closed: a client that waits in silence learns nothing. Whoever watches over
//! the server is answered all the same, on connections that are kept back for that and must be quick.

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
use super::request_head;
use super::tasks::{AGAIN, ServerTask, Tasks};
use super::write_timeout::WriteTimeout;
use crate::config::ServerConfig;
use crate::http::{Problem, label, router};

/// Headers of a request.
pub(super) const HEADERS_MAX: usize = 100;
/// A connection's read buffer grows to this while a body comes in.
const BUFFER_BYTES_MAX: usize = 256 * 1024;
/// How long such a client gets to ask and to take its answer.
const BRIEF: Duration = Duration::from_secs(1);
/// What is answered past the bound.
const WATCHED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// That connections are refused is logged this often at most.
const REFUSALS_TOLD_MS: u64 = 60_000;
/// What is left of a short body comes within this, and the connection can be kept. Nobody waits longer for an answer
/// that is known.
const AT_HAND: Duration = Duration::from_millis(20);
/// After a failed accept (mostly: no file descriptors left) this long passes before the next one, or the loop would
/// spin on the same failure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is still connected when accepting has ended.
pub(crate) struct Connections {
    graceful: GracefulShutdown,
    tasks: Tasks,
    places: Arc<Semaphore>,
}

impl Connections {
    /// Lets requests under way end, at most `max` long; idle connections close at once, and in the end all do.
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
            // Those that have ended are let go of, or the set would grow with every connection there ever was.
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
        // Answers are small and waited for; without this each may wait for an acknowledgement that is being delayed.
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
    /// When it was logged last that there are some.
    told_ms: Option<u64>,
    /// The newest of them; whoever is dropped here is closed.
    newest: VecDeque<oneshot::Sender<()>>,
}

impl Beyond {
    /// Counts one more, and says so now and then. The answer tells the connection when newer ones need its place: clients
    /// that connect and say nothing must not keep out whoever asks at once.
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

/// A panic where a request is answered ends its connection, and no other.
async fn supervised(app: Arc<App>, connection: impl Future<Output = ()>) {
    let _told = app.ended_tasks.supervise(ServerTask::Connection, connection).await;
}

/// A connection to its end. A client that goes away or breaks the protocol is no event of ours.
async fn run<E: std::fmt::Display>(
    connection: impl Future<Output = Result<(), E>>,
    _place: OwnedSemaphorePermit,
) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// What a connection's requests are answered with.
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

    /// One request: who asks, what is answered, how long it took.
    async fn answer(
        mut self,
        linger: Linger,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let app = &self.app;
        let started_us = app.clock.now_us();
        let route = label(request.uri().path());
        // A client that asks first has not sent anything yet, and need not.
        let asks_first = request.headers().contains_key(header::EXPECT);
        let (parts, body) = request.into_parts();
        let allowed = request_head::check(&parts, &self.head)
            .and_then(|()| app.access.check(&parts.method, &parts.uri, &parts.headers, self.peer));
        let is_last = request_head::is_last(&parts, &self.head);
        let rest = LeftoverBody::new(body);
        let mut response = match allowed {
            Ok(()) => self.router.call(Request::from_parts(parts, rest.body())).await?,
            Err(problem) => problem.into_response(),
        };
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
        app.metrics.answered(route, response.status().as_u16(), took_us);
        Ok(response)
    }
}

/// Answers whoever watches over the server, and tells any other client that there is no place; takes what it has sent
/// meanwhile (a close on unread bytes would throw the answer away), and closes.
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
