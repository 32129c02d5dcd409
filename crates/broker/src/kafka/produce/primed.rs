//! In which partitions a client had something acknowledged: only there does the leader know how the client numbers.
//!
//! A leader that knows nothing of a client takes whatever number comes first. With several requests on their way to it, the
//! first may fail and the second be taken: then what failed has been overtaken, or counts as taken because what came
//! behind it was. So a client gets one message of a partition, which is one request, and nothing else until that was
//! acknowledged (`held.rs`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::under_way::Place;

/// How long a leader surely remembers a client from which nothing comes. By default it does so for a day
/// (`producer.id.expiration.ms`).
const REMEMBERED: Duration = Duration::from_secs(3600);

/// When something was last acknowledged, by partition.
#[derive(Default)]
pub(super) struct Primed(HashMap<Arc<str>, HashMap<u32, Instant>>);

impl Primed {
    /// The leader has told the offset of something.
    pub(super) fn acknowledged(&mut self, (topic, partition): &Place, now: Instant) {
        match self.0.get_mut(topic) {
            Some(partitions) => drop(partitions.insert(*partition, now)),
            None => drop(self.0.insert(Arc::clone(topic), [(*partition, now)].into())),
        }
    }

    /// Whether the leader knows the client, and surely remembers it.
    pub(super) fn is(&self, topic: &str, partition: u32, now: Instant) -> bool {
        let last = self.last(topic, partition);
        last.is_some_and(|last| now.saturating_duration_since(last) < REMEMBERED)
    }

    /// Whether the leader knew the client once.
    pub(super) fn was(&self, topic: &str, partition: u32) -> bool {
        self.last(topic, partition).is_some()
    }

    /// Another client begins, which no leader knows.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    fn last(&self, topic: &str, partition: u32) -> Option<Instant> {
        self.0.get(topic)?.get(&partition).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::clock;

    /// BRK-2, P1: a leader forgets a client that was idle for a day, and is taken to have done so much earlier.
    #[test]
    fn a_leader_knows_a_client_for_an_hour_after_the_last_acknowledgement() {
        let (mut primed, now) = (Primed::default(), clock::now());
        assert!(!primed.is("t", 0, now) && !primed.was("t", 0));
        primed.acknowledged(&("t".into(), 0), now);
        assert!(primed.is("t", 0, now) && !primed.is("t", 1, now) && !primed.is("u", 0, now));
        assert!(!primed.is("t", 0, now + REMEMBERED) && primed.was("t", 0));
        primed.acknowledged(&("t".into(), 0), now + REMEMBERED);
        assert!(primed.is("t", 0, now + REMEMBERED));
        primed.forget();
        assert!(!primed.was("t", 0));
    }
}
