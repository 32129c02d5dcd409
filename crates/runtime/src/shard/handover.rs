//! Hands finished positions to the partitions' owners, which put them on record (COM-2, COM-3).
//!
//! Completions are handed over in lots: after [`LOT`] of them or after [`LOT_MS`], and only when the owner has taken
//! the last lot. `ownership/mail.rs` takes a lot; `keylane_core::Owner` decides when it is written and counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::partition::{Part, PartState};
use super::pass::Shard;

/// Completions that make a lot due (COM-2).
const LOT: usize = 1_000;
/// A completion waits at most this long before it is handed over (COM-2), unless [`Pace`] makes it wait longer.
const LOT_MS: u64 = 100;
/// The time between two lots of a process: at most 1,000 lots a second, of all its pipelines (COM-2).
const PACE_MS: u64 = 1;
/// The most ranges in one lot. If a lot is cut short, the higher ranges stay in the ledger and go with the next lot.
const LOT_RANGES_MAX: usize = 8_192;

/// Spreads the lots of a process over time (COM-2). Each lot is given a time when its first completion comes:
/// [`LOT_MS`] later or, where more than a hundred partitions are busy, behind the lots before it.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    next_ms: AtomicU64,
}

impl Pace {
    /// The time from which a lot waits whose first completion comes now. It lies in the future by as much as the lot
    /// has to wait longer than [`LOT_MS`].
    fn since_ms(&self, now_ms: u64) -> u64 {
        let taken = |next_ms: u64| Some(next_ms.max(now_ms) + PACE_MS);
        let next_ms = self.next_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        next_ms.unwrap_or_else(|next_ms| next_ms).max(now_ms)
    }

    /// A lot does not use its time: it went before, by its count or with its partition. If such times were not given
    /// back, lots that go by count would use up times faster than time passes, and completions of other partitions
    /// would wait behind all of them.
    fn give_back(&self, since_ms: u64, now_ms: u64) {
        if since_ms > now_ms {
            let given = |next_ms: u64| Some(next_ms.saturating_sub(PACE_MS));
            let _ = self.next_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, given);
        }
    }
}

/// Decides when a shard looks for lots to hand over.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    pace: Arc<Pace>,
    finished: usize,
    due_ms: Option<u64>,
    /// Partitions that have something to hand over, or that drain.
    partitions: Vec<u32>,
}

/// When to look at a partition again.
enum Again {
    At(u64),
    /// When the partition's owner says that the last lot counts, or when a handler of a draining partition ends.
    WhenTold,
    /// The partition has nothing to hand over.
    No,
}

impl HandOver {
    pub(super) fn at(pace: Arc<Pace>) -> HandOver {
        HandOver { pace, ..HandOver::default() }
    }

    /// One more message of `part` is finished.
    #[inline]
    pub(super) fn finished(&mut self, part: &mut Part, now_ms: u64) {
        self.finished += 1;
        self.fresh(part, now_ms);
    }

    /// A batch of `part` is used up. A gap at the batch's end is handed over too: perhaps no message ever follows it.
    #[inline]
    pub(super) fn passed(&mut self, part: &mut Part, now_ms: u64) {
        if part.ledger.gap_waits() {
            self.fresh(part, now_ms);
        }
    }

    #[inline]
    fn fresh(&mut self, part: &mut Part, now_ms: u64) {
        if part.fresh_since_ms.is_none() {
            let since_ms = self.pace.since_ms(now_ms);
            part.fresh_since_ms = Some(since_ms);
            let due_ms = since_ms + LOT_MS;
            self.due_ms = Some(self.due_ms.map_or(due_ms, |before_ms| before_ms.min(due_ms)));
            self.list(part);
        }
    }

    /// Puts `part` on the list of partitions to look at.
    pub(super) fn list(&mut self, part: &mut Part) {
        if !std::mem::replace(&mut part.hands_over, true) {
            self.partitions.push(part.partition);
        }
    }

    /// A partition is gone: its completions that were not handed over are forgotten.
    pub(super) fn forget(&mut self, part: &Part, now_ms: u64) {
        if let Some(since_ms) = part.fresh_since_ms {
            self.pace.give_back(since_ms, now_ms);
        }
        if part.hands_over {
            self.partitions.retain(|partition| *partition != part.partition);
        }
    }

    /// The last lot of `part` counts, so the next may be due.
    pub(super) fn counted(&mut self, part: &Part, now_ms: u64) {
        if part.fresh_since_ms.is_some() {
            self.due_ms = Some(now_ms);
        }
    }

    /// When to look next, if anything was finished.
    pub(super) fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }
}

impl<F> Shard<F> {
    /// Hands over the lots that are due. Costs almost nothing while none can be.
    pub(super) fn hand_over_due(&mut self) {
        let draining = self.partitions.any_drains();
        let due = self.hand_over.due_ms.is_some_and(|due_ms| due_ms <= self.now_ms);
        if self.hand_over.finished < LOT && !due && !draining {
            return;
        }
        self.stats.handled(std::mem::take(&mut self.hand_over.finished));
        self.hand_over.due_ms = None;
        let HandOver { partitions, due_ms, pace, .. } = &mut self.hand_over;
        partitions.retain(|partition| {
            let part = self.partitions.get_mut(*partition).expect("forgotten when it goes");
            match hand_over(part, pace, self.now_ms) {
                Again::At(at_ms) => *due_ms = Some(due_ms.map_or(at_ms, |due_ms| due_ms.min(at_ms))),
                Again::WhenTold => {}
                Again::No => part.hands_over = false,
            }
            part.hands_over
        });
    }
}

/// Leaves a lot for the owner if one is due and the owner has taken the last one.
fn hand_over(part: &mut Part, pace: &Pace, now_ms: u64) -> Again {
    let draining = part.state == PartState::Draining;
    let waited = part.fresh_since_ms.is_some_and(|since_ms| since_ms + LOT_MS <= now_ms);
    let due = part.ledger.fresh() >= LOT || waited || draining;
    let fresh = |part: &Part| part.ledger.fresh() > 0 || part.ledger.gap_waits();
    if due && fresh(part) && part.link.has_room() {
        // The ledger gives nothing while the last lot does not count yet; then the completions keep their age.
        let lot = part.ledger.take(LOT_RANGES_MAX);
        if !lot.is_empty() {
            if let Some(since_ms) = part.fresh_since_ms {
                pace.give_back(since_ms, now_ms);
            }
            part.fresh_since_ms = fresh(part).then(|| pace.since_ms(now_ms));
            part.link.leave(|mail| mail.done = lot);
        }
    }
    if !fresh(part)
        && let Some(since_ms) = part.fresh_since_ms.take()
    {
        pace.give_back(since_ms, now_ms);
    }
    if draining && !part.said_quiet && part.running == 0 && part.ledger.fresh() == 0 {
        part.said_quiet = true;
        part.link.leave(|mail| mail.quiet = true);
    }
    match part.fresh_since_ms.map(|since_ms| since_ms + LOT_MS) {
        // The last lot does not count yet. Its owner will say when it does; a look every millisecond would be wasted.
        Some(due_ms) if due_ms <= now_ms => Again::WhenTold,
        Some(due_ms) => Again::At(due_ms),
        None if draining && !part.said_quiet => Again::WhenTold,
        None => Again::No,
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use keylane_broker::{BrokerError, Reader};
    use keylane_core::{Batch, Settled};

    use super::*;
    use crate::shard::mailbox::Start;

    /// COM-2: a hundred busy partitions have 100 ms each; of more, each waits longer, and the process writes no more.
    #[test]
    fn lots_of_a_process_are_a_millisecond_apart() {
        for (partitions, least_ms, most_ms) in [(1, 100, 100), (100, 100, 200), (500, 400, 600)] {
            let pace = Pace::default();
            let mut due_ms = vec![0; partitions];
            let (mut lots, mut longest_ms) = (0u64, 0);
            for now_ms in 0..10_000 {
                for due_ms in due_ms.iter_mut().filter(|due_ms| **due_ms <= now_ms) {
                    // The lot is handed over, and the next completion comes at once.
                    *due_ms = pace.since_ms(now_ms) + LOT_MS;
                    longest_ms = longest_ms.max(*due_ms - now_ms);
                    lots += 1;
                }
            }
            assert!(lots <= 10_000 + partitions as u64, "{partitions} partitions: {lots} in 10 s");
            assert!((least_ms..=most_ms).contains(&longest_ms), "{partitions} partitions: {longest_ms} ms");
        }
    }

    /// A reader that has no messages.
    struct Empty;

    impl Reader for Empty {
        fn poll_batch(&mut self, _: &mut Context<'_>, _: usize) -> Poll<Result<Batch, BrokerError>> {
            Poll::Pending
        }
    }

    fn part(partition: u32) -> Part {
        let (settled, reader) = (Settled::default(), Box::new(Empty));
        let start = Start { partition, epoch: 1, settled, reader, link: Arc::default(), pauses: 0 };
        Part::new(start, Default::default(), &Arc::default(), 0)
    }

    fn finish(part: &mut Part, hand_over: &mut HandOver, positions: std::ops::Range<u64>, now_ms: u64) {
        for position in positions {
            part.ledger.arrived(position);
            part.ledger.finish(position);
            hand_over.finished(part, now_ms);
        }
    }

    /// COM-2: lots that go by their count, however many, do not delay the completions of other partitions.
    #[test]
    fn lots_that_go_by_count_delay_nobody() {
        let mut at = HandOver::at(Arc::default());
        let pace = Arc::clone(&at.pace);
        let mut busy: Vec<Part> = (0..20).map(part).collect();
        // 4,000 lots a second, for 10 seconds.
        for now_ms in (1..=10_000).step_by(5) {
            for part in &mut busy {
                let first = part.ledger.front();
                finish(part, &mut at, first..first + LOT as u64, now_ms);
                super::hand_over(part, &pace, now_ms);
                assert_eq!(part.link.take().done.positions(), LOT as u64, "it goes by its count");
                part.ledger.counted();
            }
        }
        let mut quiet = part(20);
        finish(&mut quiet, &mut at, 0..1, 10_000);
        let waits_ms = quiet.fresh_since_ms.expect("it has something") + LOT_MS - 10_000;
        assert!(waits_ms <= LOT_MS + 20, "{waits_ms} ms until it goes on record");
    }

    /// COM-2: nor do partitions that are given up before their lot was handed over.
    #[test]
    fn partitions_that_are_given_up_delay_nobody() {
        let mut at = HandOver::at(Arc::default());
        for partition in 0..10_000 {
            let mut part = part(partition);
            finish(&mut part, &mut at, 0..1, 5);
            at.forget(&part, 5);
        }
        let mut quiet = part(0);
        finish(&mut quiet, &mut at, 0..1, 5);
        assert!(quiet.fresh_since_ms.expect("it has something") <= 6);
    }
}
