//! Produces the demonstration's traffic: messages of thousands of keys, numbered within each key.
//!
//! Invariant: a key's numbers go up by one in the order in which they are produced, and the traffic ends when a message
//! is not accepted. So if the handler sees a gap in the numbers, Keylane lost or reordered a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use keylane::raw::{Clock, Draft};
use keylane::{Error, Keylane};
use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

use super::TOPIC;

/// The key for which the handler takes long.
pub const SLOW_KEY: &str = "slow";
/// The key for which the handler fails.
pub const FAILING_KEY: &str = "failing";

/// Messages are sent this often: fine enough to look steady, coarse enough for batches.
const TICK: Duration = Duration::from_millis(20);
/// Messages that the slow key gets at once, so that its lane fills.
const SLOW_BURST: u64 = 8;
/// How often the slow key gets such a burst. Its lane must be empty again before the next burst: a lane that only grows
/// would pause its partition.
const SLOW_EVERY_MS: u64 = 10_000;
/// How often the failing key gets a message: about twenty messages wait while the key fails.
const FAILING_EVERY_MS: u64 = 2_000;

/// The payload of a message of the demonstration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered {
    /// When the run that produced the message began, in ms since 1970. A data folder that was kept may hold messages of
    /// earlier runs.
    pub run: u64,
    /// Number of the message within its key, from 1.
    pub number: u64,
}

/// Produces the traffic of one run.
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

    /// The number of messages of this run that the broker acknowledged.
    pub fn produced(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.produced)
    }

    /// Produces until `enough` is set, or until a message is not accepted.
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

/// Decides which messages are due at which time.
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

    /// The messages that are due by `now_ms`, each with key and number. After a stall, the schedule catches up on at
    /// most one second of ordinary messages; more would be a flood.
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

    /// Picks an ordinary key, each about equally often. A linear congruential generator is random enough for that.
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
