//! What an operator can see of a shard's lanes.

use super::Engine;
use super::lane::{Lane, LaneId, LaneState};

/// How many there are of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Lanes of keys, the idle included.
    pub lanes: usize,
    /// Of these, idle.
    pub idle: usize,
    /// Free, with something queued; keyless messages whose retry is due included.
    pub ready: usize,
    /// Attempts under way, keyless ones included.
    pub busy: usize,
    /// Messages queued, waiting for a retry included.
    pub queued: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// Messages that wait for a retry.
    pub waiting_retry: usize,
    /// Messages whose retries are spent, waiting or under way.
    pub stuck: usize,
    /// Rejected messages not yet on record as dead.
    pub burying: usize,
    /// Attempts of keyless messages under way.
    pub keyless: usize,
    /// Keyless messages queued.
    pub keyless_queued: usize,
}

/// One lane, as it is now. Borrows from the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneView<'a> {
    /// Its id: whoever runs its attempt knows the message under way by it.
    pub lane: LaneId,
    /// Its partition.
    pub partition: u32,
    /// What it is doing.
    pub state: LaneState,
    /// Since when, ms.
    pub since_ms: u64,
    /// Messages queued, the one that waits for a retry included.
    pub depth: u32,
    /// The key of the first queued message; `None` if it has none, or nothing is queued.
    pub key: Option<&'a [u8]>,
    /// The position of the first queued message.
    pub position: Option<u64>,
    /// When the first queued message was appended, ms since 1970.
    pub appended_ms: Option<u64>,
    /// The number of the attempt that runs or comes next.
    pub attempt: u32,
    /// When the next attempt is due, if its head failed.
    pub due_ms: Option<u64>,
    /// Its head's retries are spent.
    pub stuck: bool,
    /// Why its head failed last.
    pub why: Option<&'a str>,
}

impl Engine {
    /// Counts, kept up to date with every call.
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

    /// Bytes that lanes, lists and queues take, frames not counted (PRF-5).
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

    /// Lanes that are not idle, in no order. Walks all lanes: for people, not for the message's way.
    pub fn views(&self) -> impl Iterator<Item = LaneView<'_>> {
        let busy = self.lanes.iter().filter(|(_, lane)| lane.state() != LaneState::Idle);
        busy.map(|(number, lane)| self.view_of(number, lane))
    }

    /// One lane, if it is still there.
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
