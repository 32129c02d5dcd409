//! Measures PRF-3: which share of the possible rate a thousand keys with slow handlers reach.
//!
//! With handlers of 10 ms, 1,000 keys can handle 100,000 messages a second, and no more. Raw limit: a bare task for
//! each key that sleeps again and again. Both sides sleep by a [`Timer`] that is as exact as the clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane::{Attempt, Handler, Outcome, Settings};

use crate::broker::SourceBroker;
use crate::finished::Finished;
use crate::flow::Flow;
use crate::machine::{WORKERS, runtime};
use crate::source::{Draw, Source};
use crate::timer::Timer;
use crate::{Error, Figure, Options, Target};

pub(crate) const KEYS: u32 = 1_000;
pub(crate) const SLEEPS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];
/// More messages than can be handled while measuring; the pipeline itself bounds how many are in memory.
const ENDLESS: u64 = 1 << 40;
const WARM_UP: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(2);
const ROUNDS: usize = 4;

pub(crate) fn run(_options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let source = Source::new(KEYS, Draw::Uniform);
    for sleep in SLEEPS {
        let (mut raw_rate, mut ours_rate) = (0f64, 0f64);
        for _ in 0..ROUNDS {
            raw_rate = raw_rate.max(raw(sleep)?);
            ours_rate = ours_rate.max(ours(sleep, &source)?);
        }
        report(figure("1,000 keys", sleep, ours_rate, raw_rate));
    }
    Ok(())
}

/// The figure of two rates, in messages a second, with handlers that sleep that long.
pub(crate) fn figure(of: &str, sleep: Duration, ours_rate: f64, raw_rate: f64) -> Figure {
    let possible = f64::from(KEYS) / sleep.as_secs_f64();
    let what = format!("{of}, handlers of {} ms", sleep.as_millis());
    let (ours, raw) = (ours_rate / possible, raw_rate / possible);
    Figure::beside("PRF-3", what, "share of the possible rate", ours, raw, Target::AtLeast(0.9))
        .note(format!("possible: {possible:.0}/s"))
}

/// Sleeps, and counts how often it did.
pub(crate) struct Sleeper {
    sleep: Duration,
    timer: Timer,
    finished: Finished,
}

impl Sleeper {
    pub(crate) fn start(sleep: Duration) -> Result<Arc<Sleeper>, Error> {
        Ok(Arc::new(Sleeper { sleep, timer: Timer::start()?, finished: Finished::default() }))
    }

    async fn once(&self) {
        self.timer.sleep(self.sleep).await;
        self.finished.one();
    }

    /// How often so far.
    pub(crate) fn count(&self) -> u64 {
        self.finished.count()
    }

    /// Messages a second.
    pub(crate) async fn rate(&self) -> f64 {
        tokio::time::sleep(WARM_UP).await;
        let (before, since) = (self.finished.count(), Instant::now());
        tokio::time::sleep(WINDOW).await;
        (self.finished.count() - before) as f64 / since.elapsed().as_secs_f64()
    }
}

pub(crate) fn raw(sleep: Duration) -> Result<f64, Error> {
    let runtime = runtime("raw")?;
    let sleeper = Sleeper::start(sleep)?;
    for _ in 0..KEYS {
        let sleeper = Arc::clone(&sleeper);
        runtime.spawn(async move {
            loop {
                sleeper.once().await;
            }
        });
    }
    Ok(runtime.block_on(sleeper.rate()))
}

pub(crate) struct Sleeps(pub(crate) Arc<Sleeper>);

impl Handler for Sleeps {
    async fn handle(&self, _attempt: Attempt<'_>) -> Outcome {
        self.0.once().await;
        Outcome::Done
    }
}

fn ours(sleep: Duration, source: &Arc<Source>) -> Result<f64, Error> {
    let runtime = runtime("ours")?;
    let sleeper = Sleeper::start(sleep)?;
    let flow = Arc::<Flow>::default();
    let broker = Arc::new(SourceBroker::new(source, &flow));
    let mut settings = Settings::default();
    settings.shards = Some(WORKERS);
    runtime.block_on(async {
        let pipeline = crate::started(broker, settings, Sleeps(Arc::clone(&sleeper))).await?;
        flow.open(ENDLESS, 0);
        let rate = sleeper.rate().await;
        pipeline.drain().await?;
        Ok(rate)
    })
}
