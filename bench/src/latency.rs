//! Measures PRF-4: latency at a steady rate, with handlers of 1 ms.
//!
//! Messages come due every millisecond, some from each partition. A message's latency is the time from then until its
//! handler ends, even if the message was let through late. Raw limit: the same messages with a bare task for each,
//! which sleeps as long; on the same runtime, in turns. Each side has its own histogram, and the next window begins
//! when all messages of the last have ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane::{Attempt, Handler, Outcome, Settings};

use crate::bare::spawn_each;
use crate::broker::SourceBroker;
use crate::finished::Finished;
use crate::flow::{Flow, readers_of};
use crate::histogram::{Histogram, median};
use crate::machine::{WORKERS, runtime};
use crate::source::{Draw, PARTITIONS, Source, stamp_of};
use crate::{Error, Figure, Options, Target};

/// So many keys that few messages wait for an earlier message of their key.
const KEYS: u32 = 1_000_000;
const RATES: [u64; 2] = [100_000, 300_000];
const SLEEP: Duration = Duration::from_millis(1);
const STEP: Duration = Duration::from_millis(1);
/// Steps of a window.
const STEPS: u32 = 1_000;
/// Windows of each side; the first is not counted.
const WINDOWS: usize = 8;

pub(crate) fn run(_options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    for rate in RATES {
        let [raw, ours] = measure(rate)?;
        let what = |share: &str| format!("latency at {},000/s, {share}", rate / 1000);
        report(Figure::beside("PRF-4", what("p50"), "µs", ours[0], raw[0], Target::RatioAtMost(1.05)));
        report(Figure::beside("PRF-4", what("p99"), "µs", ours[1], raw[1], Target::RatioAtMost(1.1)));
    }
    Ok(())
}

/// The clock, the tap and the counters of one side.
struct Side {
    start: Instant,
    flow: Arc<Flow>,
    seen: Histogram,
    finished: Finished,
}

impl Side {
    fn new() -> Arc<Side> {
        let (flow, seen, finished) = (Arc::default(), Histogram::new(), Finished::default());
        Arc::new(Side { start: Instant::now(), flow, seen, finished })
    }

    fn ended(&self, due_ns: u64) {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        self.seen.saw(now_ns.saturating_sub(due_ns));
        self.finished.one();
    }

    /// Lets messages through at `rate` for one window, and waits until all have ended.
    async fn window(self: Arc<Self>, rate: u64) {
        let mut tick = tokio::time::interval(STEP);
        let (start, mut let_through) = (self.start.elapsed(), 0);
        for step in 1..=STEPS {
            let due = start + step * STEP;
            while self.start.elapsed() < due {
                tick.tick().await;
            }
            let all = ((step * STEP).as_secs_f64() * rate as f64) as u64 / u64::from(PARTITIONS);
            if all > let_through {
                self.flow.open(all - let_through, due.as_nanos() as u64);
                let_through = all;
            }
        }
        self.finished.all(let_through * u64::from(PARTITIONS)).await;
    }
}

struct Sleeper(Arc<Side>);

impl Handler for Sleeper {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        tokio::time::sleep(SLEEP).await;
        self.0.ended(stamp_of(attempt.payload()));
        Outcome::Done
    }
}

/// Medians over the windows, of p50 and p99 in µs, raw and Keylane's.
fn measure(rate: u64) -> Result<[[f64; 2]; 2], Error> {
    let runtime = runtime("ours")?;
    let source = Source::new(KEYS, Draw::Uniform);
    let (raw, ours) = (Side::new(), Side::new());
    for worker in 0..WORKERS {
        let readers = readers_of(worker, &raw.flow, &source);
        let raw = Arc::clone(&raw);
        runtime
            .spawn(spawn_each(readers, SLEEP, None, move |delivery| raw.ended(stamp_of(delivery.payload()))));
    }
    let broker = Arc::new(SourceBroker::new(&source, &ours.flow));
    let mut settings = Settings::default();
    settings.shards = Some(WORKERS);
    let taken = runtime.block_on(async {
        let pipeline = crate::started(broker, settings, Sleeper(Arc::clone(&ours))).await?;
        let mut taken = [Vec::new(), Vec::new()];
        for window in 0..WINDOWS {
            for (side, taken) in [&raw, &ours].into_iter().zip(&mut taken) {
                // In a task of its own, since the thread that waits here is none of the workers.
                let paced = tokio::spawn(Arc::clone(side).window(rate));
                paced.await.expect("a window does not panic");
                let seen = side.seen.take([0.5, 0.99]);
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
