//! Measures Keylane as one of the peers of `bench/peers`: on the same topic, with the same handler, and with one line
//! of JSON as they print it.
//!
//! `bench/peers/run` says what is counted, and from when to when; the Java side is `Meter.java`. A handler waits on a
//! [`Timer`] that is as exact as Java's `Thread.sleep`; tokio's timer rounds up to whole milliseconds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{Attempt, Config, Handler, KafkaOptions, Keylane, Outcome};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::Error;
use crate::machine::{Took, Watch, resident_bytes_max, runtime};
use crate::timer::Timer;

/// Only to fail a hang: joining a group takes seconds.
const FIRST_MESSAGE: Duration = Duration::from_secs(120);

/// What to measure.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Job {
    bootstrap: String,
    topic: String,
    /// How many messages are in the topic and are handled.
    messages: u64,
    keys: u64,
    distribution: String,
    handler_ms: u64,
    /// The clock starts after this many messages …
    warm_up: u64,
    /// … or this long after the first message, whichever comes first.
    warm_up_seconds: u64,
    /// The clock stops after this long, whatever is left.
    seconds: u64,
}

/// One line of `bench/peers`.
#[derive(Debug, Serialize)]
struct Line {
    peer: &'static str,
    version: &'static str,
    kafka_clients: String,
    messages: u64,
    complete: bool,
    keys: u64,
    distribution: String,
    handler_ms: u64,
    concurrency: usize,
    seconds: f64,
    messages_per_second: f64,
    cpu_seconds: f64,
    possible_per_second: Option<f64>,
    share_of_possible: Option<f64>,
    out_of_order: u64,
    max_rss_bytes: u64,
}

/// Handles a filled topic. Returns the line to be printed.
pub fn measure(job: &Job) -> Result<impl Serialize + use<>, Error> {
    let meter = Arc::new(Meter::new(job)?);
    let settings = keylane::Settings::default();
    let concurrency = settings.concurrency;
    runtime("ours")?.block_on(async {
        let folder = tempfile::tempdir()?;
        let keylane = Keylane::open(Config::kafka(KafkaOptions::new(&job.bootstrap), folder.path())).await?;
        let group = format!("peers-{}", keylane.producer().new_id());
        let pipeline = keylane.pipeline(&job.topic).group(&group).settings(settings);
        let pipeline = pipeline.handle(Waits(Arc::clone(&meter))).start().await?;
        let ended = meter.until_end(job).await;
        // A drain would first handle what was read and not begun, which is not counted.
        drop(pipeline);
        ended
    })?;
    meter.line(job, concurrency)
}

/// Counts, as `Meter.java` does.
struct Meter {
    timer: Timer,
    wait: Duration,
    all: u64,
    warm_up: u64,
    done: AtomicU64,
    /// Messages of the most frequent key: the first of a Zipf distribution.
    of_busiest: AtomicU64,
    out_of_order: AtomicU64,
    /// For each key, the number of the last message that began, plus one.
    last: Vec<AtomicU64>,
    over: AtomicBool,
    begun: Notify,
    ended: Notify,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    start: Option<(Watch, u64, u64)>,
    end: Option<(Took, u64, u64)>,
}

impl Meter {
    fn new(job: &Job) -> Result<Meter, Error> {
        Ok(Meter {
            timer: Timer::start()?,
            wait: Duration::from_millis(job.handler_ms),
            all: job.messages,
            warm_up: job.warm_up,
            done: AtomicU64::new(0),
            of_busiest: AtomicU64::new(0),
            out_of_order: AtomicU64::new(0),
            last: (0..job.keys).map(|_| AtomicU64::new(0)).collect(),
            over: AtomicBool::new(false),
            begun: Notify::new(),
            ended: Notify::new(),
            window: Mutex::default(),
        })
    }

    /// A message that is older than the last one of its key is out of order.
    fn begins(&self, key: usize, number: u64) {
        let before = self.last[key].swap(number + 1, Ordering::Relaxed);
        if before > number {
            self.out_of_order.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn ends(&self, key: usize) {
        if key == 0 {
            self.of_busiest.fetch_add(1, Ordering::Relaxed);
        }
        let count = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if count == 1 {
            self.begun.notify_one();
        }
        if count == self.warm_up {
            self.start();
        } else if count == self.all {
            self.stop();
            self.ended.notify_one();
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.of_busiest.load(Ordering::Relaxed))
    }

    fn start(&self) {
        let (done, of_busiest) = self.counts();
        let mut window = self.window.lock().expect("no holder panics");
        window.start.get_or_insert_with(|| (Watch::start(), done, of_busiest));
    }

    fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
        let (done, of_busiest) = self.counts();
        let mut window = self.window.lock().expect("no holder panics");
        if let (Some((watch, before, before_of_busiest)), None) = (window.start, window.end) {
            window.end = Some((watch.took(), done - before, of_busiest - before_of_busiest));
        }
    }

    async fn until_end(&self, job: &Job) -> Result<(), Error> {
        if tokio::time::timeout(FIRST_MESSAGE, self.begun.notified()).await.is_err() {
            return Err(Error::NotHandled(self.all));
        }
        let warm_up = Duration::from_secs(job.warm_up_seconds);
        if tokio::time::timeout(warm_up, self.ended.notified()).await.is_err() {
            self.start();
            let _in_time =
                tokio::time::timeout(Duration::from_secs(job.seconds), self.ended.notified()).await;
        }
        self.stop();
        Ok(())
    }

    fn line(&self, job: &Job, concurrency: usize) -> Result<Line, Error> {
        let window = self.window.lock().expect("no holder panics");
        let (took, messages, of_busiest) =
            window.end.ok_or_else(|| Error::Broker("the clock never started".to_owned()))?;
        let rate = took.rate(messages);
        let zipf = job.distribution == "zipf";
        let wait = self.wait.as_secs_f64();
        let share_of_busiest = match zipf {
            true => 1.0 / (1..=job.keys).map(|rank| 1.0 / rank as f64).sum::<f64>(),
            false => 1.0 / job.keys as f64,
        };
        let possible = (job.handler_ms > 0).then(|| 1.0 / (share_of_busiest * wait));
        let share = possible.map(|possible| match zipf {
            true => of_busiest as f64 * wait / took.wall.as_secs_f64(),
            false => rate / possible,
        });
        Ok(Line {
            peer: "keylane",
            version: env!("CARGO_PKG_VERSION"),
            kafka_clients: format!("librdkafka {}", rdkafka::util::get_rdkafka_version().1),
            messages,
            complete: self.done.load(Ordering::Relaxed) >= self.all,
            keys: job.keys,
            distribution: job.distribution.clone(),
            handler_ms: job.handler_ms,
            concurrency,
            seconds: took.wall.as_secs_f64(),
            messages_per_second: rate.round(),
            cpu_seconds: took.cpu.as_secs_f64(),
            possible_per_second: possible.map(f64::round),
            share_of_possible: share,
            out_of_order: self.out_of_order.load(Ordering::Relaxed),
            max_rss_bytes: resident_bytes_max(),
        })
    }
}

struct Waits(Arc<Meter>);

impl Handler for Waits {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let meter = &*self.0;
        let Some((key, number)) = key_and_number(attempt.key(), attempt.payload()) else {
            return Outcome::rejected("a message that bench/peers did not send");
        };
        meter.begins(key, number);
        if !meter.wait.is_zero() && !meter.over.load(Ordering::Relaxed) {
            meter.timer.sleep(meter.wait).await;
        }
        meter.ends(key);
        Outcome::Done
    }
}

/// A key is 16 digits, and a payload begins with the message's number.
fn key_and_number(key: Option<&[u8]>, payload: Option<&[u8]>) -> Option<(usize, u64)> {
    let key = std::str::from_utf8(key?).ok()?.parse().ok()?;
    Some((key, u64::from_be_bytes(*payload?.first_chunk()?)))
}
