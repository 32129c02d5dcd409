//! Connections: accepted, bounded, timed, closed (SEC-2).
//!
//! HTTP/1.1 on hyper, whose timer covers the wait for a request's head, on a new connection and on an idle one. Past
//! the bound a connection is told 503 and closed: a client that waits in silence learns nothing. Whoever watches over
//! the server is answered all the same, on connections that are kept back for that and must be quick.

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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

use crate::app::{App, Phase};
use crate::config::ServerConfig;
use crate::head;
use crate::linger::Linger;
use crate::patient::Patient;
use crate::problem::Problem;
use crate::rest::Rest;
use crate::routes;
use crate::tasks::Tasks;

/// Bytes of a request's head: many times what any client sends, and little beside a body.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Headers of a request.
const HEADERS_MAX: usize = 100;
/// A connection's read buffer grows to this while a body comes in.
const BUFFER_BYTES_MAX: usize = 256 * 1024;
/// Connections past the bound that are served at once, each with one answer; any further one is closed without a word.
const KEPT_BACK: usize = 512;
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
}

impl Connections {
    /// Lets requests under way end, at most `max` long; idle connections close at once, and in the end all do.
    pub(crate) async fn close(mut self, max: Duration) {
        let _ = tokio::time::timeout(max, self.graceful.shutdown()).await;
        self.tasks.end().await;
    }
}

/// Accepts connections until the server is closing.
pub(crate) async fn accept(listener: TcpListener, app: Arc<App>, config: ServerConfig) -> Connections {
    let mut connections = Connections { graceful: GracefulShutdown::new(), tasks: Tasks::default() };
    let mut phase = app.phase.subscribe();
    let router = routes::router(Arc::clone(&app));
    let places = Arc::new(Semaphore::new(config.connections));
    let (kept_back, mut told_ms) = (Arc::new(Semaphore::new(KEPT_BACK)), None::<u64>);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(config.idle_timeout)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Those that have ended are let go of, or the set would grow with every connection there ever was.
            () = connections.tasks.one_ends() => continue,
            _ = phase.wait_for(|phase| *phase == Phase::Closing) => return connections,
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
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => {
                let (app, router, linger) = (Arc::clone(&app), router.clone(), Linger::default());
                let left = linger.clone();
                let service = service_fn(move |request| {
                    answer(Arc::clone(&app), router.clone(), peer, left.clone(), request)
                });
                let stream = Patient::new(stream, config.idle_timeout);
                let connection = http.serve_connection(TokioIo::new(stream), service);
                let connection = connections.graceful.watch(connection);
                connections.tasks.spawn(run(linger.during(connection), place));
            }
            Err(_) => {
                app.metrics.connection_refused();
                let now_ms = app.clock.now_ms();
                if told_ms.is_none_or(|told_ms| now_ms >= told_ms + REFUSALS_TOLD_MS) {
                    told_ms = Some(now_ms);
                    let max = config.connections;
                    tracing::warn!(
                        max,
                        "connections are refused: as many as server.connections allows are open"
                    );
                }
                if let Ok(place) = Arc::clone(&kept_back).try_acquire_owned() {
                    let (app, router) = (Arc::clone(&app), router.clone());
                    connections.tasks.spawn(brief(stream, app, router, peer, config.connections, place));
                }
            }
        }
    }
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

/// One request: who asks, what is answered, how long it took.
async fn answer(
    app: Arc<App>,
    mut router: Router,
    peer: SocketAddr,
    linger: Linger,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let started_us = app.clock.now_us();
    let route = routes::label(request.uri().path());
    // A client that asks first has not sent anything yet, and need not.
    let asks_first = request.headers().contains_key(header::EXPECT);
    let (parts, body) = request.into_parts();
    let allowed =
        head::check(&parts).and_then(|()| app.access.check(&parts.method, &parts.uri, &parts.headers, peer));
    let rest = Rest::new(body);
    let mut response = match allowed {
        Ok(()) => router.call(Request::from_parts(parts, rest.body())).await?,
        Err(problem) => problem.into_response(),
    };
    let gave_up = response.status() == StatusCode::REQUEST_TIMEOUT;
    if !asks_first && !gave_up && !rest.is_read() {
        let _longer = tokio::time::timeout(AT_HAND, app.bodies.discard(rest.body())).await;
        if !rest.is_read() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            linger.leave(rest.body());
        }
    }
    let took_us = app.clock.now_us() - started_us;
    app.metrics.answered(route, response.status().as_u16(), took_us);
    Ok(response)
}

/// Answers whoever watches over the server, and tells any other client that there is no place; takes what it has sent
/// meanwhile (a close on unread bytes would throw the answer away), and closes.
async fn brief(
    stream: TcpStream,
    app: Arc<App>,
    router: Router,
    peer: SocketAddr,
    connections_max: usize,
    _place: OwnedSemaphorePermit,
) {
    let linger = Linger::default();
    let left = linger.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (app, router, left) = (Arc::clone(&app), router.clone(), left.clone());
        async move {
            if WATCHED.contains(&request.uri().path()) {
                return answer(app, router, peer, left, request).await;
            }
            let problem = Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "KL-1217",
                "there is no room now",
                format!("{connections_max} connections are open already (server.connections)"),
            );
            Ok::<_, Infallible>(problem.into_response())
        }
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(BRIEF, linger.during(connection)).await;
}
