//! Handing over what was finished, so that it goes on record (COM-2, COM-3).
//!
//! Completions are handed to the partition's owner in lots: after [`LOT`] of them or [`LOT_MS`], and only when the
//! owner has taken the last lot. What it writes, and when that counts, is `own.rs`.

use crate::poll::{Part, PartState};
use crate::shard::Shard;

/// Completions that make a lot (COM-2).
const LOT: usize = 1_000;
/// What is finished waits at most this long before it is handed over (COM-2).
const LOT_MS: u64 = 1_000;
/// Ranges in one lot at most; a lot that is cut short ends with an ascending rest in the ledger.
const LOT_RANGES_MAX: usize = 8_192;

/// When a shard looks for lots to hand over.
#[derive(Debug, Default)]
pub(crate) struct HandOver {
    finished: usize,
    due_ms: Option<u64>,
}

impl HandOver {
    /// One more message of `part` is finished.
    #[inline]
    pub(crate) fn finished(&mut self, part: &mut Part, now_ms: u64) {
        self.finished += 1;
        self.fresh(part, now_ms);
    }

    /// A batch of `part` is used up. A gap at its end is handed over too: no message may ever come behind it.
    #[inline]
    pub(crate) fn passed(&mut self, part: &mut Part, now_ms: u64) {
        if part.ledger.gap_waits() {
            self.fresh(part, now_ms);
        }
    }

    #[inline]
    fn fresh(&mut self, part: &mut Part, now_ms: u64) {
        if part.fresh_since_ms.is_none() {
            part.fresh_since_ms = Some(now_ms);
            self.due_ms.get_or_insert(now_ms + LOT_MS);
        }
    }

    /// When to look next, if anything was finished.
    pub(crate) fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }
}

impl<F> Shard<F> {
    /// Hands over what is due. Looks only when there can be something.
    pub(crate) fn hand_over_due(&mut self) {
        let draining = self.draining > 0;
        let due = self.hand_over.due_ms.is_some_and(|due_ms| due_ms <= self.now_ms);
        if self.hand_over.finished < LOT && !due && !draining {
            return;
        }
        self.stats.handled(std::mem::take(&mut self.hand_over.finished));
        self.hand_over.due_ms = None;
        for part in self.parts.iter_mut().flatten() {
            hand_over(part, self.now_ms);
            if let Some(since_ms) = part.fresh_since_ms {
                let due_ms = (since_ms + LOT_MS).max(self.now_ms + 1);
                self.hand_over.due_ms = Some(self.hand_over.due_ms.map_or(due_ms, |at| at.min(due_ms)));
            }
        }
    }
}

/// Leaves the owner a lot, if one is due and the last was taken.
fn hand_over(part: &mut Part, now_ms: u64) {
    let draining = part.state == PartState::Draining;
    let waited = part.fresh_since_ms.is_some_and(|since_ms| since_ms + LOT_MS <= now_ms);
    let due = part.ledger.fresh() >= LOT || waited || draining;
    let fresh = |part: &Part| part.ledger.fresh() > 0 || part.ledger.gap_waits();
    if due && fresh(part) && part.link.has_room() {
        // Nothing while the last lot does not count yet: the rest keeps its age.
        let lot = part.ledger.take(LOT_RANGES_MAX);
        if !lot.is_empty() {
            part.fresh_since_ms = fresh(part).then_some(now_ms);
            part.link.leave(|mail| mail.done = lot);
        }
    }
    if draining && !part.said_quiet && part.running == 0 && part.ledger.fresh() == 0 {
        part.said_quiet = true;
        part.link.leave(|mail| mail.quiet = true);
    }
}
