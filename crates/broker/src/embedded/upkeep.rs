//! Warns from time to time that a log cannot do its upkeep: free old segments, and make the next one in advance.
//!
//! In: a failure that may pass. Out: a warning, at most every ten minutes. The log tries again a second later, and
//! refuses no write before it needs the space. So an operator who reads the warning has time to make room.

use std::sync::Mutex;

use super::failure::Failure;
use super::lock;

/// A log warns at most this often, because the warning is for people and repeats itself.
const AGAIN_MS: u64 = 10 * 60 * 1000;

/// When a log last warned about its upkeep.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// The uptime of the process at the last warning.
    told_ms: Mutex<Option<u64>>,
}

impl Upkeep {
    /// Notes that the upkeep failed for now.
    pub fn put_off(&self, log: &str, failure: &Failure, uptime_ms: u64) {
        if self.may_tell(uptime_ms) {
            tracing::warn!(
                log,
                %failure,
                "old files cannot be freed now, or the next one not be made; it is tried again, and nothing is refused yet"
            );
        }
    }

    fn may_tell(&self, uptime_ms: u64) -> bool {
        let mut told_ms = lock(&self.told_ms);
        let may = told_ms.is_none_or(|told_ms| uptime_ms.saturating_sub(told_ms) >= AGAIN_MS);
        if may {
            *told_ms = Some(uptime_ms);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BRK-8, P5: a disk that stays full for a day fills no log file.
    #[test]
    fn what_is_put_off_every_second_is_told_every_ten_minutes() {
        let upkeep = Upkeep::default();
        let told: Vec<u64> =
            (0..1300).map(|second| second * 1000).filter(|now| upkeep.may_tell(*now)).collect();
        assert_eq!(told, [0, AGAIN_MS, 2 * AGAIN_MS]);
    }
}
