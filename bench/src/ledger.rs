//! Measures PRF-6: what the ledger costs for each completion, and how many bytes its record takes.
//!
//! Raw limits: a bit set in a plain bitmap, in the same order; and the entropy of a set with that many positions
//! missing. Small slices are timed and a low quartile counts, so that other work of the machine does not distort the
//! figure.

use std::hint::black_box;
use std::time::Instant;

use keylane_core::ledger::put_ranges;
use keylane_core::{Ledger, Ranges, Settled};

use crate::source::Random;
use crate::{Error, Figure, Options, Target};

const WINDOW: u64 = 100_000;
const SLICE: usize = 500;
const ROUNDS: usize = 40;

pub(crate) fn run(_options: &Options, report: &mut dyn FnMut(Figure)) -> Result<(), Error> {
    let order = shuffled(WINDOW);
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bitmap(&order, &mut raw);
        ledger(&order, &mut ours);
    }
    report(Figure::beside(
        "PRF-6",
        "ledger, any order in a window of 100,000",
        "ns a completion",
        low_quartile(ours),
        low_quartile(raw),
        Target::AtMost(3.0),
    ));
    for missing in [0.01, 0.03, 0.1, 0.5] {
        let (bytes, entropy) = encoded(missing);
        let what = format!("its record, {} % unfinished", missing * 100.0);
        report(Figure::beside("PRF-6", what, "bytes", bytes, entropy, Target::RatioAtMost(1.05)));
    }
    Ok(())
}

/// Times `work` on each slice.
fn timed(order: &[u64], slices: &mut Vec<f64>, mut work: impl FnMut(u64)) {
    for slice in order.chunks(SLICE) {
        let since = Instant::now();
        slice.iter().for_each(|position| work(*position));
        slices.push(since.elapsed().as_nanos() as f64 / slice.len() as f64);
    }
}

fn bitmap(order: &[u64], slices: &mut Vec<f64>) {
    let mut words = vec![0u64; order.len() / 64 + 1];
    timed(order, slices, |position| {
        let word = &mut words[position as usize / 64];
        assert_eq!(*word & 1 << (position % 64), 0, "each position once");
        *word |= 1 << (position % 64);
    });
    black_box(words);
}

fn ledger(order: &[u64], slices: &mut Vec<f64>) {
    let mut ledger = Ledger::resume(&Settled::below(0));
    for position in 0..WINDOW {
        assert!(ledger.arrived(position), "each position once");
    }
    timed(order, slices, |position| {
        assert!(ledger.finish(position), "each position once");
    });
}

/// Bytes of a window with that share missing, and its entropy.
fn encoded(missing: f64) -> (f64, f64) {
    let mut random = Random(7);
    let mut done = Ranges::new();
    let mut count = 0u64;
    for position in 0..WINDOW {
        if random.share() >= missing {
            done.insert(position..position + 1);
            count += 1;
        }
    }
    let mut bytes = Vec::new();
    put_ranges(&mut bytes, &done);
    let share = count as f64 / WINDOW as f64;
    let bits = -(share * share.log2() + (1.0 - share) * (1.0 - share).log2());
    (bytes.len() as f64, bits * WINDOW as f64 / 8.0)
}

fn shuffled(count: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    let mut random = Random(42);
    for at in (1..all.len()).rev() {
        all.swap(at, random.next() as usize % (at + 1));
    }
    all
}

fn low_quartile(mut slices: Vec<f64>) -> f64 {
    slices.sort_by(f64::total_cmp);
    slices[slices.len() / 4]
}
