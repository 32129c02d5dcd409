//! The figures of one shard, for people: written by the shard, read by status queries, without waiting.

use std::sync::atomic::{AtomicU64, Ordering};

use keylane_core::{Counts, Load};

/// One shard's figures.
#[derive(Debug, Default)]
pub(crate) struct ShardStats {
    handled: AtomicU64,
    failed: AtomicU64,
    dead: AtomicU64,
    in_flight: AtomicU64,
    buffered: AtomicU64,
    buffered_bytes: AtomicU64,
    lanes: AtomicU64,
    busy: AtomicU64,
    retrying: AtomicU64,
    stuck: AtomicU64,
}

/// A shard's figures at one moment; those of several shards add up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) handled: u64,
    pub(crate) failed: u64,
    pub(crate) dead: u64,
    pub(crate) in_flight: u64,
    pub(crate) buffered: u64,
    pub(crate) buffered_bytes: u64,
    pub(crate) lanes: u64,
    pub(crate) busy: u64,
    pub(crate) retrying: u64,
    pub(crate) stuck: u64,
}

impl ShardStats {
    /// This many more messages were handled.
    pub(crate) fn handled(&self, messages: usize) {
        self.handled.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// An attempt failed.
    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// A dead letter is on record.
    pub(crate) fn dead(&self) {
        self.dead.fetch_add(1, Ordering::Relaxed);
    }

    /// Shows the state of the shard at the end of a pass.
    pub(crate) fn publish(&self, counts: Counts, in_flight: usize, load: Load) {
        let set = |figure: &AtomicU64, value: u64| figure.store(value, Ordering::Relaxed);
        set(&self.in_flight, in_flight as u64);
        set(&self.buffered, load.messages as u64);
        set(&self.buffered_bytes, load.bytes as u64);
        set(&self.lanes, counts.lanes as u64);
        set(&self.busy, counts.busy as u64);
        set(&self.retrying, counts.waiting_retry as u64);
        set(&self.stuck, counts.stuck as u64);
    }

    /// Adds this shard's figures to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Figures) {
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        sum.handled += get(&self.handled);
        sum.failed += get(&self.failed);
        sum.dead += get(&self.dead);
        sum.in_flight += get(&self.in_flight);
        sum.buffered += get(&self.buffered);
        sum.buffered_bytes += get(&self.buffered_bytes);
        sum.lanes += get(&self.lanes);
        sum.busy += get(&self.busy);
        sum.retrying += get(&self.retrying);
        sum.stuck += get(&self.stuck);
    }
}
