//! PRF-13: from producing to the handler, durable, at half of the rate that the machine can do.
//!
//! First as many callers as help, each with a batch at a time: the rate at which handlers keep up is the maximum. Then
//! batches come due at half of that, whatever the answers take. From when a batch is due until a message of it is in
//! its handler is the latency. Raw limit: one fdatasync of as many bytes, before and after, on the same disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use keylane::{Attempt, Draft, Handler, Keylane, Outcome, Producer, TopicSpec};

use crate::disk::BareFile;
use crate::finished::Finished;
use crate::histogram::{Histogram, median};
use crate::machine::runtime;
use crate::source::stamp_of;
use crate::{Error, Figure, Options, Target};

const TOPIC: &str = "orders";
const PARTITIONS: u32 = 12;
/// Messages of a call.
const CALL: usize = 100;
const CALLERS: usize = 32;
const WARM_UP: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(5);
/// Syncs timed, before and after.
const SYNCS: usize = 200;
/// What the target allows beyond three syncs.
const ALLOWANCE_MS: f64 = 10.0;

pub(crate) fn run(options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let folder = tempfile::tempdir_in(&options.folder)?;
    let mut bare = BareFile::create(folder.path())?;
    let mut syncs = Vec::new();
    time_syncs(&mut bare, &mut syncs)?;
    let (maximum, [p50, p99]) = runtime("ours")?.block_on(measure(&folder.path().join("log")))?;
    time_syncs(&mut bare, &mut syncs)?;
    let sync = median(syncs);
    let bound = 3.0 * sync + ALLOWANCE_MS;
    let ms = |latency: Duration| latency.as_secs_f64() * 1e3;
    report(
        Figure::beside(
            "PRF-13",
            "embedded, produce to handler, p99",
            "ms",
            ms(p99),
            bound,
            Target::RatioAtMost(1.0),
        )
        .note(format!(
            "raw is 3 × {sync:.2} ms + 10; half of {:.0}k/s; p50 {:.1} ms",
            maximum / 1e3,
            ms(p50)
        )),
    );
    Ok(())
}

fn time_syncs(bare: &mut BareFile, syncs: &mut Vec<f64>) -> Result<(), Error> {
    let bytes = vec![b's'; CALL * 200];
    for _ in 0..SYNCS {
        syncs.push(bare.write(&bytes)?.as_secs_f64() * 1e3);
    }
    Ok(())
}

struct Meter {
    start: Instant,
    seen: Histogram,
    finished: Finished,
}

struct Measured(Arc<Meter>);

impl Handler for Measured {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let now = self.0.start.elapsed().as_nanos() as u64;
        self.0.seen.saw(now.saturating_sub(stamp_of(attempt.payload())));
        self.0.finished.one();
        Outcome::Done
    }
}

/// The maximum rate, and p50 and p99 at half of it.
async fn measure(folder: &std::path::Path) -> Result<(f64, [Duration; 2]), Error> {
    let keylane = Keylane::open_embedded(folder).await?;
    let spec = TopicSpec { partitions: PARTITIONS, ..TopicSpec::default() };
    keylane.ensure_topic(TOPIC, &spec).await?;
    let meter =
        Arc::new(Meter { start: Instant::now(), seen: Histogram::new(), finished: Finished::default() });
    let pipeline = keylane.pipeline(TOPIC).handle(Measured(Arc::clone(&meter))).start().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (producer, meter, stop) = (keylane.producer().clone(), Arc::clone(&meter), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    send(&producer, meter.start.elapsed()).await?;
                }
                Ok::<_, Error>(())
            })
        })
        .collect();
    tokio::time::sleep(WARM_UP).await;
    let (before, since) = (meter.finished.count(), Instant::now());
    tokio::time::sleep(WINDOW).await;
    let maximum = (meter.finished.count() - before) as f64 / since.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.expect("a caller does not panic")?;
    }
    tokio::time::sleep(WARM_UP).await;
    meter.seen.take([0.5]);
    pace(keylane.producer(), &meter, maximum / 2.0).await;
    let seen = meter.seen.take([0.5, 0.99]);
    pipeline.drain().await?;
    Ok((maximum, seen))
}

/// Sends batches that come due at `rate`, whatever the answers take.
async fn pace(producer: &Producer, meter: &Arc<Meter>, rate: f64) {
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    let (since, mut sent) = (Instant::now(), 0usize);
    while since.elapsed() < WINDOW {
        tick.tick().await;
        let due = (since.elapsed().as_secs_f64() * rate) as usize / CALL;
        for _ in sent..due {
            let (producer, stamp) = (producer.clone(), meter.start.elapsed());
            tokio::spawn(async move { send(&producer, stamp).await });
        }
        sent = due.max(sent);
    }
    tokio::time::sleep(WARM_UP).await;
}

/// One batch, each message with a key of its own.
async fn send(producer: &Producer, stamp: Duration) -> Result<(), Error> {
    let stamp = stamp.as_nanos() as u64;
    let mut payload = [b'p'; 150];
    payload[..8].copy_from_slice(&stamp.to_le_bytes());
    let mut call = producer.call(TOPIC).await?;
    for index in 0..CALL as u64 {
        let key = (stamp ^ index << 40).to_le_bytes();
        call.push(&Draft {
            id: "0123456789abcdef",
            key: Some(&key),
            payload: Some(&payload),
            ..Draft::default()
        });
    }
    for placed in call.send().await? {
        placed.map_err(|error| Error::Broker(error.to_string()))?;
    }
    Ok(())
}
