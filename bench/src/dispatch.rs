//! Measures PRF-1: what a message costs in process, with a handler that is ready at once.
//!
//! Raw limit: the same source in two tasks, each of which sends `Vec`s of messages over a bounded tokio channel to a
//! task that looks at each message. Keylane: a whole pipeline on the same source, with ownership, ledger, records and
//! commits.

use std::hint::black_box;
use std::sync::Arc;

use keylane::{Attempt, Handler, Outcome, Pipeline, Settings};
use keylane_core::Delivery;
use tokio::sync::mpsc;

use crate::broker::SourceBroker;
use crate::flow::{Flow, next_batch, readers_of};
use crate::machine::{Took, WORKERS, Watch, runtime};
use crate::source::{Draw, PARTITIONS, Source};
use crate::{Error, Figure, Options, Target, allocator};

const KEYS: u32 = 100_000;
/// Messages of each partition in one round: 4 M in all, about a third of a second.
const ROUND: u64 = 256 * 1024;
const ROUNDS: usize = 7;
/// Batches on their way between two tasks of the raw limit.
const CHANNEL: usize = 8;

pub(crate) fn run(_options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    for (draw, name) in [(Draw::Uniform, "uniform"), (Draw::Zipf, "Zipf")] {
        let source = Source::new(KEYS, draw);
        let ours = Ours::start(&source)?;
        let raw = Raw::start(&source)?;
        let messages = ROUND * u64::from(PARTITIONS);
        let (mut raw_ns, mut ours_ns, mut rate) = (f64::INFINITY, f64::INFINITY, 0f64);
        let mut allocations = u64::MAX;
        for round in 0..ROUNDS {
            let took = raw.round();
            let (ours_took, allocated) = allocator::count(|| ours.round());
            if round == 0 {
                continue;
            }
            raw_ns = raw_ns.min(took.cpu_ns(messages));
            ours_ns = ours_ns.min(ours_took.cpu_ns(messages));
            rate = rate.max(ours_took.rate(messages));
            allocations = allocations.min(allocated);
        }
        ours.stop()?;
        let what = format!("dispatch, {name} keys");
        report(Figure::beside("PRF-1", &what, "ns CPU a message", ours_ns, raw_ns, Target::RatioAtMost(1.6)));
        report(Figure::alone("PRF-1", &what, "messages a second", rate, Target::AtLeast(5e6)));
        let each = allocations as f64 / messages as f64;
        report(Figure::alone("PRF-1", &what, "allocations a message", each, Target::AtMost(0.03)));
    }
    Ok(())
}

/// Keylane's side: a pipeline.
struct Ours {
    runtime: tokio::runtime::Runtime,
    pipeline: Pipeline,
    flow: Arc<Flow>,
}

/// A handler that looks at the message, and is done.
struct Look(Arc<Flow>);

impl Handler for Look {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        look(&self.0, &attempt);
        Outcome::Done
    }
}

#[inline]
fn look(flow: &Flow, delivery: &Delivery) {
    black_box(delivery.key());
    black_box(delivery.payload());
    flow.handled(delivery.position());
}

impl Ours {
    fn start(source: &Arc<Source>) -> Result<Ours, Error> {
        let runtime = runtime("ours")?;
        let flow = Arc::<Flow>::default();
        let broker = Arc::new(SourceBroker::new(source, &flow));
        let pipeline = runtime.block_on(crate::started(broker, settings(), Look(Arc::clone(&flow))))?;
        Ok(Ours { runtime, pipeline, flow })
    }

    fn round(&self) -> Took {
        let watch = Watch::start();
        self.flow.open(ROUND, 0);
        self.runtime.block_on(self.flow.drained());
        watch.took()
    }

    fn stop(self) -> Result<(), Error> {
        Ok(self.runtime.block_on(self.pipeline.drain())?)
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.shards = Some(WORKERS);
    settings
}

/// The raw limit: a bare channel of batches.
struct Raw {
    runtime: tokio::runtime::Runtime,
    flow: Arc<Flow>,
}

impl Raw {
    fn start(source: &Arc<Source>) -> Result<Raw, Error> {
        let runtime = runtime("raw")?;
        let flow = Arc::<Flow>::default();
        for worker in 0..WORKERS {
            let (batches, mut handed) = mpsc::channel::<Vec<Delivery>>(CHANNEL);
            let mut readers = readers_of(worker, &flow, source);
            runtime.spawn(async move {
                loop {
                    let batch = next_batch(&mut readers).await;
                    let mut messages = Vec::with_capacity(batch.count as usize);
                    messages.extend(batch.cursor(0).map(|delivery| delivery.expect("made by the source")));
                    if batches.send(messages).await.is_err() {
                        break;
                    }
                }
            });
            let flow = Arc::clone(&flow);
            runtime.spawn(async move {
                while let Some(batch) = handed.recv().await {
                    for delivery in batch {
                        look(&flow, &delivery);
                    }
                }
            });
        }
        Ok(Raw { runtime, flow })
    }

    fn round(&self) -> Took {
        let watch = Watch::start();
        self.flow.open(ROUND, 0);
        self.runtime.block_on(self.flow.drained());
        watch.took()
    }
}
