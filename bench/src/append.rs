//! Measures PRF-7: appends to the embedded broker with group commit, and scans of what was appended.
//!
//! Raw limit: the same bytes written to one pre-zeroed file in as many groups, each with one pwrite and one fdatasync.
//! The number of groups that the broker made of a round's calls is read from what it stored: each group begins a batch
//! in each partition. So both sides write the same number of messages a sync, whatever the rhythm of the callers.

use std::sync::Arc;
use std::time::Instant;

use keylane_broker::embedded::{Embedded, Options as EmbeddedOptions};
use keylane_broker::{Broker, TopicSpec};
use keylane_core::{Draft, Frames};

use crate::disk::BareFile;
use crate::histogram::median;
use crate::machine::runtime;
use crate::{Error, Figure, Options, Target};

/// Bytes of one message's frame: an id of 16, a key of 8, the rest payload.
const FRAME_BYTES: usize = 200;
const ROUNDS: usize = 6;
/// Callers at a time, each with one call. The broker waits a moment for the callers that it has just answered, so
/// mostly all of them share a sync.
const CALLERS: usize = 8;
/// Messages in a call, and in a round.
const CALLS: [(usize, usize); 2] = [(250, 100_000), (2_500, 400_000)];
/// Written first, so that segments are reused, as in a log that has run for a while.
const WARM_UP: (usize, usize) = (5_000, 2_000_000);
/// The broker's own bound of a batch. If a batch has no room for another message, the group goes on in the next batch.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Bytes asked of a reader at a time.
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
        let append = |call, messages| runtime.block_on(append(&broker, &topic, partitions, call, messages));
        append(WARM_UP.0, WARM_UP.1)?;
        for (call, messages) in CALLS {
            let (mut raw_rate, mut rate, mut a_sync) = (0f64, 0f64, Vec::new());
            for _ in 0..ROUNDS {
                let from = runtime.block_on(broker.ends(&topic)).map_err(failed)?[0].end;
                rate = rate.max(append(call, messages)?);
                let groups = runtime.block_on(groups_since(&broker, &topic, from))?;
                raw_rate = raw_rate.max(raw(&mut bare, messages, groups)?);
                a_sync.push(messages as f64 / groups as f64);
            }
            report(
                Figure::beside(
                    "PRF-7",
                    format!("append, {partitions} partitions, calls of {call}"),
                    "messages a second",
                    rate,
                    raw_rate,
                    Target::RatioAtLeast(0.8),
                )
                .note(format!("{CALLERS} callers; {:.0} messages a sync", median(a_sync))),
            );
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
    let bytes = vec![b'r'; messages.div_ceil(groups) * FRAME_BYTES];
    let since = Instant::now();
    let mut left = messages * FRAME_BYTES;
    while left > 0 {
        let group = left.min(bytes.len());
        bare.write(&bytes[..group])?;
        left -= group;
    }
    Ok(messages as f64 / since.elapsed().as_secs_f64())
}

/// How many groups were synced since the first partition ended at `from`. Every call has messages for all partitions. A
/// group that a segment's end cuts in two is synced twice and counts once here, which only helps the raw limit.
async fn groups_since(broker: &Embedded, topic: &str, from: u64) -> Result<usize, Error> {
    let end = broker.ends(topic).await.map_err(failed)?[0].end;
    let mut reader = broker.reader(topic, 0, from).await.map_err(failed)?;
    let (mut groups, mut at) = (0, from);
    while at < end {
        let batch = std::future::poll_fn(|cx| reader.poll_batch(cx, usize::MAX)).await.map_err(failed)?;
        let goes_on = batch.frames.len() + FRAME_BYTES > BATCH_BYTES_MAX;
        groups += usize::from(!goes_on);
        at = batch.next;
    }
    Ok(groups)
}

async fn append(
    broker: &Arc<Embedded>,
    topic: &str,
    partitions: u32,
    call: usize,
    messages: usize,
) -> Result<f64, Error> {
    let calls = messages / CALLERS / call;
    let made: Vec<Vec<Frames>> =
        (0..CALLERS).map(|_| (0..calls).map(|_| frames(partitions, call)).collect()).collect();
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
    Ok(messages as f64 / since.elapsed().as_secs_f64())
}

/// Reads the whole topic, with one reader for each partition, in turn.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails if the broker's bound of a batch is no longer the one that is assumed here.
    #[test]
    fn a_lone_caller_has_a_group_for_each_call_whatever_its_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Embedded::open(folder.path(), EmbeddedOptions::default()).expect("it opens");
        let broker = Arc::new(broker);
        runtime("test").expect("a runtime").block_on(async {
            for partitions in [1, 12] {
                let topic = format!("t{partitions}");
                let spec = TopicSpec { partitions, ..TopicSpec::default() };
                broker.create_topic(&topic, &spec).await.expect("it is new");
                let mut from = 0;
                // Below the bound of a batch, and far beyond it.
                for (call, calls) in [(250, 7), (12_000, 3)] {
                    for _ in 0..calls {
                        let placed = broker.produce(&topic, frames(partitions, call)).await;
                        assert!(placed.iter().all(Result::is_ok));
                    }
                    let groups = groups_since(&broker, &topic, from).await.expect("it can be read");
                    assert_eq!(groups, calls, "{partitions} partitions, calls of {call}");
                    from = broker.ends(&topic).await.expect("it is there")[0].end;
                }
            }
        });
        broker.close();
    }
}
