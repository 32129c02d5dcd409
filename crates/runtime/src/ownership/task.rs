//! Owning one partition: a task that does what `keylane_core::Owner` decides, and tells it what happened.
//!
//! Comes in: assignment, mail of the shard, records of the journal, time. Goes out: commands to the shard, records,
//! the mirrored commit. Every rule is core's. `epoch.rs` does what is decided, `event.rs` is the one place that
//! waits: an owner hears of a revocation and of a foreign fence whatever else it waits for.

use std::sync::Arc;

use keylane_broker::{BrokerError, Journal, Topic};
use tokio::sync::{mpsc, oneshot};

use super::assignment::{Assignment, AssignmentReceiver};
use super::commands::Outbox;
use super::epoch::Epoch;
use super::group::Asks;
use super::growth::{self, ReadLimits};
use crate::pipeline::{PartitionView, Subscription};
use crate::shard::{Pauses, ShardCommand, Wakes};
use crate::status::{LaneSort, PartitionState};
use crate::tasks::TaskKind;

/// Between two tries of something that a broker did not do.
pub(super) const AGAIN_MS: u64 = 200;
/// How often an owner looks whether its shard is alive.
pub(super) const SHARD_EVERY_MS: u64 = 10_000;

/// What one partition's owner works with.
pub(crate) struct Own {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) topic: Topic,
    pub(crate) partition: u32,
    pub(crate) instance: u128,
    pub(crate) start: u64,
    pub(crate) shard: mpsc::Sender<ShardCommand>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) pauses: Arc<Pauses>,
    pub(crate) assignment: AssignmentReceiver,
    pub(crate) asks: Asks,
    pub(crate) view: Arc<PartitionView>,
    pub(crate) limits: Arc<ReadLimits>,
}

/// How owning ended.
pub(crate) enum Ended {
    /// The broker has the partition elsewhere.
    GivenUp,
    /// Something that may pass: try again.
    Again(String),
    /// Its shard does not move: try again once it does (ORD-12).
    Stalled,
    /// Somebody must look at it (P10).
    Failed(String),
}

impl Own {
    /// Owns the partition until it is given up for good.
    pub(crate) async fn run(mut self) {
        loop {
            let tasks = self.subscription.tasks.clone();
            let ended = match tasks.supervise(TaskKind::Owner, self.own_once()).await {
                Ok(ended) => ended,
                Err(why) => {
                    // Nobody puts on record what its shard does now: that must not go on.
                    let mut outbox = Outbox::new(self.shard.clone(), Arc::clone(&self.wakes));
                    outbox.send(ShardCommand::Forget { partition: self.partition });
                    outbox.leave(&tasks);
                    self.subscription.committer.forget(self.partition);
                    Ended::Again(why)
                }
            };
            match ended {
                Ended::GivenUp => break,
                Ended::Again(why) => {
                    tracing::warn!(partition = self.partition, why, "a partition starts over");
                    self.view.set(PartitionState::Claiming, Some(why));
                    if self.assignment.given_up() || self.pause(AGAIN_MS * 5).await.is_some() {
                        break;
                    }
                }
                Ended::Stalled => {
                    let why = "its shard has not moved for a minute; it is claimed again when that moves";
                    tracing::error!(partition = self.partition, why, "a partition has stopped");
                    self.view.set(PartitionState::Stopped, Some(why.to_owned()));
                    if self.assignment.given_up() || self.until_the_shard_moves().await.is_some() {
                        // Nobody has to look at what is another's.
                        self.view.set(PartitionState::Idle, None);
                        break;
                    }
                }
                Ended::Failed(why) => {
                    tracing::error!(partition = self.partition, why, "a partition has stopped");
                    self.view.set(PartitionState::Stopped, Some(why));
                    // Nothing is guessed: it stays as it is until somebody acts, or it is assigned elsewhere.
                    if !self.assignment.given_up() {
                        self.assignment.next().await;
                    }
                    // Nobody has to look at what is another's.
                    self.view.set(PartitionState::Idle, None);
                    break;
                }
            }
        }
        self.view.idle();
    }

    /// Waits, unless the assignment changes.
    async fn pause(&mut self, ms: u64) -> Option<Assignment> {
        let until = self.subscription.clock.instant(self.subscription.clock.now_ms() + ms);
        tokio::select! {
            biased;
            assignment = self.assignment.next() => Some(assignment),
            () = tokio::time::sleep_until(until) => None,
        }
    }

    /// Waits until the shard answers, unless the assignment changes.
    async fn until_the_shard_moves(&mut self) -> Option<Assignment> {
        let (reply, answer) = oneshot::channel();
        let asks = async {
            let ask = ShardCommand::Lanes { sort: LaneSort::Depth, limit: 0, reply, turn: None };
            // One that is gone, or falls, has dropped everything by itself.
            if self.shard.send(ask).await.is_ok() {
                self.wakes.wake();
                let _ = answer.await;
            }
        };
        tokio::select! {
            biased;
            assignment = self.assignment.next() => Some(assignment),
            () = asks => None,
        }
    }

    async fn own_once(&mut self) -> Ended {
        let subscription = Arc::clone(&self.subscription);
        let (journal, hold) = tokio::select! {
            biased;
            // Nothing was claimed yet, so that there is nothing to drain.
            _ = self.assignment.next() => return Ended::GivenUp,
            journals = journals(&subscription, self.partition, &self.limits) => match journals {
                Ok(journals) => journals,
                Err(error) => return ended(error),
            },
        };
        self.view.set(PartitionState::Claiming, None);
        let mut epoch = Epoch::new(self, journal, hold);
        let ended = epoch.run().await;
        epoch.leave();
        ended
    }
}

/// Both journals of a partition, with all limits of acceptances in them that are known.
async fn journals(
    at: &Subscription,
    partition: u32,
    limits: &ReadLimits,
) -> Result<(Arc<dyn Journal>, Arc<dyn Journal>), BrokerError> {
    let (journal, hold) = at.journals(partition).await?;
    growth::complete(at, limits, partition, &journal).await?;
    Ok((journal, hold))
}

/// What a broker's error means for owning.
pub(super) fn ended(error: BrokerError) -> Ended {
    match error {
        // Somebody else makes it, or has the cluster let us in, and then it goes on.
        BrokerError::NotMade { .. } | BrokerError::Credentials(_) => {
            Ended::Again(format!("{}: {error}", crate::error::broker_code(&error)))
        }
        error if passes(&error) => Ended::Again(error.to_string()),
        BrokerError::Closed => Ended::GivenUp,
        _ => Ended::Failed(format!("{}: {error}", crate::error::broker_code(&error))),
    }
}

/// True for an error that trying again may mend. A topic that is away while brokers come and go is not gone; one that is
/// made anew is told by its id (BRK-10). A log-in fails while a password is changed, or a token comes late.
pub(super) fn passes(error: &BrokerError) -> bool {
    matches!(
        error,
        BrokerError::Unavailable(_)
            | BrokerError::UnknownTopic(_)
            | BrokerError::NotMade { .. }
            | BrokerError::Credentials(_)
    )
}
