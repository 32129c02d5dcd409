//! PRF-4: latency at a steady rate, with handlers of 1 ms.
//!
//! Messages come due every millisecond, some from each partition. From then until its handler ends is a message's
//! latency. Raw limit: the same messages, and a bare task for each that sleeps as long; on the same runtime, in turns.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use keylane::{Attempt, Handler, Outcome, Settings};
use keylane_broker::Reader;

use crate::broker::SourceBroker;
use crate::flow::{Flow, FlowReader};
use crate::histogram::{Histogram, median};
use crate::machine::{WORKERS, runtime};
use crate::source::{Draw, PARTITIONS, Source, stamp_of};
use crate::{Error, Figure, Options, Target};

/// So many that few messages wait for their key's last one.
const KEYS: u32 = 1_000_000;
const RATES: [u64; 2] = [100_000, 300_000];
const SLEEP: Duration = Duration::from_millis(1);
const WINDOW: Duration = Duration::from_secs(1);
/// The first of each is not counted.
const WINDOWS: usize = 8;
/// What is under way at a window's end belongs to it.
const LINGER: Duration = Duration::from_millis(50);

pub(crate) fn run(_options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    for rate in RATES {
        let [raw, ours] = measure(rate)?;
        let what = |share: &str| format!("latency at {},000/s, {share}", rate / 1000);
        report(Figure::beside("PRF-4", what("p50"), "µs", ours[0], raw[0], Target::RatioAtMost(1.05)));
        report(Figure::beside("PRF-4", what("p99"), "µs", ours[1], raw[1], Target::RatioAtMost(1.1)));
    }
    Ok(())
}

/// What both measure with.
#[derive(Clone)]
struct Meter {
    start: Instant,
    seen: Arc<Histogram>,
}

impl Meter {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn saw(&self, stamp: u64) {
        self.seen.saw(self.now_ns().saturating_sub(stamp));
    }
}

struct Sleeper(Meter);

impl Handler for Sleeper {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        tokio::time::sleep(SLEEP).await;
        self.0.saw(stamp_of(attempt.payload()));
        Outcome::Done
    }
}

/// Medians over windows of p50 and p99 in µs, raw and ours.
fn measure(rate: u64) -> Result<[[f64; 2]; 2], Error> {
    let runtime = runtime("ours")?;
    let source = Source::new(KEYS, Draw::Uniform);
    let meter = Meter { start: Instant::now(), seen: Arc::new(Histogram::new()) };
    let (raw, ours) = (Arc::<Flow>::default(), Arc::<Flow>::default());
    for worker in 0..WORKERS as u32 {
        let readers = (0..PARTITIONS)
            .filter(|partition| partition % WORKERS as u32 == worker)
            .map(|partition| FlowReader::new(&raw, &source, partition, 0))
            .collect();
        runtime.spawn(spawn_each(readers, meter.clone()));
    }
    let broker = Arc::new(SourceBroker::new(&source, &ours));
    let mut settings = Settings::default();
    settings.shards = Some(WORKERS);
    let taken = runtime.block_on(async {
        let pipeline = crate::started(broker, settings, Sleeper(meter.clone())).await?;
        let mut taken = [Vec::new(), Vec::new()];
        for window in 0..WINDOWS {
            for (flow, taken) in [&raw, &ours].into_iter().zip(&mut taken) {
                // A task of its own: the thread that waits here is none of the workers.
                let paced = tokio::spawn(pace(Arc::clone(flow), rate, meter.clone()));
                let _ = paced.await;
                let seen = meter.seen.take([0.5, 0.99]);
                if window > 0 {
                    taken.push(seen);
                }
            }
        }
        pipeline.drain().await?;
        Ok::<_, Error>(taken)
    })?;
    let micros = |windows: &[[Duration; 2]], at: usize| {
        median(windows.iter().map(|seen| seen[at].as_nanos() as f64 / 1e3).collect())
    };
    Ok(taken.map(|windows| [micros(&windows, 0), micros(&windows, 1)]))
}

/// Lets messages through at `rate` for one window.
async fn pace(flow: Arc<Flow>, rate: u64, meter: Meter) {
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    let (since, mut let_through) = (Instant::now(), 0);
    while since.elapsed() < WINDOW {
        tick.tick().await;
        let due = (since.elapsed().as_secs_f64() * rate as f64) as u64 / u64::from(PARTITIONS);
        if due > let_through {
            flow.open(due - let_through, meter.now_ns());
            let_through = due;
        }
    }
    tokio::time::sleep(LINGER).await;
}

/// A bare task for each message.
async fn spawn_each(mut readers: Vec<FlowReader>, meter: Meter) {
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
        for delivery in batch.cursor(0).flatten() {
            let meter = meter.clone();
            tokio::spawn(async move {
                tokio::time::sleep(SLEEP).await;
                meter.saw(stamp_of(delivery.payload()));
            });
        }
    }
}
