//! Reads the clock. The only file that does so.
//!
//! Inside a process, time is milliseconds since its clock was made, and never goes back. Wall time is for values that
//! leave the process. Under a paused tokio clock both are simulated, so that a simulation repeats itself exactly.

#![allow(unsafe_code, reason = "two of the kernel's clocks have no safe function in the standard library")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Reads time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    /// The boot clock, which goes on while the machine is suspended, at the start.
    boot_ms: u64,
    simulated_start_ms: Option<u64>,
    seed: Option<u64>,
    #[cfg(any(test, feature = "testing"))]
    skipped_ms: Option<&'static AtomicU64>,
}

impl Clock {
    /// The machine's clock.
    #[allow(clippy::disallowed_methods, reason = "this is the file that reads the clock")]
    pub fn system() -> Clock {
        Clock {
            start: Instant::now(),
            boot_ms: kernel::boot_ms().unwrap_or(0),
            simulated_start_ms: None,
            seed: None,
            #[cfg(any(test, feature = "testing"))]
            skipped_ms: None,
        }
    }

    /// A clock whose wall time is `start_ms` now and goes on as tokio's (possibly paused) clock does.
    pub fn simulated(start_ms: u64) -> Clock {
        Clock { simulated_start_ms: Some(start_ms), ..Clock::system() }
    }

    /// In a simulation, seeds what a process uses as randomness. No two processes may have the same seed.
    #[cfg(feature = "testing")]
    pub fn seeded(self, seed: u64) -> Clock {
        Clock { seed: Some(seed), ..self }
    }

    /// In a test, adds time that passed while nothing ran: the process was stopped, or the machine was suspended.
    #[cfg(any(test, feature = "testing"))]
    pub fn skipping(self, skipped_ms: &'static AtomicU64) -> Clock {
        Clock { skipped_ms: Some(skipped_ms), ..self }
    }

    fn skipped_ms(&self) -> u64 {
        #[cfg(any(test, feature = "testing"))]
        return self.skipped_ms.map_or(0, |skipped_ms| skipped_ms.load(Ordering::SeqCst));
        #[cfg(not(any(test, feature = "testing")))]
        0
    }

    /// In a simulation, the seed of its randomness.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed.or(self.simulated_start_ms)
    }

    /// Milliseconds since the clock was made.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Milliseconds since the clock was made, suspends of the machine included; `now_ms` stands still then.
    pub(crate) fn passed_ms(&self) -> u64 {
        let boot_ms = match self.simulated_start_ms {
            Some(_) => None,
            None => kernel::boot_ms().map(|boot_ms| boot_ms - self.boot_ms),
        };
        boot_ms.unwrap_or_else(|| self.now_ms()) + self.skipped_ms()
    }

    /// A number that changes whenever a few milliseconds have passed, also in a suspend. While it stays the same,
    /// `passed_ms` need not be asked again. It costs a quarter of `passed_ms`, so it can be asked often.
    #[inline]
    pub(crate) fn beat(&self) -> u64 {
        let beat = match self.simulated_start_ms {
            Some(_) => None,
            None => kernel::beat(),
        };
        beat.unwrap_or_else(|| self.now_ms()).wrapping_add(self.skipped_ms())
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

/// Clocks that the standard library does not have.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod kernel {
    /// Milliseconds since the machine was started, suspends included.
    pub(super) fn boot_ms() -> Option<u64> {
        read(libc::CLOCK_BOOTTIME).map(|at| at.tv_sec as u64 * 1_000 + at.tv_nsec as u64 / 1_000_000)
    }

    /// Wall time as of the kernel's last tick: it moves in a suspend too, and reading it does not ask the hardware.
    #[inline]
    pub(super) fn beat() -> Option<u64> {
        read(libc::CLOCK_REALTIME_COARSE).map(|at| (at.tv_sec as u64) << 32 | at.tv_nsec as u64)
    }

    #[inline]
    fn read(clock: libc::clockid_t) -> Option<libc::timespec> {
        let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is valid for the call, which writes nothing else.
        let read = unsafe { libc::clock_gettime(clock, &raw mut at) };
        (read == 0).then_some(at)
    }
}

/// Other systems: a suspend of the machine is not noticed here. This does harm only if another process takes the
/// partitions meanwhile.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod kernel {
    pub(super) fn boot_ms() -> Option<u64> {
        None
    }

    pub(super) fn beat() -> Option<u64> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// The environment variable that is set in the copy of this test that runs in a time namespace of its own.
    const INSIDE: &str = "KEYLANE_TEST_TIME_NAMESPACE";
    const SLEPT_MS: u64 = 86_400_000;

    /// ORD-12: a suspend of the machine counts as a pause of the process. No test can suspend its machine, but in a
    /// time namespace the boot clock can be a day ahead of the clock that stands still in a suspend.
    #[test]
    fn time_that_passed_in_a_suspend_is_seen() {
        let here_ms = kernel::boot_ms().expect("Linux has this clock");
        if let Ok(outside_ms) = std::env::var(INSIDE) {
            let outside_ms: u64 = outside_ms.parse().expect("the test below sets a number");
            assert!(here_ms >= outside_ms + SLEPT_MS, "{here_ms} ms, outside {outside_ms} ms");
            return;
        }
        let inside = std::process::Command::new("unshare")
            .args(["--time", "--boottime", "86400"])
            .arg(std::env::current_exe().expect("a test knows its program"))
            .args(["--exact", "clock::tests::time_that_passed_in_a_suspend_is_seen", "--nocapture"])
            .env(INSIDE, here_ms.to_string())
            .output()
            .expect("unshare can be started: it is part of util-linux");
        let said = String::from_utf8_lossy(&inside.stdout) + String::from_utf8_lossy(&inside.stderr);
        assert!(inside.status.success() && said.contains("1 passed"), "{said}");
    }
}
