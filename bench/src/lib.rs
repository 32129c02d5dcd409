//! Measures every figure of Keylane beside its raw limit, in the same process and run (SPEC's PRF table).
//!
//! Each figure has a file. Raw limit and Keylane take turns, the best of several rounds counts, and CPU time is
//! compared wherever the table says so: on a shared machine only ratios within one run mean anything. Exceptions are:
//!
//! - PRF-4, latency: in turns, but the median of the windows' p50 and p99.
//! - PRF-5, memory: read once; it has no raw limit.
//! - PRF-6, ledger: in turns, but the low quartile of many small slices. Encoded sizes are counted once: they are
//!   exact.
//! - PRF-13, end to end: one window; its raw limit is the median of syncs before and after.
//! - PRF-14, start: after a kill once, since only the first start finds what a kill leaves; closed, in turns.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark reads clocks, and compares with bare tasks and threads"
)]

mod allocator;
mod append;
mod bare;
mod broker;
mod client;
mod disk;
mod dispatch;
mod end_to_end;
mod figure;
mod finished;
mod flow;
mod histogram;
mod ingest;
mod kafka;
mod latency;
mod ledger;
mod machine;
mod memory;
mod share;
mod source;
mod start;
mod timer;
mod waiting;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use keylane::raw::{Clock, Tasks};
use keylane::status::PartitionState;
use keylane::{Handler, Keylane, Pipeline, Settings};

use crate::broker::{SourceBroker, TOPIC};

pub use allocator::Allocator;
pub use figure::{Figure, HEAD, Target, table};
pub use kafka::peer::{Job, measure as measure_peer};
pub use start::fill;

/// Figures that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// In process, without I/O: dispatch, waiting handlers, latency, memory, ledger.
    Dispatch,
    /// The embedded broker: append, scan, end to end, start.
    Embedded,
    /// HTTP ingest.
    Ingest,
    /// A Kafka cluster: consume, produce, slow handlers.
    Kafka,
}

impl Suite {
    /// The suite's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Dispatch => "dispatch",
            Suite::Embedded => "embedded",
            Suite::Ingest => "ingest",
            Suite::Kafka => "kafka",
        }
    }
}

/// What a benchmark needs from its caller.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder for logs while they are measured; it must lie on the disk that is to be measured.
    pub folder: PathBuf,
    /// A program with its arguments that calls [`fill`] with the folder in its last argument, until it is killed.
    pub filler: Vec<String>,
    /// A Kafka cluster, as `host:port`, separated by commas.
    pub brokers: Option<String>,
}

/// Why measuring failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, a socket or a thread failed.
    #[error("the benchmark could not go on: {0}")]
    Io(#[from] std::io::Error),
    /// Keylane failed.
    #[error("the benchmark could not go on: {0}")]
    Keylane(#[from] keylane::Error),
    /// A broker failed.
    #[error("the benchmark could not go on: {0}")]
    Broker(String),
    /// A server under load gave a wrong answer.
    #[error("the benchmark could not go on: a server answered: {0}")]
    Answer(String),
    /// Kafka is to be measured, and the caller named no cluster.
    #[error(
        "no Kafka cluster is given: use --brokers HOST:PORT or set KEYLANE_KAFKA; `dev/services up kafka` starts one and prints what to set"
    )]
    NoCluster,
    /// Messages that were acknowledged did not reach their handlers.
    #[error("the benchmark could not go on: {0} messages were not handled")]
    NotHandled(u64),
}

/// Measures one figure, or several that belong together, and reports each.
type Measure = fn(&Options, &mut dyn FnMut(Figure)) -> Result<(), Error>;

/// All measures, in the order of the table. Memory goes first: memory that other figures leave resident would be
/// reused, and be missing from its figure.
const MEASURES: [(Suite, &str, Measure); 13] = [
    (Suite::Dispatch, "PRF-5", memory::run),
    (Suite::Dispatch, "PRF-1", dispatch::run),
    (Suite::Dispatch, "PRF-2", waiting::run),
    (Suite::Dispatch, "PRF-3", share::run),
    (Suite::Dispatch, "PRF-4", latency::run),
    (Suite::Dispatch, "PRF-6", ledger::run),
    (Suite::Embedded, "PRF-7", append::run),
    (Suite::Embedded, "PRF-13", end_to_end::run),
    (Suite::Embedded, "PRF-14", start::run),
    (Suite::Ingest, "PRF-11", ingest::run),
    (Suite::Kafka, "PRF-3", kafka::share::run),
    (Suite::Kafka, "PRF-8", kafka::consume::run),
    (Suite::Kafka, "PRF-9", kafka::produce::run),
];

/// The names by which a caller can choose: suites, then figures.
pub fn names() -> impl Iterator<Item = &'static str> {
    let suites = MEASURES.iter().map(|(suite, _, _)| suite.name());
    let mut names: Vec<&str> = Vec::new();
    // A figure may be measured in two suites.
    for name in suites.chain(MEASURES.iter().map(|(_, id, _)| *id)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.into_iter()
}

/// Measures all figures that `chosen` accepts, and reports each as soon as it is known. Starts its own runtimes, so it
/// must not be called inside one.
pub fn run(
    options: &Options,
    chosen: impl Fn(Suite, &str) -> bool,
    mut report: impl FnMut(Figure),
) -> Result<(), Error> {
    for (suite, id, measure) in MEASURES {
        if chosen(suite, id) {
            measure(options, &mut report)?;
        }
    }
    Ok(())
}

/// A pipeline on a broker without I/O, once all its partitions are read.
async fn started(
    broker: Arc<SourceBroker>,
    settings: Settings,
    handler: impl Handler,
) -> Result<Pipeline, Error> {
    let keylane = Keylane::with_broker(broker, Clock::system(), Tasks::default(), true);
    let pipeline = keylane.pipeline(TOPIC).settings(settings).handle(handler).start().await?;
    all_read(&pipeline).await?;
    Ok(pipeline)
}

/// Waits until all partitions of a pipeline are read.
async fn all_read(pipeline: &Pipeline) -> Result<(), Error> {
    loop {
        let status = pipeline.status().await?;
        let mut partitions = status.partitions.iter();
        if partitions.all(|partition| partition.state == PartitionState::Running) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
