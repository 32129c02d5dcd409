//! One key's FIFO (ORD-2).
//!
//! A [`Lane`] is a state, a queue, and what is known of its head's failures; the [`crate::engine`] moves it from state
//! to state. Queued deliveries lie in one [`Queues`], linked by number, so that an idle lane costs 48 bytes and no
//! allocation of its own. A lane belongs to exactly one partition.
//!
//! ```text
//! idle → busy → idle | ready        ready: free, and something is queued
//!          ├──→ waiting → ready     its head failed, and is tried again when due
//!          └──→ burying → idle | ready    its message is void; nothing runs past it until that is on record
//! ```

use std::borrow::Cow;

use crate::delivery::Delivery;
use crate::slab::{NONE, Slab};

/// Names what is in flight: a lane, for as long as it lives. One that outlived its lane names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(u64);

/// Bits of a lane's number. The rest counts lanes: 2^38 must be made before an id could come back.
const NUMBER_BITS: u32 = 26;
/// More lanes than this cannot be told apart.
pub(crate) const LANES_CAP: usize = 1 << (NUMBER_BITS - 1);

impl LaneId {
    #[inline]
    pub(crate) fn new(born: u64, number: u32) -> LaneId {
        debug_assert!(number < 1 << NUMBER_BITS);
        LaneId(born << NUMBER_BITS | u64::from(number))
    }

    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0 as u32 & ((1 << NUMBER_BITS) - 1)
    }
}

/// Which lane a delivery belongs to. Two keys with one hash share a lane: they only wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneHash {
    pub(crate) hash: u64,
    /// Kept beside the hash, so that a collision can never tie lanes of two partitions together.
    pub(crate) partition: u32,
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

pub(crate) struct Lane {
    pub(crate) id: LaneId,
    pub(crate) hash: u64,
    /// When its state began.
    pub(crate) since: u64,
    pub(crate) partition: u32,
    pub(crate) queue: Queue,
    /// Number of its [`Failure`], or `NONE`.
    pub(crate) failure: u32,
    pub(crate) state: LaneState,
    /// False for a message without a key, whose lane is only its place while it is in flight or waits.
    pub(crate) keyed: bool,
    /// It has an entry among the idle (see `engine/life.rs`).
    pub(crate) listed: bool,
    /// Its partition is being given up: what fails here is the next owner's.
    pub(crate) draining: bool,
}

/// A first and a last delivery, linked in [`Queues`].
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
    pub(crate) depth: u32,
}

impl Queue {
    pub(crate) const EMPTY: Queue = Queue { head: NONE, tail: NONE, depth: 0 };
}

/// What is known of a head that failed.
pub(crate) struct Failure {
    pub(crate) failures: u32,
    pub(crate) stuck: bool,
    pub(crate) at_ms: u64,
    pub(crate) error: Cow<'static, str>,
}

struct Node {
    delivery: Delivery,
    next: u32,
}

/// All queued deliveries of a shard.
pub(crate) struct Queues {
    nodes: Slab<Node>,
    bytes: usize,
}

impl Queues {
    pub(crate) fn new() -> Queues {
        Queues { nodes: Slab::new(), bytes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that it takes, frames not counted.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.nodes.memory_bytes()
    }

    #[inline]
    pub(crate) fn push_back(&mut self, queue: &mut Queue, delivery: Delivery) {
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
    pub(crate) fn push_front(&mut self, queue: &mut Queue, delivery: Delivery) {
        self.bytes += delivery.size();
        let node = self.nodes.insert(Node { delivery, next: queue.head });
        if queue.depth == 0 {
            queue.tail = node;
        }
        queue.head = node;
        queue.depth += 1;
    }

    #[inline]
    pub(crate) fn pop_front(&mut self, queue: &mut Queue) -> Option<Delivery> {
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
    pub(crate) fn head(&self, queue: &Queue) -> Option<&Delivery> {
        Some(&self.nodes.get(queue.head)?.delivery)
    }

    /// Forgets all of a queue; returns how many messages and bytes that were.
    pub(crate) fn clear(&mut self, queue: &mut Queue) -> (usize, usize) {
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
