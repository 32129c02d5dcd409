//! The only file that reads the clock for Kafka: a cluster runs in real time, which cannot be simulated.
#![allow(clippy::disallowed_methods, reason = "this is the place")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Now, for how long something takes.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Now, in ms since 1970: what the client stamps a record with.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Stops the calling thread, which must have nobody who waits for it.
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}
