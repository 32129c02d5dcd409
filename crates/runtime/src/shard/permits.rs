//! The bound on a pipeline's attempts in flight (ORD-4): permits that all its shards share.
//!
//! A shard takes permits in small lots and keeps a few at hand, so that an attempt writes to no shared memory. With few
//! permits in all, a lot is one permit. A shard that finds no permit counts itself as waiting, and the shard that next
//! gives permits back wakes all shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::wake::Wakes;

/// The most permits in a lot: few beside the default of 10,000, many beside the cost of one exchange.
const LOT_MAX: usize = 64;

/// How long a busy shard leaves a permit to the shards that wait: more than it takes to wake a task.
const POLITE_MS: u64 = 2;

/// A pipeline's permits.
#[derive(Debug)]
pub(crate) struct Permits {
    free: AtomicUsize,
    /// How many shards found no permit and wait.
    waiting: AtomicUsize,
    /// The name of the shard that last gave a permit to waiting shards; that shard takes none for [`POLITE_MS`].
    giver: AtomicUsize,
    names: AtomicUsize,
    lot: usize,
    shards: Vec<Arc<Wakes>>,
}

impl Permits {
    pub(crate) fn new(concurrency: usize, shards: Vec<Arc<Wakes>>) -> Arc<Permits> {
        let lot = (concurrency / (16 * shards.len().max(1))).clamp(1, LOT_MAX);
        Arc::new(Permits {
            free: AtomicUsize::new(concurrency),
            waiting: AtomicUsize::new(0),
            giver: AtomicUsize::new(0),
            names: AtomicUsize::new(1),
            lot,
            shards,
        })
    }

    fn take(&self) -> usize {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            let taken = free.min(self.lot);
            if taken == 0 {
                return 0;
            }
            match self.free.compare_exchange_weak(free, free - taken, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return taken,
                Err(now) => free = now,
            }
        }
    }

    fn give(&self, permits: usize) {
        if permits == 0 {
            return;
        }
        self.free.fetch_add(permits, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.shards.iter().for_each(|shard| shard.wake());
        }
    }
}

/// One shard's share of the permits.
#[derive(Debug)]
pub(super) struct ShardPermits {
    pool: Arc<Permits>,
    at_hand: usize,
    /// The shard found no permit, and counts in `waiting`.
    waits: bool,
    /// The shard found no permit since `came_free` last said that some came free.
    short: bool,
    name: usize,
    now_ms: u64,
    /// If this shard was the last to give a permit to waiting shards: until then it takes none from the pool.
    polite_until_ms: u64,
}

impl ShardPermits {
    pub(super) fn new(pool: Arc<Permits>) -> ShardPermits {
        let name = pool.names.fetch_add(1, Ordering::Relaxed);
        ShardPermits { pool, at_hand: 0, waits: false, short: false, name, now_ms: 0, polite_until_ms: 0 }
    }

    /// A pass begins.
    pub(super) fn new_pass(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// True if the shard has a permit or gets one from the pool.
    #[inline]
    pub(super) fn any(&mut self) -> bool {
        self.at_hand > 0 || self.fetch()
    }

    fn fetch(&mut self) -> bool {
        self.at_hand = match self.is_polite() {
            true => 0,
            false => self.pool.take(),
        };
        self.short = self.at_hand == 0;
        // Counted as waiting before the last look (`came_free`); a permit given back in between would else be missed.
        self.wait(self.short);
        self.at_hand > 0
    }

    fn is_polite(&self) -> bool {
        self.now_ms < self.polite_until_ms
            && self.pool.giver.load(Ordering::Relaxed) == self.name
            && self.pool.free.load(Ordering::SeqCst) > 0
    }

    /// The shard may start nothing now, so other shards need not leave it any permits.
    pub(super) fn wants_none(&mut self) {
        self.wait(false);
        self.short = false;
    }

    fn wait(&mut self, waits: bool) {
        match (self.waits, waits) {
            (false, true) => self.pool.waiting.fetch_add(1, Ordering::SeqCst),
            (true, false) => self.pool.waiting.fetch_sub(1, Ordering::SeqCst),
            _ => return,
        };
        self.waits = waits;
    }

    /// Takes a permit. The caller knows from `any` that there is one.
    #[inline]
    pub(super) fn take(&mut self) {
        self.at_hand -= 1;
        if self.waits {
            self.wait(false);
        }
    }

    /// An attempt no longer needs its permit.
    #[inline]
    pub(super) fn give(&mut self) {
        self.at_hand += 1;
        let others_wait = self.pool.waiting.load(Ordering::Relaxed) > usize::from(self.waits);
        if others_wait {
            // A shard that is always busy must not keep the last permits from a shard that has none, nor take them back
            // before that shard is awake.
            self.polite_until_ms = self.now_ms + POLITE_MS;
            self.pool.giver.store(self.name, Ordering::Relaxed);
        }
        if others_wait || self.at_hand > self.pool.lot {
            self.pool.give(1);
            self.at_hand -= 1;
        }
    }

    /// The shard has nothing to do, so other shards may have the permits that it keeps at hand.
    pub(super) fn give_back(&mut self) {
        if self.at_hand > 0 {
            // The shard that left a permit to this one may take permits again.
            self.pool.giver.store(0, Ordering::Relaxed);
        }
        self.pool.give(std::mem::take(&mut self.at_hand));
    }

    /// True if the shard ran out of permits and the pool has some now. Says so once: a shard that may start nothing
    /// does not take them, and would otherwise loop without end.
    pub(super) fn came_free(&mut self) -> bool {
        let came = self.short && self.pool.free.load(Ordering::SeqCst) > 0;
        self.short &= !came;
        came
    }
}

impl Drop for ShardPermits {
    fn drop(&mut self) {
        self.wait(false);
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// ORD-12: a shard that may start nothing does not take permits that came free, and must not spin for them.
    #[test]
    fn that_permits_came_free_is_said_once() {
        let pool = Permits::new(1, vec![Arc::new(Wakes::default())]);
        let mut shard = ShardPermits::new(Arc::clone(&pool));
        assert!(shard.any());
        shard.take();
        assert!(!shard.any());
        shard.give();
        shard.give_back();
        assert!(shard.came_free() && !shard.came_free());
        assert!(shard.any());
    }

    /// ORD-4: a waiting shard gets the permit that a busy shard gives back; a shard without use for it delays no other.
    #[test]
    fn a_permit_is_left_to_those_who_wait_and_to_nobody_else() {
        let pool = Permits::new(1, Vec::new());
        let (mut busy, mut other) =
            (ShardPermits::new(Arc::clone(&pool)), ShardPermits::new(Arc::clone(&pool)));
        for permits in [&mut busy, &mut other] {
            permits.new_pass(10);
        }
        assert!(busy.any());
        busy.take();
        busy.give();
        assert!(busy.any(), "nobody else waits");
        busy.take();
        assert!(!other.any());
        busy.give();
        assert!(!busy.any(), "it is left to the other");
        assert!(other.any());
        other.give_back();
        assert!(busy.any(), "the other had no use for it");
        busy.take();
        assert!(!other.any());
        busy.give();
        busy.new_pass(10 + POLITE_MS);
        assert!(busy.any(), "the other was too slow");
    }

    proptest! {
        /// ORD-4: never more in flight than allowed, and no permit is lost.
        #[test]
        fn shards_together_never_exceed_the_bound(
            concurrency in 1usize..40,
            steps in proptest::collection::vec((0usize..3, 0u8..3), 0..300),
        ) {
            let wakes: Vec<_> = (0..3).map(|_| Arc::new(Wakes::default())).collect();
            let pool = Permits::new(concurrency, wakes);
            let mut shards: Vec<_> = (0..3).map(|_| (ShardPermits::new(Arc::clone(&pool)), 0usize)).collect();
            for (shard, step) in steps {
                let (permits, used) = &mut shards[shard];
                match step {
                    0 if permits.any() => { permits.take(); *used += 1; }
                    1 if *used > 0 => { permits.give(); *used -= 1; }
                    _ => permits.give_back(),
                }
                prop_assert!(shards.iter().map(|(_, used)| used).sum::<usize>() <= concurrency);
            }
            for (permits, used) in &mut shards {
                (0..*used).for_each(|_| permits.give());
            }
            drop(shards);
            prop_assert_eq!(pool.free.load(Ordering::SeqCst), concurrency);
        }
    }
}
