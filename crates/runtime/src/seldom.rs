//! Bounds the log lines of one kind: at most ten a minute, then a count of those that were left out.
//!
//! A handler that rejects everything must not fill a disk with log lines, and must not go unnoticed either.

/// Lines of one kind in a window.
const LINES_MAX: u32 = 10;
/// The length of a window.
const WINDOW_MS: u64 = 60_000;

/// Decides which lines are written.
#[derive(Debug, Default)]
pub struct Seldom {
    began_ms: u64,
    told: u32,
    left_out: u64,
}

impl Seldom {
    /// Whether one more line may be written. If not, it is counted.
    pub fn may_tell(&mut self, now_ms: u64) -> bool {
        if self.told == 0 || now_ms >= self.began_ms + WINDOW_MS {
            (self.began_ms, self.told) = (now_ms, 0);
        }
        let may = self.told < LINES_MAX;
        self.told += u32::from(may);
        self.left_out += u64::from(!may);
        may
    }

    /// How many lines were left out, once their window is over; none if none were. Counting then begins anew.
    pub fn left_out(&mut self, now_ms: u64) -> Option<u64> {
        let is_over = now_ms >= self.began_ms + WINDOW_MS;
        if is_over { self.all_left_out() } else { None }
    }

    /// How many lines were left out, whether the window is over or not, since no further line follows.
    pub fn all_left_out(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.left_out)).filter(|left_out| *left_out > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ING-5, P5.
    #[test]
    fn so_many_lines_a_minute_are_written_and_the_others_counted() {
        let mut seldom = Seldom::default();
        let told = (0..1_000).filter(|at| seldom.may_tell(5_000 + at)).count();
        assert_eq!(told, LINES_MAX as usize);
        assert_eq!(seldom.left_out(6_000), None, "the minute is not over");
        assert_eq!(seldom.left_out(65_000), Some(1_000 - u64::from(LINES_MAX)));
        assert_eq!(seldom.left_out(70_000), None, "each is counted once");
        assert!(seldom.may_tell(70_000), "another minute has begun");
        assert_eq!(seldom.all_left_out(), None);
    }
}
