//! When the batches of one partition were appended that a shard has read and that are not all settled yet.
//!
//! The shard adds each batch as it reads it. A caller that shows the partition's status asks for the batch with the
//! lowest unsettled position, and batches below that are forgotten. So Keylane knows the age of the oldest unsettled
//! message without asking the broker (ING-8).

use std::collections::VecDeque;

/// Batches that are remembered. Beyond that every second one is forgotten. Messages of a forgotten batch then seem as
/// old as those of the batch before it: a little too old, never too young.
const BATCHES_MAX: usize = 1_024;

/// First positions and append times of batches, ascending.
#[derive(Debug, Default)]
pub(super) struct BatchTimes(VecDeque<(u64, u64)>);

impl BatchTimes {
    /// The shard has read one more batch.
    pub(super) fn push(&mut self, position: u64, appended_ms: u64) {
        if self.0.len() >= BATCHES_MAX {
            let mut keep = false;
            self.0.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.0.push_back((position, appended_ms));
    }

    /// When the message at `low` was appended. Forgets all batches that end below `low`.
    pub(super) fn at(&mut self, low: u64) -> Option<u64> {
        while self.0.get(1).is_some_and(|(position, _)| *position <= low) {
            self.0.pop_front();
        }
        self.0.front().filter(|(position, _)| *position <= low).map(|(_, appended_ms)| *appended_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ING-8, BRK-5.
    #[test]
    fn the_batch_of_the_lowest_unsettled_position_says_its_age() {
        let mut times = BatchTimes::default();
        assert_eq!(times.at(0), None, "nothing was read");
        for (position, appended_ms) in [(10, 100), (20, 200), (40, 400)] {
            times.push(position, appended_ms);
        }
        assert_eq!([5, 10, 19, 20, 39, 40, 99].map(|low| times.at(low)), {
            [None, Some(100), Some(100), Some(200), Some(200), Some(400), Some(400)]
        });
    }

    /// P5: a position that stays unsettled while millions of batches pass it costs no more memory, and keeps its age.
    #[test]
    fn what_is_remembered_is_bounded_and_never_too_young() {
        let mut times = BatchTimes::default();
        (0..1_000_000).for_each(|batch| times.push(batch * 10, batch));
        assert!(times.0.len() <= BATCHES_MAX);
        assert_eq!(times.at(5), Some(0));
        for batch in (0..1_000_000).step_by(1_111) {
            assert!(times.at(batch * 10).expect("it was read") <= batch);
        }
    }
}
