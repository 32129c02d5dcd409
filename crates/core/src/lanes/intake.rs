//! Decides whether a partition may be read now, and how much of it (BPR-1, BPR-2).
//!
//! In comes what the shard has in memory, how much of it belongs to the partition in question, and whether that
//! partition was stopped; out comes whether it is stopped now, or how many bytes its next read may bring. The decision
//! is computed from that input alone, so it cannot outlive its reason, and its cost does not depend on the number of
//! partitions.
//!
//! Invariants:
//! - a partition with nothing in memory may read, whatever the others have: a stuck partition stops only itself (P3);
//! - memory is bounded (P5): at a bound, only a partition with nothing in memory reads, and only a single message, so
//!   each partition takes the shard at most one message past either bound.

use crate::message::FRAME_BYTES_MIN;

/// How much a shard may have in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Messages that are queued, in flight, waiting for a retry, or read and not looked at yet.
    pub messages: usize,
    /// The bytes of those messages.
    pub bytes: usize,
    /// The share of either bound from which on the partitions that cause the pressure stop reading.
    pub pause_at: f64,
    /// The share of both bounds below which every partition reads again.
    pub resume_at: f64,
    /// No read brings more bytes than this: a larger batch only adds latency.
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

/// How much a shard, or one of its partitions, has in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Messages that are not finished.
    pub messages: usize,
    /// The bytes of those messages.
    pub bytes: usize,
}

impl Load {
    /// Adds `messages` messages with `bytes` bytes in total.
    #[inline]
    pub fn add(&mut self, messages: usize, bytes: usize) {
        self.messages += messages;
        self.bytes += bytes;
    }

    /// Subtracts `messages` messages with `bytes` bytes in total.
    #[inline]
    pub fn sub(&mut self, messages: usize, bytes: usize) {
        self.messages -= messages;
        self.bytes -= bytes;
    }
}

/// Decides what may be read; see the head of `intake.rs`.
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
    /// An intake that keeps memory within `bounds`.
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

    /// How many bytes the next read of a partition may bring; `None` if the partition is stopped. The shard has `total`
    /// in memory, of which `own` is the partition's; `partitions` share the shard; `stopped` is the last answer for
    /// this partition. The answer holds for one read: ask again before the next.
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
        // Every message is taken to be as small as a message can be, so that the count bound holds. A read brings at
        // least one message, however large it is; with 1 byte allowed it brings exactly one.
        let fits = messages_left.saturating_mul(FRAME_BYTES_MIN);
        Some(self.read_bytes_max.min(bytes_left).min(fits).max(1))
    }
}

impl Level {
    /// True if a partition that has `own` of `total` must not read. A partition causes the pressure if it has its fair
    /// share of the total or more; one that has less reads on, so that a stuck partition stops only itself.
    fn stops(&self, total: usize, own: usize, partitions: usize, stopped: bool) -> bool {
        let pressed = total >= self.pause || (stopped && total >= self.resume);
        pressed && own > 0 && own.saturating_mul(partitions) >= total
    }
}
