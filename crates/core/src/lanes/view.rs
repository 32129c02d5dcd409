//! What an operator can see of a shard's lanes: counts, and a view of each lane that is not idle.

use super::Engine;
use super::lane::{Lane, LaneId, LaneState};

/// How many lanes and messages of each kind a shard has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Lanes of keys, idle ones included.
    pub lanes: usize,
    /// Idle lanes of keys.
    pub idle: usize,
    /// Free lanes with something queued, those of messages without a key whose retry is due included.
    pub ready: usize,
    /// Attempts under way, those of messages without a key included.
    pub busy: usize,
    /// Queued messages, those that wait for a retry included.
    pub queued: usize,
    /// Bytes of the queued messages.
    pub queued_bytes: usize,
    /// Messages that wait for a retry.
    pub waiting_retry: usize,
    /// Messages whose retries are spent, whether they wait or run.
    pub stuck: usize,
    /// Rejected messages that are not on record as dead yet.
    pub burying: usize,
    /// Attempts under way at messages without a key.
    pub keyless: usize,
    /// Queued messages without a key.
    pub keyless_queued: usize,
}

/// One lane as it is now. Borrows from the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneView<'a> {
    /// The lane's id, by which the shard finds the message of an attempt under way.
    pub lane: LaneId,
    /// The lane's partition.
    pub partition: u32,
    /// What the lane is doing.
    pub state: LaneState,
    /// When the lane entered that state, ms.
    pub since_ms: u64,
    /// Queued messages, one that waits for a retry included.
    pub depth: u32,
    /// The key of the first queued message; `None` if that message has no key, or nothing is queued.
    pub key: Option<&'a [u8]>,
    /// The position of the first queued message.
    pub position: Option<u64>,
    /// When the first queued message was appended, ms since 1970.
    pub appended_ms: Option<u64>,
    /// The number of the attempt that runs now or comes next.
    pub attempt: u32,
    /// When the next attempt is due, if the lane's head failed.
    pub due_ms: Option<u64>,
    /// True if the head's retries are spent.
    pub stuck: bool,
    /// The error of the head's last failure.
    pub why: Option<&'a str>,
}

impl Engine {
    /// The counts as of now; keeping them costs a little in every call, reading them nothing.
    pub fn counts(&self) -> Counts {
        let in_state = |state: LaneState| self.tally[state as usize];
        Counts {
            lanes: self.table.len(),
            idle: in_state(LaneState::Idle),
            ready: in_state(LaneState::Ready),
            busy: in_state(LaneState::Busy),
            queued: self.queues.len(),
            queued_bytes: self.queues.bytes(),
            waiting_retry: in_state(LaneState::Waiting),
            stuck: self.stuck,
            burying: in_state(LaneState::Burying),
            keyless: self.keyless_running,
            keyless_queued: self.keyless_queued,
        }
    }

    /// Bytes of memory that lanes, lists and queues take, frames not counted (PRF-5).
    pub fn memory_bytes(&self) -> usize {
        let lists = (self.ready.capacity() + self.keyless_ready.capacity()) * size_of::<LaneId>();
        let heaps = (self.due.capacity() + self.idle.capacity()) * size_of::<(u64, LaneId)>();
        self.lanes.memory_bytes()
            + self.table.memory_bytes()
            + self.queues.memory_bytes()
            + self.failures.memory_bytes()
            + self.sides.capacity() * size_of::<super::Side>()
            + lists
            + heaps
    }

    /// Views of all lanes that are not idle, in no particular order. Walks every lane: meant for operators' queries,
    /// not for the message's way.
    pub fn views(&self) -> impl Iterator<Item = LaneView<'_>> {
        let busy = self.lanes.iter().filter(|(_, lane)| lane.state() != LaneState::Idle);
        busy.map(|(number, lane)| self.view_of(number, lane))
    }

    /// A view of one lane, if it still exists.
    pub fn view(&self, id: LaneId) -> Option<LaneView<'_>> {
        let lane = self.lanes.get(id.number()).filter(|lane| lane.is(id))?;
        Some(self.view_of(id.number(), lane))
    }

    fn view_of(&self, number: u32, lane: &Lane) -> LaneView<'_> {
        let head = self.queues.head(&lane.queue);
        let failure = self.failures.get(lane.failure);
        LaneView {
            lane: lane.id(number),
            partition: lane.partition,
            state: lane.state(),
            since_ms: lane.since(),
            depth: lane.queue.depth,
            key: head.and_then(|delivery| delivery.key()),
            position: head.map(|delivery| delivery.position()),
            appended_ms: head.map(|delivery| delivery.appended_ms()),
            attempt: failure.map_or(0, |failure| failure.failures) + 1,
            due_ms: failure.map(|failure| failure.at_ms),
            stuck: failure.is_some_and(|failure| failure.stuck),
            why: failure.map(|failure| failure.error.as_ref()),
        }
    }
}
