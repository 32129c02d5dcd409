//! Measures PRF-13: the time from ingest to the handler, durable, at half of the machine's highest rate.
//!
//! Requests of NDJSON go over HTTP to a server in this process, which also runs the pipeline. First, as many
//! connections as help each have a request under way at all times: the rate at which handlers keep up is the maximum.
//! Then requests come due at half of that rate, whatever the answers take. The latency is the time from when a request
//! is due, even if it is sent late, until one of its messages is in its handler. Raw limit: one fdatasync of as many
//! bytes on the same disk, measured before and after.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use keylane::{Attempt, Handler, Keylane, Outcome, TopicSpec};
use keylane_server::Server;
use tokio::runtime::Runtime;

use crate::client::{self, Connection};
use crate::disk::BareFile;
use crate::finished::Finished;
use crate::histogram::{Histogram, median};
use crate::ingest::{NDJSON, path_of, serve_on, stop};
use crate::machine::runtime;
use crate::{Error, Figure, Options, Target};

const TOPIC: &str = "orders";
const PARTITIONS: u32 = 12;
/// Lines of a request.
const LINES: usize = 100;
const CONNECTIONS: usize = 32;
const WARM_UP: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(5);
/// A message that was acknowledged and is not handled by then is not late but lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// Syncs that are timed, before and after.
const SYNCS: usize = 200;
/// The milliseconds that the target allows beyond three syncs.
const ALLOWANCE_MS: f64 = 10.0;

pub(crate) fn run(options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let folder = tempfile::tempdir_in(&options.folder)?;
    let mut bare = BareFile::create(folder.path())?;
    let mut syncs = Vec::new();
    time_syncs(&mut bare, &mut syncs)?;
    let (maximum, [p50, p99]) = measure(&folder.path().join("log"))?;
    time_syncs(&mut bare, &mut syncs)?;
    let sync = median(syncs);
    let bound = 3.0 * sync + ALLOWANCE_MS;
    let ms = |latency: Duration| latency.as_secs_f64() * 1e3;
    let what = "embedded, ingest to handler, p99";
    report(Figure::beside("PRF-13", what, "ms", ms(p99), bound, Target::RatioAtMost(1.0)).note(format!(
        "raw is 3 × {sync:.2} ms + 10; half of {:.0}k/s; p50 {:.1} ms; the load is made on the same cores",
        maximum / 1e3,
        ms(p50)
    )));
    Ok(())
}

fn time_syncs(bare: &mut BareFile, syncs: &mut Vec<f64>) -> Result<(), Error> {
    let bytes = vec![b's'; LINES * 200];
    for _ in 0..SYNCS {
        syncs.push(bare.write(&bytes)?.as_secs_f64() * 1e3);
    }
    Ok(())
}

/// The maximum rate, and p50 and p99 at half of it.
fn measure(folder: &Path) -> Result<(f64, [Duration; 2]), Error> {
    let (ours, load) = (runtime("ours")?, runtime("load")?);
    let meter =
        Arc::new(Meter { start: Instant::now(), seen: Histogram::new(), finished: Finished::default() });
    let server = ours.block_on(serve(folder, &meter))?;
    let address = server.address();
    let at_once = Arc::new(Schedule::new(&meter, WARM_UP + WINDOW, None));
    let watching = load.spawn(rate(Arc::clone(&meter)));
    let mut sent = send_all(&load, address, &meter, &at_once)?;
    let maximum = load.block_on(watching).expect("a watch does not panic");
    load.block_on(handled(&meter, sent))?;
    meter.seen.take([0.5]);
    let a_request = Duration::from_secs_f64(LINES as f64 / (maximum / 2.0));
    let paced = Arc::new(Schedule::new(&meter, WINDOW, Some(a_request)));
    sent += send_all(&load, address, &meter, &paced)?;
    load.block_on(handled(&meter, sent))?;
    let seen = meter.seen.take([0.5, 0.99]);
    stop(&ours, server)?;
    Ok((maximum, seen))
}

struct Meter {
    start: Instant,
    seen: Histogram,
    finished: Finished,
}

struct Measured(Arc<Meter>);

impl Handler for Measured {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let now_ns = self.0.start.elapsed().as_nanos() as u64;
        let Some(due_ns) = due_of(attempt.payload()) else {
            return Outcome::rejected("a payload that this benchmark did not send");
        };
        self.0.seen.saw(now_ns.saturating_sub(due_ns));
        self.0.finished.one();
        Outcome::Done
    }
}

/// A server on the embedded broker, with a pipeline of its own.
async fn serve(folder: &Path, meter: &Arc<Meter>) -> Result<Server, Error> {
    let keylane = Keylane::open_embedded(folder).await?;
    let spec = TopicSpec { partitions: PARTITIONS, ..TopicSpec::default() };
    keylane.ensure_topic(TOPIC, &spec).await?;
    let server = serve_on(keylane).await?;
    let pipeline = server.keylane().pipeline(TOPIC).handle(Measured(Arc::clone(meter))).start().await?;
    crate::all_read(&pipeline).await?;
    server.drain_too(pipeline);
    Ok(server)
}

/// Messages a second that are handled after the warm-up.
async fn rate(meter: Arc<Meter>) -> f64 {
    tokio::time::sleep(WARM_UP).await;
    let (before, since) = (meter.finished.count(), Instant::now());
    tokio::time::sleep(WINDOW).await;
    (meter.finished.count() - before) as f64 / since.elapsed().as_secs_f64()
}

/// Waits until this many messages were handled in all.
async fn handled(meter: &Meter, sent: u64) -> Result<(), Error> {
    let since = Instant::now();
    loop {
        match sent.saturating_sub(meter.finished.count()) {
            0 => return Ok(()),
            missing if since.elapsed() > PATIENCE => return Err(Error::NotHandled(missing)),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// When requests are due, in time since the meter's start.
struct Schedule {
    from: Duration,
    until: Duration,
    /// The time between two requests. Without it, a request is due whenever a connection is free.
    every: Option<Duration>,
    taken: AtomicU64,
}

impl Schedule {
    fn new(meter: &Meter, length: Duration, every: Option<Duration>) -> Schedule {
        let from = meter.start.elapsed();
        Schedule { from, until: from + length, every, taken: AtomicU64::new(0) }
    }

    /// When the next request is due.
    fn next(&self, meter: &Meter) -> Option<Duration> {
        let index = self.taken.fetch_add(1, Ordering::Relaxed);
        let due = match self.every {
            Some(every) => self.from + Duration::from_nanos(every.as_nanos() as u64 * index),
            None => meter.start.elapsed(),
        };
        (due < self.until).then_some(due)
    }
}

/// Sends a schedule's requests over all connections. Returns how many messages were sent. The first request that fails
/// ends it.
fn send_all(
    load: &Runtime,
    address: SocketAddr,
    meter: &Arc<Meter>,
    schedule: &Arc<Schedule>,
) -> Result<u64, Error> {
    let senders: Vec<_> = (0..CONNECTIONS)
        .map(|_| load.spawn(send(address, Arc::clone(meter), Arc::clone(schedule))))
        .collect();
    let mut sent = 0;
    for sender in senders {
        sent += load.block_on(sender).expect("a sender does not panic")?;
    }
    Ok(sent)
}

async fn send(address: SocketAddr, meter: Arc<Meter>, schedule: Arc<Schedule>) -> Result<u64, Error> {
    let mut connection = Connection::open(address).await?;
    let mut request = Request::new();
    let mut sent = 0;
    while let Some(due) = schedule.next(&meter) {
        // Even a sleep that is over takes up to a millisecond.
        if meter.start.elapsed() < due {
            tokio::time::sleep_until((meter.start + due).into()).await;
        }
        connection.exchange(request.due(due)).await?;
        sent += LINES as u64;
    }
    Ok(sent)
}

/// Digits of a due time in ns.
const DIGITS: usize = 20;
/// The beginning of a payload, before its due time.
const PAYLOAD_START: &str = r#"{"due":""#;

/// A request, written out once. Each time it is sent, its messages get another due time and other keys.
struct Request {
    bytes: Vec<u8>,
    /// Where the digits are written.
    places: Vec<usize>,
}

impl Request {
    fn new() -> Request {
        let (mark, filler) = ("#".repeat(DIGITS), "x".repeat(110));
        let line = |index| {
            format!(r#"{{"key":"{mark}-{index}","payload":{PAYLOAD_START}{mark}","filler":"{filler}"}}}}"#)
        };
        let body: Vec<String> = (0..LINES).map(line).collect();
        let bytes = client::post(&path_of(TOPIC), NDJSON, body.join("\n").as_bytes());
        let marks = bytes.windows(DIGITS).enumerate().filter(|(_, window)| *window == mark.as_bytes());
        let places = marks.map(|(at, _)| at).collect();
        Request { bytes, places }
    }

    fn due(&mut self, due: Duration) -> &[u8] {
        let digits = format!("{:0DIGITS$}", due.as_nanos());
        for at in &self.places {
            self.bytes[*at..][..DIGITS].copy_from_slice(digits.as_bytes());
        }
        &self.bytes
    }
}

fn due_of(payload: Option<&[u8]>) -> Option<u64> {
    let digits = payload?.strip_prefix(PAYLOAD_START.as_bytes())?.get(..DIGITS)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_its_due_time_in_every_message() {
        let mut request = Request::new();
        for due in [Duration::from_nanos(7), Duration::from_secs(3)] {
            let text = String::from_utf8(request.due(due).to_vec()).expect("text");
            let payloads: Vec<_> = text.split(r#""payload":"#).skip(1).collect();
            assert_eq!(payloads.len(), LINES);
            for payload in payloads {
                assert_eq!(due_of(Some(payload.as_bytes())), Some(due.as_nanos() as u64));
            }
        }
        assert_eq!(due_of(Some(b"something else")), None);
    }
}
