//! The only file that reads a clock.
//!
//! Time inside a process is milliseconds since its clock was made: it never goes back. Wall time is for what leaves
//! the process. Under a paused tokio clock both are simulated, so that a simulation repeats itself exactly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Reads time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    simulated_start_ms: Option<u64>,
    seed: Option<u64>,
}

impl Clock {
    /// The machine's clock.
    #[allow(clippy::disallowed_methods, reason = "this is the file that reads the clock")]
    pub fn system() -> Clock {
        Clock { start: Instant::now(), simulated_start_ms: None, seed: None }
    }

    /// A clock whose wall time is `start_ms` now and goes on as tokio's (possibly paused) clock does.
    pub fn simulated(start_ms: u64) -> Clock {
        Clock { simulated_start_ms: Some(start_ms), ..Clock::system() }
    }

    /// In a simulation, what a process takes for randomness begins with this; no two processes may have the same.
    #[cfg(feature = "testing")]
    pub fn seeded(self, seed: u64) -> Clock {
        Clock { seed: Some(seed), ..self }
    }

    /// In a simulation, what its randomness begins with.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed.or(self.simulated_start_ms)
    }

    /// Milliseconds since the clock was made.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Microseconds since the clock was made, for measuring.
    #[inline]
    pub fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Milliseconds since 1970.
    #[allow(clippy::disallowed_methods, reason = "this is the file that reads the clock")]
    pub fn wall_ms(&self) -> u64 {
        match self.simulated_start_ms {
            Some(start_ms) => start_ms + self.now_ms(),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        }
    }

    /// When this clock will show `at_ms`, for a timer.
    pub fn instant(&self, at_ms: u64) -> Instant {
        self.start + Duration::from_millis(at_ms)
    }
}

/// Makes ids for messages that came without one: UUIDv7, which begin with the time; in a simulation, a count.
#[derive(Debug)]
pub(crate) struct Ids {
    seed: Option<u64>,
    made: AtomicU64,
}

impl Ids {
    pub(crate) fn of(clock: Clock) -> Ids {
        Ids { seed: clock.seed(), made: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> String {
        match self.seed {
            None => uuid::Uuid::now_v7().to_string(),
            Some(seed) => format!("simulated-{seed:016x}-{}", self.made.fetch_add(1, Ordering::Relaxed)),
        }
    }
}
