//! How far a pipeline is behind: in messages, and by the age of the oldest that is not settled (BRK-5).
//!
//! Asked of the broker each time somebody looks. While that cannot be reached the figures are the last ones: metrics
//! that vanish with the broker would be of no help when they are needed (BRK-8).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use keylane_broker::{BrokerError, Ends};

use crate::Error;
use crate::status::{Lag, PartitionState, PartitionStatus};
use crate::subscription::Subscription;
use crate::view::PartitionView;

/// How long the broker may take to say where things are; then the figures are the last ones. A partition without a
/// leader would hold up who looks at all others.
const ASK_MS: u64 = 3_000;

/// What was seen last.
pub(crate) struct Lagging {
    ends: Mutex<Vec<Ends>>,
    /// Of each partition that lags: its lowest unsettled position, and when the message there was appended.
    oldest: Mutex<BTreeMap<u32, (u64, u64)>>,
}

impl Lagging {
    pub(crate) fn new(ends: &[Ends]) -> Lagging {
        Lagging { ends: Mutex::new(ends.to_vec()), oldest: Mutex::default() }
    }

    /// Each partition, with where it ends.
    pub(crate) async fn partitions(
        &self,
        at: &Subscription,
        views: &[Arc<PartitionView>],
    ) -> Result<Vec<PartitionStatus>, Error> {
        let there = within(at, self.ask(at)).await.unwrap_or(Ok(false))?;
        let ends = self.ends.lock().expect("no holder panics").clone();
        let mut partitions: Vec<PartitionStatus> = (0..)
            .zip(views)
            .map(|(at, view)| view.status(ends.get(at).map(|ends: &Ends| ends.end)))
            .collect();
        // What another process settles is known from what it commits.
        for part in partitions.iter_mut().filter(|part| there && part.state == PartitionState::Idle) {
            let asked = at.broker.committed(&at.group, &at.topic, part.partition);
            match within(at, asked).await {
                Some(Ok(Some(commit))) => part.committed = part.committed.max(commit.position),
                Some(Ok(None)) => {}
                // The others would be waited for as long, and in vain.
                Some(Err(_)) | None => break,
            }
        }
        Ok(partitions)
    }

    /// Asks where partitions end; false if nobody answers.
    async fn ask(&self, at: &Subscription) -> Result<bool, Error> {
        let asked = match at.broker.health().await {
            Err(away @ BrokerError::Unavailable(_)) => Err(away),
            _ => at.broker.ends(&at.topic).await,
        };
        match asked {
            Ok(ends) => {
                *self.ends.lock().expect("no holder panics") = ends;
                Ok(true)
            }
            // A topic that is gone or changing must not hide what its partitions have to say about it.
            Err(BrokerError::Unavailable(_) | BrokerError::UnknownTopic(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// What is not settled.
    pub(crate) async fn lag(&self, at: &Subscription, partitions: &[PartitionStatus]) -> Lag {
        let (mut lag, mut answers) = (Lag::default(), true);
        for part in partitions.iter().filter(|part| part.end > part.committed) {
            lag.messages += (part.end - part.committed).saturating_sub(part.settled_above);
            let oldest = match answers {
                true => within(at, self.oldest(at, part)).await,
                false => None,
            };
            answers = oldest.is_some();
            if let Some(Some(appended_ms)) = oldest {
                let age = at.clock.wall_ms().saturating_sub(appended_ms) as f64 / 1000.0;
                lag.oldest_age_seconds = Some(lag.oldest_age_seconds.map_or(age, |other| other.max(age)));
            }
        }
        lag
    }

    /// When the lowest unsettled message of a partition was appended. Looked up once for each: it does not change.
    async fn oldest(&self, at: &Subscription, part: &PartitionStatus) -> Option<u64> {
        let seen = self.oldest.lock().expect("no holder panics").get(&part.partition).copied();
        if let Some((position, appended_ms)) = seen
            && position == part.committed
        {
            return Some(appended_ms);
        }
        // Nobody to ask is no reason to fail, and gone meanwhile is no lag.
        at.broker.health().await.ok()?;
        let found = crate::peek::peek(&*at.broker, &at.topic, part.partition, part.committed, 1).await;
        let appended_ms = found.ok()?.first()?.appended_ms();
        let mut oldest = self.oldest.lock().expect("no holder panics");
        oldest.insert(part.partition, (part.committed, appended_ms));
        Some(appended_ms)
    }
}

async fn within<T>(at: &Subscription, asked: impl Future<Output = T>) -> Option<T> {
    let until = at.clock.instant(at.clock.now_ms() + ASK_MS);
    tokio::time::timeout_at(until, asked).await.ok()
}
