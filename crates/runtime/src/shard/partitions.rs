//! A shard's partitions: what each does, and whether it may have something to read.

use tokio::sync::mpsc;

use super::mailbox::{COMMANDS_MAX, ShardCommand};
use super::partition::PartState;
use super::pass::Shard;

impl<F> Shard<F> {
    /// A partition does something else. Returns what it did; `None` if it is not owned.
    pub(super) fn enter(&mut self, partition: u32, state: PartState) -> Option<PartState> {
        let part = self.parts.get_mut(partition as usize)?.as_mut()?;
        let before = part.enter(state);
        self.count(before, Some(state));
        match state {
            PartState::Running => {
                self.engine.release_partition(partition);
                self.take_turns(partition);
            }
            PartState::Verifying => self.engine.hold_partition(partition),
            PartState::Draining | PartState::Broken => {}
        }
        Some(before)
    }

    /// Counts a partition that changes from one state to another, or goes.
    pub(super) fn count(&mut self, before: PartState, state: Option<PartState>) {
        self.running += usize::from(state == Some(PartState::Running));
        self.running -= usize::from(before == PartState::Running);
        self.draining += usize::from(state == Some(PartState::Draining));
        self.draining -= usize::from(before == PartState::Draining);
        self.owned -= usize::from(state.is_none());
    }

    /// A partition may have something to read.
    pub(super) fn take_turns(&mut self, partition: u32) {
        if let Some(Some(part)) = self.parts.get_mut(partition as usize)
            && !std::mem::replace(&mut part.has_turn, true)
        {
            self.turns.push_back(partition);
        }
    }

    /// What is told from here on is for whoever takes its place.
    pub(super) fn take_commands(&mut self) -> mpsc::Receiver<ShardCommand> {
        let (_, nobody) = mpsc::channel(COMMANDS_MAX);
        std::mem::replace(&mut self.commands, nobody)
    }

    /// The shard's loop panicked, so nothing that it knows is trusted any more: handlers end where they are, and owners hear
    /// why.
    pub(super) fn fall(&mut self, why: &str) {
        // All of them hear it before anything is dropped, which may be what panics.
        for part in self.parts.iter().flatten() {
            part.is_gone();
            part.link.leave(|mail| mail.gone = Some(why.to_owned()));
        }
        for _ in 0..self.attempts.end_all() {
            self.permits.give();
        }
        self.permits.give_back();
        self.parts.clear();
    }
}
