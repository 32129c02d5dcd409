//! Measures PRF-11: ingest over HTTP, with one message a request, and as NDJSON.
//!
//! Raw limit of the first: axum's hello world, under the same load, in turns. NDJSON is measured on a broker that
//! acknowledges at once (messages are parsed, checked, encoded and answered, but not kept), and on the embedded broker
//! (durable).

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use keylane::Keylane;
use keylane::raw::{Clock, Tasks};
use keylane_server::{Config, Server};
use tokio::runtime::Runtime;

use crate::broker::{SourceBroker, TOPIC};
use crate::client;
use crate::flow::Flow;
use crate::machine::runtime;
use crate::source::{Draw, Source};
use crate::{Error, Figure, Options, Target};

const CONNECTIONS: usize = 256;
/// Enough to keep both cores busy, few enough that their batches lie in the CPU's cache.
const NDJSON_CONNECTIONS: usize = 8;
const LINES: usize = 1_000;
const WINDOW: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;
const JSON: &str = "application/json";
pub(crate) const NDJSON: &str = "application/x-ndjson";

pub(crate) fn run(options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let folder = tempfile::tempdir_in(&options.folder)?;
    let (bare, ours, load) = (runtime("raw")?, runtime("ours")?, runtime("load")?);
    let hello = bare.block_on(hello())?;
    let durable = ours.block_on(serve(Some(folder.path())))?;
    let kept_nowhere = ours.block_on(serve(None))?;
    let one = client::post(&path(), JSON, message(7).as_bytes()).into();
    let (mut raw, mut single) = (0f64, 0f64);
    for _ in 0..ROUNDS {
        raw = raw.max(client::rate(&load, hello, &one, CONNECTIONS, WINDOW)?);
        single = single.max(client::rate(&load, durable.address(), &one, CONNECTIONS, WINDOW)?);
    }
    report(Figure::beside(
        "PRF-11",
        "ingest, a message a request, durable",
        "requests a second",
        single,
        raw,
        Target::RatioAtLeast(0.85),
    ));
    report(
        Figure::alone(
            "PRF-11",
            "ingest, NDJSON, validated",
            "messages a second",
            lines(&load, kept_nowhere.address())?,
            Target::AtLeast(2e6),
        )
        .note("the load is made on the same cores"),
    );
    report(
        Figure::alone(
            "PRF-11",
            "ingest, NDJSON, durable",
            "messages a second",
            lines(&load, durable.address())?,
            Target::AtLeast(1e6),
        )
        .note("the load is made on the same cores"),
    );
    stop(&ours, durable)?;
    stop(&ours, kept_nowhere)
}

fn path() -> String {
    path_of(TOPIC)
}

/// The path to which messages of a topic are posted.
pub(crate) fn path_of(topic: &str) -> String {
    format!("/v1/topics/{topic}/messages")
}

fn message(key: usize) -> String {
    let filler = "x".repeat(150);
    format!(r#"{{"key":"key-{key}","payload":{{"n":{key},"filler":"{filler}"}}}}"#)
}

/// The best of several rounds of NDJSON.
fn lines(load: &Runtime, address: SocketAddr) -> Result<f64, Error> {
    let body: Vec<String> = (0..LINES).map(message).collect();
    let request = client::post(&path(), NDJSON, body.join("\n").as_bytes()).into();
    let mut best = 0f64;
    for _ in 0..ROUNDS {
        let requests = client::rate(load, address, &request, NDJSON_CONNECTIONS, WINDOW)?;
        best = best.max(requests * LINES as f64);
    }
    Ok(best)
}

/// Reads the body, as any handler of a POST must, and says hello.
async fn hello() -> Result<SocketAddr, Error> {
    let app = Router::new().route(&path(), post(|_body: bytes::Bytes| async { "Hello, World!" }));
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// A server on the embedded broker in `folder`, or on a broker that keeps nothing.
async fn serve(folder: Option<&Path>) -> Result<Server, Error> {
    let keylane = match folder {
        Some(folder) => Keylane::open_embedded(folder).await?,
        None => {
            let broker = SourceBroker::new(&Source::new(16, Draw::InTurn), &Arc::<Flow>::default());
            Keylane::with_broker(Arc::new(broker), Clock::system(), Tasks::default(), true)
        }
    };
    serve_on(keylane).await
}

/// A server on a free port.
pub(crate) async fn serve_on(keylane: Keylane) -> Result<Server, Error> {
    let mut config = Config::default();
    config.server.listen = (Ipv4Addr::LOCALHOST, 0).into();
    Server::start_on(config, keylane).await.map_err(|error| Error::Answer(error.to_string()))
}

pub(crate) fn stop(runtime: &Runtime, server: Server) -> Result<(), Error> {
    runtime.block_on(server.stop()).map_err(|error| Error::Answer(error.to_string()))
}
