//! How an embedded broker is opened, and what it stands on: disk, clock, randomness, threads.
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

/// How an embedded broker is opened. The default is right for a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The largest segment of a topic, in bytes: what is freed at once, and what a full scan after a crash reads.
    pub segment_bytes: u64,
    /// The largest segment of the log that all journals share. Smaller, because journals are cut all the time.
    pub journal_segment_bytes: u64,
    /// Bytes of each topic's newest messages that are kept in memory, so that readers at the end make no system call.
    pub tail_bytes: usize,
    /// The same of all topics together: each gets an equal part, if that is less. As much again may be held of what was
    /// read from the disk last.
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
    /// For a simulation: on that disk, by that clock (ms since 1970), with that seed, and without a thread. Nothing
    /// becomes durable until [`super::Embedded::commit_once`] is called, and reads happen where they are asked for.
    #[cfg(feature = "testing")]
    pub fn simulated(disk: Arc<dyn Disk>, clock: Arc<dyn Fn() -> u64 + Send + Sync>, seed: u64) -> Options {
        let mut options = Options::on_disk(disk, clock, seed);
        options.host.threads = false;
        options
    }

    /// As the default, with threads, but on that disk, by that clock and with that seed.
    #[cfg(feature = "testing")]
    pub fn on_disk(disk: Arc<dyn Disk>, clock: Arc<dyn Fn() -> u64 + Send + Sync>, seed: u64) -> Options {
        let mut options = Options::default();
        options.host.disk = disk;
        options.host.uptime = Arc::clone(&clock);
        options.host.clock = clock;
        options.host.entropy = Arc::new(Entropy::Seeded(Mutex::new(seed)));
        options
    }

    /// With another clock (ms) for how long the process runs: one that nobody sets.
    #[cfg(feature = "testing")]
    pub fn with_uptime(mut self, uptime: Arc<dyn Fn() -> u64 + Send + Sync>) -> Options {
        self.host.uptime = uptime;
        self
    }

    /// Has a thread panic when it next gets to where it may: `log-scrub`, `log-read`, `log-spare`, or that of a log,
    /// `log-TOPIC`, `log-journals` or `log-holds`.
    #[cfg(feature = "testing")]
    pub fn strike(&self, thread: &str) {
        self.host.panics.strike(thread);
    }

    /// Bytes of the disk that topics leave free, so that what pipelines settle can be recorded when it is nearly full:
    /// the journals and the holds can each begin another segment, the journals twice.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        2 * self.journal_segment_bytes + self.segment_bytes
    }

    /// Puts known flaws back, to show that the proofs find them.
    #[cfg(feature = "flaws")]
    pub fn with_flaws(mut self, flaws: Flaws) -> Options {
        self.host.flaws = flaws;
        self
    }
}

/// Known flaws that a test may put back (docs/decisions/0005). Nobody can set one in a build for users.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flaws {
    /// Acknowledges what was written, and syncs it only then: a power cut in between loses it.
    pub acknowledge_before_sync: bool,
    /// Believes at the start what the page cache says of the last group, though its sync may have failed.
    pub trust_the_cache: bool,
    /// Forgets an old segment before its file is gone: the file stays if that fails, and later ones go.
    pub forget_before_freeing: bool,
    /// Makes every file for the next segment under one name, though an earlier one may still wait there for its use.
    pub one_name_for_spares: bool,
    /// Takes whatever is left of a log for all of it.
    pub ignore_the_recorded_end: bool,
    /// Empties the folder of a log that is to be made, whatever lies there.
    pub clear_the_folder: bool,
    /// Lets a call that fits go before those that wait for room.
    pub overtake_who_waits: bool,
    /// Gives back the room of a call that was cancelled, though its bytes still wait to be written.
    pub forget_the_cancelled: bool,
}

/// What a broker stands on.
#[derive(Clone)]
pub(crate) struct Host {
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    pub uptime: Arc<dyn Fn() -> u64 + Send + Sync>,
    pub entropy: Arc<Entropy>,
    /// False in a simulation: somebody calls `commit_once`, and reads happen where they are asked for.
    pub threads: bool,
    /// Bytes of files that are being made and are not written yet: the disk calls them free.
    pub promised: Arc<Mutex<u64>>,
    /// Topics that are open: what all of them may hold in memory is divided among them.
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

    /// How long the process has run, whatever anybody sets the clock to.
    pub fn uptime_ms(&self) -> u64 {
        (self.uptime)()
    }

    /// True if that flaw is put back. Always false in a build for users.
    pub fn flaw(&self, which: impl FnOnce(&Flaws) -> bool) -> bool {
        #[cfg(feature = "flaws")]
        return which(&self.flaws);
        #[cfg(not(feature = "flaws"))]
        which(&Flaws::default())
    }

    /// Runs what may wait for the disk, away from the caller's thread where there are others.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, crate::BrokerError> {
        if !self.threads {
            return Ok(work());
        }
        ended(crate::threads::blocking(work).await)
    }

    /// Does the work to its end, also if whoever waits for it goes away. In a simulation it is the caller who does it.
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

/// What was done elsewhere, as if it had been done here.
fn ended<T>(ended: Result<T, tokio::task::JoinError>) -> Result<T, crate::BrokerError> {
    match ended {
        Ok(done) => Ok(done),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(crate::BrokerError::Closed),
    }
}

/// Where random numbers come from.
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
