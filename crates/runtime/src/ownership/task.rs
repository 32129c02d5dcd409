//! The task that owns one partition: carries out what `keylane_core::Owner` decides, and tells it what happened.
//!
//! The task hears its assignment, the mail of the shard, the records of the journal, and the time. It sends commands to
//! the shard, records to the journal, and commits for the mirror. Core makes every decision; `epoch.rs` carries it out.
//! `event.rs` is the only place that waits, so the owner hears of a revocation and of a foreign fence whatever else it
//! waits for.

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

/// The time between two tries of something that a broker did not do.
pub(super) const AGAIN_MS: u64 = 200;
/// How often an owner looks whether its shard is alive.
pub(super) const SHARD_EVERY_MS: u64 = 10_000;

/// Everything that the owner of one partition works with.
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

/// How one try to own ended.
pub(crate) enum Ended {
    /// The partition was revoked or lost.
    GivenUp,
    /// Something failed that may pass: claim again.
    Again(String),
    /// The shard does not move: claim again once it does (ORD-12).
    Stalled,
    /// An operator must look at it (P10).
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
                    // Without an owner completions do not go on record, so the shard must not go on with the partition.
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
                        // The partition is another process's now, so the status shows no fault here.
                        self.view.set(PartitionState::Idle, None);
                        break;
                    }
                }
                Ended::Failed(why) => {
                    tracing::error!(partition = self.partition, why, "a partition has stopped");
                    self.view.set(PartitionState::Stopped, Some(why));
                    // Nothing is guessed: the partition stays stopped until an operator acts or it is assigned
                    // elsewhere.
                    if !self.assignment.given_up() {
                        self.assignment.next().await;
                    }
                    // The partition is another process's now, so the status shows no fault here.
                    self.view.set(PartitionState::Idle, None);
                    break;
                }
            }
        }
        self.view.idle();
    }

    /// Waits, or returns earlier if the assignment changes.
    async fn pause(&mut self, ms: u64) -> Option<Assignment> {
        let until = self.subscription.clock.instant(self.subscription.clock.now_ms() + ms);
        tokio::select! {
            biased;
            assignment = self.assignment.next() => Some(assignment),
            () = tokio::time::sleep_until(until) => None,
        }
    }

    /// Waits until the shard answers, or returns earlier if the assignment changes.
    async fn until_the_shard_moves(&mut self) -> Option<Assignment> {
        let (reply, answer) = oneshot::channel();
        let asks = async {
            let ask = ShardCommand::Lanes { sort: LaneSort::Depth, limit: 0, reply, turn: None };
            // A shard that is gone or falls drops its partitions by itself, so the wait may end.
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
            // Nothing was claimed yet, so there is nothing to drain.
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

/// Opens journal and hold of a partition, and adds known acceptances that the journal lacks.
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
        // An operator creates what is missing or grants access, and then the partition goes on.
        BrokerError::NotMade { .. } | BrokerError::Credentials(_) => {
            Ended::Again(format!("{}: {error}", crate::error::broker_code(&error)))
        }
        error if passes(&error) => Ended::Again(error.to_string()),
        BrokerError::Closed => Ended::GivenUp,
        _ => Ended::Failed(format!("{}: {error}", crate::error::broker_code(&error))),
    }
}

/// True for an error that trying again may mend. A topic may seem unknown while brokers come and go; a topic that was
/// really made anew is noticed by its id (BRK-10). A log-in fails while a password is changed or a token comes late.
pub(super) fn passes(error: &BrokerError) -> bool {
    matches!(
        error,
        BrokerError::Unavailable(_)
            | BrokerError::UnknownTopic(_)
            | BrokerError::NotMade { .. }
            | BrokerError::Credentials(_)
    )
}
