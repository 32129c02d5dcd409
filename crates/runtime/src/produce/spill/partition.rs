//! One partition's part of the spill: what waits, and what was refused for good.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keylane_core::Settled;

use super::store::Place;

/// One partition's messages that wait for the broker.
pub(crate) struct SpillPartition {
    pub(super) place: Place,
    /// True while all that comes for the partition is kept.
    pub(super) waits: AtomicBool,
    /// Messages that are to be kept and are not yet.
    pub(super) queued: AtomicU64,
    /// Messages kept, less those drained, which may be counted first.
    pub(super) messages: AtomicU64,
    /// Bytes of keys that were blocked when they were kept here, since the partition began to wait: they will be put
    /// aside.
    pub(super) behind: AtomicU64,
    /// The next position to be given out.
    pub(super) end: AtomicU64,
    /// Up to where it was brought to the broker.
    pub(super) drained: AtomicU64,
    pub(super) tries: Mutex<Tries>,
}

/// How bringing it to the broker went.
#[derive(Debug, Clone, Default)]
pub(super) struct Tries {
    /// Failed tries since the last that went well.
    pub(super) failed: u64,
    pub(super) error: Option<String>,
    /// Not before this.
    pub(super) again_ms: u64,
    /// What was tried last ends here.
    pub(super) tried_to: u64,
    /// A try is under way.
    pub(super) trying: bool,
    /// Tries of which nothing was heard, since the last that went well.
    pub(super) silent: u32,
}

/// One partition's refused messages.
#[derive(Debug, Clone, Default)]
pub(super) struct RefusedMessages {
    pub(super) drained: Settled,
    pub(super) end: u64,
    /// Messages that are to be put here and are not yet.
    pub(super) queued: u64,
}

impl RefusedMessages {
    /// True if something of it was not brought to the broker.
    pub(super) fn is_left(&self) -> bool {
        self.drained.low() < self.end
    }
}

/// Trying a topic's refused messages again.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// It is under way.
    pub(super) trying: bool,
    /// Somebody asked for it meanwhile.
    pub(super) once_more: bool,
    /// To be done again when those that are queued are there.
    pub(super) again: bool,
}

impl SpillPartition {
    pub(super) fn drained(&self) -> u64 {
        self.drained.load(Ordering::Acquire)
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned()
    }

    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// True if nothing is kept that was not brought to the broker.
    pub(super) fn is_empty(&self) -> bool {
        self.drained() >= self.end()
    }

    /// A message that was queued is kept at that position, or not at all.
    pub(super) fn unqueue(&self, kept: Option<u64>) {
        if let Some(position) = kept {
            self.end.fetch_max(position + 1, Ordering::AcqRel);
            self.messages.fetch_add(1, Ordering::Relaxed);
        }
        self.queued.fetch_sub(1, Ordering::AcqRel);
    }

    /// A message was kept here whose key is blocked.
    pub(super) fn add_behind(&self, bytes: usize) {
        self.behind.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many messages, up to `position`, are with the broker or were refused.
    pub(super) fn drain_to(&self, position: u64, messages: u64) {
        self.drained.store(position, Ordering::Release);
        self.messages.fetch_sub(messages, Ordering::Relaxed);
    }
}
