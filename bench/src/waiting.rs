//! PRF-2: what a message costs while its handler waits, with tens of thousands in flight.
//!
//! Raw limit: the same source, and a bare `tokio::spawn` for each message that sleeps as long, as many at a time.
//! It keeps no order and no record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use keylane::{Attempt, Handler, Outcome, Pipeline, Settings};
use keylane_broker::Reader;
use tokio::sync::Notify;

use crate::broker::SourceBroker;
use crate::finished::Finished;
use crate::flow::{Flow, FlowReader};
use crate::machine::{Took, WORKERS, Watch, runtime};
use crate::source::{Draw, PARTITIONS, Source};
use crate::{Error, Figure, Options, Target};

/// So many that few messages wait for their key's last one.
const KEYS: u32 = 1_000_000;
const IN_FLIGHT: [usize; 3] = [16 << 10, 32 << 10, 64 << 10];
/// Long enough that all places in flight are taken all the time.
const SLEEP: Duration = Duration::from_millis(10);
/// Messages of each partition in one round: 512k in all.
const ROUND: u64 = 32 * 1024;
const ROUNDS: usize = 6;

pub(crate) fn run(_options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let source = Source::new(KEYS, Draw::Uniform);
    for in_flight in IN_FLIGHT {
        let ours = Ours::start(&source, in_flight)?;
        let raw = Raw::start(&source, in_flight)?;
        let messages = ROUND * u64::from(PARTITIONS);
        let (mut raw_ns, mut ours_ns) = (f64::INFINITY, f64::INFINITY);
        for round in 0..ROUNDS {
            let (raw_took, ours_took) = (raw.round(), ours.round());
            if round > 0 {
                raw_ns = raw_ns.min(raw_took.cpu_ns(messages));
                ours_ns = ours_ns.min(ours_took.cpu_ns(messages));
            }
        }
        ours.runtime.block_on(ours.pipeline.drain())?;
        let what = format!("handlers that wait, {}k in flight", in_flight >> 10);
        report(Figure::beside("PRF-2", what, "ns CPU a message", ours_ns, raw_ns, Target::RatioAtMost(0.9)));
    }
    Ok(())
}

struct Ours {
    runtime: tokio::runtime::Runtime,
    pipeline: Pipeline,
    finished: Arc<Finished>,
    flow: Arc<Flow>,
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
        let runtime = runtime("ours")?;
        let (flow, finished) = (Arc::<Flow>::default(), Arc::<Finished>::default());
        let mut settings = Settings::default();
        settings.shards = Some(WORKERS);
        settings.concurrency = in_flight;
        settings.buffer_messages = 8 * in_flight;
        let broker = Arc::new(SourceBroker::new(source, &flow));
        let handler = Sleeper(Arc::clone(&finished));
        let pipeline = runtime.block_on(crate::started(broker, settings, handler))?;
        Ok(Ours { runtime, pipeline, finished, flow })
    }

    fn round(&self) -> Took {
        let watch = Watch::start();
        self.flow.open(ROUND, 0);
        self.runtime.block_on(self.finished.all(ROUND * u64::from(PARTITIONS)));
        watch.took()
    }
}

struct Raw {
    runtime: tokio::runtime::Runtime,
    finished: Arc<Finished>,
    flow: Arc<Flow>,
}

impl Raw {
    fn start(source: &Arc<Source>, in_flight: usize) -> Result<Raw, Error> {
        let runtime = runtime("raw")?;
        let (flow, finished) = (Arc::<Flow>::default(), Arc::<Finished>::default());
        for worker in 0..WORKERS as u32 {
            let readers = (0..PARTITIONS)
                .filter(|partition| partition % WORKERS as u32 == worker)
                .map(|partition| FlowReader::new(&flow, source, partition, 0))
                .collect();
            let places = Arc::new(Places::new(in_flight / WORKERS));
            runtime.spawn(spawn_each(readers, places, Arc::clone(&finished)));
        }
        Ok(Raw { runtime, finished, flow })
    }

    fn round(&self) -> Took {
        let watch = Watch::start();
        self.flow.open(ROUND, 0);
        self.runtime.block_on(self.finished.all(ROUND * u64::from(PARTITIONS)));
        watch.took()
    }
}

/// A bare task for each message.
async fn spawn_each(mut readers: Vec<FlowReader>, places: Arc<Places>, finished: Arc<Finished>) {
    loop {
        let batch = std::future::poll_fn(|cx| {
            readers.rotate_left(1);
            for reader in &mut readers {
                if let Poll::Ready(Ok(batch)) = reader.poll_batch(cx, usize::MAX) {
                    return Poll::Ready(batch);
                }
            }
            Poll::Pending
        })
        .await;
        for delivery in batch.cursor(0) {
            places.take().await;
            let (places, finished) = (Arc::clone(&places), Arc::clone(&finished));
            tokio::spawn(async move {
                tokio::time::sleep(SLEEP).await;
                drop(delivery);
                finished.one();
                places.give();
            });
        }
    }
}

/// How many tasks may be in flight, as cheaply as it can be said.
struct Places {
    taken: AtomicUsize,
    most: usize,
    wanted: AtomicBool,
    free: Notify,
}

impl Places {
    fn new(most: usize) -> Places {
        Places { taken: AtomicUsize::new(0), most, wanted: AtomicBool::new(false), free: Notify::new() }
    }

    async fn take(&self) {
        while self.taken.load(Ordering::SeqCst) >= self.most {
            self.wanted.store(true, Ordering::SeqCst);
            if self.taken.load(Ordering::SeqCst) >= self.most {
                self.free.notified().await;
            }
        }
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    fn give(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        if self.wanted.load(Ordering::SeqCst) && self.wanted.swap(false, Ordering::SeqCst) {
            self.free.notify_one();
        }
    }
}
