//! One topic: its log on the disk, its newest messages in memory, and the readers that wait for more.
//!
//! In: frames from producers, positions from readers. Out: positions once the messages are durable, and batches. A
//! message is copied into [`Waiting`] by its caller; the writer thread takes it, gives it a position, and writes and
//! syncs it with its group (`group_commit`); then it is entered in the index and in the tail, where readers find it;
//! then its caller is answered. A message that is not synced never gets beyond the write. If a failure leaves the
//! contents of the disk in doubt, the log stops: it takes nothing more, and what was synced before can still be read
//! (P10).

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::task::Waker;

use keylane_core::Frames;
use tokio::sync::oneshot;

use super::age::AgeClock;
use super::index::{Index, SegmentIndex, Span};
use super::retention;
use super::stored::{SpanBatches, SpanCache, Stored};
use super::waiting::{Call, GROUP_KIB_MAX, Waiting};
use crate::contract::{BrokerError, Ends, HeldBack, ProduceError, Topic, TopicSpec};
use crate::embedded::data::Captured;
use crate::embedded::entrance::{Entrance, Ticket};
use crate::embedded::failure::Failure;
use crate::embedded::groups::Groups;
use crate::embedded::lock;
use crate::embedded::options::{Host, Options};
use crate::embedded::refusal::Refusal;
use crate::embedded::segment::{Appender, Sizes, StreamEnds, Table, make, recover};
use crate::embedded::upkeep::Upkeep;
use crate::embedded::writer::{Queue, Urgency};

/// The smallest segment. In smaller ones, headers and syncs of the folder would cost more than the messages.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The first segment of a topic. Each further one is twice as large, so that a topic with few messages stays small.
const SEGMENT_BYTES_FIRST: u64 = 4 << 20;

/// The name under which a panic of a read is counted.
const READ_THREAD: &str = "log-read";

/// The log of one topic, shared by its producers, its readers and its writer thread.
pub(crate) struct TopicLog {
    /// The topic as it was when the log was opened. Its present bounds are in `spec`.
    pub topic: Topic,
    spec: RwLock<Arc<TopicSpec>>,
    pub(super) host: Host,
    pub(super) groups: Arc<Groups>,
    pub(super) queue: Queue<Entrance<Waiting>>,
    /// The topic's name in the form in which calls carry it.
    name: Arc<str>,
    pub(super) tails: Vec<Mutex<Tail>>,
    pub(super) index: RwLock<Index>,
    spans: SpanCache,
    pub(super) writer: Mutex<Writer>,
    pub(super) stopped: OnceLock<BrokerError>,
    pub(super) refusal: Refusal,
    pub(super) upkeep: Upkeep,
    memory: Memory,
}

/// The bound of the memory of one topic. While this value exists, the topic takes its share of the memory of all
/// topics.
struct Memory {
    tail_bytes: usize,
    /// Bytes for the tails of all topics together.
    tails_bytes: usize,
    topics: Arc<AtomicUsize>,
}

impl Memory {
    fn new(options: &Options) -> Memory {
        let topics = Arc::clone(&options.host.topics);
        topics.fetch_add(1, Ordering::Relaxed);
        Memory { tail_bytes: options.tail_bytes, tails_bytes: options.tails_bytes, topics }
    }

    /// The topic's share in bytes at this moment: the more topics are open, the smaller.
    fn share(&self) -> usize {
        self.tails_bytes / self.topics.load(Ordering::Relaxed).max(1)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.topics.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The newest batches of a partition, and the readers that wait for more.
#[derive(Default)]
pub(super) struct Tail {
    pub start: u64,
    pub end: u64,
    pub batches: VecDeque<Stored>,
    pub waiting: Vec<(u64, Waker)>,
}

/// What only the writer thread touches.
pub(super) struct Writer {
    pub appender: Appender,
    /// Partition and allocated bytes of each batch in the tails, oldest first.
    pub in_tails: VecDeque<(u32, usize)>,
    pub tail_bytes: usize,
    /// Decides whether the clock may be believed when messages are deleted for their age.
    pub age: AgeClock,
}

/// Where a position was found.
pub(crate) enum Found {
    InMemory(Stored),
    OnDisk(Span),
    /// The position is the end of the log. The waker that came with the question is woken once there is more.
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
        let name = topic.name.as_str().into();
        TopicLog {
            tails: tails.collect(),
            spec: RwLock::new(Arc::new(topic.spec.clone())),
            topic,
            host: options.host.clone(),
            groups,
            queue: Queue::new(Entrance::new(GROUP_KIB_MAX)),
            name,
            index: RwLock::new(index),
            spans: SpanCache::default(),
            writer: Mutex::new(Writer {
                appender,
                in_tails: VecDeque::new(),
                tail_bytes: 0,
                age: AgeClock::default(),
            }),
            refusal: Refusal::default(),
            upkeep: Upkeep::default(),
            stopped: OnceLock::new(),
            memory: Memory::new(options),
        }
    }

    /// Appends messages, and answers when each of them is durable or refused. The call takes its place among other
    /// calls at its first poll. If the future is dropped, messages that were admitted are still written and counted
    /// in the bounds; messages that still waited for admission are dropped with it.
    pub async fn produce(&self, frames: Frames) -> Vec<Result<u64, ProduceError>> {
        let (count, bytes) = (frames.len(), frames.bytes());
        let refused = || vec![Err(ProduceError::Unavailable(self.why_gone())); count];
        if self.stopped.get().is_some() {
            return refused();
        }
        let (answer, answered) = oneshot::channel();
        let (topic, partitions) = (Arc::clone(&self.name), self.topic.partitions);
        let call = Call { topic, partitions, bytes_max: self.spec().message_bytes_max, frames, answer };
        let overtake = self.host.flaw(|flaws| flaws.overtake_who_waits);
        let entered = self.queue.add(Urgency::Now, |entrance| entrance.enter(bytes, call, overtake));
        let Some(ticket) = entered else {
            return refused();
        };
        let mut place = TakenPlace { log: self, ticket: Some(ticket) };
        let answer = answered.await;
        place.ticket = None;
        match answer {
            Ok((seats, end)) => seats.results(&end),
            Err(_) => refused(),
        }
    }

    /// The reason that is given to a call that comes after the log was closed or stopped.
    fn why_gone(&self) -> String {
        self.stopped.get().unwrap_or(&BrokerError::Closed).to_string()
    }

    /// An error if the log has stopped (P10), or refuses messages at this moment (BRK-8).
    pub fn health(&self) -> Result<(), BrokerError> {
        self.stopped.get().cloned().or_else(|| self.refusal.now()).map_or(Ok(()), Err)
    }

    /// The topic with its present bounds.
    pub fn topic(&self) -> Topic {
        Topic { spec: (*self.spec()).clone(), ..self.topic.clone() }
    }

    /// Changes the topic's bounds. The writer thread then applies the new retention.
    pub fn set_spec(&self, spec: TopicSpec) {
        *self.spec.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(spec);
        self.settled_more();
    }

    pub(super) fn spec(&self) -> Arc<TopicSpec> {
        Arc::clone(&self.spec.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// First position and end of each partition.
    pub fn ends(&self) -> Vec<Ends> {
        let ends = |tail: &Mutex<Tail>| {
            let tail = lock(tail);
            Ends { start: tail.start, end: tail.end }
        };
        self.tails.iter().map(ends).collect()
    }

    /// Finds a position. If it is the end of the log, the waker is kept under the reader's id, if one was given.
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

    /// The batches of a span, from memory or from the disk.
    pub fn load(&self, span: &Span) -> Result<Arc<SpanBatches>, BrokerError> {
        self.spans.load(span, self.memory.share()).map_err(BrokerError::from)
    }

    /// As [`TopicLog::load`], on a thread of the blocking pool. After a panic the reader may try again: its log is not
    /// closed.
    pub fn load_watched(&self, span: &Span) -> Result<Arc<SpanBatches>, BrokerError> {
        let panics = &self.host.panics;
        let read = panics.watch(READ_THREAD, "its partition starts over", || {
            panics.may_be_struck(READ_THREAD);
            self.load(span)
        });
        read.unwrap_or_else(|why| Err(BrokerError::Unavailable(why)))
    }

    /// Releases memory beyond the topic's share, which shrinks when further topics are opened.
    pub(super) fn trim(&self, writer: &mut Writer) {
        let share = self.memory.share();
        while writer.tail_bytes > self.memory.tail_bytes.min(share)
            && let Some((partition, held)) = writer.in_tails.pop_front()
        {
            lock(&self.tails[partition as usize]).batches.pop_front();
            writer.tail_bytes -= held;
        }
        self.spans.trim(share);
    }

    /// The batches of a span that some reader has already read.
    pub fn loaded(&self, span: &Span) -> Option<Arc<SpanBatches>> {
        self.spans.peek(span)
    }

    /// The groups because of which old messages are still kept, although their time is over or the topic is full.
    pub fn held_back(&self) -> Vec<HeldBack> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.host.now_ms();
        match retention::overdue(index.segments.front(), index.bytes(), &self.spec(), now_ms) {
            Some(oldest) => self.groups.holding(&self.topic.name, &oldest.next, now_ms),
            None => Vec::new(),
        }
    }

    /// Returns after the group commit under way, if any, and the freeing of old segments that follows it.
    pub fn end_of_turn(&self) {
        drop(lock(&self.writer));
    }

    /// A snapshot of the segments and of the end of the log, for a backup or the scrubber.
    pub fn capture(&self) -> Captured {
        let writer = lock(&self.writer);
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let segments = index.segments.iter().map(|index| Arc::clone(&index.segment)).collect();
        Captured { segments, end: writer.appender.reached() }
    }

    /// Forgets the waker of a reader that was dropped.
    pub fn unwatch(&self, partition: u32, reader: u64) {
        lock(&self.tails[partition as usize]).waiting.retain(|(other, _)| *other != reader);
    }

    /// Called when a group has settled more: the writer thread then checks which segments may be freed.
    pub fn settled_more(&self) {
        let _closed = self.queue.add(Urgency::Lazy, |_: &mut Entrance<Waiting>| ());
    }

    /// Closes the queue. The writer thread writes what still waits, and then ends.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Stops the log for the reason `why`: wakes the readers at the end, and makes all further calls fail.
    pub fn stop(&self, why: BrokerError) {
        let says = why.to_string();
        // The first reason stays, because later ones are only its consequences.
        if self.stopped.set(why).is_ok() && says != BrokerError::Closed.to_string() {
            tracing::error!(
                topic = %self.topic.name,
                why = says,
                "the topic's log has stopped: nothing more is taken, and what was acknowledged before can be read"
            );
        }
        for tail in &self.tails {
            let waiting = std::mem::take(&mut lock(tail).waiting);
            waiting.into_iter().for_each(|(_, waker)| waker.wake());
        }
    }
}

/// The place of a call that waits for its answer. Dropping it early gives the place up.
struct TakenPlace<'a> {
    log: &'a TopicLog,
    ticket: Option<Ticket>,
}

impl Drop for TakenPlace<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let forget = self.log.host.flaw(|flaws| flaws.forget_the_cancelled);
            self.log.queue.change(|entrance| entrance.leave(ticket, forget));
        }
    }
}

/// A topic with a small size bound gets small segments, because only whole segments are freed.
fn sizes(topic: &Topic, options: &Options) -> Sizes {
    let bound = topic.spec.retention_bytes.unwrap_or(u64::MAX);
    let max = options.segment_bytes.min((bound / 8).next_multiple_of(4096)).max(SEGMENT_BYTES_MIN);
    Sizes { first: SEGMENT_BYTES_FIRST.min(max), max, reserve: options.reserve_bytes() }
}
