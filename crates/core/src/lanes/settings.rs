//! What an engine is told once.

use super::retry::RetryPolicy;

/// In what order messages run (ORD-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// Messages of one key, one after another.
    #[default]
    Key,
    /// All messages of a partition, one after another.
    Partition,
    /// As they come, all at once.
    None,
}

impl Order {
    /// What messages with that key share with those that they keep an order with: the key, or, where a partition has one
    /// order, the same for all. `None`: nothing orders them.
    #[inline]
    pub fn ordered_by(self, key: Option<&[u8]>) -> Option<&[u8]> {
        match self {
            Order::Key => key,
            Order::Partition => Some(&[]),
            Order::None => None,
        }
    }
}

/// What an engine is told once.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The order kept.
    pub order: Order,
    /// Messages that a lane queues before it is full (ORD-6).
    pub lane_capacity: u32,
    /// How long a lane stays when nothing happens to it (ORD-5).
    pub lane_idle_ms: u64,
    /// Lanes of this shard; at most 2^25.
    pub lanes_max: usize,
    /// Keyless messages in flight (MSG-2). In order `none` there are no keys to protect, and no such bound.
    pub keyless_max: usize,
    /// How failed messages are tried again.
    pub retry: RetryPolicy,
    /// Spreads hashes and waits.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            order: Order::Key,
            lane_capacity: 1000,
            lane_idle_ms: 300_000,
            lanes_max: 1_000_000,
            keyless_max: 5000,
            retry: RetryPolicy::default(),
            seed: 0,
        }
    }
}

/// Known flaws that a test can put back.
#[cfg(feature = "flaws")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flaws {
    /// What failed goes behind what waits.
    pub retry_at_tail: bool,
    /// A lane that has rested long enough goes, whatever it still queues.
    pub idle_drops_queue: bool,
}
