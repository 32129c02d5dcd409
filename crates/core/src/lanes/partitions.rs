//! What an engine knows of each partition: its lanes, its keyless messages, whether it is held (ORD-9, ORD-12).
//!
//! Giving a partition up costs what it has, whatever the others have: its lanes are linked, and entries in lists of lanes
//! that are gone are left where they are. Whoever takes such an entry sees by its id that it names nothing. They are
//! counted, and taken out together once they are more than half of all.

use std::cmp::Reverse;

use super::Engine;
use super::idle::LIST_KEPT;
use super::lane::{LaneId, LaneState, Queue};
use super::slab::NONE;
use crate::message::Delivery;

/// What a partition took with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Messages that were queued or waited for a retry, and are now the next owner's.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Lanes with an attempt under way, or a dead letter not yet on record.
    pub running: usize,
    /// Lanes that had to be looked at.
    pub lanes: usize,
}

/// One partition.
pub(super) struct Side {
    /// The first of its lanes, or `NONE`.
    first: u32,
    /// Its keyless messages that found no place in flight.
    keyless: Queue,
    /// Nothing of it is handed out.
    held: bool,
    /// Free lanes that were passed over while it is held.
    aside: Vec<LaneId>,
}

impl Side {
    const EMPTY: Side = Side { first: NONE, keyless: Queue::EMPTY, held: false, aside: Vec::new() };
}

impl Engine {
    /// Hands out nothing of a partition until it is released: neither what is queued nor what comes due. What runs may
    /// end, and others do not wait (ORD-12).
    pub fn hold_partition(&mut self, partition: u32) {
        let side = self.side(partition);
        if !std::mem::replace(&mut side.held, true) {
            self.held += 1;
            self.keyless_turns.retain(|turn| *turn != partition);
        }
    }

    /// A partition that was held goes on.
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

    /// Forgets everything of a partition that was lost: lanes, what they queue, and what runs in them. Ids of its lanes
    /// name nothing from here on.
    pub fn drop_partition(&mut self, partition: u32) -> Left {
        self.leave(partition, false)
    }

    /// Starts nothing more of a partition that is given up (ORD-9): what is queued or waits is forgotten, what runs may
    /// end. A failure there is not retried.
    pub fn drain_partition(&mut self, partition: u32) -> Left {
        self.leave(partition, true)
    }

    fn leave(&mut self, partition: u32, running_stay: bool) -> Left {
        // Its free lanes are in one list each from here on, so that each has as many entries as its state says.
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

    /// Takes out entries of lanes that are gone, once they are more than half of all.
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

    /// The first of the due is live, so that nobody is woken for one that is gone.
    pub(super) fn forget_stale_due(&mut self) {
        while let Some(Reverse((_, id))) = self.due.peek() {
            if self.lanes.get(id.number()).is_some_and(|lane| lane.is(*id)) {
                break;
            }
            self.due.pop();
            self.stale -= 1;
        }
    }

    /// True if nothing of a partition is to be handed out.
    pub(super) fn is_held(&self, partition: u32) -> bool {
        self.sides[partition as usize].held
    }

    /// Sets a free lane of a partition that is held aside.
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

    /// The next keyless message that waits. Partitions take turns.
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

    /// Puts a new lane among its partition's.
    #[inline]
    pub(super) fn link(&mut self, number: u32, partition: u32) {
        let second = std::mem::replace(&mut self.side(partition).first, number);
        if let Some(lane) = self.lanes.get_mut(second) {
            lane.before = number;
        }
        self.lanes.get_mut(number).expect("just made").behind = second;
    }

    /// Takes a lane out of its partition's.
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
