//! The commands of an owner that wait for room in its shard's channel.
//!
//! A shard takes commands once a pass. While its channel is full, an owner that waited for it would hear nothing else,
//! so its commands wait here. Invariants: at most one command of each kind waits, since positions that count are
//! gathered in one command, and the newest of `Suspend` and `Verified` replaces the older ones; but the `Drop` of each
//! epoch is kept, since the shard may still have the older epoch.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::shard::{ShardCommand, Wakes};
use crate::tasks::Tasks;

/// The commands that wait for room in a shard's channel.
pub(super) struct Outbox {
    shard: mpsc::Sender<ShardCommand>,
    wakes: Arc<Wakes>,
    waiting: VecDeque<ShardCommand>,
}

impl Outbox {
    pub(super) fn new(shard: mpsc::Sender<ShardCommand>, wakes: Arc<Wakes>) -> Outbox {
        Outbox { shard, wakes, waiting: VecDeque::new() }
    }

    /// Sends a command, behind all that were sent before.
    pub(super) fn send(&mut self, command: ShardCommand) {
        if !self.waiting.is_empty() {
            return self.wait(command);
        }
        match self.shard.try_send(command) {
            Ok(()) => self.wakes.wake(),
            Err(TrySendError::Full(command)) => self.waiting.push_back(command),
            // A shard that is gone has dropped its partitions by itself.
            Err(TrySendError::Closed(_)) => {}
        }
    }

    fn wait(&mut self, command: ShardCommand) {
        match command {
            ShardCommand::Counted { partition, epoch, dead } => {
                let before = self.waiting.iter_mut().find_map(|waiting| match waiting {
                    ShardCommand::Counted { epoch: of, dead, .. } if *of == epoch => Some(dead),
                    _ => None,
                });
                match before {
                    Some(before) => before.extend(dead),
                    None => self.waiting.push_back(ShardCommand::Counted { partition, epoch, dead }),
                }
            }
            ShardCommand::Suspend { .. } | ShardCommand::Verified { .. } => {
                self.waiting.retain(|waiting| {
                    !matches!(waiting, ShardCommand::Suspend { .. } | ShardCommand::Verified { .. })
                });
                self.waiting.push_back(command);
            }
            ShardCommand::Drop { .. } => {
                // An earlier `Drop` stays: its epoch may be the one that the shard has.
                self.waiting.retain(|waiting| matches!(waiting, ShardCommand::Drop { .. }));
                self.waiting.push_back(command);
            }
            command => self.waiting.push_back(command),
        }
    }

    /// True if no command waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns once one more command was sent. Cancel safe.
    pub(super) async fn sends(&mut self) {
        match self.shard.reserve().await {
            Ok(permit) => {
                if let Some(command) = self.waiting.pop_front() {
                    permit.send(command);
                    self.wakes.wake();
                }
            }
            Err(_) => self.waiting.clear(),
        }
    }

    /// Sends the waiting commands to the shard in a task of its own, since the owner that calls this ends.
    pub(super) fn leave(self, tasks: &Tasks) {
        if !self.is_empty() {
            tasks.spawn(self.send_all());
        }
    }

    async fn send_all(mut self) {
        while !self.is_empty() {
            self.sends().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ORD-9: an owner that has much to tell a shard that stands still keeps few commands, and nothing is lost.
    #[tokio::test]
    async fn what_waits_for_a_shard_that_stands_still_is_gathered() {
        let (shard, mut commands) = mpsc::channel(1);
        let mut outbox = Outbox::new(shard, Arc::default());
        for position in 0..100 {
            outbox.send(ShardCommand::Counted { partition: 0, epoch: 7, dead: vec![position] });
            outbox.send(ShardCommand::Suspend { partition: 0, epoch: 7 });
            outbox.send(ShardCommand::Verified { partition: 0, epoch: 7, pauses: position });
        }
        assert!(outbox.waiting.len() <= 2, "{} wait", outbox.waiting.len());
        let sending = tokio::spawn(outbox.send_all());
        let (mut dead, mut verified) = (Vec::new(), None);
        while let Some(command) = commands.recv().await {
            match command {
                ShardCommand::Counted { dead: more, .. } => dead.extend(more),
                ShardCommand::Verified { pauses, .. } => verified = Some(pauses),
                _ => {}
            }
        }
        sending.await.expect("it ends");
        assert_eq!((dead, verified), ((0..100).collect(), Some(99)));
    }

    /// ORD-9.
    #[tokio::test]
    async fn a_partition_that_is_dropped_needs_no_other_command() {
        let (shard, mut commands) = mpsc::channel(1);
        let mut outbox = Outbox::new(shard, Arc::default());
        outbox.send(ShardCommand::End);
        outbox.send(ShardCommand::Drain { partition: 0, epoch: 7 });
        outbox.send(ShardCommand::Drop { partition: 0, epoch: 7 });
        assert!(matches!(commands.recv().await, Some(ShardCommand::End)));
        outbox.sends().await;
        assert!(outbox.is_empty() && matches!(commands.recv().await, Some(ShardCommand::Drop { .. })));
    }

    /// ORD-9, P9: if an owner lost a partition twice while its shard stood still, both epochs are dropped: the shard
    /// may still have the first.
    #[tokio::test]
    async fn a_partition_that_is_lost_again_is_dropped_as_it_was_before_too() {
        let (shard, mut commands) = mpsc::channel(1);
        let mut outbox = Outbox::new(shard, Arc::default());
        outbox.send(ShardCommand::End);
        outbox.send(ShardCommand::Drop { partition: 0, epoch: 7 });
        outbox.send(ShardCommand::Suspend { partition: 0, epoch: 8 });
        outbox.send(ShardCommand::Drop { partition: 0, epoch: 8 });
        assert_eq!(outbox.waiting.len(), 2, "the newer epoch needs nothing but to be dropped");
        let sending = tokio::spawn(outbox.send_all());
        let mut dropped = Vec::new();
        while let Some(command) = commands.recv().await {
            if let ShardCommand::Drop { epoch, .. } = command {
                dropped.push(epoch);
            }
        }
        sending.await.expect("it ends");
        assert_eq!(dropped, [7, 8]);
    }
}
