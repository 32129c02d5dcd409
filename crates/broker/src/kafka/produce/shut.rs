//! Partitions that take nothing, because a message that failed there is of a call that is not answered yet.
//!
//! Whoever keeps messages that failed (the spill) hears of one only with all the others of its call, of which some may
//! wait for a slow leader. What is produced to the partition meanwhile would overtake it. So the partition is shut
//! until the call was answered, and for a moment more, in which whoever called gets to it. Calling everything back opens
//! it: whoever does that knows what is open, and keeps all of it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::under_way::Place;

/// How long whoever called may take to look at an answer that is there: much longer than a busy machine needs.
const MOMENT: Duration = Duration::from_secs(1);

/// Partitions that are shut.
#[derive(Default)]
pub(super) struct Shut(HashMap<Place, Why>);

#[derive(Default)]
struct Why {
    /// Calls of which a message failed there, and which are not answered.
    calls: HashSet<u64>,
    /// When the last of them was answered.
    answered: Option<Instant>,
}

impl Shut {
    /// A message of a call failed.
    pub(super) fn shut(&mut self, place: Place, call: u64) {
        self.0.entry(place).or_default().calls.insert(call);
    }

    /// A call is being answered.
    pub(super) fn answered(&mut self, call: u64, now: Instant) {
        for why in self.0.values_mut() {
            if why.calls.remove(&call) {
                why.answered = Some(now);
            }
        }
    }

    /// Which partitions of a topic are shut.
    pub(super) fn of(&mut self, topic: &str, now: Instant) -> HashSet<u32> {
        self.open_old(now);
        self.0.keys().filter(|(of, _)| **of == *topic).map(|(_, partition)| *partition).collect()
    }

    /// Whether a partition is shut.
    pub(super) fn has(&mut self, place: &Place, now: Instant) -> bool {
        self.open_old(now);
        self.0.contains_key(place)
    }

    pub(super) fn open_all(&mut self) {
        self.0.clear();
    }

    fn open_old(&mut self, now: Instant) {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= MOMENT;
        self.0.retain(|_, why| !why.calls.is_empty() || !why.answered.is_none_or(is_old));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::clock;

    /// P2, PRD-3: a partition is shut until all calls were answered of which a message failed there, and a moment more.
    #[test]
    fn a_partition_is_shut_until_its_calls_are_answered_and_a_moment_more() {
        let (mut shut, now) = (Shut::default(), clock::now());
        let place: Place = ("t".into(), 3);
        shut.shut(place.clone(), 1);
        shut.answered(1, now);
        shut.shut(place.clone(), 2);
        let later = now + MOMENT * 1_000;
        assert_eq!((shut.of("t", later), shut.of("u", later)), ([3].into(), HashSet::new()));
        shut.answered(2, later);
        assert!(shut.of("t", later).contains(&3) && shut.has(&place, later));
        assert!(shut.of("t", later + MOMENT).is_empty() && !shut.has(&place, later + MOMENT));
        shut.shut(place, 3);
        shut.open_all();
        assert!(shut.of("t", later).is_empty());
    }
}
