//! Random numbers from a seed: SplitMix64, which gives the same numbers for the same seed on every machine.
//!
//! The core itself draws nothing: it only spreads salts that callers give it. Simulations, fault injection and
//! benchmarks draw their numbers here, so that a run can be repeated from its seed.

/// How far the state moves with each number. Odd, so that all 2^64 states are visited before one comes again.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that follows `state`; moves `state` on.
#[inline]
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    mixed(*state)
}

/// Maps numbers that lie close together to numbers all over `u64`.
#[inline]
pub fn mixed(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded seeds must go on meaning the runs that they were recorded for. The expected numbers come from
    /// SplitMix64's authors.
    #[test]
    fn a_seed_gives_the_numbers_that_it_always_gave() {
        let mut state = 1_234_567;
        let drawn = [next(&mut state), next(&mut state), next(&mut state)];
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
