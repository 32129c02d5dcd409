//! What producers wait for (REC-6): how much is on its way, since when, how fast it goes, and how bad that is.
//!
//! A level is reached at 0.3, 0.5, 0.7 and 0.9 of a bound: of calls or bytes in flight, or of the spill. Whoever wants
//! to slow down before the bound is hit is told when the level changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::clock::Clock;

/// The rate is that of the last second or more that somebody looked.
const RATE_MS: u64 = 1_000;

/// How bad a backlog is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Below 0.3 of every bound.
    None,
    /// From 0.3 on.
    Low,
    /// From 0.5 on.
    Medium,
    /// From 0.7 on.
    High,
    /// From 0.9 on.
    Critical,
}

const LEVELS: [(f64, Severity); 4] =
    [(0.9, Severity::Critical), (0.7, Severity::High), (0.5, Severity::Medium), (0.3, Severity::Low)];

impl Severity {
    /// The level of a share of a bound.
    pub fn of(share: f64) -> Severity {
        LEVELS.iter().find(|(from, _)| share >= *from).map_or(Severity::None, |(_, severity)| *severity)
    }
}

/// What producers of this process wait for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Backlog {
    /// Calls not acknowledged yet.
    pub calls: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Messages that wait in the spill.
    pub spilled: u64,
    /// Age of the oldest call not acknowledged, in ms.
    pub oldest_ms: Option<u64>,
    /// Messages acknowledged a second, lately.
    pub rate: f64,
    /// The largest share of a bound that is used.
    pub share: f64,
    /// How bad that is.
    pub severity: Severity,
}

type Listener = Box<dyn Fn(&Backlog) + Send + Sync>;

/// Watches what is in flight.
#[derive(Default)]
pub(crate) struct Watch {
    next: AtomicU64,
    /// Calls in flight, and when each began.
    began: Mutex<BTreeMap<u64, u64>>,
    level: AtomicU8,
    rate: Mutex<Rate>,
    listeners: Mutex<Vec<Arc<Listener>>>,
}

#[derive(Debug, Default)]
struct Rate {
    at_ms: u64,
    acknowledged: u64,
    rate: f64,
}

impl Watch {
    pub(crate) fn begin(&self, now_ms: u64) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.began.lock().expect("no holder panics").insert(number, now_ms);
        number
    }

    pub(crate) fn end(&self, number: u64) {
        self.began.lock().expect("no holder panics").remove(&number);
    }

    pub(crate) fn oldest_ms(&self, clock: Clock) -> Option<u64> {
        let began = self.began.lock().expect("no holder panics");
        began.values().next().map(|began_ms| clock.now_ms().saturating_sub(*began_ms))
    }

    /// Messages acknowledged a second; `acknowledged` is their number so far.
    pub(crate) fn rate(&self, clock: Clock, acknowledged: u64) -> f64 {
        let mut rate = self.rate.lock().expect("no holder panics");
        let (now_ms, since_ms) = (clock.now_ms(), rate.at_ms);
        if now_ms >= since_ms + RATE_MS {
            let more = acknowledged.saturating_sub(rate.acknowledged);
            *rate = Rate {
                at_ms: now_ms,
                acknowledged,
                rate: more as f64 * 1_000.0 / (now_ms - since_ms) as f64,
            };
        }
        rate.rate
    }

    pub(crate) fn tell(&self, listener: impl Fn(&Backlog) + Send + Sync + 'static) {
        self.listeners.lock().expect("no holder panics").push(Arc::new(Box::new(listener)));
    }

    /// Tells whoever wants to know if the level is not what it was.
    pub(crate) fn look(&self, share: f64, backlog: impl FnOnce() -> Backlog) {
        let level = Severity::of(share) as u8;
        if self.level.load(Ordering::Relaxed) == level || self.level.swap(level, Ordering::Relaxed) == level {
            return;
        }
        let listeners = self.listeners.lock().expect("no holder panics").clone();
        if !listeners.is_empty() {
            let backlog = backlog();
            listeners.iter().for_each(|listener| listener(&backlog));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// REC-6.
    #[test]
    fn levels_begin_where_they_are_said_to() {
        let of = |shares: &[f64]| shares.iter().map(|share| Severity::of(*share)).collect::<Vec<_>>();
        use Severity::*;
        assert_eq!(of(&[0.0, 0.29, 0.3, 0.49, 0.5, 0.69]), [None, None, Low, Low, Medium, Medium]);
        assert_eq!(of(&[0.7, 0.89, 0.9, 1.0, 2.0]), [High, High, Critical, Critical, Critical]);
    }
}
