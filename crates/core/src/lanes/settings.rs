//! The settings of an [`Engine`](super::Engine): the order it keeps, its bounds, and its retry policy.

use super::retry::RetryPolicy;

/// Which messages run one after another (ORD-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// Messages of one key, one after another.
    #[default]
    Key,
    /// All messages of a partition, one after another.
    Partition,
    /// No order: messages run as they come, all at once.
    None,
}

impl Order {
    /// The bytes that tell which messages keep an order with each other: the key; in order `partition` the same bytes
    /// for all messages; `None` for messages that nothing orders.
    #[inline]
    pub fn ordered_by(self, key: Option<&[u8]>) -> Option<&[u8]> {
        match self {
            Order::Key => key,
            Order::Partition => Some(&[]),
            Order::None => None,
        }
    }
}

/// The settings of an engine, fixed when it is made.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Which messages run one after another.
    pub order: Order,
    /// How many messages a lane queues before it is full (ORD-6).
    pub lane_capacity: u32,
    /// How long a lane stays after its last message (ORD-5).
    pub lane_idle_ms: u64,
    /// The most lanes of this shard; at most 2^25.
    pub lanes_max: usize,
    /// The most messages without a key in flight (MSG-2). In order `none` there are no keys to protect, and no such
    /// bound.
    pub keyless_max: usize,
    /// How failed messages are tried again.
    pub retry: RetryPolicy,
    /// Spreads the hashes of keys and the waits of retries.
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

/// Known flaws, which a test can put back to see that it finds them.
#[cfg(feature = "flaws")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flaws {
    /// A failed message goes behind the queued ones instead of before them.
    pub retry_at_tail: bool,
    /// A lane that has rested for long enough is removed even if something is queued in it.
    pub idle_drops_queue: bool,
}
