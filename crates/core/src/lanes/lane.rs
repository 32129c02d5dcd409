//! One key's FIFO (ORD-2): its state, its queued deliveries, and the failures of its head.
//!
//! The [`Engine`](super::Engine) moves a lane from state to state. The queued deliveries of all lanes lie in one
//! [`Queues`] and are linked by number, so an idle lane costs 48 bytes and no allocation of its own. A lane belongs to
//! exactly one partition; the lanes of a partition are linked too.
//!
//! ```text
//! idle → busy → idle | ready        ready: free, and something is queued
//!          ├──→ waiting → ready     its head failed, and is tried again when due
//!          └──→ burying → idle | ready    its message is void; nothing runs past it until that is on record
//! ```

use std::borrow::Cow;
use std::num::NonZeroU64;

use super::slab::{NONE, Slab};
use crate::message::Delivery;

/// Names a lane for as long as the lane lives; callers keep it for an attempt in flight. After the lane is removed, its
/// id names nothing, even if the lane's number is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(u64);

/// Bits of a lane's number within its id. The other bits count lanes: 2^38 lanes must be made before an id comes back.
const NUMBER_BITS: u32 = 26;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// The most lanes of keys, and the most lanes of messages without a key: numbers last for both together.
pub(super) const LANES_CAP: usize = 1 << (NUMBER_BITS - 1);

impl LaneId {
    #[inline]
    pub(super) fn new(born: u64, number: u32) -> LaneId {
        debug_assert!(number < 1 << NUMBER_BITS);
        LaneId(born << NUMBER_BITS | u64::from(number))
    }

    #[inline]
    pub(super) fn number(self) -> u32 {
        (self.0 & NUMBER_MASK) as u32
    }
}

/// Which lane a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneKey {
    /// The lane of the message's key, or, in order `partition`, of the whole partition.
    Ordered(LaneHash),
    /// A lane of its own: nothing orders the message.
    Unordered,
}

/// Names a key's lane by the key's hash. Two keys with the same hash share a lane, and only wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneHash {
    pub(super) hash: u64,
    /// Kept beside the hash, so that a collision never joins lanes of two partitions.
    pub(super) partition: u32,
}

/// What a lane is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaneState {
    /// Nothing runs and nothing is queued.
    Idle,
    /// Nothing runs, and something is queued.
    Ready,
    /// An attempt is under way.
    Busy,
    /// The lane's head failed and is to be tried again later.
    Waiting,
    /// The lane's message was rejected and is not on record as dead yet.
    Burying,
}

/// A lane. A million of them may live, so small values share one word: from the lowest bit up the state (3 bits), three
/// flags, the upper 20 bits of `since`, and then what tells this lane from earlier ones with the same number.
pub(super) struct Lane {
    pub(super) hash: u64,
    word: NonZeroU64,
    since_low: u32,
    pub(super) partition: u32,
    pub(super) queue: Queue,
    /// The number of the head's [`Failure`], or `NONE`.
    pub(super) failure: u32,
    /// The lanes before and behind this one in the list of its partition's lanes, or `NONE`.
    pub(super) before: u32,
    pub(super) behind: u32,
}

const STATE_MASK: u64 = 0b111;
const KEYED: u64 = 1 << 3;
const LISTED: u64 = 1 << 4;
const DRAINING: u64 = 1 << 5;
const SINCE_SHIFT: u32 = 6;
const SINCE_MASK: u64 = NUMBER_MASK & !((1 << SINCE_SHIFT) - 1);

impl Lane {
    /// An idle lane. `keyed` is false for the lane of a message without a key, which exists only while that message is
    /// in flight or waits for a retry.
    #[inline]
    pub(super) fn new(id: LaneId, hash: u64, partition: u32, keyed: bool, since: u64) -> Lane {
        let born = NonZeroU64::new(id.0 & !NUMBER_MASK).expect("lanes are counted from 1");
        let word = if keyed { born | KEYED } else { born };
        let (queue, failure, before, behind) = (Queue::EMPTY, NONE, NONE, NONE);
        let mut lane = Lane { hash, word, since_low: 0, partition, queue, failure, before, behind };
        lane.enter(LaneState::Idle, since);
        lane
    }

    /// True if `id` names this lane, and not an earlier lane with the same number.
    #[inline]
    pub(super) fn is(&self, id: LaneId) -> bool {
        (self.word.get() ^ id.0) & !NUMBER_MASK == 0
    }

    /// The lane's id; `number` must be the lane's own number.
    #[inline]
    pub(super) fn id(&self, number: u32) -> LaneId {
        LaneId(self.word.get() & !NUMBER_MASK | u64::from(number))
    }

    #[inline]
    pub(super) fn state(&self) -> LaneState {
        match self.word.get() & STATE_MASK {
            0 => LaneState::Idle,
            1 => LaneState::Ready,
            2 => LaneState::Busy,
            3 => LaneState::Waiting,
            _ => LaneState::Burying,
        }
    }

    /// When its state began.
    #[inline]
    pub(super) fn since(&self) -> u64 {
        (self.word.get() & SINCE_MASK) >> SINCE_SHIFT << 32 | u64::from(self.since_low)
    }

    #[inline]
    pub(super) fn enter(&mut self, state: LaneState, since: u64) {
        // The upper part of `since` keeps 20 bits: together 52 bits of milliseconds, which last 140,000 years.
        let high = (since >> 32 << SINCE_SHIFT) & SINCE_MASK;
        self.since_low = since as u32;
        self.set(STATE_MASK | SINCE_MASK, state as u64 | high);
    }

    #[inline]
    pub(super) fn keyed(&self) -> bool {
        self.word.get() & KEYED != 0
    }

    /// True if the lane has an entry in the heap of idle lanes (see `idle.rs`).
    #[inline]
    pub(super) fn listed(&self) -> bool {
        self.word.get() & LISTED != 0
    }

    #[inline]
    pub(super) fn set_listed(&mut self, listed: bool) {
        self.set(LISTED, if listed { LISTED } else { 0 });
    }

    /// True if the lane's partition is being given up: a message that fails here is not retried, the next owner runs
    /// it.
    #[inline]
    pub(super) fn draining(&self) -> bool {
        self.word.get() & DRAINING != 0
    }

    #[inline]
    pub(super) fn set_draining(&mut self, draining: bool) {
        self.set(DRAINING, if draining { DRAINING } else { 0 });
    }

    #[inline]
    fn set(&mut self, mask: u64, bits: u64) {
        let word = self.word.get() & !mask | bits;
        self.word = NonZeroU64::new(word).expect("lanes are counted from 1");
    }
}

/// The first and the last delivery of a lane, and their number; the deliveries are linked in [`Queues`].
#[derive(Clone, Copy)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    pub(super) depth: u32,
}

impl Queue {
    pub(super) const EMPTY: Queue = Queue { head: NONE, tail: NONE, depth: 0 };
}

/// The failures of a lane's head.
pub(super) struct Failure {
    pub(super) failures: u32,
    pub(super) stuck: bool,
    pub(super) at_ms: u64,
    pub(super) error: Cow<'static, str>,
}

struct Node {
    delivery: Delivery,
    next: u32,
}

/// The queued deliveries of all lanes of a shard.
pub(super) struct Queues {
    nodes: Slab<Node>,
    bytes: usize,
}

impl Queues {
    pub(super) fn new() -> Queues {
        Queues { nodes: Slab::new(), bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory that the queues take, frames not counted.
    pub(super) fn memory_bytes(&self) -> usize {
        self.nodes.memory_bytes()
    }

    #[inline]
    pub(super) fn push_back(&mut self, queue: &mut Queue, delivery: Delivery) {
        self.bytes += delivery.size();
        let node = self.nodes.insert(Node { delivery, next: NONE });
        match self.nodes.get_mut(queue.tail) {
            Some(last) => last.next = node,
            None => queue.head = node,
        }
        queue.tail = node;
        queue.depth += 1;
    }

    #[inline]
    pub(super) fn push_front(&mut self, queue: &mut Queue, delivery: Delivery) {
        self.bytes += delivery.size();
        let node = self.nodes.insert(Node { delivery, next: queue.head });
        if queue.depth == 0 {
            queue.tail = node;
        }
        queue.head = node;
        queue.depth += 1;
    }

    #[inline]
    pub(super) fn pop_front(&mut self, queue: &mut Queue) -> Option<Delivery> {
        if queue.depth == 0 {
            return None;
        }
        let Node { delivery, next } = self.nodes.remove(queue.head);
        queue.head = next;
        queue.depth -= 1;
        if queue.depth == 0 {
            queue.tail = NONE;
        }
        self.bytes -= delivery.size();
        Some(delivery)
    }

    /// The delivery at the head of a queue.
    pub(super) fn head(&self, queue: &Queue) -> Option<&Delivery> {
        Some(&self.nodes.get(queue.head)?.delivery)
    }

    /// Drops all deliveries of a queue; returns how many messages and bytes they were.
    pub(super) fn clear(&mut self, queue: &mut Queue) -> (usize, usize) {
        let before = (self.len(), self.bytes);
        while self.pop_front(queue).is_some() {}
        (before.0 - self.len(), before.1 - self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PRF-5: a lane with its table entry (at most 21.4 bytes) and its idle entry (16 to 32 bytes) stays near 90 bytes.
    #[test]
    fn a_lane_costs_48_bytes_and_a_queued_delivery_72() {
        assert_eq!(size_of::<Option<Lane>>(), 48);
        assert_eq!(size_of::<Node>(), 72);
    }
}
