//! Checks the order of each key in the demonstration: the handler reports every attempt to the witness.
//!
//! Violations are: two attempts of one key at the same time; an attempt that begins before the previous message of its
//! key is done; an attempt for a message that is already done. Messages that an earlier run left behind may begin with
//! any number, because another process handled the numbers before.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::traffic::Numbered;

/// Number of locks over which the keys are spread, so that handlers on several cores seldom wait for the same lock.
const SHARES: usize = 64;

/// Checks the order of all keys.
pub struct Witness {
    run: u64,
    shares: Vec<Mutex<HashMap<Vec<u8>, Seen>>>,
    handled: AtomicU64,
    handled_of_earlier_runs: AtomicU64,
    keys: AtomicU64,
    violations: AtomicU64,
    first_violation: Mutex<Option<String>>,
}

/// The state of a key: the run of its last attempt, its highest number that is done, and whether an attempt is running.
#[derive(Debug, Clone, Copy)]
struct Seen {
    run: u64,
    done: u64,
    running: bool,
}

/// One running attempt. If it is dropped without [`Sight::done`], the attempt failed or was given up.
pub struct Sight<'a> {
    witness: &'a Witness,
    key: Vec<u8>,
    numbered: Numbered,
}

impl Witness {
    /// A witness for the run that began at `run`, in ms since 1970.
    pub fn new(run: u64) -> Witness {
        Witness {
            run,
            shares: (0..SHARES).map(|_| Mutex::default()).collect(),
            handled: AtomicU64::new(0),
            handled_of_earlier_runs: AtomicU64::new(0),
            keys: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            first_violation: Mutex::default(),
        }
    }

    /// When this run began, in ms since 1970.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Messages of this run that are done.
    pub fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    /// Messages of earlier runs that this run has handled.
    pub fn handled_of_earlier_runs(&self) -> u64 {
        self.handled_of_earlier_runs.load(Ordering::Relaxed)
    }

    /// Number of keys seen so far.
    pub fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Number of violations seen so far.
    pub fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }

    /// The first violation, in words.
    pub fn first_violation(&self) -> Option<String> {
        self.first_violation.lock().expect("no holder panics").clone()
    }

    /// Records that an attempt begins, and checks the order of its key.
    pub fn begin(&self, key: &[u8], numbered: &Numbered) -> Sight<'_> {
        let mut share = self.share(key);
        let before = share.get(key).copied();
        let next = Seen {
            run: numbered.run,
            done: match before {
                Some(seen) if seen.run == numbered.run => seen.done,
                _ => numbered.number.saturating_sub(1),
            },
            running: true,
        };
        share.insert(key.to_vec(), next);
        drop(share);
        if before.is_none() {
            self.keys.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(why) = self.violation(before, numbered) {
            self.violations.fetch_add(1, Ordering::Relaxed);
            let text = format!(
                "key {}, message {} of run {}: {why}",
                String::from_utf8_lossy(key),
                numbered.number,
                numbered.run
            );
            self.first_violation.lock().expect("no holder panics").get_or_insert(text);
        }
        Sight { witness: self, key: key.to_vec(), numbered: numbered.clone() }
    }

    fn violation(&self, before: Option<Seen>, numbered: &Numbered) -> Option<String> {
        let number = numbered.number;
        match before {
            Some(seen) if seen.running => Some("begun while another of its key was running".to_owned()),
            Some(seen) if seen.run > numbered.run => Some("begun after a later run's".to_owned()),
            Some(seen) if seen.run == numbered.run && number <= seen.done => {
                Some(format!("begun again, {} was done", seen.done))
            }
            Some(seen) if seen.run == numbered.run && number > seen.done + 1 => {
                Some(format!("begun when only {} was done", seen.done))
            }
            Some(seen) if seen.run == numbered.run => None,
            _ if numbered.run == self.run && number != 1 => Some("the first of its key to begin".to_owned()),
            _ => None,
        }
    }

    fn share(&self, key: &[u8]) -> MutexGuard<'_, HashMap<Vec<u8>, Seen>> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let share = hasher.finish() as usize % SHARES;
        self.shares[share].lock().expect("no holder panics")
    }
}

impl Sight<'_> {
    /// Records that the message is done.
    pub fn done(self) {
        let counter = match self.numbered.run == self.witness.run {
            true => &self.witness.handled,
            false => &self.witness.handled_of_earlier_runs,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(seen) = self.witness.share(&self.key).get_mut(&self.key)
            && seen.run == self.numbered.run
        {
            seen.done = seen.done.max(self.numbered.number);
        }
    }
}

impl Drop for Sight<'_> {
    fn drop(&mut self) {
        if let Some(seen) = self.witness.share(&self.key).get_mut(&self.key) {
            seen.running = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = 100;

    fn numbered(run: u64, number: u64) -> Numbered {
        Numbered { run, number }
    }

    fn done(witness: &Witness, key: &str, run: u64, number: u64) {
        witness.begin(key.as_bytes(), &numbered(run, number)).done();
    }

    /// P2.
    #[test]
    fn messages_in_order_and_retries_in_place_are_no_violation() {
        let witness = Witness::new(RUN);
        done(&witness, "a", RUN, 1);
        drop(witness.begin(b"a", &numbered(RUN, 2)));
        done(&witness, "a", RUN, 2);
        done(&witness, "b", RUN, 1);
        done(&witness, "a", RUN, 3);
        assert_eq!(witness.first_violation(), None);
        assert_eq!((witness.handled(), witness.keys(), witness.violations()), (4, 2, 0));
    }

    /// P2.
    #[test]
    fn an_overtaking_message_is_a_violation() {
        let witness = Witness::new(RUN);
        done(&witness, "a", RUN, 1);
        done(&witness, "a", RUN, 3);
        assert_eq!(witness.violations(), 1);
    }

    /// P2.
    #[test]
    fn going_on_behind_a_failed_message_is_a_violation() {
        let witness = Witness::new(RUN);
        drop(witness.begin(b"a", &numbered(RUN, 1)));
        done(&witness, "a", RUN, 2);
        assert_eq!(witness.violations(), 1);
    }

    /// P2.
    #[test]
    fn a_message_that_is_handled_again_is_a_violation() {
        let witness = Witness::new(RUN);
        done(&witness, "a", RUN, 1);
        done(&witness, "a", RUN, 1);
        assert_eq!(witness.violations(), 1);
    }

    /// P2.
    #[test]
    fn two_attempts_of_a_key_at_once_are_a_violation() {
        let witness = Witness::new(RUN);
        let first = witness.begin(b"a", &numbered(RUN, 1));
        let second = witness.begin(b"a", &numbered(RUN, 1));
        assert_eq!(witness.violations(), 1);
        drop((first, second));
    }

    /// P2.
    #[test]
    fn a_lost_beginning_is_a_violation_in_this_run_and_none_in_an_earlier_one() {
        let witness = Witness::new(RUN);
        done(&witness, "a", RUN - 1, 7);
        done(&witness, "a", RUN - 1, 8);
        done(&witness, "a", RUN, 1);
        assert_eq!(witness.violations(), 0);
        assert_eq!((witness.handled(), witness.handled_of_earlier_runs()), (1, 2));
        done(&witness, "b", RUN, 2);
        assert_eq!(witness.violations(), 1);
        done(&witness, "a", RUN - 1, 9);
        assert_eq!(witness.violations(), 2);
    }
}
