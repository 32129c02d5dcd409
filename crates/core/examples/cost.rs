//! Prints what the message's decisions cost, in ns: ledger (PRF-6) and engine (PRF-1), beside a raw limit.
//!
//! Work is timed in slices of well under a millisecond, and the lower quartile counts: a busy machine then changes the
//! figures little. `cargo run --release -p keylane-core --example cost`

use std::hint::black_box;
use std::time::Instant;

use bytes::BytesMut;
use keylane_core::{Delivery, Draft, Engine, LaneHash, Ledger, Ready, Settings, Settled, Verdict};

const SLICE: usize = 4096;
const SLICES_MIN: usize = 64;

fn main() {
    raw();
    for window in [1_000, 100_000, 1_000_000] {
        ledger("dense", window, |index| index);
        ledger("packed by 100 into 1,024", window, |index| index / 100 * 1024 + index % 100);
        ledger("1,024 apart", window, |index| index * 1024);
    }
    ledger_taken();
    hash();
    for keys in [1_000, 100_000, 1_000_000] {
        engine(keys);
    }
    hot();
}

/// Times slices of operations.
struct Cost {
    what: String,
    slices: Vec<f64>,
}

impl Cost {
    fn of(what: impl Into<String>) -> Cost {
        Cost { what: what.into(), slices: Vec::new() }
    }

    fn slice(&mut self, operations: usize, work: impl FnOnce()) {
        let start = Instant::now();
        work();
        self.slices.push(start.elapsed().as_nanos() as f64 / operations as f64);
    }

    fn wants_more(&self) -> bool {
        self.slices.len() < SLICES_MIN
    }
}

impl Drop for Cost {
    fn drop(&mut self) {
        self.slices.sort_by(f64::total_cmp);
        println!("{:<72} {:>8.2} ns", self.what, self.slices[self.slices.len() / 4]);
    }
}

/// Numbers below `count` in an order that no cache likes.
fn shuffled(count: u64, mut seed: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    for at in (1..all.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        all.swap(at, (seed >> 33) as usize % (at + 1));
    }
    all
}

fn raw() {
    let order = shuffled(100_000, 42);
    let mut cost = Cost::of("raw: a bit of a plain bitmap, window 100000, any order");
    while cost.wants_more() {
        let mut words = vec![0u64; order.len() / 64 + 1];
        for slice in order.chunks(SLICE) {
            cost.slice(slice.len(), || {
                for index in slice {
                    let word = &mut words[*index as usize / 64];
                    assert_eq!(*word & 1 << (index % 64), 0);
                    *word |= 1 << (index % 64);
                }
            });
        }
        black_box(&words);
    }
}

fn ledger(layout: &str, window: u64, at: fn(u64) -> u64) {
    let order: Vec<u64> = shuffled(window, 42).into_iter().map(at).collect();
    let mut cost = Cost::of(format!("ledger finish, {layout}, window {window}, any order"));
    while cost.wants_more() {
        let mut ledger = Ledger::resume(&Settled::below(0));
        (0..window).for_each(|index| assert!(ledger.arrived(at(index))));
        for slice in order.chunks(SLICE) {
            cost.slice(slice.len(), || {
                for position in slice {
                    assert!(ledger.finish(*position));
                }
            });
        }
    }
}

fn ledger_taken() {
    let window = 100_000u64;
    let order = shuffled(window, 42);
    let mut arrive = Cost::of("ledger arrive, dense");
    let mut taken = Cost::of("ledger finish + take every 1,000, dense, window 100000, any order");
    let mut ledger = Ledger::resume(&Settled::below(0));
    for round in 0..4 {
        let base = round * window;
        for first in (0..window).step_by(1000) {
            arrive.slice(1000, || {
                for index in first..first + 1000 {
                    assert!(ledger.arrived(black_box(base + index)));
                }
            });
        }
        for slice in order.chunks(1000) {
            taken.slice(slice.len(), || {
                for index in slice {
                    assert!(ledger.finish(base + index));
                }
                black_box(ledger.take(usize::MAX));
                ledger.counted();
            });
        }
    }
}

fn delivery(key: u64) -> Delivery {
    let key = format!("key-{key:012}");
    let draft = Draft {
        id: "0192f7a0-0000-7000-8000-000000000000",
        key: Some(key.as_bytes()),
        payload: Some(&[7; 100]),
        ..Draft::default()
    };
    let mut arena = BytesMut::new();
    draft.encode(&mut arena).expect("within bounds");
    Delivery::parse(arena.freeze(), 1, 0, 1, 0).expect("just encoded")
}

fn hash() {
    let engine = Engine::new(Settings::default());
    let deliveries: Vec<Delivery> = (0..64).map(delivery).collect();
    let mut cost = Cost::of("engine lane_hash, 16-byte keys");
    while cost.wants_more() {
        cost.slice(64 * deliveries.len(), || {
            for delivery in (0..64).flat_map(|_| &deliveries) {
                black_box(engine.lane_hash(delivery));
            }
        });
    }
}

fn engine(keys: u64) {
    let mut engine = Engine::new(Settings::default());
    let hash_of = |key| engine.lane_hash(&delivery(key)).expect("order is by key, and it has one");
    let made: Vec<LaneHash> = (0..keys).map(hash_of).collect();
    let used: Vec<LaneHash> = shuffled(keys, 7).into_iter().map(|at| made[at as usize]).collect();
    let mut verdict = Cost::of(format!("engine verdict, no lane, {keys} keys"));
    while verdict.wants_more() {
        for slice in used.chunks(SLICE) {
            verdict.slice(slice.len(), || {
                for hash in slice {
                    assert_eq!(engine.verdict(black_box(Some(*hash))), Verdict::Run);
                }
            });
        }
    }
    drop(verdict);
    for prefetched in [false, true] {
        let how = if prefetched { ", prefetched by 64" } else { "" };
        let mut cost = Cost::of(format!("engine verdict + began + done, {keys} keys{how}"));
        begin_and_end(&mut engine, &made, false);
        while cost.wants_more() {
            for slice in used.chunks(SLICE) {
                cost.slice(slice.len(), || begin_and_end(&mut engine, slice, prefetched));
            }
        }
    }
    let bytes = engine.memory_bytes() as f64 / keys as f64;
    let what = format!("engine memory a lane, {keys} idle lanes");
    println!("{what:<72} {bytes:>8.1} bytes");
    let mut cost = Cost::of(format!("engine sweep, a lane, {keys} idle lanes"));
    while cost.wants_more() {
        begin_and_end(&mut engine, &made, false);
        while engine.counts().lanes > 0 {
            let max = engine.counts().lanes.min(500);
            cost.slice(max, || assert_eq!(engine.sweep(u64::MAX, max), max));
        }
    }
}

fn begin_and_end(engine: &mut Engine, hashes: &[LaneHash], prefetched: bool) {
    for batch in hashes.chunks(64) {
        if prefetched {
            batch.iter().for_each(|hash| engine.prefetch(*hash));
        }
        for hash in batch {
            assert_eq!(engine.verdict(Some(*hash)), Verdict::Run);
            let lane = engine.began(Some(*hash), 0, 1);
            assert!(engine.done(lane, 1));
        }
    }
}

fn hot() {
    let mut engine = Engine::new(Settings::default());
    let one = delivery(1);
    let hash = engine.lane_hash(&one);
    let mut cost = Cost::of("engine queue + next_ready + done, one hot key, 900 at a time");
    while cost.wants_more() {
        let mut deliveries = vec![one.clone(); 900];
        let mut ended = Vec::with_capacity(deliveries.len());
        cost.slice(900, || {
            for delivery in deliveries.drain(..) {
                engine.queue(hash, delivery, 1);
            }
            while let Some(Ready { lane, delivery, .. }) = engine.next_ready(1) {
                ended.push(delivery);
                assert!(engine.done(lane, 1));
            }
        });
    }
}
