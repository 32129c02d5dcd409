//! The options of an embedded broker, and what it gets from its surroundings: disk, clock, randomness, threads.
#![allow(
    clippy::disallowed_methods,
    reason = "reads the clock; nothing is decided by it that a test could not set"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::disk::{Disk, RealDisk};
use super::failure::{Action, Failure};
use crate::threads::Threads;

/// How an embedded broker is opened. The default suits a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The largest segment of a topic, in bytes. Space is freed in units of a segment.
    pub segment_bytes: u64,
    /// The largest segment of the log of all journals. Smaller, because journals are cut often.
    pub journal_segment_bytes: u64,
    /// Bytes of each topic's newest messages that stay in memory, so that readers at the end need no system call.
    pub tail_bytes: usize,
    /// The bound of these bytes for all topics together: each topic gets an equal part, if that is less than
    /// `tail_bytes`. Messages that were last read from the disk may take as much again.
    pub tails_bytes: usize,
    pub(crate) host: Host,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 64 << 20,
            journal_segment_bytes: 16 << 20,
            tail_bytes: 8 << 20,
            tails_bytes: 256 << 20,
            host: Host {
                disk: Arc::new(RealDisk),
                clock: Arc::new(system_ms),
                uptime: Arc::new(uptime_ms),
                entropy: Arc::new(Entropy::System),
                threads: true,
                promised: Arc::default(),
                topics: Arc::default(),
                panics: Threads::default(),
                #[cfg(feature = "flaws")]
                flaws: Flaws::default(),
            },
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("segment_bytes", &self.segment_bytes)
            .field("journal_segment_bytes", &self.journal_segment_bytes)
            .field("tail_bytes", &self.tail_bytes)
            .field("tails_bytes", &self.tails_bytes)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// For a simulation: with the given disk, clock (ms since 1970) and seed, and without threads. Nothing becomes
    /// durable until the test calls [`super::Embedded::commit_once`], and reads run in the thread that asks.
    #[cfg(feature = "testing")]
    pub fn simulated(disk: Arc<dyn Disk>, clock: Arc<dyn Fn() -> u64 + Send + Sync>, seed: u64) -> Options {
        let mut options = Options::on_disk(disk, clock, seed);
        options.host.threads = false;
        options
    }

    /// The default options, with threads, but with the given disk, clock and seed.
    #[cfg(feature = "testing")]
    pub fn on_disk(disk: Arc<dyn Disk>, clock: Arc<dyn Fn() -> u64 + Send + Sync>, seed: u64) -> Options {
        let mut options = Options::default();
        options.host.disk = disk;
        options.host.uptime = Arc::clone(&clock);
        options.host.clock = clock;
        options.host.entropy = Arc::new(Entropy::Seeded(Mutex::new(seed)));
        options
    }

    /// Replaces the measure of the process's uptime (ms), which nobody can set as the system clock can be set.
    #[cfg(feature = "testing")]
    pub fn with_uptime(mut self, uptime: Arc<dyn Fn() -> u64 + Send + Sync>) -> Options {
        self.host.uptime = uptime;
        self
    }

    /// Makes a thread panic when it next comes to a place where a test may end it: `log-scrub`, `log-read`, `log-spare`, or
    /// the thread of a log: `log-TOPIC`, `log-journals`, `log-holds`.
    #[cfg(feature = "testing")]
    pub fn strike(&self, thread: &str) {
        self.host.panics.strike(thread);
    }

    /// Bytes of the disk that topics leave free, so that settlements can be recorded when the disk is nearly full:
    /// enough for two more segments of the journals and one of the holds.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        2 * self.journal_segment_bytes + self.segment_bytes
    }

    /// Puts known flaws back, so that tests can show that the flaws are found.
    #[cfg(feature = "flaws")]
    pub fn with_flaws(mut self, flaws: Flaws) -> Options {
        self.host.flaws = flaws;
        self
    }
}

/// Known flaws that a test may put back (docs/decisions/0005). A build for users cannot set them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flaws {
    /// Acknowledges messages after the write and syncs only then: a power cut in between loses them.
    pub acknowledge_before_sync: bool,
    /// Trusts the page cache about the last group at the start, although the group's sync may have failed.
    pub trust_the_cache: bool,
    /// Forgets an old segment before its file is freed: if that fails, the file stays while later segments go.
    pub forget_before_freeing: bool,
    /// Gives every new spare file the same name, although an earlier one may still wait under it.
    pub one_name_for_spares: bool,
    /// Accepts whatever is left of a log as the whole log.
    pub ignore_the_recorded_end: bool,
    /// Empties the folder of a log that is to be made, whatever lies there.
    pub clear_the_folder: bool,
    /// Lets a call that fits pass calls that wait for room.
    pub overtake_who_waits: bool,
    /// Gives back the room of a cancelled call although its bytes still wait to be written.
    pub forget_the_cancelled: bool,
}

/// What a broker gets from its surroundings.
#[derive(Clone)]
pub(crate) struct Host {
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    pub uptime: Arc<dyn Fn() -> u64 + Send + Sync>,
    pub entropy: Arc<Entropy>,
    /// False in a simulation: the test calls `commit_once`, and reads run in the thread that asks.
    pub threads: bool,
    /// Bytes of files that are being made and are not yet written: the disk still reports these bytes as free.
    pub promised: Arc<Mutex<u64>>,
    /// The number of open topics, which share the bound of the memory.
    pub topics: Arc<AtomicUsize>,
    /// Sees threads that panic.
    pub panics: Threads,
    #[cfg(feature = "flaws")]
    pub flaws: Flaws,
}

impl Host {
    pub fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// How long the process has run. Unlike the clock, nobody can set it.
    pub fn uptime_ms(&self) -> u64 {
        (self.uptime)()
    }

    /// True if a test put that flaw back. Always false in a build for users.
    pub fn flaw(&self, which: impl FnOnce(&Flaws) -> bool) -> bool {
        #[cfg(feature = "flaws")]
        return which(&self.flaws);
        #[cfg(not(feature = "flaws"))]
        which(&Flaws::default())
    }

    /// Runs work that may block on the disk, on a thread for blocking work. Without threads, runs it at once.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, crate::BrokerError> {
        if !self.threads {
            return Ok(work());
        }
        ended(crate::threads::blocking(work).await)
    }

    /// Runs the work to its end, even if the caller drops the future. Without threads, the caller itself runs the
    /// work.
    pub async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, crate::BrokerError> {
        match self.threads {
            true => ended(crate::threads::task(work).await),
            false => Ok(work.await),
        }
    }
}

/// Passes on the outcome of work in another thread: a panic there becomes a panic here.
fn ended<T>(ended: Result<T, tokio::task::JoinError>) -> Result<T, crate::BrokerError> {
    match ended {
        Ok(done) => Ok(done),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(crate::BrokerError::Closed),
    }
}

/// The source of random numbers.
pub(crate) enum Entropy {
    System,
    #[cfg_attr(not(feature = "testing"), expect(dead_code, reason = "only simulations are seeded"))]
    Seeded(Mutex<u64>),
}

impl Entropy {
    pub fn u64(&self) -> Result<u64, Failure> {
        match self {
            Entropy::System => getrandom::u64().map_err(|error| {
                Failure::io(Action::Read, Path::new("/dev/urandom"))(std::io::Error::other(error))
            }),
            Entropy::Seeded(state) => {
                let mut state = state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                Ok(keylane_core::random::next(&mut state))
            }
        }
    }

    pub fn u128(&self) -> Result<u128, Failure> {
        Ok(u128::from(self.u64()?) << 64 | u128::from(self.u64()?))
    }
}

fn system_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn uptime_ms() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    BEGUN.get_or_init(Instant::now).elapsed().as_millis() as u64
}
