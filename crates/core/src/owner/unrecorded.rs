//! What goes on record next.
//!
//! In come positions that handlers finished and messages that died; out come the contents of the next facts. Plain
//! completions are batched; a dead letter goes at once, because its lane waits for it.
//!
//! Kept: what does not fit into one record goes in ascending position, so that after a crash no earlier message of a
//! key runs behind a later one that is on record.

use super::rules::Rules;
use super::setup::Bounds;
use crate::journal::DeadEntry;
use crate::ledger::Ranges;

/// What handlers finished and no record has taken yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Ready {
    done: Ranges,
    dead: Vec<DeadEntry>,
    settlements: u64,
    /// When the oldest of it came in.
    since_ms: u64,
}

impl Ready {
    pub(super) fn add(&mut self, now_ms: u64, done: &Ranges, dead: &[DeadEntry]) {
        if self.is_empty() {
            self.since_ms = now_ms;
        }
        for range in done.iter() {
            self.settlements += range.end - range.start;
            self.done.insert(range);
        }
        self.dead.extend_from_slice(dead);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.dead.is_empty()
    }

    /// When the next record is to be sent: 0 is at once, `None` is never.
    pub(super) fn due_ms(&self, bounds: &Bounds) -> Option<u64> {
        if self.is_empty() {
            None
        } else if !self.dead.is_empty() || self.settlements >= bounds.batch_settlements {
            Some(0)
        } else {
            Some(self.since_ms.saturating_add(bounds.batch_ms))
        }
    }

    /// Takes out what the next record carries. What stays keeps its age, so it goes right behind.
    pub(super) fn take(&mut self, rules: Rules, bounds: &Bounds) -> (Ranges, Vec<DeadEntry>) {
        let dead_rest = self.dead.split_off(self.dead.len().min(bounds.dead_per_record));
        let dead = std::mem::replace(&mut self.dead, dead_rest);
        let count = self.done.len();
        let taken = count.min(bounds.ranges_per_record);
        let first = if rules.ascending() { 0 } else { count - taken };
        let done: Ranges = self.done.iter().skip(first).take(taken).collect();
        done.iter()
            .for_each(|range| self.settlements = self.settlements.saturating_sub(range.end - range.start));
        self.done = if rules.ascending() {
            self.done.iter().skip(taken).collect()
        } else {
            self.done.iter().take(first).collect()
        };
        (done, dead)
    }

    /// Test time only: when things came in no longer matters.
    #[cfg(feature = "flaws")]
    pub(super) fn rewind(&mut self) {
        self.since_ms = 0;
    }
}
