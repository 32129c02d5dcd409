//! What waits for a broker that is away, on this machine's disk.
//!
//! A log of our own beside the broker's: for each topic one of what waits (`w4.TOPIC`), with the same number of
//! partitions, and one of what the broker refused for good, with all that came behind it of the same keys
//! (`r4.TOPIC`). A topic that got more partitions meanwhile has logs of its own for each number. How far each is drained
//! is the log's commit. Bytes are counted here, over all.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use keylane_broker::{Broker, BrokerError, Commit, ProduceError, Reader, TopicSpec};
use keylane_core::{Batch, Delivery, Frames, Settled};

use super::lock;
use crate::Error;
use crate::produce::call::Target;

/// The name under which it is kept how far a log is drained.
const GROUP: &str = "drain";
/// The largest message that is kept: the broker's own limit, whatever it is, was checked before.
const MESSAGE_BYTES_MAX: usize = 128 << 20;

/// Which of a topic's two logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Waits for the broker.
    Waiting,
    /// Was refused for good, or stands behind what was.
    Refused,
}

impl Kind {
    /// Short: a topic's name may be as long as a folder's can be, but for six characters.
    fn letter(self) -> char {
        match self {
            Kind::Waiting => 'w',
            Kind::Refused => 'r',
        }
    }

    /// The log of a topic with so many partitions.
    fn log_of(self, topic: &str, partitions: u32) -> String {
        format!("{}{partitions}.{topic}", self.letter())
    }
}

/// Which log of which topic it is, by its name.
fn kind_of(log: &str) -> Option<(Kind, &str)> {
    let (head, topic) = log.split_once('.')?;
    let of = |kind: Kind| head.strip_prefix(kind.letter()).is_some_and(|count| count.parse::<u32>().is_ok());
    [Kind::Waiting, Kind::Refused].into_iter().find(|kind| of(*kind)).map(|kind| (kind, topic))
}

/// The logs.
pub(crate) struct Store {
    log: Arc<dyn Broker>,
    /// Bytes of what waits, and of what was refused.
    waiting: AtomicU64,
    refused: AtomicU64,
    bytes_max: u64,
    /// Logs that are there.
    made: Mutex<BTreeSet<String>>,
}

/// A partition of a topic, as it was when something was kept of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: u32,
    /// How many the topic had: with another number its keys lie elsewhere.
    pub(crate) partitions: u32,
}

impl Place {
    pub(crate) fn of(target: &Target, partition: u32) -> Place {
        Place { topic: Arc::clone(&target.name), partition, partitions: target.partitions }
    }
}

/// What of a place is kept in one of its logs.
pub(crate) struct Kept {
    pub(crate) place: Place,
    pub(crate) kind: Kind,
    /// How far it is drained.
    pub(crate) drained: Settled,
    /// The next position to be given out.
    pub(crate) end: u64,
}

impl Store {
    /// What it stands on.
    pub(crate) fn log(&self) -> &dyn Broker {
        &*self.log
    }

    pub(crate) async fn open(log: Arc<dyn Broker>, bytes_max: u64) -> Result<(Store, Vec<Kept>), Error> {
        let store = Store {
            log,
            waiting: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bytes_max,
            made: Mutex::default(),
        };
        let mut kept = Vec::new();
        for log in store.log.topics().await? {
            let Some((kind, topic)) = kind_of(&log.name) else {
                tracing::warn!(log = log.name, "the spill's folder has a log that is not of the spill");
                continue;
            };
            let ends = store.log.ends(&log.name).await?;
            store.protect(&log.name, ends.first().map_or(0, |first| first.start)).await?;
            for (partition, ends) in (0..).zip(ends) {
                let commit = store.log.committed(GROUP, &log.name, partition).await?;
                let drained = commit.as_ref().map_or(Settled::below(ends.start), drained_of);
                let place = Place { topic: topic.into(), partition, partitions: log.partitions };
                kept.push(Kept { place, kind, drained, end: ends.end });
            }
            lock(&store.made).insert(log.name);
        }
        Ok((store, kept))
    }

    /// Bytes of all that is kept, and those allowed.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.bytes_of(Kind::Waiting) + self.bytes_of(Kind::Refused), self.bytes_max)
    }

    pub(crate) fn bytes_of(&self, kind: Kind) -> u64 {
        self.counter(kind).load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, kind: Kind, bytes: usize) {
        self.counter(kind).fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn uncount(&self, kind: Kind, bytes: usize) {
        self.counter(kind).fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    fn counter(&self, kind: Kind) -> &AtomicU64 {
        match kind {
            Kind::Waiting => &self.waiting,
            Kind::Refused => &self.refused,
        }
    }

    /// Partitions of a topic as something of it was kept last, if ever: their number only grows, and so does the turn
    /// in which what was kept by it is sent.
    pub(crate) fn partitions(&self, topic: &str) -> Option<u32> {
        let made = lock(&self.made);
        let counts = made.iter().filter(|log| kind_of(log).is_some_and(|(_, of)| of == topic));
        counts.filter_map(|log| log.split_once('.')?.0[1..].parse().ok()).max()
    }

    /// Keeps messages, durably: a position each, or why not. Bytes are counted.
    pub(crate) async fn append(
        &self,
        kind: Kind,
        topic: &str,
        partitions: u32,
        frames: Frames,
    ) -> Vec<Result<u64, ProduceError>> {
        let count = frames.len();
        let name = kind.log_of(topic, partitions);
        if let Err(error) = self.ensure(&name, partitions).await {
            let why = format!("the spill cannot be written: {error}");
            return vec![Err(ProduceError::Unavailable(why)); count];
        }
        let sizes: Vec<usize> = frames.iter().map(|(_, frame)| frame.len()).collect();
        // Before it is there: it may be drained before this call returns.
        self.count(kind, sizes.iter().sum());
        let results = self.log.produce(&name, frames).await;
        let failed = sizes.iter().zip(&results).filter(|(_, result)| result.is_err());
        self.uncount(kind, failed.map(|(size, _)| size).sum());
        results.into_iter().map(|result| result.map_err(|error| not_kept(&error))).collect()
    }

    async fn ensure(&self, name: &str, partitions: u32) -> Result<(), BrokerError> {
        if lock(&self.made).contains(name) {
            return Ok(());
        }
        let spec = TopicSpec {
            partitions,
            // Freed once it is drained.
            retention_ms: Some(1),
            retention_bytes: None,
            message_bytes_max: MESSAGE_BYTES_MAX,
            ..TopicSpec::default()
        };
        self.log.create_topic(name, &spec).await?;
        self.protect(name, 0).await?;
        lock(&self.made).insert(name.to_owned());
        Ok(())
    }

    /// From its first commit on nothing of a log is freed that is not drained. A process may have ended between making
    /// the log and that commit.
    async fn protect(&self, name: &str, start: u64) -> Result<(), BrokerError> {
        match self.log.committed(GROUP, name, 0).await? {
            Some(_) => Ok(()),
            None => {
                let commit = Commit { position: start, metadata: Bytes::new() };
                self.log.commit(GROUP, name, 0, commit).await
            }
        }
    }

    /// Reads one log from a position on.
    pub(crate) async fn read(&self, kind: Kind, place: &Place, from: u64) -> Result<Reading, BrokerError> {
        let log = kind.log_of(&place.topic, place.partitions);
        let reader = self.log.reader(&log, place.partition, from).await?;
        Ok(Reading { reader, from })
    }

    /// Notes how far a log is drained: so much is freed.
    pub(crate) async fn drained(
        &self,
        kind: Kind,
        place: &Place,
        drained: &Settled,
    ) -> Result<(), BrokerError> {
        let above: Vec<String> =
            drained.above().iter().map(|range| format!("{}-{}", range.start, range.end)).collect();
        let commit = Commit { position: drained.low(), metadata: above.join(",").into() };
        self.log.commit(GROUP, &kind.log_of(&place.topic, place.partitions), place.partition, commit).await
    }
}

/// What a commit of ours says.
fn drained_of(commit: &Commit) -> Settled {
    let mut drained = Settled::below(commit.position);
    let text = String::from_utf8_lossy(&commit.metadata);
    for range in text.split(',').filter_map(|range| range.split_once('-')) {
        if let (Ok(from), Ok(to)) = (range.0.parse(), range.1.parse()) {
            drained.settle(from..to);
        }
    }
    drained
}

/// The message was not taken by the broker, and not kept here either.
fn not_kept(error: &ProduceError) -> ProduceError {
    match error {
        ProduceError::Unavailable(why) => {
            ProduceError::Unavailable(format!("the spill cannot be written: {why}"))
        }
        other => other.clone(),
    }
}

/// Reads one log.
pub(crate) struct Reading {
    reader: Box<dyn Reader>,
    from: u64,
}

impl Reading {
    /// The next messages: about `bytes_max`, at least one. Waits at the end.
    pub(crate) async fn next(&mut self, bytes_max: usize) -> Result<(Vec<Delivery>, u64), BrokerError> {
        let batch: Batch = poll_fn(|cx| self.reader.poll_batch(cx, bytes_max)).await?;
        let messages: Result<Vec<Delivery>, _> = batch.cursor(0).collect();
        let mut messages = messages.map_err(|error| BrokerError::Damaged(error.to_string()))?;
        // A batch may begin before what was asked for.
        messages.retain(|message| message.position() >= self.from);
        Ok((messages, batch.next))
    }
}
