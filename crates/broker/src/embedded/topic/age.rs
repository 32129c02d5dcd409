//! Decides whether the system clock may be believed when messages are deleted for their age.
//!
//! Retention by time compares the time at which a message was appended with the clock. A clock that is wrong for a
//! moment (a board without a battery, a virtual machine that was just restored, a mistyped date) must not delete
//! everything that is settled. So the clock counts only after it has run evenly for a while: since the log was
//! opened, and since it last jumped ahead of the time that the process measured itself. If the clock is corrected
//! within that while, nothing was deleted. A clock that stays wrong is believed in the end, because it looks like a
//! machine that was off. In either case messages that a group has not settled are kept (`retention`).

/// The clock must have run evenly for this long, …
const EVEN_MS: u64 = 10 * 60 * 1000;
/// … or for this part of the topic's retention, if that is shorter.
const EVEN_PART: u64 = 8;
/// A segment is used for at least this long, however short the retention is, because each segment costs a file. The
/// spill's logs delete settled messages within a millisecond.
const SEGMENT_MS_MIN: u64 = 60 * 1000;
/// A clock that gets ahead by less than this counts as corrected and not as jumped.
const JUMP_MS: u64 = 60 * 1000;

/// Compares the clock with the uptime of the process, and notices jumps.
#[derive(Debug, Default)]
pub(crate) struct AgeClock {
    /// The clock and the uptime when they were last compared.
    last: Option<(u64, u64)>,
    even_since_ms: u64,
}

impl AgeClock {
    /// The time by which ages are judged; `None` while the clock may not be believed.
    pub fn believed(&mut self, now_ms: u64, uptime_ms: u64, retention_ms: u64) -> Option<u64> {
        let jumped = match self.last {
            None => true,
            Some((now_before, uptime_before)) => {
                let passed = uptime_ms.saturating_sub(uptime_before);
                let jumped = now_ms.saturating_sub(now_before) > passed.saturating_add(JUMP_MS);
                if jumped {
                    tracing::warn!(
                        ahead_ms = now_ms.saturating_sub(now_before).saturating_sub(passed),
                        "the system clock has jumped ahead; nothing is deleted for its age until it has run evenly"
                    );
                }
                jumped
            }
        };
        if jumped {
            self.even_since_ms = uptime_ms;
        }
        self.last = Some((now_ms, uptime_ms));
        let even = uptime_ms.saturating_sub(self.even_since_ms);
        (even >= EVEN_MS.min(retention_ms / EVEN_PART)).then_some(now_ms)
    }
}

/// True if the next message should begin another segment, because this one is old. Segments are deleted as a whole,
/// when their newest message is old enough; a segment that takes years to fill would keep all its messages for years.
/// Also true if the newest message lies in the future: then the clock was set back, and that message would keep the
/// later ones.
pub(crate) fn is_aged(oldest_ms: u64, newest_ms: u64, now_ms: u64, retention_ms: u64) -> bool {
    let begun = oldest_ms.saturating_add((retention_ms / EVEN_PART).max(SEGMENT_MS_MIN));
    begun <= now_ms || newest_ms > now_ms.saturating_add(JUMP_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600 * 1000;
    const DAY: u64 = 24 * HOUR;

    /// BRK-1: a clock that is a year ahead for a moment, at the start or later, is not believed.
    #[test]
    fn a_clock_is_believed_after_it_has_run_evenly_for_a_while() {
        let mut age = AgeClock::default();
        assert_eq!(age.believed(400 * DAY, 0, 7 * DAY), None, "just opened");
        assert_eq!(age.believed(10 * DAY, 60_000, 7 * DAY), None, "set right");
        assert_eq!(age.believed(10 * DAY + EVEN_MS, EVEN_MS + 60_000, 7 * DAY), Some(10 * DAY + EVEN_MS));
        let up = 2 * EVEN_MS;
        assert_eq!(age.believed(400 * DAY, up, 7 * DAY), None, "it jumped");
        assert_eq!(age.believed(400 * DAY + 1000, up + 1000, 7 * DAY), None, "no second jump, but too soon");
        assert_eq!(age.believed(400 * DAY + EVEN_MS, up + EVEN_MS, 7 * DAY), Some(400 * DAY + EVEN_MS));
    }

    /// BRK-1.
    #[test]
    fn a_short_retention_waits_for_a_part_of_itself_only() {
        let mut age = AgeClock::default();
        assert_eq!(age.believed(DAY, 0, 8000), None);
        assert_eq!(age.believed(DAY + 1000, 1000, 8000), Some(DAY + 1000));
    }

    /// BRK-1.
    #[test]
    fn a_segment_ages_by_its_oldest_message_and_by_one_from_the_future() {
        assert!(!is_aged(1000, 1000, HOUR + 999, 8 * HOUR));
        assert!(is_aged(1000, 1500, HOUR + 1000, 8 * HOUR));
        assert!(!is_aged(1000, 1000 + JUMP_MS, 1000, DAY));
        assert!(is_aged(1000, DAY, 1000, DAY));
    }

    /// BRK-1.
    #[test]
    fn a_short_retention_costs_no_segment_for_each_message() {
        assert!(!is_aged(1000, 1000, 1000 + SEGMENT_MS_MIN - 1, 1));
        assert!(is_aged(1000, 1000, 1000 + SEGMENT_MS_MIN, 1));
    }
}
