//! When the leaders of partitions last acknowledged something, and how long they throttle us (BRK-2).
//!
//! A cluster that has a quota answers late on purpose, and says how late. So a leader counts as silent only since it
//! last acknowledged something, whatever of, and the time for which it throttled us does not count.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::super::{clock, lock};

/// What is known of the brokers that lead partitions.
#[derive(Debug, Default)]
pub(super) struct Leaders(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By topic and partition: who acknowledged last, or leads as far as somebody has looked.
    leads: HashMap<Arc<str>, HashMap<u32, i32>>,
    heard: HashMap<i32, Heard>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Heard {
    acknowledged: Option<Instant>,
    throttled_until: Option<Instant>,
}

impl Leaders {
    /// A broker acknowledged something of a partition.
    pub(super) fn acknowledged(&self, topic: &Arc<str>, partition: u32, broker: i32) {
        if broker < 0 {
            return;
        }
        let mut known = lock(&self.0);
        known.heard.entry(broker).or_default().acknowledged = Some(clock::now());
        known.leads(topic, partition, broker);
    }

    /// A broker does not answer for so long, because we send more than we may.
    pub(super) fn throttled(&self, broker: i32, time: Duration) {
        lock(&self.0).heard.entry(broker).or_default().throttled_until = Some(clock::now() + time);
    }

    /// Somebody has looked who leads.
    pub(super) fn looked(&self, topic: &Arc<str>, leaders: impl Iterator<Item = (u32, i32)>) {
        let mut known = lock(&self.0);
        leaders
            .filter(|(_, broker)| *broker >= 0)
            .for_each(|(partition, broker)| known.leads(topic, partition, broker));
    }

    /// For how long the leader of a partition has acknowledged nothing, and was not throttling us; none if it never
    /// was heard of.
    pub(super) fn silence(&self, topic: &str, partition: u32) -> Option<Duration> {
        let (known, now) = (lock(&self.0), clock::now());
        let since = |heard: &Heard| heard.acknowledged.max(heard.throttled_until);
        let leader = known.leads.get(topic).and_then(|leaders| leaders.get(&partition));
        let last = match leader {
            Some(leader) => since(known.heard.get(leader)?),
            // It may be any of them; but one that throttles us does not tell who leads either.
            None => known.heard.values().filter_map(|heard| heard.throttled_until).max(),
        };
        last.map(|last| now.saturating_duration_since(last))
    }
}

impl Known {
    fn leads(&mut self, topic: &Arc<str>, partition: u32, broker: i32) {
        match self.leads.get_mut(topic) {
            Some(leaders) => drop(leaders.insert(partition, broker)),
            None => drop(self.leads.insert(Arc::clone(topic), [(partition, broker)].into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// BRK-2: slow is not away.
    #[test]
    fn a_leader_that_acknowledges_anything_or_throttles_is_not_silent() {
        let (leaders, topic): (_, Arc<str>) = (Leaders::default(), "t".into());
        assert_eq!(leaders.silence("t", 0), None, "nobody was heard of");
        leaders.acknowledged(&topic, 0, 1);
        leaders.looked(&topic, [(1, 1), (2, 2), (3, -1)].into_iter());
        for partition in [0, 1] {
            assert!(leaders.silence("t", partition).expect("its leader was heard") < LONG);
        }
        assert_eq!(leaders.silence("t", 2), None, "its leader never answered");
        assert_eq!(leaders.silence("t", 3), None, "it has no leader");
        leaders.throttled(2, LONG);
        assert_eq!(leaders.silence("t", 2), Some(Duration::ZERO), "it said that it would not");
        assert_eq!(leaders.silence("other", 0), Some(Duration::ZERO), "it may lead that, too");
    }
}
