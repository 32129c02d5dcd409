//! Connections: accepted, bounded, timed, closed (SEC-2).
//!
//! HTTP/1.1 on hyper, whose timer covers the wait for a request's head, on a new connection and on an idle one. Past
//! the bound a connection is told 503 and closed: a client that waits in silence learns nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
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
/// Connections that are being told 503 at once; any further one is closed without a word.
const REFUSALS_MAX: usize = 64;
/// How long a refused client gets to take its answer.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
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
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
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
                let (app, router) = (Arc::clone(&app), router.clone());
                let service =
                    service_fn(move |request| answer(Arc::clone(&app), router.clone(), peer, request));
                let stream = Patient::new(stream, config.idle_timeout);
                let connection = http.serve_connection(TokioIo::new(stream), service);
                let connection = connections.graceful.watch(connection);
                connections.tasks.spawn(run(connection, place));
            }
            Err(_) => {
                if let Ok(refusal) = Arc::clone(&refusals).try_acquire_owned() {
                    connections.tasks.spawn(refuse(stream, config.connections, refusal));
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
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let started_us = app.clock.now_us();
    let route = routes::label(request.uri().path());
    let allowed = app.access.check(request.method(), request.uri(), request.headers(), peer);
    // A client that asks first has not sent anything yet, and need not.
    let asks_first = request.headers().contains_key(header::EXPECT);
    let (parts, body) = request.into_parts();
    let rest = Rest::new(body);
    let response = match allowed {
        Ok(()) => router.call(Request::from_parts(parts, rest.body())).await?,
        Err(problem) => problem.into_response(),
    };
    let gave_up = response.status() == StatusCode::REQUEST_TIMEOUT;
    if !asks_first && !gave_up && !rest.is_read() {
        app.bodies.discard(rest.body()).await;
    }
    let took_us = app.clock.now_us() - started_us;
    app.metrics.answered(route, response.status().as_u16(), took_us);
    Ok(response)
}

/// Tells a client that there is no place, takes what it has sent meanwhile (a close on unread bytes would throw the
/// answer away), and closes.
async fn refuse(stream: TcpStream, connections_max: usize, _refusal: OwnedSemaphorePermit) {
    let service = service_fn(move |_: Request<Incoming>| async move {
        let problem = Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "KL-1217",
            "there is no room now",
            format!("{connections_max} connections are open already (server.connections)"),
        );
        Ok::<_, Infallible>(problem.into_response())
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(REFUSAL_MAX, connection).await;
}
