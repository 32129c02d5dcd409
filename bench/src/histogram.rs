//! Counts latencies from many threads at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The width of a bucket: small beside a timer's millisecond.
const BUCKET_NS: u64 = 10_000;
/// Buckets reach up to one second; a longer latency counts as one second.
const BUCKETS: usize = 100_000;

/// How often each latency was seen.
pub(crate) struct Histogram(Vec<AtomicU32>);

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram((0..BUCKETS).map(|_| AtomicU32::new(0)).collect())
    }

    #[inline]
    pub(crate) fn saw(&self, ns: u64) {
        let bucket = (ns / BUCKET_NS).min(BUCKETS as u64 - 1);
        self.0[bucket as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// For each share, the latency below which that share lies, of all latencies since the last call.
    pub(crate) fn take<const N: usize>(&self, shares: [f64; N]) -> [Duration; N] {
        let counts: Vec<u64> =
            self.0.iter().map(|count| u64::from(count.swap(0, Ordering::Relaxed))).collect();
        let all: u64 = counts.iter().sum();
        shares.map(|share| {
            let wanted = (all as f64 * share).ceil() as u64;
            let mut seen = 0;
            let bucket = counts.iter().position(|count| {
                seen += count;
                seen >= wanted
            });
            Duration::from_nanos(bucket.unwrap_or(BUCKETS) as u64 * BUCKET_NS + BUCKET_NS / 2)
        })
    }
}

/// The median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
