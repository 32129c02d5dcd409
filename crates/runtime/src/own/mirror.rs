//! The broker's own commit, which follows what counts (COM-2, COM-3).
//!
//! It mirrors the lowest position that is not settled, one commit at a time and the newest only, with the journal's id
//! and the epoch as metadata. It is never read as truth; one without our metadata is an operator's reset.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use keylane_broker::{BrokerError, Commit};
use keylane_core::{Committed, commit_metadata};

use super::{Ended, Epoch, ended};
use crate::link::Command;

/// What is released waits at most this long for the broker's commit: below the silence that a successor takes for death.
const COMMIT_LAST_MS: u64 = 1_000;

impl Epoch<'_> {
    pub(super) async fn read_commit(&mut self) -> Result<Committed, Ended> {
        let at = &self.own.subscription;
        let commit = at.broker.committed(&at.group, &at.topic, self.own.partition).await.map_err(ended)?;
        self.mirrored = commit.as_ref().map(|commit| commit.position);
        // Every broker there is keeps metadata; where one does not, nothing can be told from a commit without it.
        Ok(Committed::read(commit.as_ref().map(|commit| (commit.position, &commit.metadata[..])), true))
    }

    pub(super) async fn counted(&mut self, epoch: u64, dead: Vec<u64>, low: u64) -> Result<(), Ended> {
        self.own.view.settled(&self.state().settled);
        self.commit = Some(low);
        if self.epoch.is_none() {
            // An operator's reset is replaced by our own commit before anything starts (COM-3).
            let commit = self.commit_of(epoch, low);
            self.commit = None;
            return commit.await.map_err(ended);
        }
        self.send(Command::Counted { partition: self.own.partition, epoch, dead }).await;
        Ok(())
    }

    /// Mirrors the lowest position that is not settled, one commit at a time, the newest only (COM-2).
    pub(super) fn commit_next(&mut self) {
        let Some(epoch) = self.epoch else { return };
        if self.committing.is_some() || self.now_ms() < self.commit_again_ms {
            return;
        }
        if let Some(low) = self.commit.take().filter(|low| self.committed != Some(*low)) {
            self.committed = Some(low);
            self.committing = Some(self.commit_of(epoch, low));
        }
    }

    /// Before the partition is released: the broker's commit follows to what counts, if it does so soon. Afterwards it
    /// could go back behind the next owner's.
    pub(super) async fn commit_last(&mut self) {
        let Some(epoch) = self.epoch else { return };
        let under_way = self.committing.take();
        let last = self.commit.take().map(|low| self.commit_of(epoch, low));
        let both = async {
            for commit in under_way.into_iter().chain(last) {
                if let Err(error) = commit.await {
                    tracing::warn!(%error, "the broker's commit did not follow");
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(COMMIT_LAST_MS), both).await;
    }

    pub(super) fn commit_of(&self, epoch: u64, position: u64) -> BoxFuture<'static, Result<(), BrokerError>> {
        let journal = self.state().journal.expect("an owned journal has an id");
        let at = Arc::clone(&self.own.subscription);
        let partition = self.own.partition;
        Box::pin(async move {
            let commit = Commit { position, metadata: commit_metadata(journal, epoch) };
            at.broker.commit(&at.group, &at.topic, partition, commit).await
        })
    }
}
