//! The broker's own commit, which follows what counts (COM-2, COM-3).
//!
//! It mirrors the lowest position that is not settled, with the journal's id and the epoch as metadata; `committer.rs`
//! makes it, for all partitions of a pipeline. It is never read as truth; one without our metadata is an operator's reset.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use keylane_broker::Commit;
use keylane_core::commit_metadata;

use super::epoch::Epoch;
use crate::shard::ShardCommand;

/// What is released waits at most this long for the broker's commit: below the silence that a successor takes for death.
const COMMIT_LAST_MS: u64 = 1_000;

/// What is known of the broker's commit.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    /// Where it stood when it was read last.
    pub(super) mirrored: Option<u64>,
    /// What an operator's reset is to be replaced by before anything starts.
    pub(super) replaces: Option<u64>,
    /// Where it was last told to follow to.
    told: Option<u64>,
}

impl Epoch<'_> {
    /// Reads the broker's commit, unless it is being read.
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

    /// The broker's commit is to follow to the lowest position that is not settled.
    pub(super) fn commit(&mut self, epoch: u64, low: u64) {
        if self.mirror.told.replace(low) != Some(low) {
            let commit = self.commit_of(epoch, low);
            self.own.subscription.committer.follow(self.own.partition, commit);
        }
    }

    /// Before the partition is released: the broker's commit follows to what counts, if it does so soon. Afterwards it
    /// could go back behind the next owner's.
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
