//! Says now and then that a log puts off what it does for itself: to free what is old, and to make its next file.
//!
//! In: why it could not be done this time, for a reason that may pass. Out: a warning, seldom: it is tried again a second
//! later, and nothing is refused before the log really needs it. Whoever reads the warning has time to make room.

use std::sync::Mutex;

use super::failure::Failure;
use super::lock;

/// A log warns at most this often: it is for people, and says the same each time.
const AGAIN_MS: u64 = 10 * 60 * 1000;

/// What a log has said of its upkeep.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// When it spoke last, by the process's own time.
    told_ms: Mutex<Option<u64>>,
}

impl Upkeep {
    /// It could not be done now.
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
