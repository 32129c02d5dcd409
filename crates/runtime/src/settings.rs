//! The settings of a pipeline, and every default, in one place.

use std::time::Duration;

use keylane_core::Order;

/// A pipeline's settings. `Settings::default()` has every default.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Which messages keep their order (ORD-3).
    pub order: Order,
    /// The number of shards, which share the partitions; none: one for each core (ORD-1).
    pub shards: Option<usize>,
    /// The most handlers in flight (ORD-4).
    pub concurrency: usize,
    /// The most threads that handlers may block at once, beside the runtime's own (ORD-4).
    pub blocking: usize,
    /// The most messages in one lane; when a lane is full, its partition is not read (ORD-6).
    pub lane_capacity: usize,
    /// How long an idle lane is kept (ORD-5).
    pub lane_idle: Duration,
    /// The most messages that are read and not settled (BPR-1).
    pub buffer_messages: usize,
    /// The most bytes of these messages (BPR-1).
    pub buffer_bytes: usize,
    /// Reading stops at this share of the bound (BPR-2).
    pub pause_at: f64,
    /// Reading resumes below this share of the bound.
    pub resume_at: f64,
    /// A handler that takes longer has failed (ORD-7).
    pub timeout: Duration,
    /// Retries after the first attempt (RTY-2).
    pub retries: u32,
    /// The wait before the first retry.
    pub retry_base: Duration,
    /// The longest wait; a stuck message is tried again this often.
    pub retry_max: Duration,
    /// A drain ends after this at the latest (ORD-10).
    pub drain: Duration,
    /// Sizes and times of the partition protocol, which a simulation makes small.
    #[cfg(feature = "testing")]
    pub bounds: keylane_core::owner::Bounds,
    /// Flaws that a test puts back.
    #[cfg(feature = "flaws")]
    pub flaws: crate::flaws::Flaws,
}

/// The longest time-out. A longer one would make no difference, and would overflow a clock.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl Settings {
    /// Refuses settings with which nothing would run.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Settings { concurrency: 0, .. } => Err("a concurrency of 0 would run nothing".to_owned()),
            Settings { blocking: 0, .. } => {
                Err("without a thread to block, a handler that blocks its thread would never run".to_owned())
            }
            Settings { buffer_messages: 0, .. } | Settings { lane_capacity: 0, .. } => {
                Err("a buffer or lane of 0 messages would read nothing".to_owned())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn timeout_ms(&self) -> u64 {
        self.timeout.min(TIMEOUT_MAX).as_millis() as u64
    }

    pub(crate) fn bounds(&self) -> keylane_core::owner::Bounds {
        #[cfg(feature = "testing")]
        return self.bounds.clone();
        #[cfg(not(feature = "testing"))]
        protocol_bounds()
    }

    pub(crate) fn flaws(&self) -> crate::flaws::Flaws {
        #[cfg(feature = "flaws")]
        return self.flaws;
        #[cfg(not(feature = "flaws"))]
        crate::flaws::Flaws
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            order: Order::Key,
            shards: None,
            concurrency: 10_000,
            blocking: 512,
            lane_capacity: 1_000,
            lane_idle: Duration::from_secs(300),
            buffer_messages: 100_000,
            buffer_bytes: 256 << 20,
            pause_at: 0.8,
            resume_at: 0.5,
            timeout: Duration::from_secs(30),
            retries: 3,
            retry_base: Duration::from_millis(100),
            retry_max: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            #[cfg(feature = "testing")]
            bounds: protocol_bounds(),
            #[cfg(feature = "flaws")]
            flaws: Default::default(),
        }
    }
}

/// Completions are batched where they are handed over (`shard/handover.rs`), so the owner adds no wait of its own.
fn protocol_bounds() -> keylane_core::owner::Bounds {
    keylane_core::owner::Bounds { batch_ms: 0, ..Default::default() }
}
