//! What all parts of one pipeline share: its topic and group, its broker, and its clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keylane_broker::{Broker, BrokerError, Journal, JournalName, LogKind, Topic};
use keylane_core::owner::Bounds;
use keylane_core::{Order, random};

use super::Rejections;
use crate::clock::Clock;
use crate::flaws::Flaws;
use crate::ownership::Committer;
use crate::shard::Pace;
use crate::status::Commits;
use crate::tasks::Tasks;

/// One pipeline's subscription.
pub(crate) struct Subscription {
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) clock: Clock,
    pub(crate) tasks: Tasks,
    pub(crate) pipeline: Arc<str>,
    pub(crate) topic: Arc<str>,
    pub(crate) group: String,
    pub(crate) node: String,
    pub(crate) timeout_ms: u64,
    /// Memory for what the broker's client reads ahead of all partitions.
    pub(crate) ahead_bytes: usize,
    pub(crate) bounds: Bounds,
    pub(crate) order: Order,
    pub(crate) flaws: Flaws,
    pub(crate) counters: CommitCounters,
    pub(crate) committer: Committer,
    /// Limits how often the log tells of rejections.
    pub(crate) rejections: Rejections,
    /// Spreads over time when the pipeline's completions go on record.
    pub(crate) pace: Arc<Pace>,
    /// The randomness of a simulation; without it, the system's is used.
    pub(crate) seed: Option<AtomicU64>,
}

/// Commits mirrored to the broker.
#[derive(Debug, Default)]
pub(crate) struct CommitCounters {
    done: AtomicU64,
    failed: AtomicU64,
}

impl CommitCounters {
    pub(crate) fn commit_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn commit_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn shown(&self) -> Commits {
        Commits { done: self.done.load(Ordering::Relaxed), failed: self.failed.load(Ordering::Relaxed) }
    }
}

impl Subscription {
    /// The two logs beside a partition: its journal and its hold.
    pub(crate) async fn journals(
        &self,
        partition: u32,
    ) -> Result<(Arc<dyn Journal>, Arc<dyn Journal>), BrokerError> {
        let journal = self.journal(partition, LogKind::Journal).await?;
        Ok((journal, self.journal(partition, LogKind::Hold).await?))
    }

    /// One of the two logs beside a partition.
    pub(crate) async fn journal(
        &self,
        partition: u32,
        kind: LogKind,
    ) -> Result<Arc<dyn Journal>, BrokerError> {
        let (group, topic) = (self.group.clone(), self.topic.to_string());
        self.broker.journal(&JournalName { group, topic, partition, kind }).await
    }

    /// The topic as it is now.
    pub(crate) async fn topic_there(&self) -> Result<Topic, BrokerError> {
        let there = self.broker.topic(&self.topic).await?;
        there.ok_or_else(|| BrokerError::UnknownTopic(self.topic.to_string()))
    }

    /// A number that no other owner has.
    pub(crate) fn random(&self) -> u128 {
        match &self.seed {
            Some(seed) => {
                let low = random::mixed(seed.fetch_add(random::STEP, Ordering::Relaxed));
                u128::from(random::mixed(seed.fetch_add(random::STEP, Ordering::Relaxed))) << 64
                    | u128::from(low)
            }
            None => uuid::Uuid::new_v4().as_u128(),
        }
    }
}
