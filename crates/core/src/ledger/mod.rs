//! The ledger of one partition: which positions were read here, and which of them are finished (COM-1).
//!
//! In come positions as they are read, as they are finished, and as the reader passes them; out come ranges to be put
//! on record, each position once. Positions may lie at any distance from each other, so the ledger is a row of 64-bit
//! blocks that exist only where messages are. Blocks whose positions are all named are removed, so memory follows what
//! is unfinished.
//!
//! Invariants, in whatever order the calls come: a position that arrived and is not finished is never named; every
//! other position that the reader has passed is named once, unless it was on record before.

mod block;
mod ranges;
mod rice;

use std::collections::VecDeque;
use std::ops::Range;

use block::{BLOCK, Block, Naming, search};

pub use ranges::{Ranges, Settled};
pub(crate) use rice::RANGE_BYTES_MAX;
pub use rice::{put_ranges, read_ranges};

/// Room for this many blocks is kept, even if it is empty.
const BLOCKS_KEPT: usize = 256;

/// Known flaws, which a test can put back to see that it finds them.
#[cfg(feature = "flaws")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flaws {
    /// Names every position up to the highest finished one, which loses the unfinished ones below it.
    pub commit_highest: bool,
}

/// One partition's ledger; see the head of `ledger/mod.rs`.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Ascending. All positions of the first `open` blocks are named.
    blocks: Vec<Block>,
    open: usize,
    /// Gaps that are not named yet and lie in no block, ascending.
    gaps: VecDeque<Range<u64>>,
    gap_waits: bool,
    /// Ranges that were on record from before and that the reader has not passed yet.
    settled: VecDeque<Range<u64>>,
    /// The reader has passed every position below this one.
    front: u64,
    /// How many messages arrived, were finished here, were named, and went on record by another way. Each only counts
    /// up, so that finishing a message touches one of them.
    arrived: usize,
    finished: usize,
    named: usize,
    recorded: usize,
    /// The lowest position that is named in a record which does not count yet.
    under_way: Option<u64>,
    #[cfg(feature = "flaws")]
    flaws: Flaws,
}

impl Ledger {
    /// A ledger that continues where the record says: at the lowest unsettled position.
    pub fn resume(settled: &Settled) -> Ledger {
        Ledger {
            blocks: Vec::new(),
            open: 0,
            gaps: VecDeque::new(),
            gap_waits: false,
            settled: settled.above().iter().collect(),
            front: settled.low(),
            arrived: 0,
            finished: 0,
            named: 0,
            recorded: 0,
            under_way: None,
            #[cfg(feature = "flaws")]
            flaws: Flaws::default(),
        }
    }

    /// A ledger with flaws put back, to test that tests find them.
    #[cfg(feature = "flaws")]
    pub fn resume_with_flaws(settled: &Settled, flaws: Flaws) -> Ledger {
        Ledger { flaws, ..Ledger::resume(settled) }
    }

    /// The reader read `position` and has passed everything below it. False if the message must not run: its position
    /// is on record as settled, or was read before.
    #[inline]
    pub fn arrived(&mut self, position: u64) -> bool {
        if position < self.front {
            return false;
        }
        if position > self.front {
            self.passed(position);
        }
        if self.settled.front().is_some_and(|range| range.start <= position) {
            self.passed(position + 1);
            return false;
        }
        if self.blocks.last().is_none_or(|block| block.number != position / BLOCK) {
            self.blocks.push(Block::new(position));
        }
        self.front = position + 1;
        self.arrived += 1;
        true
    }

    /// The reader has passed everything below `position`. Positions in between that did not arrive are gaps, and
    /// settled as such.
    pub fn passed(&mut self, position: u64) {
        while self.front < position {
            let (end, on_record) = match self.settled.front() {
                Some(range) if range.start <= self.front => (range.end.min(position), true),
                Some(range) => (range.start.min(position), false),
                None => (position, false),
            };
            self.close(self.front..end, on_record);
            self.front = end;
            if self.settled.front().is_some_and(|range| range.end <= end) {
                self.settled.pop_front();
            }
        }
    }

    fn close(&mut self, mut range: Range<u64>, on_record: bool) {
        self.gap_waits |= !on_record && !range.is_empty();
        if let Some(block) = self.blocks.last_mut()
            && block.number == range.start / BLOCK
        {
            let end = range.end.min((block.number + 1) * BLOCK);
            block.close(range.start..end, on_record);
            range.start = end;
        }
        if on_record || range.is_empty() {
            return;
        }
        match self.gaps.back_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.gaps.push_back(range),
        }
    }

    /// The message at `position` was handled here. False, and nothing changes, if the position is not unfinished here.
    #[inline]
    pub fn finish(&mut self, position: u64) -> bool {
        let left = self.leaves_unfinished(position, false);
        self.finished += usize::from(left);
        left
    }

    /// `position` went on record by another way than `take`: as dead. False if the position is not unfinished here.
    pub fn recorded(&mut self, position: u64) -> bool {
        let left = self.leaves_unfinished(position, true);
        self.recorded += usize::from(left);
        left
    }

    #[inline]
    fn leaves_unfinished(&mut self, position: u64, on_record: bool) -> bool {
        // A position that was not read yet has the same bits as an unfinished one, and must not be finished.
        if position >= self.front {
            return false;
        }
        match self.block_of(position) {
            Some(at) => self.blocks[at].finish(position, on_record),
            None => false,
        }
    }

    #[inline]
    fn block_of(&self, position: u64) -> Option<usize> {
        let number = position / BLOCK;
        let back = self.blocks.last()?.number.wrapping_sub(number) as usize;
        // From the last block back, blocks are mostly dense, and most positions are finished near the end: try that
        // block first.
        let at = (self.blocks.len() - 1).wrapping_sub(back);
        match self.blocks.get(at) {
            Some(block) if block.number == number => Some(at),
            _ => search(&self.blocks, number),
        }
    }

    /// The positions that are finished and not named yet, from the lowest on, in at most `ranges_max` ranges. Gaps that
    /// the reader has passed are included, so that ranges join. They are under way until `counted`; until then `take`
    /// gives nothing.
    pub fn take(&mut self, ranges_max: usize) -> Ranges {
        if self.under_way.is_some() {
            return Ranges::new();
        }
        #[cfg(feature = "flaws")]
        let low = self.low();
        let mut naming = Naming::new(ranges_max);
        let mut all = true;
        for block in &mut self.blocks[self.open..] {
            all = block.name(&mut naming, &mut self.gaps);
            if !all {
                break;
            }
        }
        if all {
            self.gap_waits = !naming.gaps_below(u64::MAX, &mut self.gaps);
        }
        self.named += naming.messages;
        self.prune();
        self.under_way = naming.ranges.iter().next().map(|range| range.start);
        #[cfg(feature = "flaws")]
        if self.flaws.commit_highest && !naming.ranges.is_empty() {
            naming.ranges.insert(low..naming.end);
        }
        naming.ranges
    }

    /// The record with the ranges of the last `take` counts.
    pub fn counted(&mut self) {
        self.under_way = None;
    }

    /// The lowest position that is not on record as settled, as far as this ledger knows.
    pub fn low(&self) -> u64 {
        let open = self.blocks[self.open..].iter().find_map(Block::first_unnamed);
        let gap = self.gaps.front().map(|gap| gap.start);
        let mut low = self.front;
        for candidate in [open, gap, self.under_way].into_iter().flatten() {
            low = low.min(candidate);
        }
        match self.settled.front() {
            Some(range) if range.start <= low => range.end,
            _ => low,
        }
    }

    /// The reader has passed every position below this one.
    pub fn front(&self) -> u64 {
        self.front
    }

    /// How many messages arrived and are not finished.
    pub fn unfinished(&self) -> usize {
        self.arrived - self.finished - self.recorded
    }

    /// The lowest position that arrived and is not finished.
    pub fn oldest_unfinished(&self) -> Option<u64> {
        self.blocks[self.open..]
            .iter()
            .find_map(Block::first_unfinished)
            .filter(|position| *position < self.front)
    }

    /// How many messages are finished here and not named yet.
    pub fn fresh(&self) -> usize {
        self.finished - self.named
    }

    /// True if the reader has passed a gap that is not named yet. The gap must go on record even if no message ever
    /// comes behind it.
    pub fn gap_waits(&self) -> bool {
        self.gap_waits
    }

    /// Bytes of memory that the ledger takes.
    pub fn memory_bytes(&self) -> usize {
        let ranges = self.gaps.capacity() + self.settled.capacity();
        self.blocks.capacity() * size_of::<Block>() + ranges * size_of::<Range<u64>>()
    }

    /// Removes blocks whose positions are all named, once they are the majority, so that each remaining block is moved
    /// only once.
    fn prune(&mut self) {
        while self.blocks.get(self.open).is_some_and(Block::is_named) {
            self.open += 1;
        }
        let named = self.open + self.blocks[self.open..].iter().filter(|block| block.is_named()).count();
        if named * 2 <= self.blocks.len() {
            return;
        }
        self.blocks.retain(|block| !block.is_named());
        self.open = 0;
        if self.blocks.capacity() > BLOCKS_KEPT && self.blocks.len() < self.blocks.capacity() / 8 {
            self.blocks.shrink_to(BLOCKS_KEPT.max(self.blocks.len() * 2));
        }
    }
}
