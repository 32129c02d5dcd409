//! Numbers from a seed: SplitMix64, the same numbers for the same seed on every machine.
//!
//! A seed comes in, numbers go out. The core draws nothing of its own: it spreads salts that it is given. Simulations,
//! fault injection and benchmarks draw from here too, so that a run can be repeated by its seed.

/// How far the state moves from one number to the next: odd, so that a seed gives 2^64 numbers before one comes again.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that follows `state`, which moves on.
#[inline]
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    mixed(*state)
}

/// Spreads numbers that lie close together over all of `u64`.
#[inline]
pub fn mixed(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded seeds of simulations stand for what they stood for. The numbers are those of SplitMix64's authors.
    #[test]
    fn a_seed_gives_the_numbers_that_it_always_gave() {
        let mut state = 1_234_567;
        let drawn = [next(&mut state), next(&mut state), next(&mut state)];
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
