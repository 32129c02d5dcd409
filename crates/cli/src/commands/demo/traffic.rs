//! Steady traffic for the demonstration: thousands of keys, each message numbered within its key.
//!
//! Invariant: a key's numbers go up by one in the order they are produced, and a message that was not taken ends the
//! traffic, so that a gap in the numbers a handler sees can only be a fault of what lies in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use keylane::raw::{Clock, Draft};
use keylane::{Error, Keylane};
use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

use super::TOPIC;

/// A key whose handler takes long.
pub const SLOW_KEY: &str = "slow";
/// A key whose handler fails.
pub const FAILING_KEY: &str = "failing";

/// Messages are sent this often: fine enough to look steady, coarse enough for batches.
const TICK: Duration = Duration::from_millis(20);
/// The slow key gets this many at once, so that its lane fills …
const SLOW_BURST: u64 = 8;
/// … this often, so that it empties before the next: a lane that only grows would pause its partition.
const SLOW_EVERY_MS: u64 = 10_000;
/// The failing key gets a message this often: a few dozen wait while it fails.
const FAILING_EVERY_MS: u64 = 2_000;

/// What a message of the demonstration carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered {
    /// When the run that made it began, ms since 1970: a folder that is kept may hold messages of earlier ones.
    pub run: u64,
    /// Its number within its key, from 1.
    pub number: u64,
}

/// Makes the traffic.
pub struct Traffic {
    keylane: Keylane,
    clock: Clock,
    run: u64,
    schedule: Schedule,
    produced: Arc<AtomicU64>,
}

impl Traffic {
    /// Traffic of `rate` messages a second over `keys` keys, for the run that began at `run`, ms since 1970.
    pub fn new(keylane: Keylane, run: u64, keys: u64, rate: u64) -> Traffic {
        Traffic {
            keylane,
            clock: Clock::system(),
            run,
            schedule: Schedule::new(run, keys, rate),
            produced: Arc::default(),
        }
    }

    /// Counts the messages that are durable.
    pub fn produced(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.produced)
    }

    /// Produces until it is `enough`, or until a message is not taken.
    pub async fn flow(&mut self, enough: &AtomicBool) -> Result<(), Error> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !enough.load(Ordering::Relaxed) {
            tick.tick().await;
            let due = self.schedule.due(self.clock.now_ms());
            self.send(due).await?;
        }
        Ok(())
    }

    async fn send(&mut self, due: Vec<(String, u64)>) -> Result<(), Error> {
        let producer = self.keylane.producer();
        let mut call = producer.call(TOPIC).await?;
        for (key, number) in &due {
            let numbered = Numbered { run: self.run, number: *number };
            let payload = serde_json::to_vec(&numbered).expect("two numbers can be written as JSON");
            call.push_without_id(&Draft {
                id: &producer.new_id(),
                key: Some(key.as_bytes()),
                payload: Some(&payload),
                produced_ms: producer.wall_ms(),
                ..Draft::default()
            });
        }
        for result in call.send().await? {
            result?;
            self.produced.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// What is to be sent when.
struct Schedule {
    rate: u64,
    numbers: Vec<u64>,
    ordinary: u64,
    slow: u64,
    failing: u64,
    choice: u64,
}

impl Schedule {
    fn new(seed: u64, keys: u64, rate: u64) -> Schedule {
        Schedule { rate, numbers: vec![0; keys as usize], ordinary: 0, slow: 0, failing: 0, choice: seed }
    }

    /// What is to be sent by `now_ms`: key and number each. After a stall at most one second's worth is made up for.
    fn due(&mut self, now_ms: u64) -> Vec<(String, u64)> {
        let owed = (now_ms * self.rate / 1_000).saturating_sub(self.ordinary);
        self.ordinary += owed;
        let mut due = Vec::new();
        for _ in 0..owed.min(self.rate) {
            let key = self.choose();
            self.numbers[key] += 1;
            due.push((format!("key-{key}"), self.numbers[key]));
        }
        while self.slow < SLOW_BURST * (1 + now_ms / SLOW_EVERY_MS) {
            self.slow += 1;
            due.push((SLOW_KEY.to_owned(), self.slow));
        }
        while self.failing < 1 + now_ms / FAILING_EVERY_MS {
            self.failing += 1;
            due.push((FAILING_KEY.to_owned(), self.failing));
        }
        due
    }

    /// Any key, each about as often: a linear congruential generator is random enough for that.
    fn choose(&mut self) -> usize {
        self.choice = self.choice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.choice >> 33) % self.numbers.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// P2.
    #[test]
    fn every_keys_numbers_go_up_by_one() {
        let mut schedule = Schedule::new(7, 50, 1_000);
        let mut last: HashMap<String, u64> = HashMap::new();
        for now_ms in (0..60_000).step_by(20) {
            for (key, number) in schedule.due(now_ms) {
                let before = last.insert(key, number).unwrap_or(0);
                assert_eq!(number, before + 1);
            }
        }
        assert_eq!(last.len(), 52);
    }

    #[test]
    fn the_rate_is_kept_and_a_stall_does_not_make_a_flood() {
        let mut schedule = Schedule::new(7, 1_000, 2_000);
        let ordinary =
            |due: Vec<(String, u64)>| due.iter().filter(|(key, _)| key.starts_with("key-")).count();
        let sent: usize = (0..=10_000).step_by(20).map(|now_ms| ordinary(schedule.due(now_ms))).sum();
        assert_eq!(sent, 20_000);
        assert_eq!(ordinary(schedule.due(3_610_000)), 2_000);
        assert_eq!(ordinary(schedule.due(3_610_020)), 40);
    }

    #[test]
    fn the_slow_key_gets_less_than_it_can_handle() {
        let can_handle =
            SLOW_EVERY_MS / u64::try_from(super::super::SLOW.as_millis()).expect("a few seconds");
        assert!(SLOW_BURST < can_handle);
    }
}
