//! One key's FIFO (ORD-2).
//!
//! A [`Lane`] is a state, a queue, and what is known of its head's failures; the [`Engine`](super::Engine) moves it from state
//! to state. Queued deliveries lie in one [`Queues`], linked by number, so that an idle lane costs 48 bytes and no
//! allocation of its own. A lane belongs to exactly one partition, whose lanes are linked too.
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

/// Names what is in flight: a lane, for as long as it lives. One that outlived its lane names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(u64);

/// Bits of a lane's number. The rest counts lanes: 2^38 must be made before an id could come back.
const NUMBER_BITS: u32 = 26;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// More lanes than this cannot be told apart.
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
    /// That of its key, or of its whole partition.
    Ordered(LaneHash),
    /// No lane that it shares with others: nothing orders it.
    Unordered,
}

/// Names the lane of a key. Two keys with one hash share a lane: they only wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneHash {
    pub(super) hash: u64,
    /// Kept beside the hash, so that a collision can never tie lanes of two partitions together.
    pub(super) partition: u32,
}

/// What a lane is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaneState {
    /// Nothing runs, nothing is queued.
    Idle,
    /// Free, and something is queued.
    Ready,
    /// An attempt is under way.
    Busy,
    /// Its head failed and is tried again later.
    Waiting,
    /// Its message was rejected, and is not yet on record as dead.
    Burying,
}

/// A lane. A million of them may live, so what is small shares one word: from the lowest bit on the state (3 bits), the
/// three flags, the upper 20 bits of `since`, and above them what tells this lane from earlier ones of its number.
pub(super) struct Lane {
    pub(super) hash: u64,
    word: NonZeroU64,
    since_low: u32,
    pub(super) partition: u32,
    pub(super) queue: Queue,
    /// Number of its [`Failure`], or `NONE`.
    pub(super) failure: u32,
    /// The lanes of its partition before and behind it, or `NONE`.
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
    /// An idle lane. `keyed`: false for a message without a key, whose lane is only its place while it is in flight
    /// or waits.
    #[inline]
    pub(super) fn new(id: LaneId, hash: u64, partition: u32, keyed: bool, since: u64) -> Lane {
        let born = NonZeroU64::new(id.0 & !NUMBER_MASK).expect("lanes are counted from 1");
        let word = if keyed { born | KEYED } else { born };
        let (queue, failure, before, behind) = (Queue::EMPTY, NONE, NONE, NONE);
        let mut lane = Lane { hash, word, since_low: 0, partition, queue, failure, before, behind };
        lane.enter(LaneState::Idle, since);
        lane
    }

    /// True if that is this lane, and not an earlier one of its number.
    #[inline]
    pub(super) fn is(&self, id: LaneId) -> bool {
        (self.word.get() ^ id.0) & !NUMBER_MASK == 0
    }

    /// Its id; `number` is its own.
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
        // The sum of the upper parts fits: 52 bits of milliseconds are 140,000 years.
        let high = (since >> 32 << SINCE_SHIFT) & SINCE_MASK;
        self.since_low = since as u32;
        self.set(STATE_MASK | SINCE_MASK, state as u64 | high);
    }

    #[inline]
    pub(super) fn keyed(&self) -> bool {
        self.word.get() & KEYED != 0
    }

    /// It has an entry among the idle (see `engine/life.rs`).
    #[inline]
    pub(super) fn listed(&self) -> bool {
        self.word.get() & LISTED != 0
    }

    #[inline]
    pub(super) fn set_listed(&mut self, listed: bool) {
        self.set(LISTED, if listed { LISTED } else { 0 });
    }

    /// Its partition is being given up: what fails here is the next owner's.
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

/// A first and a last delivery, linked in [`Queues`].
#[derive(Clone, Copy)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    pub(super) depth: u32,
}

impl Queue {
    pub(super) const EMPTY: Queue = Queue { head: NONE, tail: NONE, depth: 0 };
}

/// What is known of a head that failed.
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

/// All queued deliveries of a shard.
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

    /// Bytes that it takes, frames not counted.
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

    /// The delivery at the head.
    pub(super) fn head(&self, queue: &Queue) -> Option<&Delivery> {
        Some(&self.nodes.get(queue.head)?.delivery)
    }

    /// Forgets all of a queue; returns how many messages and bytes that were.
    pub(super) fn clear(&mut self, queue: &mut Queue) -> (usize, usize) {
        let before = (self.len(), self.bytes);
        while self.pop_front(queue).is_some() {}
        (before.0 - self.len(), before.1 - self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PRF-5: lane, table entry (at most 21.4) and idle entry (16 to 32) stay near 90 bytes.
    #[test]
    fn a_lane_costs_48_bytes_and_a_queued_delivery_72() {
        assert_eq!(size_of::<Option<Lane>>(), 48);
        assert_eq!(size_of::<Node>(), 72);
    }
}
