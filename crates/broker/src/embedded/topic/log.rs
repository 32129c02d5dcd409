//! One topic: its log on the disk, what of it is in memory, and who waits for it.
//!
//! In: frames from producers, positions from readers. Out: positions once durable, batches. A message's way: copied
//! into [`Waiting`] by its caller; taken, positioned, written and synced with all others (`group_commit`); then in
//! the index and in the tail, where readers find it; then acknowledged. Nothing that is not synced gets further than
//! the first two steps. After a failure that leaves the disk in doubt the log stops: it takes nothing more, and what
//! was synced before can still be read (P10).

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

/// The smallest segment: below it, headers and syncs of the folder outweigh the messages.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The first segment of a topic; the next ones double, so that a topic with few messages stays small.
const SEGMENT_BYTES_FIRST: u64 = 4 << 20;

/// What reads a span, where that is told of.
const READ_THREAD: &str = "log-read";

/// One topic.
pub(crate) struct TopicLog {
    /// As it was opened; its bounds now are in `spec`.
    pub topic: Topic,
    spec: RwLock<Arc<TopicSpec>>,
    pub(super) host: Host,
    pub(super) groups: Arc<Groups>,
    pub(super) queue: Queue<Entrance<Waiting>>,
    /// The topic's name, as calls carry it.
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

/// What a topic may hold in memory. It counts as open until this is dropped.
struct Memory {
    tail_bytes: usize,
    /// Of all topics.
    tails_bytes: usize,
    topics: Arc<AtomicUsize>,
}

impl Memory {
    fn new(options: &Options) -> Memory {
        let topics = Arc::clone(&options.host.topics);
        topics.fetch_add(1, Ordering::Relaxed);
        Memory { tail_bytes: options.tail_bytes, tails_bytes: options.tails_bytes, topics }
    }

    /// Bytes, now: fewer the more topics there are.
    fn share(&self) -> usize {
        self.tails_bytes / self.topics.load(Ordering::Relaxed).max(1)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.topics.fetch_sub(1, Ordering::Relaxed);
    }
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
    /// By which messages grow old.
    pub age: AgeClock,
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

    /// Appends messages; answers when each is durable or refused. The call's place is taken at the first poll. If the
    /// future is dropped, what was admitted is still written and counted; what waited outside is not.
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

    /// What a call is told that came too late.
    fn why_gone(&self) -> String {
        self.stopped.get().unwrap_or(&BrokerError::Closed).to_string()
    }

    /// Why it stopped (P10), or takes nothing now (BRK-8), if so.
    pub fn health(&self) -> Result<(), BrokerError> {
        self.stopped.get().cloned().or_else(|| self.refusal.now()).map_or(Ok(()), Err)
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
    pub fn load(&self, span: &Span) -> Result<Arc<SpanBatches>, BrokerError> {
        self.spans.load(span, self.memory.share()).map_err(BrokerError::from)
    }

    /// The same, on a thread of the blocking pool. After a panic the reader may try again: it is none that was closed.
    pub fn load_watched(&self, span: &Span) -> Result<Arc<SpanBatches>, BrokerError> {
        let panics = &self.host.panics;
        let read = panics.watch(READ_THREAD, "its partition starts over", || {
            panics.may_be_struck(READ_THREAD);
            self.load(span)
        });
        read.unwrap_or_else(|why| Err(BrokerError::Unavailable(why)))
    }

    /// Lets go what is beyond the topic's part of the memory: there may be more topics than before.
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

    /// A span that another reader has read already.
    pub fn loaded(&self, span: &Span) -> Option<Arc<SpanBatches>> {
        self.spans.peek(span)
    }

    /// Groups that keep the oldest messages from being deleted, though their time has come or the topic is full.
    pub fn held_back(&self) -> Vec<HeldBack> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.host.now_ms();
        match retention::overdue(index.segments.front(), index.bytes(), &self.spec(), now_ms) {
            Some(oldest) => self.groups.holding(&self.topic.name, &oldest.next, now_ms),
            None => Vec::new(),
        }
    }

    /// Returns once the group that is being written, if any, is written and old segments are looked after.
    pub fn end_of_turn(&self) {
        drop(lock(&self.writer));
    }

    /// The log as it is now.
    pub fn capture(&self) -> Captured {
        let writer = lock(&self.writer);
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let segments = index.segments.iter().map(|index| Arc::clone(&index.segment)).collect();
        Captured { segments, end: writer.appender.reached() }
    }

    /// A reader is gone.
    pub fn unwatch(&self, partition: u32, reader: u64) {
        lock(&self.tails[partition as usize]).waiting.retain(|(other, _)| *other != reader);
    }

    /// A group has settled more: something may be freed now.
    pub fn settled_more(&self) {
        let _closed = self.queue.add(Urgency::Lazy, |_: &mut Entrance<Waiting>| ());
    }

    /// Takes nothing more; the thread writes what waits, and ends.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Nothing comes any more, for this reason: readers at the end and producers are told.
    pub fn stop(&self, why: BrokerError) {
        let says = why.to_string();
        // The first reason stays.
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

/// The place of a call that has not been answered.
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

/// A topic with a small bound gets small segments: only whole ones are freed.
fn sizes(topic: &Topic, options: &Options) -> Sizes {
    let bound = topic.spec.retention_bytes.unwrap_or(u64::MAX);
    let max = options.segment_bytes.min((bound / 8).next_multiple_of(4096)).max(SEGMENT_BYTES_MIN);
    Sizes { first: SEGMENT_BYTES_FIRST.min(max), max, reserve: options.reserve_bytes() }
}
