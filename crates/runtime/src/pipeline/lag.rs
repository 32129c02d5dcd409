//! Counts how far a pipeline is behind: in messages, and by the age of the oldest unsettled one (BRK-5).
//!
//! Lag means the same wherever it is shown: the messages of a topic that are not on record as settled. A message that
//! is being handled counts, and so does one that was handled a moment ago and is not on record yet, since a crash would
//! run it again. Only [`Lagging::lag`] counts it.
//!
//! [`Lagging::look`] asks the broker and remembers the answer; [`Lagging::partitions`] and [`Lagging::lag`] answer from
//! memory, at once, whatever the broker does (ING-8). While the broker cannot be reached, the last figures stay:
//! metrics that vanish with the broker would be missing when they are needed most (BRK-8).
//!
//! For partitions that this process reads, the age is known from the batches that it read. For others, only
//! [`Lagging::look_at_ages`] looks the age up in the topic, since that fetches messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use keylane_broker::{BrokerError, Ends};

use super::partition_view::PartitionView;
use super::subscription::Subscription;
use crate::Error;
use crate::status::{Lag, PartitionState, PartitionStatus};

/// How long the broker may take to answer; after that the last figures are shown. A partition without a leader would
/// otherwise delay the figures of all others.
const ASK_MS: u64 = 3_000;

/// The figures that were seen last.
pub(crate) struct Lagging {
    ends: Mutex<Vec<Ends>>,
    /// The broker's commit of each partition that another process owns.
    elsewhere: Mutex<BTreeMap<u32, u64>>,
    /// For each partition that lags and is not read here: its lowest unsettled position, and when that message was
    /// appended.
    oldest: Mutex<BTreeMap<u32, (u64, u64)>>,
}

impl Lagging {
    pub(crate) fn new(ends: &[Ends]) -> Lagging {
        Lagging { ends: Mutex::new(ends.to_vec()), elsewhere: Mutex::default(), oldest: Mutex::default() }
    }

    /// Asks the broker where partitions end, and how far those are that other processes own.
    pub(crate) async fn look(&self, at: &Subscription, views: &[Arc<PartitionView>]) -> Result<(), Error> {
        if !within(at, self.ask(at)).await.unwrap_or(Ok(false))? {
            return Ok(());
        }
        // What another process has settled is known from its commits.
        for view in views.iter().filter(|view| view.status(None).state == PartitionState::Idle) {
            let partition = view.partition();
            let asked = at.broker.committed(&at.group, &at.topic, partition);
            match within(at, asked).await {
                Some(Ok(Some(commit))) => {
                    self.elsewhere.lock().expect("no holder panics").insert(partition, commit.position);
                }
                Some(Ok(None)) => {}
                // Calls for the other partitions would wait as long, and in vain.
                Some(Err(_)) | None => break,
            }
        }
        Ok(())
    }

    /// Each partition, as it was seen last.
    pub(crate) fn partitions(&self, views: &[Arc<PartitionView>]) -> Vec<PartitionStatus> {
        let ends = self.ends.lock().expect("no holder panics");
        let elsewhere = self.elsewhere.lock().expect("no holder panics");
        let shown = |(at, view): (usize, &Arc<PartitionView>)| {
            let mut part = view.status(ends.get(at).map(|ends: &Ends| ends.end));
            if let (PartitionState::Idle, Some(committed)) = (part.state, elsewhere.get(&part.partition)) {
                part.committed = part.committed.max(*committed);
            }
            part
        };
        views.iter().enumerate().map(shown).collect()
    }

    /// Asks where partitions end; false if the broker does not answer.
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
            // A topic that is gone or changing must not hide what its partitions show about that.
            Err(BrokerError::Unavailable(_) | BrokerError::UnknownTopic(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks up when the oldest unsettled messages were appended, of those partitions that lag and are not read here.
    pub(crate) async fn look_at_ages(&self, at: &Subscription, partitions: &[PartitionStatus]) {
        for part in partitions.iter().filter(|part| part.lags() && part.oldest_ms.is_none()) {
            // A broker that does not answer for one partition would not answer for the others.
            if within(at, self.look_up(at, part)).await.is_none() {
                break;
            }
        }
    }

    /// The lag, as it was seen last.
    pub(crate) fn lag(&self, at: &Subscription, partitions: &[PartitionStatus]) -> Lag {
        let (mut lag, now_ms) = (Lag::default(), at.clock.wall_ms());
        let looked_up = self.oldest.lock().expect("no holder panics");
        for part in partitions.iter().filter(|part| part.lags()) {
            lag.messages += (part.end - part.committed).saturating_sub(part.settled_above);
            let known = looked_up.get(&part.partition).filter(|(position, _)| *position == part.committed);
            if let Some(appended_ms) = part.oldest_ms.or(known.map(|(_, appended_ms)| *appended_ms)) {
                let age = now_ms.saturating_sub(appended_ms) as f64 / 1000.0;
                lag.oldest_age_seconds = Some(lag.oldest_age_seconds.map_or(age, |other| other.max(age)));
            }
        }
        lag
    }

    /// Finds out when the lowest unsettled message of a partition was appended; once for each message, since that time
    /// stays the same.
    async fn look_up(&self, at: &Subscription, part: &PartitionStatus) {
        let seen = self.oldest.lock().expect("no holder panics").get(&part.partition).copied();
        // A broker that is away is no reason to fail, and a message that is gone by now is no lag.
        if seen.is_some_and(|(position, _)| position == part.committed) || at.broker.health().await.is_err() {
            return;
        }
        let found = crate::client::peek(&*at.broker, &at.topic, part.partition, part.committed, 1).await;
        let appended_ms = found.ok().and_then(|found| found.first().map(keylane_core::Delivery::appended_ms));
        if let Some(appended_ms) = appended_ms {
            let mut oldest = self.oldest.lock().expect("no holder panics");
            oldest.insert(part.partition, (part.committed, appended_ms));
        }
    }
}

async fn within<T>(at: &Subscription, asked: impl Future<Output = T>) -> Option<T> {
    let until = at.clock.instant(at.clock.now_ms() + ASK_MS);
    tokio::time::timeout_at(until, asked).await.ok()
}
