//! Notices that the broker is away. Slow is not away (BRK-2): a call that takes long is looked at, and gets more time while
//! the leaders of its partitions acknowledge anything, or throttle us.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use super::calls::{Calls, Open};
use super::{Notifies, Spill, lock};
use crate::produce::call::Target;

/// Notices that the broker does not answer.
pub(super) async fn watch(spill: Weak<Spill>, notifies: Arc<Notifies>) {
    loop {
        let Some(here) = spill.upgrade() else { return };
        let (clock, after_ms) = (here.clock, here.options.after.as_millis() as u64);
        let (due, now_ms) = (lock(&here.calls).due_ms(), clock.now_ms());
        match due {
            None => {
                drop(here);
                notifies.handed.notified().await;
            }
            Some(due_ms) if now_ms >= due_ms => {
                let due = lock(&here.calls).due(now_ms);
                let looked = here.look(due, after_ms).await;
                if lock(&here.calls).looked(&looked) {
                    let why = match here.broker.health().await {
                        Ok(()) => "nothing was acknowledged for too long".to_owned(),
                        Err(error) => error.to_string(),
                    };
                    here.away(&why);
                }
            }
            Some(due_ms) => {
                drop(here);
                // What is handed over meanwhile is not due before that.
                let at_ms = due_ms.min(now_ms + after_ms);
                tokio::time::sleep_until(clock.instant(at_ms)).await;
            }
        }
    }
}

impl Calls {
    fn due_ms(&self) -> Option<u64> {
        self.open.values().filter(|open| !open.called_back).map(|open| open.due_ms).min()
    }

    /// Calls that should have ended by now, and the partitions of each.
    fn due(&self, now_ms: u64) -> Vec<(u64, Arc<Target>, Vec<u32>)> {
        let due = self.open.iter().filter(|(_, open)| !open.called_back && open.due_ms <= now_ms);
        let call = |(number, open): (&u64, &Open)| {
            (*number, Arc::clone(&open.target), open.partitions.iter().copied().collect())
        };
        due.map(call).collect()
    }

    /// What a look at calls that were due found: those that get more time, and until when, and those that do not.
    fn looked(&mut self, calls: &[(u64, Option<u64>)]) -> bool {
        let mut away = false;
        for (number, until_ms) in calls {
            match (self.open.get_mut(number), until_ms) {
                (None, _) => {}
                (Some(open), Some(until_ms)) => open.due_ms = *until_ms,
                (Some(open), None) => (open.overdue, away) = (true, true),
            }
        }
        away
    }
}

impl Spill {
    /// Looks whether the broker is away for calls that were due, or only slow: until when each has time, if it has. A
    /// leader that acknowledges others, or throttles us, gets to it.
    async fn look(&self, due: Vec<(u64, Arc<Target>, Vec<u32>)>, after_ms: u64) -> Vec<(u64, Option<u64>)> {
        let mut topics = BTreeMap::<Arc<str>, BTreeSet<u32>>::new();
        for (_, target, partitions) in &due {
            topics.entry(Arc::clone(&target.name)).or_default().extend(partitions);
        }
        let mut silence = HashMap::new();
        for (topic, partitions) in topics {
            let partitions: Vec<u32> = partitions.into_iter().collect();
            let found = self.broker.silence(&topic, &partitions).await;
            silence
                .extend(partitions.into_iter().map(|partition| (Arc::clone(&topic), partition)).zip(found));
        }
        let now_ms = self.clock.now_ms();
        let until = |(number, target, partitions): (u64, Arc<Target>, Vec<u32>)| {
            let left_ms = partitions.into_iter().map(|partition| {
                let silent = (*silence.get(&(Arc::clone(&target.name), partition))?)?;
                after_ms.checked_sub(silent.as_millis() as u64).filter(|left_ms| *left_ms > 0)
            });
            // Of a call to several leaders, that of whom nothing was heard the longest.
            let least = left_ms.collect::<Option<Vec<u64>>>().and_then(|left| left.into_iter().min());
            (number, least.map(|left_ms| now_ms + left_ms))
        };
        due.into_iter().map(until).collect()
    }
}
