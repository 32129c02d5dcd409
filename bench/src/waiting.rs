//! Measures PRF-2: what a message costs while its handler waits, with tens of thousands in flight.
//!
//! Raw limit: the same source, and a bare `tokio::spawn` for each message that sleeps as long, as many at a time, on a
//! runtime of the same kind. The number that is really in flight is sampled all the time: a side that cannot fill its
//! places is overloaded, and its cost is then not the cost of waiting.

use std::sync::Arc;
use std::time::Duration;

use keylane::{Attempt, Handler, Outcome, Pipeline, Settings};

use crate::bare::{Places, spawn_each};
use crate::broker::SourceBroker;
use crate::finished::Finished;
use crate::flow::{Flow, readers_of};
use crate::histogram::median;
use crate::machine::{Took, WORKERS, Watch, runtime};
use crate::source::{Draw, PARTITIONS, Source};
use crate::{Error, Figure, Options, Target};

/// How many messages are in flight, of how many keys. The keys are those of PRF-1, except for 64k: of 100,000 keys two
/// in three would be busy, and for much of a round places were empty while messages waited behind their own key.
const CASES: [(usize, u32); 3] = [(16 << 10, 100_000), (32 << 10, 100_000), (64 << 10, 1_000_000)];
/// So long that the places are full at a rate that both sides can do: 640,000 a second for 64k of them.
const SLEEP: Duration = Duration::from_millis(100);
/// How often each place is taken in a round.
const TURNS: usize = 20;
/// Rounds of each side; the first is not counted.
const ROUNDS: usize = 5;
/// How often the number in flight is sampled.
const IN_FLIGHT_EVERY: Duration = Duration::from_millis(20);

pub(crate) fn run(_options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    for (in_flight, keys) in CASES {
        let source = Source::new(keys, Draw::Uniform);
        let each = (TURNS * in_flight) as u64 / u64::from(PARTITIONS);
        let messages = each * u64::from(PARTITIONS);
        let ours = Ours::start(&source, in_flight)?;
        let raw = Raw::start(&source, in_flight)?;
        let (mut raw_ns, mut ours_ns) = (f64::INFINITY, f64::INFINITY);
        let (mut raw_seen, mut ours_seen) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let (raw_took, seen) = raw.round(each)?;
            raw_seen.extend(seen);
            let (ours_took, seen) = ours.round(each)?;
            ours_seen.extend(seen);
            if round > 0 {
                raw_ns = raw_ns.min(raw_took.cpu_ns(messages));
                ours_ns = ours_ns.min(ours_took.cpu_ns(messages));
            }
        }
        ours.side.runtime.block_on(ours.pipeline.drain())?;
        let what = format!("handlers that wait, {}k in flight", in_flight >> 10);
        report(
            Figure::beside("PRF-2", what, "ns CPU a message", ours_ns, raw_ns, Target::RatioAtMost(0.9))
                .note(format!(
                    "{}k keys; in flight: {:.1}k, raw {:.1}k",
                    keys / 1000,
                    median(ours_seen) / 1024.0,
                    median(raw_seen) / 1024.0
                )),
        );
    }
    Ok(())
}

/// The runtime, the counter and the tap of one side.
struct Side {
    runtime: tokio::runtime::Runtime,
    finished: Arc<Finished>,
    flow: Arc<Flow>,
}

impl Side {
    fn new(name: &str) -> Result<Side, Error> {
        Ok(Side { runtime: runtime(name)?, finished: Arc::default(), flow: Arc::default() })
    }

    /// Handles `each` messages of each partition. Returns how many were in flight meanwhile.
    fn round(
        &self,
        each: u64,
        in_flight: impl AsyncFn() -> Result<u64, Error>,
    ) -> Result<(Took, Vec<f64>), Error> {
        let watch = Watch::start();
        self.flow.open(each, 0);
        let seen = self.runtime.block_on(async {
            let all = self.finished.all(each * u64::from(PARTITIONS));
            let mut all = std::pin::pin!(all);
            let mut seen = Vec::new();
            while tokio::time::timeout(IN_FLIGHT_EVERY, &mut all).await.is_err() {
                seen.push(in_flight().await? as f64);
            }
            Ok::<_, Error>(seen)
        })?;
        Ok((watch.took(), seen))
    }
}

struct Ours {
    side: Side,
    pipeline: Pipeline,
}

struct Sleeper(Arc<Finished>);

impl Handler for Sleeper {
    async fn handle(&self, _attempt: Attempt<'_>) -> Outcome {
        tokio::time::sleep(SLEEP).await;
        self.0.one();
        Outcome::Done
    }
}

impl Ours {
    fn start(source: &Arc<Source>, in_flight: usize) -> Result<Ours, Error> {
        let side = Side::new("ours")?;
        let mut settings = Settings::default();
        settings.shards = Some(WORKERS);
        settings.concurrency = in_flight;
        settings.buffer_messages = 8 * in_flight;
        let broker = Arc::new(SourceBroker::new(source, &side.flow));
        let handler = Sleeper(Arc::clone(&side.finished));
        let pipeline = side.runtime.block_on(crate::started(broker, settings, handler))?;
        Ok(Ours { side, pipeline })
    }

    fn round(&self, each: u64) -> Result<(Took, Vec<f64>), Error> {
        self.side.round(each, async || Ok(self.pipeline.status().await?.in_flight))
    }
}

struct Raw {
    side: Side,
    places: Vec<Arc<Places>>,
}

impl Raw {
    fn start(source: &Arc<Source>, in_flight: usize) -> Result<Raw, Error> {
        let side = Side::new("raw")?;
        let places: Vec<_> = (0..WORKERS).map(|_| Arc::new(Places::new(in_flight / WORKERS))).collect();
        for (worker, places) in places.iter().enumerate() {
            let finished = Arc::clone(&side.finished);
            let ended = move |_| finished.one();
            let readers = readers_of(worker, &side.flow, source);
            side.runtime.spawn(spawn_each(readers, SLEEP, Some(Arc::clone(places)), ended));
        }
        Ok(Raw { side, places })
    }

    fn round(&self, each: u64) -> Result<(Took, Vec<f64>), Error> {
        let taken = || self.places.iter().map(|places| places.taken() as u64).sum();
        self.side.round(each, async || Ok(taken()))
    }
}
