//! How much may be read next (BPR-1, BPR-2).
//!
//! In: what a shard has in memory, what the partition whose turn it is has of that, and whether it was stopped. Out:
//! whether it is stopped now, and how many bytes its next read may bring. Everything is computed from that input alone,
//! so a decision can never outlive its reason, and it costs the same however many partitions there are.
//!
//! Kept whatever happens:
//! - a partition with nothing in memory may read, whatever the others hold: a stuck partition stops only itself (P3);
//! - the whole is bounded (P5): once a bound is reached, only a partition with nothing in memory reads, and a single
//!   message. So each partition takes the shard at most one message past either bound.

use crate::message::FRAME_BYTES_MIN;

/// What a shard may have in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Messages: queued, in flight, waiting for a retry, read and not yet looked at.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
    /// The share of either at which the partitions that feed the pressure stop.
    pub pause_at: f64,
    /// The share of both below which all read on.
    pub resume_at: f64,
    /// More than this is never read at once: larger batches only cost latency.
    pub read_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            messages: 100_000,
            bytes: 256 << 20,
            pause_at: 0.8,
            resume_at: 0.5,
            read_bytes_max: 256 << 10,
        }
    }
}

/// What a shard or one of its partitions has in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Messages that are not finished.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Load {
    /// So many messages more, of so many bytes together.
    #[inline]
    pub fn add(&mut self, messages: usize, bytes: usize) {
        self.messages += messages;
        self.bytes += bytes;
    }

    /// So many fewer.
    #[inline]
    pub fn sub(&mut self, messages: usize, bytes: usize) {
        self.messages -= messages;
        self.bytes -= bytes;
    }
}

/// Decides what may be read. See the head of `intake.rs`.
#[derive(Debug, Clone, Copy)]
pub struct Intake {
    messages: Level,
    bytes: Level,
    read_bytes_max: usize,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    bound: usize,
    pause: usize,
    resume: usize,
}

impl Intake {
    /// Decides within these bounds.
    pub fn new(bounds: &Bounds) -> Intake {
        let level = |bound: usize| Level {
            bound,
            pause: (bound as f64 * bounds.pause_at) as usize,
            resume: (bound as f64 * bounds.resume_at.min(bounds.pause_at)) as usize,
        };
        Intake {
            messages: level(bounds.messages.max(1)),
            bytes: level(bounds.bytes),
            read_bytes_max: bounds.read_bytes_max,
        }
    }

    /// How many bytes the next read of a partition may bring; `None`: it is stopped. The shard has `total` in memory,
    /// the partition has `own` of it, `partitions` share the shard, and `stopped` says whether this partition was
    /// stopped when it was asked for last. The answer holds for one read: ask again before the next.
    pub fn may_read(&self, total: Load, own: Load, partitions: usize, stopped: bool) -> Option<usize> {
        let by_messages = self.messages.stops(total.messages, own.messages, partitions, stopped);
        let by_bytes = self.bytes.stops(total.bytes, own.bytes, partitions, stopped);
        if by_messages || by_bytes {
            return None;
        }
        let messages_left = self.messages.bound.saturating_sub(total.messages);
        let bytes_left = self.bytes.bound.saturating_sub(total.bytes);
        let full = messages_left == 0 || bytes_left == 0;
        if full && own.messages > 0 {
            return None;
        }
        // Counted as if every message were as small as a message can be. A read brings at least one message, however
        // large: with 1 byte allowed it brings exactly one.
        let fits = messages_left.saturating_mul(FRAME_BYTES_MIN);
        Some(self.read_bytes_max.min(bytes_left).min(fits).max(1))
    }
}

impl Level {
    /// True if a partition with `own` of `total` is not to be read. It feeds the pressure if it has its fair share of it
    /// or more; one that has less reads on, so that a stuck partition stops only itself.
    fn stops(&self, total: usize, own: usize, partitions: usize, stopped: bool) -> bool {
        let pressed = total >= self.pause || (stopped && total >= self.resume);
        pressed && own > 0 && own.saturating_mul(partitions) >= total
    }
}
