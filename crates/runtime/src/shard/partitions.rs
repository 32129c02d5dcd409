//! The partitions that a shard owns, the state of each, and the list of those that may have something to read.
//!
//! A partition's state changes only in [`Partitions::enter`], so the counts of partitions by state are always true.

use keylane_core::Delivery;
use tokio::sync::mpsc;

use super::mailbox::{COMMANDS_MAX, ShardCommand};
use super::partition::{Part, PartState};
use super::pass::Shard;

/// A shard's partitions, by number.
pub(super) struct Partitions {
    parts: Vec<Option<Part>>,
    owned: usize,
    running: usize,
    draining: usize,
}

impl Partitions {
    /// No partition owned yet, of a topic that has this many.
    pub(super) fn of_topic(partitions: u32) -> Partitions {
        let parts = (0..partitions).map(|_| None).collect();
        Partitions { parts, owned: 0, running: 0, draining: 0 }
    }

    /// A partition, if this shard owns it.
    pub(super) fn get(&self, partition: u32) -> Option<&Part> {
        self.parts.get(partition as usize)?.as_ref()
    }

    /// A partition, if this shard owns it, to be changed.
    #[inline]
    pub(super) fn get_mut(&mut self, partition: u32) -> Option<&mut Part> {
        self.parts.get_mut(partition as usize)?.as_mut()
    }

    /// A partition, if this shard owns it under that epoch.
    #[inline]
    pub(super) fn under(&mut self, partition: u32, epoch: u64) -> Option<&mut Part> {
        self.get_mut(partition).filter(|part| part.epoch == epoch)
    }

    /// The partition of a delivery, if this shard still owns it under the delivery's epoch.
    #[inline]
    pub(super) fn of(&mut self, delivery: &Delivery) -> Option<&mut Part> {
        self.under(delivery.partition(), delivery.epoch())
    }

    /// All owned partitions.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().flatten()
    }

    /// The number of owned partitions, whatever their state.
    pub(super) fn owned(&self) -> usize {
        self.owned
    }

    /// True if messages of at least one partition may start.
    #[inline]
    pub(super) fn any_runs(&self) -> bool {
        self.running > 0
    }

    /// True if at least one partition drains.
    pub(super) fn any_drains(&self) -> bool {
        self.draining > 0
    }

    /// Adds a partition that runs. The shard must not own it already.
    pub(super) fn add(&mut self, part: Part) {
        let at = part.partition as usize;
        if self.parts.len() <= at {
            // The topic has got more partitions.
            self.parts.resize_with(at + 1, || None);
        }
        self.count(None, Some(part.state));
        let before = self.parts[at].replace(part);
        debug_assert!(before.is_none(), "a partition is taken out before it is owned again");
    }

    /// Removes a partition, if this shard owns it.
    pub(super) fn take(&mut self, partition: u32) -> Option<Part> {
        let part = self.parts.get_mut(partition as usize)?.take()?;
        self.count(Some(part.state), None);
        Some(part)
    }

    /// Removes all partitions.
    pub(super) fn clear(&mut self) {
        *self = Partitions::of_topic(0);
    }

    /// Changes a partition's state. False if this shard does not own the partition.
    fn enter(&mut self, partition: u32, state: PartState) -> bool {
        let Some(part) = self.get_mut(partition) else {
            return false;
        };
        let before = part.enter(state);
        self.count(Some(before), Some(state));
        true
    }

    fn count(&mut self, before: Option<PartState>, state: Option<PartState>) {
        let change = |count: &mut usize, counts: fn(PartState) -> bool| {
            *count += usize::from(state.is_some_and(counts));
            *count -= usize::from(before.is_some_and(counts));
        };
        change(&mut self.owned, |_| true);
        change(&mut self.running, |state| state == PartState::Running);
        change(&mut self.draining, |state| state == PartState::Draining);
    }
}

impl<F> Shard<F> {
    /// Changes a partition's state, if this shard owns the partition, and lets its lanes go on or wait accordingly.
    pub(super) fn enter(&mut self, partition: u32, state: PartState) {
        if !self.partitions.enter(partition, state) {
            return;
        }
        match state {
            PartState::Running => {
                self.engine.release_partition(partition);
                self.take_turns(partition);
            }
            PartState::Verifying => self.engine.hold_partition(partition),
            PartState::Draining | PartState::Broken => {}
        }
    }

    /// Puts a partition on the list of those that may have something to read, once.
    pub(super) fn take_turns(&mut self, partition: u32) {
        if let Some(part) = self.partitions.get_mut(partition)
            && !std::mem::replace(&mut part.has_turn, true)
        {
            self.turns.push_back(partition);
        }
    }

    /// Takes the shard's commands away from it. Commands sent from here on reach the shard's successor.
    pub(super) fn take_commands(&mut self) -> mpsc::Receiver<ShardCommand> {
        let (_, nobody) = mpsc::channel(COMMANDS_MAX);
        std::mem::replace(&mut self.commands, nobody)
    }

    /// The shard's loop panicked, so its state is not trusted any more. Ends the shard's attempts where they are and
    /// tells the owners why.
    pub(super) fn fall(&mut self, why: &str) {
        // All owners are told before anything is dropped, since what is dropped may be what panics.
        for part in self.partitions.iter() {
            part.is_gone();
            part.link.leave(|mail| mail.gone = Some(why.to_owned()));
        }
        for _ in 0..self.attempts.end_all() {
            self.permits.give();
        }
        self.permits.give_back();
        self.partitions.clear();
    }
}
