//! Collects what is ready to go on record, and fills the next facts from it.
//!
//! In come positions that handlers finished, messages that died or were copied to hold, and bodies that were moved; out
//! come the contents of the next facts record. Plain completions wait to be batched; whatever a lane waits for makes
//! the record due at once.
//!
//! Invariant: what does not fit into one record goes on record in ascending order of positions. Otherwise, after a
//! crash, an earlier message of a key could run behind a later one that is already on record.

use super::rules::Rules;
use super::setup::Bounds;
use crate::journal::{DeadEntry, Facts, Held, Moved};
use crate::ledger::Ranges;

/// What is ready to go on record and in no record yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Ready {
    done: Ranges,
    dead: Vec<DeadEntry>,
    held: Vec<Held>,
    moved: Vec<Moved>,
    settlements: u64,
    /// When the oldest part of it was added.
    since_ms: u64,
}

impl Ready {
    pub(super) fn add(&mut self, now_ms: u64, done: &Ranges) {
        self.begin(now_ms);
        for range in done.iter() {
            self.settlements += range.end - range.start;
            self.done.insert(range);
        }
    }

    pub(super) fn add_dead(&mut self, now_ms: u64, dead: DeadEntry) {
        self.begin(now_ms);
        self.dead.push(dead);
    }

    pub(super) fn add_held(&mut self, now_ms: u64, held: Held) {
        self.begin(now_ms);
        self.held.push(held);
    }

    pub(super) fn add_moved(&mut self, now_ms: u64, moved: Moved) {
        self.begin(now_ms);
        self.moved.push(moved);
    }

    fn begin(&mut self, now_ms: u64) {
        if self.is_empty() {
            self.since_ms = now_ms;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.dead.is_empty() && self.held.is_empty() && self.moved.is_empty()
    }

    /// True if the message at `position` is done and waits for its record.
    pub(super) fn is_done(&self, position: u64) -> bool {
        self.done.contains(position)
    }

    /// The lowest position of `hold.p` that the next records will name.
    pub(super) fn lowest_named(&self) -> Option<u64> {
        named(&self.held, &self.moved, &self.dead).min()
    }

    /// When the next record is to be sent: 0 means at once, `None` means that nothing is ready.
    pub(super) fn due_ms(&self, bounds: &Bounds) -> Option<u64> {
        let awaited = !(self.dead.is_empty() && self.held.is_empty() && self.moved.is_empty());
        if self.is_empty() {
            None
        } else if awaited || self.settlements >= bounds.batch_settlements {
            Some(0)
        } else {
            Some(self.since_ms.saturating_add(bounds.batch_ms))
        }
    }

    /// Moves what fits into the next record into `facts`. What is left keeps its age, so it goes into the record right
    /// behind.
    pub(super) fn take(&mut self, rules: Rules, bounds: &Bounds, facts: &mut Facts) {
        facts.dead = take_lowest(&mut self.dead, bounds.dead_per_record, |dead| dead.position);
        facts.held = take_lowest(&mut self.held, bounds.held_per_record, |held| held.position);
        facts.moved = take_lowest(&mut self.moved, bounds.dead_per_record, |moved| moved.position);
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
        facts.done = done;
    }

    /// For exploring: forgets when things were added.
    #[cfg(feature = "flaws")]
    pub(super) fn rewind(&mut self) {
        self.since_ms = 0;
    }
}

fn take_lowest<T>(from: &mut Vec<T>, most: usize, position: impl Fn(&T) -> u64) -> Vec<T> {
    if from.len() > most {
        from.sort_by_key(position);
    }
    let rest = from.split_off(from.len().min(most));
    std::mem::replace(from, rest)
}

/// The positions of `hold.p` that these entries name.
pub(super) fn named<'a>(
    held: &'a [Held],
    moved: &'a [Moved],
    dead: &'a [DeadEntry],
) -> impl Iterator<Item = u64> + 'a {
    let dead = dead.iter().flat_map(|dead| [Some(dead.body), dead.report]).flatten();
    held.iter().map(|held| held.body).chain(moved.iter().map(|moved| moved.to)).chain(dead)
}
