//! PRF-3: a thousand keys with slow handlers: which share of the possible rate is reached.
//!
//! With a handler of 10 ms, 1,000 keys can have 100,000 messages a second handled, and no more. Raw limit: a bare task
//! for each key that sleeps again and again; a timer's millisecond is missing from both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane::{Attempt, Handler, Outcome, Settings};

use crate::broker::SourceBroker;
use crate::finished::Finished;
use crate::flow::Flow;
use crate::histogram::median;
use crate::machine::{WORKERS, runtime};
use crate::source::{Draw, Source};
use crate::{Error, Figure, Options, Target};

const KEYS: u32 = 1_000;
const SLEEPS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];
/// More than can be handled while it is measured; what may be in memory at a time is the pipeline's affair.
const ENDLESS: u64 = 1 << 40;
const WARM_UP: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(1);
const WINDOWS: usize = 5;

pub(crate) fn run(_options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    for sleep in SLEEPS {
        let possible = f64::from(KEYS) / sleep.as_secs_f64();
        let raw = raw(sleep)? / possible;
        let ours = ours(sleep)? / possible;
        let what = format!("1,000 keys, handlers of {} ms", sleep.as_millis());
        report(
            Figure::beside("PRF-3", what, "share of the possible rate", ours, raw, Target::AtLeast(0.9))
                .note(format!("possible: {possible:.0}/s")),
        );
    }
    Ok(())
}

/// Messages a second in the middle one of some windows.
async fn rate(finished: &Finished) -> f64 {
    tokio::time::sleep(WARM_UP).await;
    let mut rates = Vec::new();
    for _ in 0..WINDOWS {
        let (before, since) = (finished.count(), Instant::now());
        tokio::time::sleep(WINDOW).await;
        rates.push((finished.count() - before) as f64 / since.elapsed().as_secs_f64());
    }
    median(rates)
}

fn raw(sleep: Duration) -> Result<f64, Error> {
    let runtime = runtime("raw")?;
    let finished = Arc::<Finished>::default();
    for _ in 0..KEYS {
        let finished = Arc::clone(&finished);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(sleep).await;
                finished.one();
            }
        });
    }
    Ok(runtime.block_on(rate(&finished)))
}

struct Sleeper {
    sleep: Duration,
    finished: Arc<Finished>,
}

impl Handler for Sleeper {
    async fn handle(&self, _attempt: Attempt<'_>) -> Outcome {
        tokio::time::sleep(self.sleep).await;
        self.finished.one();
        Outcome::Done
    }
}

fn ours(sleep: Duration) -> Result<f64, Error> {
    let runtime = runtime("ours")?;
    let (flow, finished) = (Arc::<Flow>::default(), Arc::<Finished>::default());
    let source = Source::new(KEYS, Draw::Uniform);
    let broker = Arc::new(SourceBroker::new(&source, &flow));
    let handler = Sleeper { sleep, finished: Arc::clone(&finished) };
    let mut settings = Settings::default();
    settings.shards = Some(WORKERS);
    runtime.block_on(async {
        let pipeline = crate::started(broker, settings, handler).await?;
        flow.open(ENDLESS, 0);
        let rate = rate(&finished).await;
        pipeline.drain().await?;
        Ok(rate)
    })
}
