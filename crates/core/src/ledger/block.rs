//! A [`Block`]: the state of 64 neighbouring positions of a ledger. And [`Naming`], which collects what can be put on
//! record.
//!
//! Each position has two bits:
//!
//! ```text
//! finished named
//!    0       0    unfinished, or not yet read
//!    1       0    finished here, not named yet
//!    0       1    a gap that the reader has passed, not named yet
//!    1       1    named, or on record from before
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use super::ranges::Ranges;

/// How many positions a block has: one word of each bit. Positions far apart cost 24 bytes each, dense ones 3 bits.
pub(super) const BLOCK: u64 = 64;

#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) number: u64,
    finished: u64,
    named: u64,
}

impl Block {
    /// A block whose first message is at `position`. Positions of the block below it were passed before, and stand
    /// among the gaps.
    #[inline]
    pub(super) fn new(position: u64) -> Block {
        let below = (1 << (position % BLOCK)) - 1;
        Block { number: position / BLOCK, finished: below, named: below }
    }

    /// Marks a range of positions of this block as gaps, or as on record from before. The range must not be empty.
    pub(super) fn close(&mut self, range: Range<u64>, on_record: bool) {
        let bits = (u64::MAX >> (BLOCK - (range.end - range.start))) << (range.start % BLOCK);
        self.named |= bits;
        if on_record {
            self.finished |= bits;
        }
    }

    /// Marks a position as finished; with `on_record`, also as named. False if the position was not unfinished.
    #[inline]
    pub(super) fn finish(&mut self, position: u64, on_record: bool) -> bool {
        let bit = 1 << (position % BLOCK);
        if (self.finished | self.named) & bit != 0 {
            return false;
        }
        self.finished |= bit;
        if on_record {
            self.named |= bit;
        }
        true
    }

    /// Names every finished position and gap that is not named yet. False if there was no room for more ranges.
    pub(super) fn name(&mut self, naming: &mut Naming, gaps: &mut VecDeque<Range<u64>>) -> bool {
        let mut bits = self.finished ^ self.named;
        while bits != 0 {
            let from = bits.trailing_zeros();
            let length = (bits >> from).trailing_ones();
            let run = (u64::MAX >> (64 - length)) << from;
            let first = self.number * BLOCK + u64::from(from);
            if !naming.gaps_below(first, gaps) || !naming.add(first..first + u64::from(length)) {
                return false;
            }
            naming.messages += (self.finished & run).count_ones() as usize;
            self.finished |= run;
            self.named |= run;
            bits &= !run;
        }
        true
    }

    pub(super) fn first_unnamed(&self) -> Option<u64> {
        self.first_zero(self.finished & self.named)
    }

    /// The first position of the block that is unfinished or not read yet.
    pub(super) fn first_unfinished(&self) -> Option<u64> {
        self.first_zero(self.finished | self.named)
    }

    fn first_zero(&self, bits: u64) -> Option<u64> {
        (bits != u64::MAX).then(|| self.number * BLOCK + u64::from(bits.trailing_ones()))
    }

    /// True once every position of the block is named.
    #[inline]
    pub(super) fn is_named(&self) -> bool {
        self.finished & self.named == u64::MAX
    }
}

/// The index of the block with that number. Blocks are mostly spread evenly, so the search begins at a guess.
pub(super) fn search(blocks: &[Block], number: u64) -> Option<usize> {
    let (first, last) = (blocks.first()?.number, blocks.last()?.number);
    if number < first || number > last {
        return None;
    }
    let share = (number - first) as f64 / (last - first).max(1) as f64;
    let guess = (share * (blocks.len() - 1) as f64) as usize;
    // The block is mostly at the guess or beside it. Comparing both without a branch is cheapest, since no branch could
    // be predicted.
    let low = guess.saturating_sub(1);
    let below = |at: usize| usize::from(blocks.get(at).is_some_and(|block| block.number < number));
    let near = low + below(low) + below(low + 1);
    if blocks.get(near).is_some_and(|block| block.number == number) {
        return Some(near);
    }
    let mut reach = 8;
    loop {
        let low = guess.saturating_sub(reach);
        let high = (guess + reach).min(blocks.len() - 1);
        if blocks[low].number <= number && number <= blocks[high].number {
            let around = blocks[low..=high].binary_search_by_key(&number, |block| block.number);
            return around.ok().map(|at| low + at);
        }
        reach *= 8;
    }
}

/// Collects ranges, ascending, for the next record.
pub(super) struct Naming {
    pub(super) ranges: Ranges,
    ranges_max: usize,
    /// How many messages the ranges have; the other positions are gaps.
    pub(super) messages: usize,
    /// The end of the last range.
    pub(super) end: u64,
}

impl Naming {
    pub(super) fn new(ranges_max: usize) -> Naming {
        Naming { ranges: Ranges::new(), ranges_max: ranges_max.max(1), messages: 0, end: 0 }
    }

    /// Adds a range; false if there is no room for one more.
    fn add(&mut self, range: Range<u64>) -> bool {
        let joins = range.start == self.end && !self.ranges.is_empty();
        if !joins && self.ranges.len() == self.ranges_max {
            return false;
        }
        self.end = range.end;
        self.ranges.insert(range);
        true
    }

    /// Adds the gaps below `position`, and takes them out of `gaps`. False if there was no room.
    pub(super) fn gaps_below(&mut self, position: u64, gaps: &mut VecDeque<Range<u64>>) -> bool {
        while gaps.front().is_some_and(|gap| gap.start < position) {
            let gap = gaps.front().cloned().expect("just seen");
            if !self.add(gap) {
                return false;
            }
            gaps.pop_front();
        }
        true
    }
}
