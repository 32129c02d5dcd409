//! Sets of positions: [`Ranges`] for any set, [`Settled`] for the settled positions of a partition.
//!
//! [`Ranges`] keeps disjoint ranges in ascending order that never touch each other. [`Settled`] is everything below
//! `low` and some positions above. Each set has exactly one form in either type, so equal states give equal bytes.

use std::ops::Range;

/// A set of positions, kept as ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// The empty set.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// Adds every position of `range`. Cheapest at the end of the set, where most positions are finished.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if range.start > last.end => self.0.push(range),
            Some(last) if range.start >= last.start => last.end = last.end.max(range.end),
            None => self.0.push(range),
            Some(_) => self.insert_within(range),
        }
    }

    fn insert_within(&mut self, mut range: Range<u64>) {
        let first = self.0.partition_point(|r| r.end < range.start);
        let behind = self.0.partition_point(|r| r.start <= range.end);
        if first < behind {
            range.start = range.start.min(self.0[first].start);
            range.end = range.end.max(self.0[behind - 1].end);
        }
        self.0.splice(first..behind, [range]);
    }

    /// Removes every position of `range`.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|r| r.end <= range.start);
        let behind = self.0.partition_point(|r| r.start < range.end);
        if first >= behind {
            return;
        }
        let left = self.0[first].start..range.start;
        let right = range.end..self.0[behind - 1].end;
        self.0.splice(first..behind, [left, right].into_iter().filter(|r| !r.is_empty()));
    }

    /// True if `position` is in the set.
    pub fn contains(&self, position: u64) -> bool {
        let at = self.0.partition_point(|r| r.end <= position);
        self.0.get(at).is_some_and(|r| r.start <= position)
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range<u64>> + DoubleEndedIterator + '_ {
        self.0.iter().cloned()
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True for the empty set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many positions are in the set.
    pub fn positions(&self) -> u64 {
        self.0.iter().map(|r| r.end - r.start).sum()
    }

    /// Removes the first range and returns it.
    pub fn pop_first(&mut self) -> Option<Range<u64>> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<T: IntoIterator<Item = Range<u64>>>(ranges: T) -> Ranges {
        let mut set = Ranges::new();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

/// The settled positions of a partition: everything below `low`, and the set `above`.
///
/// `low` is the position to commit and to read from (COM-1): the lowest position that no counting record settles.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Settled {
    low: u64,
    above: Ranges,
}

impl Settled {
    /// Everything below `low`, and nothing above.
    pub fn below(low: u64) -> Settled {
        Settled { low, above: Ranges::new() }
    }

    /// Settles every position of `range`; `low` moves up over all positions that are settled without a gap.
    pub fn settle(&mut self, range: Range<u64>) {
        self.above.insert(range.start.max(self.low)..range.end);
        if self.above.0.first().is_some_and(|first| first.start <= self.low) {
            let first = self.above.0.remove(0);
            self.low = first.end;
        }
    }

    /// Applies an operator's reset to `position` (COM-3): everything below is settled, nothing from there on.
    pub fn reset(&mut self, position: u64) {
        *self = Settled::below(position);
    }

    /// The lowest position that is not settled.
    pub fn low(&self) -> u64 {
        self.low
    }

    /// The settled positions above `low`.
    pub fn above(&self) -> &Ranges {
        &self.above
    }

    /// True if `position` is settled.
    pub fn contains(&self, position: u64) -> bool {
        position < self.low || self.above.contains(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// COM-1: the set has the positions that a naive set has, always in the same form.
        #[test]
        fn ranges_are_a_set_in_one_form(steps in proptest::collection::vec((any::<bool>(), 0u64..40, 0u64..8), 0..60)) {
            let (mut ranges, mut naive) = (Ranges::new(), BTreeSet::new());
            for (insert, start, length) in steps {
                let range = start..start + length;
                if insert {
                    naive.extend(range.clone());
                    ranges.insert(range);
                } else {
                    naive.retain(|position| !range.contains(position));
                    ranges.remove(range);
                }
            }
            prop_assert_eq!((0..60).filter(|p| ranges.contains(*p)).collect::<BTreeSet<_>>(), naive.clone());
            prop_assert_eq!(ranges.positions(), naive.len() as u64);
            prop_assert!(ranges.0.iter().all(|r| !r.is_empty()));
            prop_assert!(ranges.0.windows(2).all(|two| two[0].end < two[1].start));
        }

        /// COM-1: `low` is the lowest position that was not settled.
        #[test]
        fn low_is_the_lowest_unsettled(steps in proptest::collection::vec((0u64..40, 0u64..8), 0..60)) {
            let (mut settled, mut naive) = (Settled::below(3), (0..3).collect::<BTreeSet<u64>>());
            for (start, length) in steps {
                settled.settle(start..start + length);
                naive.extend(start..start + length);
            }
            prop_assert_eq!(settled.low(), (0..).find(|p| !naive.contains(p)).expect("finite"));
            for position in 0..60 {
                prop_assert_eq!(settled.contains(position), naive.contains(&position));
            }
        }
    }
}
