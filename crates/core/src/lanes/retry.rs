//! Decides when a failed message is tried again (RTY-2).
//!
//! In come how often the message has failed, the delay that the handler asked for, and a salt; out come how long its
//! lane waits and whether its retries are spent. Waits double from `base_ms` to `max_ms`. The salt spreads them, so
//! that messages that failed together do not come back together. No wait is below `base_ms`, and none is above `max_ms`
//! unless the handler asks for that.

use crate::random;

/// The longest wait that a handler can ask for: a day, which is longer than any honest `Retry-After`. Without a bound,
/// one bad answer would hold a key for ever.
pub const RETRY_AFTER_MS_MAX: u64 = 24 * 3600 * 1000;

/// How often and how soon a failed message is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Retries after the first attempt. Once they are spent the message is stuck: it stays at the head of its lane and
    /// is tried every `max_ms`.
    pub retries: u32,
    /// The shortest wait.
    pub base_ms: u64,
    /// The longest wait, unless the handler asks for a longer one.
    pub max_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { retries: 3, base_ms: 100, max_ms: 30_000 }
    }
}

/// When and how a failed message is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The number of the next attempt; the first was 1.
    pub attempt: u32,
    /// The time from which on the next attempt may begin.
    pub at_ms: u64,
    /// True if the message's retries are spent.
    pub stuck: bool,
}

impl RetryPolicy {
    /// The retry after `failures` failures in a row. `salt` spreads the waits: the same salt gives the same wait.
    pub fn after(&self, failures: u32, retry_after_ms: Option<u64>, salt: u64, now: u64) -> Retry {
        let stuck = failures > self.retries;
        let own_ms = if stuck { self.max_ms.max(self.base_ms) } else { self.backoff_ms(failures, salt) };
        let asked_ms = retry_after_ms.unwrap_or(0).min(RETRY_AFTER_MS_MAX);
        Retry { attempt: failures.saturating_add(1), at_ms: now.saturating_add(own_ms.max(asked_ms)), stuck }
    }

    fn backoff_ms(&self, failures: u32, salt: u64) -> u64 {
        let doubled = self.base_ms.saturating_mul(1u64.checked_shl(failures).unwrap_or(u64::MAX));
        let ceiling = doubled.min(self.max_ms).max(self.base_ms);
        let floor = (ceiling / 2).max(self.base_ms);
        let mut salt = salt.wrapping_add(u64::from(failures));
        floor + random::next(&mut salt) % (ceiling - floor + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// RTY-2.
        #[test]
        fn waits_stay_within_their_bounds_and_grow(
            retries in 0u32..100, base_ms in 0u64..100_000, max_ms in 0u64..100_000, failures in 1u32..200,
            salt in any::<u64>(), now in 0u64..1 << 50,
        ) {
            let policy = RetryPolicy { retries, base_ms, max_ms };
            let retry = policy.after(failures, None, salt, now);
            let waits = retry.at_ms - now;
            prop_assert!(waits >= base_ms && waits <= max_ms.max(base_ms));
            prop_assert_eq!((retry.attempt, retry.stuck), (failures + 1, failures > retries));
            let later = policy.after(failures + 2, None, salt, now).at_ms - now;
            prop_assert!(later >= waits.min(max_ms / 2));
        }

        /// RTY-1: the wait that the handler asks for is the shortest wait.
        #[test]
        fn retry_after_is_obeyed(asked in any::<u64>(), failures in 1u32..9, salt in any::<u64>()) {
            let retry = RetryPolicy::default().after(failures, Some(asked), salt, 5);
            prop_assert!(retry.at_ms - 5 >= asked.min(RETRY_AFTER_MS_MAX));
            prop_assert!(retry.at_ms - 5 <= asked.clamp(30_000, RETRY_AFTER_MS_MAX));
        }
    }

    /// RTY-2: three retries make four calls; then the message is stuck, and tried at the longest wait.
    #[test]
    fn retries_are_spent_after_four_calls() {
        let policy = RetryPolicy::default();
        let stuck: Vec<bool> = (1..6).map(|failures| policy.after(failures, None, 1, 0).stuck).collect();
        assert_eq!(stuck, [false, false, false, true, true]);
        assert_eq!(policy.after(4, None, 1, 1000).at_ms, 31_000);
    }

    /// RTY-2: messages that failed together do not come back together.
    #[test]
    fn waits_are_spread_by_the_salt() {
        let policy = RetryPolicy::default();
        let waits: Vec<u64> = (0..1000).map(|salt| policy.after(1, None, salt, 0).at_ms).collect();
        let early = waits.iter().filter(|wait| **wait < 150).count();
        assert!((300..700).contains(&early), "{early} of 1000 in the first half");
    }
}
