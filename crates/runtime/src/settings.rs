//! How a pipeline behaves: every default that a pipeline has, in one place.

use std::time::Duration;

use keylane_core::Order;

/// A pipeline's settings. `Settings::default()` has every default.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// What keeps its order (ORD-3).
    pub order: Order,
    /// Loops that share the partitions; none: one per core (ORD-1).
    pub shards: Option<usize>,
    /// Handlers in flight at most (ORD-4).
    pub concurrency: usize,
    /// Threads that handlers may block at once, beside the runtime's own (ORD-4).
    pub blocking: usize,
    /// Messages in one lane at most; when full its partition pauses (ORD-6).
    pub lane_capacity: usize,
    /// An idle lane goes after this (ORD-5).
    pub lane_idle: Duration,
    /// Messages read and not settled, at most (BPR-1).
    pub buffer_messages: usize,
    /// Their bytes, at most (BPR-1).
    pub buffer_bytes: usize,
    /// Intake stops at this share of the bound (BPR-2).
    pub pause_at: f64,
    /// And goes on below this one.
    pub resume_at: f64,
    /// A handler that takes longer has failed (ORD-7).
    pub timeout: Duration,
    /// Retries after the first attempt (RTY-2).
    pub retries: u32,
    /// The first wait.
    pub retry_base: Duration,
    /// The longest wait; what is stuck is tried again this often.
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

/// The longest time-out taken; longer ones are as good as none, and would overflow a clock.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl Settings {
    /// What makes no sense, if anything does not.
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

/// Completions are batched where they are handed over (`shard/handover.rs`); the owner adds no wait of its own.
fn protocol_bounds() -> keylane_core::owner::Bounds {
    keylane_core::owner::Bounds { batch_ms: 0, ..Default::default() }
}
