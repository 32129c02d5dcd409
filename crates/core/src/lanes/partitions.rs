//! What an engine keeps for each partition: its lanes, its queued messages without a key, whether it is held (ORD-9,
//! ORD-12).
//!
//! Giving up a partition costs only what that partition has: its lanes are linked, and entries in the engine's lists
//! that name removed lanes stay where they are. Code that takes such an entry sees by its id that the lane is gone.
//! These stale entries are counted, and removed together once they are more than half of all.

use std::cmp::Reverse;

use super::Engine;
use super::idle::LIST_KEPT;
use super::lane::{LaneId, LaneState, Queue};
use super::slab::NONE;
use crate::message::Delivery;

/// What the engine forgot when a partition was dropped or drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Messages that were queued or waited for a retry; the next owner runs them.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Lanes with an attempt under way or a dead letter not on record yet.
    pub running: usize,
    /// Lanes of the partition: what the call had to go through.
    pub lanes: usize,
}

/// One partition as the engine sees it.
pub(super) struct Side {
    /// The number of the partition's first lane, or `NONE`.
    first: u32,
    /// Its messages without a key that found no place in flight.
    keyless: Queue,
    /// True while nothing of the partition may be handed out.
    held: bool,
    /// Free lanes whose turn came while the partition was held.
    aside: Vec<LaneId>,
}

impl Side {
    const EMPTY: Side = Side { first: NONE, keyless: Queue::EMPTY, held: false, aside: Vec::new() };
}

impl Engine {
    /// Hands out nothing of a partition until it is released: neither queued messages nor retries that come due.
    /// Running attempts may end, and other partitions do not wait (ORD-12).
    pub fn hold_partition(&mut self, partition: u32) {
        let side = self.side(partition);
        if !std::mem::replace(&mut side.held, true) {
            self.held += 1;
            self.keyless_turns.retain(|turn| *turn != partition);
        }
    }

    /// Hands out messages of a held partition again.
    pub fn release_partition(&mut self, partition: u32) {
        let side = self.side(partition);
        if !std::mem::replace(&mut side.held, false) {
            return;
        }
        let aside = std::mem::take(&mut side.aside);
        if side.keyless.depth > 0 {
            self.keyless_turns.push_back(partition);
        }
        self.held -= 1;
        for id in aside {
            match self.lanes.get(id.number()).filter(|lane| lane.is(id)) {
                Some(lane) if lane.keyed() => self.ready.push_back(id),
                Some(_) => self.keyless_ready.push_back(id),
                None => self.stale -= 1,
            }
        }
    }

    /// Forgets everything of a lost partition: its lanes, their queues, and the attempts that run in them. The ids of
    /// its lanes name nothing from here on.
    pub fn drop_partition(&mut self, partition: u32) -> Left {
        self.leave(partition, false)
    }

    /// Starts nothing more of a partition that is given up (ORD-9): queued and waiting messages are forgotten, running
    /// attempts may end. A message that fails there is not retried.
    pub fn drain_partition(&mut self, partition: u32) -> Left {
        self.leave(partition, true)
    }

    fn leave(&mut self, partition: u32, running_stay: bool) -> Left {
        // Released first: each free lane is then in exactly one list, so that the count of stale entries below is
        // right.
        self.release_partition(partition);
        let mut left = Left::default();
        let mut number = self.side(partition).first;
        while let Some(lane) = self.lanes.get_mut(number) {
            let at = number;
            number = lane.behind;
            left.lanes += 1;
            let (messages, bytes) = self.queues.clear(&mut lane.queue);
            left.messages += messages;
            left.bytes += bytes;
            let runs = matches!(lane.state(), LaneState::Busy | LaneState::Burying);
            left.running += usize::from(runs);
            if runs && running_stay {
                lane.set_draining(true);
            } else {
                let in_list = matches!(lane.state(), LaneState::Ready | LaneState::Waiting);
                self.stale += usize::from(in_list) + usize::from(lane.listed());
                self.remove(at);
            }
        }
        let side = &mut self.sides[partition as usize];
        let (messages, bytes) = self.queues.clear(&mut side.keyless);
        if messages > 0 {
            self.keyless_turns.retain(|turn| *turn != partition);
        }
        self.keyless_queued -= messages;
        left.messages += messages;
        left.bytes += bytes;
        self.forget_stale();
        left
    }

    /// Removes the entries of lanes that are gone from all lists, once they are more than half of all entries.
    fn forget_stale(&mut self) {
        self.forget_stale_due();
        let aside: usize = self.sides.iter().map(|side| side.aside.len()).sum();
        let all = self.ready.len() + self.keyless_ready.len() + self.due.len() + self.idle.len() + aside;
        if self.stale > LIST_KEPT && self.stale > all / 2 {
            let lanes = &self.lanes;
            let live = |id: &LaneId| lanes.get(id.number()).is_some_and(|lane| lane.is(*id));
            self.ready.retain(live);
            self.keyless_ready.retain(live);
            self.sides.iter_mut().for_each(|side| side.aside.retain(live));
            self.hot = self.hot.filter(live);
            self.due.retain(|Reverse((_, id))| live(id));
            self.idle.retain(|Reverse((_, id))| live(id));
            self.stale = 0;
        }
        self.give_back_memory();
    }

    /// Keeps the first entry of `due` one whose lane lives: the shard would otherwise be woken for a lane that is gone.
    pub(super) fn forget_stale_due(&mut self) {
        while let Some(Reverse((_, id))) = self.due.peek() {
            if self.lanes.get(id.number()).is_some_and(|lane| lane.is(*id)) {
                break;
            }
            self.due.pop();
            self.stale -= 1;
        }
    }

    /// True if nothing of the partition may be handed out.
    pub(super) fn is_held(&self, partition: u32) -> bool {
        self.sides[partition as usize].held
    }

    /// Sets a free lane of a held partition aside, until the partition is released.
    pub(super) fn set_aside(&mut self, partition: u32, id: LaneId) {
        self.sides[partition as usize].aside.push(id);
    }

    pub(super) fn queue_keyless(&mut self, delivery: Delivery) {
        let partition = delivery.partition();
        self.side(partition);
        let side = &mut self.sides[partition as usize];
        if side.keyless.depth == 0 && !side.held {
            self.keyless_turns.push_back(partition);
        }
        self.queues.push_back(&mut side.keyless, delivery);
        self.keyless_queued += 1;
    }

    /// The next queued message without a key. Partitions take turns.
    pub(super) fn unqueue_keyless(&mut self) -> Option<Delivery> {
        let partition = self.keyless_turns.pop_front()?;
        let side = &mut self.sides[partition as usize];
        let delivery = self.queues.pop_front(&mut side.keyless).expect("who has a turn has a message");
        if side.keyless.depth > 0 {
            self.keyless_turns.push_back(partition);
        }
        self.keyless_queued -= 1;
        Some(delivery)
    }

    fn side(&mut self, partition: u32) -> &mut Side {
        let at = partition as usize;
        if self.sides.len() <= at {
            self.sides.resize_with(at + 1, || Side::EMPTY);
        }
        &mut self.sides[at]
    }

    /// Puts a new lane into the list of its partition's lanes.
    #[inline]
    pub(super) fn link(&mut self, number: u32, partition: u32) {
        let second = std::mem::replace(&mut self.side(partition).first, number);
        if let Some(lane) = self.lanes.get_mut(second) {
            lane.before = number;
        }
        self.lanes.get_mut(number).expect("just made").behind = second;
    }

    /// Takes a lane out of the list of its partition's lanes.
    #[inline]
    pub(super) fn unlink(&mut self, number: u32) {
        let lane = self.lanes.get(number).expect("found by the caller");
        let (before, behind, partition) = (lane.before, lane.behind, lane.partition);
        match self.lanes.get_mut(before) {
            Some(lane) => lane.behind = behind,
            None => self.sides[partition as usize].first = behind,
        }
        if let Some(lane) = self.lanes.get_mut(behind) {
            lane.before = before;
        }
    }
}
