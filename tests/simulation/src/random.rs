//! Randomness from a seed: the same numbers for the same seed, on every machine.

use std::time::Duration;

/// A SplitMix64 generator.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator of this seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// A generator of its own for one part of a simulation: numbers drawn from it change nothing elsewhere.
    pub fn split(&mut self) -> Random {
        Random::new(self.number())
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        keylane_core::random::next(&mut self.state)
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        assert!(least <= most, "from {least} to {most} there is nothing");
        match (most - least).checked_add(1) {
            Some(count) => least + self.number() % count,
            None => self.number(),
        }
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.between(0, 99) < percent
    }

    /// A time between two times in milliseconds, short ones as often as long ones: each doubling is equally likely.
    pub fn time(&mut self, least_ms: u64, most_ms: u64) -> Duration {
        assert!(least_ms > 0 && least_ms <= most_ms, "a span of time");
        let doublings = (most_ms / least_ms).ilog2() as u64;
        let from_ms = least_ms << self.between(0, doublings);
        Duration::from_millis(self.between(from_ms, (2 * from_ms).min(most_ms)))
    }

    /// One of these.
    pub fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.between(0, of.len() as u64 - 1) as usize]
    }
}
