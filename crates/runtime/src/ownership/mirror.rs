//! Keeps the broker's own commit of a partition behind what counts in the journal (COM-2, COM-3).
//!
//! The commit mirrors the lowest unsettled position, with the journal's id and the epoch as metadata; `committer.rs`
//! makes it, together with those of the pipeline's other partitions. Keylane never reads the commit as truth. A commit
//! without Keylane's metadata is an operator's reset.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use keylane_broker::Commit;
use keylane_core::commit_metadata;

use super::epoch::Epoch;
use crate::shard::ShardCommand;

/// How long `released` waits at most for the broker's commit: less than the silence that a successor takes for death.
const COMMIT_LAST_MS: u64 = 1_000;

/// The last known positions of the broker's commit.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    /// The position of the commit when it was read last.
    pub(super) mirrored: Option<u64>,
    /// Where our commit must stand to replace an operator's reset, before anything starts.
    pub(super) replaces: Option<u64>,
    /// The position to which the committer was last told to go.
    told: Option<u64>,
}

impl Epoch<'_> {
    /// Starts reading the broker's commit, unless that is under way.
    pub(super) fn ask_for_commit(&mut self) {
        if self.under_way.asking.is_some() {
            return;
        }
        let (at, partition) = (Arc::clone(&self.own.subscription), self.own.partition);
        self.under_way.asking =
            Some(Box::pin(async move { at.broker.committed(&at.group, &at.topic, partition).await }));
    }

    pub(super) fn counted(&mut self, epoch: u64, dead: Vec<u64>, low: u64) {
        self.own.view.recorded(self.state());
        if self.epoch.is_none() {
            self.mirror.replaces = Some(low);
            return;
        }
        self.commit(epoch, low);
        self.outbox.send(ShardCommand::Counted { partition: self.own.partition, epoch, dead });
    }

    /// Tells the committer that the commit is to follow to the lowest unsettled position.
    pub(super) fn commit(&mut self, epoch: u64, low: u64) {
        if self.mirror.told.replace(low) != Some(low) {
            let commit = self.commit_of(epoch, low);
            self.own.subscription.committer.follow(self.own.partition, commit);
        }
    }

    /// Called before the partition is released: waits a short time until the broker's commit has followed. Made after
    /// the release, the commit could move the next owner's commit back.
    pub(super) fn commit_last(&mut self) -> Option<BoxFuture<'static, ()>> {
        self.epoch?;
        let followed = self.own.subscription.committer.hurry(self.own.partition)?;
        Some(Box::pin(async move {
            let _ = tokio::time::timeout(Duration::from_millis(COMMIT_LAST_MS), followed).await;
        }))
    }

    pub(super) fn commit_of(&self, epoch: u64, position: u64) -> Commit {
        let journal = self.state().journal.expect("an owned journal has an id");
        Commit { position, metadata: commit_metadata(journal, epoch) }
    }
}
