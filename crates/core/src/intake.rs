//! How much may be read next (BPR-1, BPR-2).
//!
//! In, each cycle: what every partition of a shard has in memory, and which of them are stopped. Out: which are stopped
//! now, and how many bytes each other one may read. Everything is computed from that input alone, so a decision can
//! never outlive its reason. The bounds are never passed: a cycle hands out no more than is left, counted as if every
//! message were as small as a message can be.

use crate::frame::FRAME_BYTES_MIN;

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
    /// The largest message, which a read may bring whatever it was allowed.
    pub message_bytes_max: usize,
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
            message_bytes_max: 1 << 20,
            read_bytes_max: 256 << 10,
        }
    }
}

/// What one partition has in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Feed {
    /// Messages that are not finished.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
    /// It is not read: in from the last cycle, out for this one.
    pub stopped: bool,
}

/// Decides what may be read. See the head of `intake.rs`.
#[derive(Debug, Clone, Copy)]
pub struct Intake {
    messages: Level,
    bytes: Level,
    message_bytes_max: usize,
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
            message_bytes_max: bounds.message_bytes_max,
            read_bytes_max: bounds.read_bytes_max,
        }
    }

    /// Sets who is stopped, and returns how many bytes the next read of one partition may bring; 0: read nothing. It
    /// holds for one read: ask again before the next.
    pub fn cycle(&self, feeds: &mut [Feed]) -> usize {
        let messages = feeds.iter().map(|feed| feed.messages).sum();
        let bytes = feeds.iter().map(|feed| feed.bytes).sum();
        let partitions = feeds.len();
        for feed in feeds {
            let by_messages = self.messages.stops(messages, feed.messages, partitions, feed.stopped);
            let by_bytes = self.bytes.stops(bytes, feed.bytes, partitions, feed.stopped);
            feed.stopped = by_messages || by_bytes;
        }
        self.may_read(messages, bytes)
    }

    fn may_read(&self, messages: usize, bytes: usize) -> usize {
        let messages_left = self.messages.bound.saturating_sub(messages);
        let bytes_left = self.bytes.bound.saturating_sub(bytes);
        if messages_left == 0 {
            return 0;
        }
        // A read brings at least one message, however large: there must be room for it. With nothing in memory it is
        // taken in any case, or a bound below the largest message would stop for ever.
        if bytes_left < self.message_bytes_max && bytes > 0 {
            return 0;
        }
        let fits = messages_left.saturating_mul(FRAME_BYTES_MIN);
        self.read_bytes_max.min(bytes_left).min(fits).max(1)
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
