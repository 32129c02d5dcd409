//! Random numbers for the memory broker and the fault wrapper.
//!
//! The same seed gives the same numbers on every machine, so that a failing simulation can be run again.

use keylane_core::random;

/// A SplitMix64 generator: small, fast, and good enough to draw faults.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        random::next(&mut self.state)
    }

    pub(crate) fn next_u128(&mut self) -> u128 {
        (u128::from(self.next()) << 64) | u128::from(self.next())
    }

    /// A number from 0 to `most`, both included.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        match most.checked_add(1) {
            Some(bound) => self.next() % bound,
            None => self.next(),
        }
    }

    /// True in `per_mille` of 1,000 cases. Draws a number even if the rate is 0, so that changing one rate changes no
    /// later draw.
    pub(crate) fn hits(&mut self, per_mille: u32) -> bool {
        self.up_to(999) < u64::from(per_mille)
    }
}
