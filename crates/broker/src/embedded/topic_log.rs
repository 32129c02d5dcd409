//! One topic: its log on the disk, what of it is in memory, and who waits for it.
//!
//! In: frames from producers, positions from readers. Out: positions once durable, batches. A message's way: copied
//! into [`Waiting`] by its caller; taken, positioned, written and synced with all others (`group_commit`); then in
//! the index and in the tail, where readers find it; then acknowledged. Nothing that is not synced gets further than
//! the first two steps. After a failure that leaves the disk in doubt the log stops: it takes nothing more, and what
//! was synced before can still be read (P10).

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::task::Waker;

use keylane_core::Frames;
use tokio::sync::{Semaphore, oneshot};

use super::appender::{Appender, Sizes};
use super::failure::Failure;
use super::groups::Groups;
use super::index::{Index, SegmentIndex, Span};
use super::lock;
use super::make;
use super::options::{Host, Options};
use super::recover::recover;
use super::segment::{StreamEnds, Table};
use super::stored::{SpanCache, Stored};
use super::waiting::{GROUP_BYTES_MAX, Waiting};
use super::writer::{Queue, Urgency};
use crate::contract::{BrokerError, Ends, ProduceError, Topic, TopicSpec};

/// The smallest segment: below it, headers and syncs of the folder outweigh the messages.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The first segment of a topic; the next ones double, so that a topic with few messages stays small.
const SEGMENT_BYTES_FIRST: u64 = 4 << 20;

/// One topic.
pub(crate) struct TopicLog {
    /// As it was opened; its bounds now are in `spec`.
    pub topic: Topic,
    spec: RwLock<Arc<TopicSpec>>,
    pub(super) host: Host,
    pub(super) groups: Arc<Groups>,
    pub(super) queue: Queue<Waiting>,
    /// Bounds what waits, in KiB: a caller beyond it waits before it adds.
    room: Semaphore,
    pub(super) tails: Vec<Mutex<Tail>>,
    pub(super) index: RwLock<Index>,
    spans: SpanCache,
    pub(super) writer: Mutex<Writer>,
    pub(super) stopped: OnceLock<BrokerError>,
    pub(super) tail_bytes_max: usize,
}

/// The newest batches of a partition, and who waits for more.
#[derive(Default)]
pub(super) struct Tail {
    pub start: u64,
    pub end: u64,
    pub batches: VecDeque<Stored>,
    pub waiting: Vec<(u64, Waker)>,
}

/// What only the writer touches.
pub(super) struct Writer {
    pub appender: Appender,
    /// Partition and bytes of what is in the tails, oldest first.
    pub in_tails: VecDeque<(u32, usize)>,
    pub tail_bytes: usize,
}

/// Where a position is.
pub(crate) enum Found {
    InMemory(Stored),
    OnDisk(Span),
    /// At the end: the waker is kept, and woken when there is more.
    Later,
}

impl TopicLog {
    /// Makes the log of a new topic.
    pub fn create(
        dir: &Path,
        topic: Topic,
        options: &Options,
        groups: Arc<Groups>,
    ) -> Result<TopicLog, Failure> {
        let table: Table =
            (0..topic.partitions).map(|partition| (partition, StreamEnds::default())).collect();
        let sizes = sizes(&topic, options);
        let appender = make::create(&options.host, dir, topic.incarnation, sizes, table)?;
        let mut index = Index::default();
        let first = vec![0; topic.partitions as usize];
        index.segments.push_back(SegmentIndex::new(Arc::clone(appender.active()), first));
        Ok(TopicLog::new(topic, options, groups, appender, index))
    }

    /// Opens the log of a topic that is there.
    pub fn open(
        dir: &Path,
        topic: Topic,
        options: &Options,
        groups: Arc<Groups>,
    ) -> Result<TopicLog, Failure> {
        let mut index = Index::default();
        let sizes = sizes(&topic, options);
        let appender = recover(&options.host, dir, topic.incarnation, sizes, &mut index)?;
        Ok(TopicLog::new(topic, options, groups, appender, index))
    }

    fn new(
        topic: Topic,
        options: &Options,
        groups: Arc<Groups>,
        appender: Appender,
        index: Index,
    ) -> TopicLog {
        let starts = index.starts();
        let tails = appender
            .table
            .values()
            .zip(starts)
            .map(|(ends, start)| Mutex::new(Tail { start, end: ends.next, ..Tail::default() }));
        TopicLog {
            tails: tails.collect(),
            spec: RwLock::new(Arc::new(topic.spec.clone())),
            topic,
            host: options.host.clone(),
            groups,
            queue: Queue::default(),
            room: Semaphore::new(GROUP_BYTES_MAX / 1024),
            index: RwLock::new(index),
            spans: SpanCache::default(),
            writer: Mutex::new(Writer { appender, in_tails: VecDeque::new(), tail_bytes: 0 }),
            stopped: OnceLock::new(),
            tail_bytes_max: options.tail_bytes,
        }
    }

    /// Appends messages; answers when each is durable or refused.
    pub async fn produce(&self, frames: Frames) -> Vec<Result<u64, ProduceError>> {
        let count = frames.len();
        let refused = |why: String| vec![Err(ProduceError::Unavailable(why)); count];
        let kib = (frames.bytes() / 1024 + 1).min(GROUP_BYTES_MAX / 1024) as u32;
        let Ok(_room) = self.room.acquire_many(kib).await else {
            return refused(BrokerError::Closed.to_string());
        };
        if let Some(why) = self.stopped.get() {
            return refused(why.to_string());
        }
        let (sender, receiver) = oneshot::channel();
        let bytes_max = self.spec().message_bytes_max;
        let seats = self.queue.add(Urgency::Now, |waiting| {
            let seats = waiting.add(&self.topic.name, self.topic.partitions, bytes_max, &frames);
            waiting.callers.push(sender);
            seats
        });
        drop(frames);
        let Some(seats) = seats else {
            return refused(BrokerError::Closed.to_string());
        };
        let Ok(end) = receiver.await else {
            return refused("its writer ended".to_owned());
        };
        seats.results(&end)
    }

    /// Why it stopped, if it did (P10).
    pub fn health(&self) -> Result<(), BrokerError> {
        self.stopped.get().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// The topic as it is now.
    pub fn topic(&self) -> Topic {
        Topic { spec: (*self.spec()).clone(), ..self.topic.clone() }
    }

    /// Gives the topic other bounds.
    pub fn set_spec(&self, spec: TopicSpec) {
        *self.spec.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(spec);
        self.settled_more();
    }

    pub(super) fn spec(&self) -> Arc<TopicSpec> {
        Arc::clone(&self.spec.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where each partition begins and ends.
    pub fn ends(&self) -> Vec<Ends> {
        let ends = |tail: &Mutex<Tail>| {
            let tail = lock(tail);
            Ends { start: tail.start, end: tail.end }
        };
        self.tails.iter().map(ends).collect()
    }

    /// Finds a position. At the end of the log `waker`, if there is one, is kept under the reader's id.
    pub fn find(
        &self,
        partition: u32,
        position: u64,
        waiting: Option<(u64, &Waker)>,
    ) -> Result<Found, BrokerError> {
        let (start, end) = {
            let mut tail = lock(&self.tails[partition as usize]);
            if position == tail.end {
                if let Some(why) = self.stopped.get() {
                    return Err(why.clone());
                }
                if let Some((reader, waker)) = waiting {
                    tail.waiting.retain(|(other, _)| *other != reader);
                    tail.waiting.push((reader, waker.clone()));
                }
                return Ok(Found::Later);
            }
            let at = tail.batches.partition_point(|batch| batch.next <= position);
            if let Some(batch) = tail.batches.get(at)
                && batch.base <= position
                && position >= tail.start
            {
                return Ok(Found::InMemory(batch.clone()));
            }
            (tail.start, tail.end)
        };
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        match index.find(partition, position) {
            Some(span) if position >= start => Ok(Found::OnDisk(span)),
            _ => Err(BrokerError::OutOfRange {
                topic: self.topic.name.clone(),
                partition,
                position,
                start: start.max(index.starts()[partition as usize]),
                end,
            }),
        }
    }

    /// Reads a span, from memory or from the disk.
    pub fn load(&self, span: &Span) -> Result<Arc<[Stored]>, BrokerError> {
        self.spans.load(span).map_err(BrokerError::from)
    }

    /// A span that another reader has read already.
    pub fn loaded(&self, span: &Span) -> Option<Arc<[Stored]>> {
        self.spans.peek(span)
    }

    /// A reader is gone.
    pub fn unwatch(&self, partition: u32, reader: u64) {
        lock(&self.tails[partition as usize]).waiting.retain(|(other, _)| *other != reader);
    }

    /// A group has settled more: something may be freed now.
    pub fn settled_more(&self) {
        let _closed = self.queue.add(Urgency::Lazy, |_| ());
    }

    /// Takes nothing more; the thread writes what waits, and ends.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Nothing comes any more, for this reason: readers at the end and producers are told.
    pub fn stop(&self, why: BrokerError) {
        let _first_reason_stays = self.stopped.set(why);
        self.room.close();
        for tail in &self.tails {
            let waiting = std::mem::take(&mut lock(tail).waiting);
            waiting.into_iter().for_each(|(_, waker)| waker.wake());
        }
    }
}

/// A topic with a small bound gets small segments: only whole ones are freed.
fn sizes(topic: &Topic, options: &Options) -> Sizes {
    let bound = topic.spec.retention_bytes.unwrap_or(u64::MAX);
    let max = options.segment_bytes.min((bound / 8).next_multiple_of(4096)).max(SEGMENT_BYTES_MIN);
    Sizes { first: SEGMENT_BYTES_FIRST.min(max), max }
}
