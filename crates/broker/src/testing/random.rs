//! Seeded randomness for the memory broker and the fault wrapper.
//!
//! A seed comes in, numbers go out: the same ones for the same seed, on every machine, so that a failing simulation can
//! be run again.

/// A SplitMix64 generator: small, fast, and good enough to choose faults with.
#[derive(Debug, Clone)]
pub(crate) struct Dice {
    state: u64,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
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

    /// True in `per_mille` of 1,000 cases. Always draws, so that a rate changes nothing but its own outcome.
    pub(crate) fn hits(&mut self, per_mille: u32) -> bool {
        self.up_to(999) < u64::from(per_mille)
    }
}
