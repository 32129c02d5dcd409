//! PRF-7: appends to the embedded broker with group commit, and scans of what was appended.
//!
//! Raw limit: the same bytes written to one pre-zeroed file, each group with one pwrite and one fdatasync.

use std::sync::Arc;
use std::time::Instant;

use keylane_broker::embedded::{Embedded, Options as EmbeddedOptions};
use keylane_broker::{Broker, TopicSpec};
use keylane_core::{Draft, Frames};

use crate::disk::BareFile;
use crate::machine::runtime;
use crate::{Error, Figure, Options, Target};

/// Bytes of one message's frame: id of 16, key of 8, the rest payload.
const FRAME_BYTES: usize = 200;
const ROUNDS: usize = 6;
/// Callers at a time; what they send while a sync runs is the next group.
const CALLERS: usize = 4;
/// Messages in a group, and groups in a round.
const GROUPS: [(usize, usize); 2] = [(1_000, 100), (10_000, 40)];
/// Written first, so that segments are used again, as in a log that has run for a while.
const WARM_UP: (usize, usize) = (20_000, 100);
/// Asked of a reader at a time.
const READ_BYTES: usize = 1 << 20;

pub(crate) fn run(options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let folder = tempfile::tempdir_in(&options.folder)?;
    let runtime = runtime("ours")?;
    let mut bare = BareFile::create(folder.path())?;
    let broker = Embedded::open(folder.path().join("log"), EmbeddedOptions::default());
    let broker = Arc::new(broker.map_err(|error| Error::Broker(error.to_string()))?);
    for partitions in [1, 12] {
        let topic = format!("t{partitions}");
        let spec = TopicSpec { partitions, retention_bytes: Some(256 << 20), ..TopicSpec::default() };
        runtime.block_on(broker.create_topic(&topic, &spec)).map_err(failed)?;
        let append =
            |messages, groups| runtime.block_on(append(&broker, &topic, partitions, messages, groups));
        append(WARM_UP.0, WARM_UP.1)?;
        for (messages, groups) in GROUPS {
            let (mut raw_rate, mut rate) = (0f64, 0f64);
            for _ in 0..ROUNDS {
                raw_rate = raw_rate.max(raw(&mut bare, messages, groups)?);
                rate = rate.max(append(messages, groups)?);
            }
            report(Figure::beside(
                "PRF-7",
                format!("append, {partitions} partitions, {messages} a sync"),
                "messages a second",
                rate,
                raw_rate,
                Target::RatioAtLeast(0.8),
            ));
        }
        let mut rate = 0f64;
        for _ in 0..ROUNDS {
            rate = rate.max(runtime.block_on(scan(&broker, &topic))?);
        }
        let what = format!("scan, {partitions} partitions, checksums");
        report(Figure::alone("PRF-7", what, "messages a second", rate, Target::AtLeast(20e6)));
    }
    broker.close();
    Ok(())
}

fn failed(error: keylane_broker::BrokerError) -> Error {
    Error::Broker(error.to_string())
}

/// Messages of a call, spread over partitions.
pub(crate) fn frames(partitions: u32, messages: usize) -> Frames {
    let mut frames = Frames::with_capacity(messages, messages * FRAME_BYTES);
    let payload = [b'p'; FRAME_BYTES - 28 - 16 - 8];
    for index in 0..messages {
        let draft = Draft {
            id: "0123456789abcdef",
            key: Some(&(index as u64).to_le_bytes()),
            payload: Some(&payload),
            ..Draft::default()
        };
        let pushed = frames.push(index as u32 % partitions, &draft);
        pushed.expect("within all bounds");
    }
    frames
}

fn raw(bare: &mut BareFile, messages: usize, groups: usize) -> Result<f64, Error> {
    let bytes = vec![b'r'; messages * FRAME_BYTES];
    let since = Instant::now();
    for _ in 0..groups {
        bare.write(&bytes)?;
    }
    Ok((messages * groups) as f64 / since.elapsed().as_secs_f64())
}

async fn append(
    broker: &Arc<Embedded>,
    topic: &str,
    partitions: u32,
    messages: usize,
    groups: usize,
) -> Result<f64, Error> {
    let each = messages / CALLERS;
    let made: Vec<Vec<Frames>> =
        (0..CALLERS).map(|_| (0..groups).map(|_| frames(partitions, each)).collect()).collect();
    let since = Instant::now();
    let callers: Vec<_> = made
        .into_iter()
        .map(|calls| {
            let (broker, topic) = (Arc::clone(broker), topic.to_owned());
            tokio::spawn(async move {
                for frames in calls {
                    for placed in broker.produce(&topic, frames).await {
                        placed.map_err(|error| Error::Broker(error.to_string()))?;
                    }
                }
                Ok::<_, Error>(())
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("a caller does not panic")?;
    }
    Ok((each * CALLERS * groups) as f64 / since.elapsed().as_secs_f64())
}

/// Reads all that a topic has, a reader each partition, in turn.
async fn scan(broker: &Embedded, topic: &str) -> Result<f64, Error> {
    let mut readers = Vec::new();
    for (partition, ends) in (0..).zip(broker.ends(topic).await.map_err(failed)?) {
        let reader = broker.reader(topic, partition, ends.start).await.map_err(failed)?;
        readers.push((reader, ends.start, ends.end));
    }
    let since = Instant::now();
    let mut messages = 0;
    while readers.iter().any(|(_, at, end)| at < end) {
        for (reader, at, end) in readers.iter_mut().filter(|(_, at, end)| at < end) {
            let batch = std::future::poll_fn(|cx| reader.poll_batch(cx, READ_BYTES)).await;
            let batch = batch.map_err(failed)?;
            messages += u64::from(batch.count);
            *at = batch.next.max(*at).min(*end);
        }
    }
    Ok(messages as f64 / since.elapsed().as_secs_f64())
}
