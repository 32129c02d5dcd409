//! Tests of the ledger against a naive set of positions: at random, and exhaustively for small cases.

use std::collections::BTreeSet;

use keylane_core::{Ledger, Ranges, Settled};
use proptest::prelude::*;

/// What the ledger must answer, computed the slow way.
#[derive(Clone)]
struct Naive {
    start: u64,
    front: u64,
    unfinished: BTreeSet<u64>,
    fresh: BTreeSet<u64>,
    /// On record, or named by `take`.
    known: Ranges,
    under_way: Ranges,
    on_record: Settled,
}

impl Naive {
    fn new(settled: &Settled) -> Naive {
        Naive {
            start: settled.low(),
            front: settled.low(),
            unfinished: BTreeSet::new(),
            fresh: BTreeSet::new(),
            known: settled.above().clone(),
            under_way: Ranges::new(),
            on_record: settled.clone(),
        }
    }

    fn arrived(&mut self, position: u64) -> bool {
        if position < self.front {
            return false;
        }
        self.front = position + 1;
        let runs = !self.on_record.contains(position);
        if runs {
            self.unfinished.insert(position);
        }
        runs
    }

    fn nameable(&self) -> Ranges {
        let mut nameable = Ranges::new();
        nameable.insert(self.start..self.front);
        self.known.iter().for_each(|range| nameable.remove(range));
        for position in &self.unfinished {
            nameable.remove(*position..position + 1);
        }
        nameable
    }

    fn take(&mut self, ranges_max: usize) -> Ranges {
        if !self.under_way.is_empty() {
            return Ranges::new();
        }
        let taken: Ranges = self.nameable().iter().take(ranges_max).collect();
        for range in taken.iter() {
            self.known.insert(range.clone());
        }
        self.fresh.retain(|position| !taken.contains(*position));
        self.under_way = taken.clone();
        taken
    }

    fn counted(&mut self) {
        for range in std::mem::take(&mut self.under_way).iter() {
            self.on_record.settle(range);
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// The next message is read, this far behind the last one.
    Read(u64),
    Passed(u64),
    /// One of the unfinished messages is finished.
    Finish(usize),
    /// A position is finished, whether or not it was read.
    FinishAt(u64),
    Recorded(usize),
    Take(usize),
    Counted,
}

/// Does a step on both; an error says how they differ.
fn step(ledger: &mut Ledger, naive: &mut Naive, step: &Step) -> Result<(), String> {
    let same = |what: &str, real: bool, want: bool| {
        if real == want { Ok(()) } else { Err(format!("{what}: {real}, should be {want}")) }
    };
    match step {
        Step::Read(gap) => {
            let position = naive.front + gap;
            same("arrived", ledger.arrived(position), naive.arrived(position))?;
            same("arrived again", ledger.arrived(position), false)?;
        }
        Step::Passed(gap) => {
            naive.front += gap;
            ledger.passed(naive.front);
        }
        Step::Finish(which) | Step::Recorded(which) => {
            if naive.unfinished.is_empty() {
                return Ok(());
            }
            let position = *naive.unfinished.iter().nth(which % naive.unfinished.len()).expect("within");
            naive.unfinished.remove(&position);
            if matches!(step, Step::Finish(_)) {
                naive.fresh.insert(position);
                same("finish", ledger.finish(position), true)?;
            } else {
                naive.known.insert(position..position + 1);
                naive.on_record.settle(position..position + 1);
                same("recorded", ledger.recorded(position), true)?;
            }
            same("finish again", ledger.finish(position), false)?;
        }
        Step::FinishAt(position) => {
            let was = naive.unfinished.remove(position);
            if was {
                naive.fresh.insert(*position);
            }
            same("finish at", ledger.finish(*position), was)?;
        }
        Step::Take(ranges_max) => {
            let (real, want) = (ledger.take(*ranges_max), naive.take(*ranges_max));
            if let Some(bad) = naive.unfinished.iter().find(|position| real.contains(**position)) {
                return Err(format!("{bad} is unfinished, and was named"));
            }
            if real != want {
                return Err(format!("took {real:?}, should be {want:?}"));
            }
        }
        Step::Counted => {
            ledger.counted();
            naive.counted();
        }
    }
    compare(ledger, naive)
}

fn compare(ledger: &Ledger, naive: &Naive) -> Result<(), String> {
    let real =
        (ledger.front(), ledger.unfinished(), ledger.fresh(), ledger.oldest_unfinished(), ledger.low());
    let oldest = naive.unfinished.first().copied();
    let want = (naive.front, naive.unfinished.len(), naive.fresh.len(), oldest, naive.on_record.low());
    if real == want {
        Ok(())
    } else {
        Err(format!("(front, unfinished, fresh, oldest, low) {real:?}, should be {want:?}"))
    }
}

fn run(mut ledger: Ledger, settled: &Settled, steps: &[Step]) -> Result<(), String> {
    let mut naive = Naive::new(settled);
    for one in steps {
        step(&mut ledger, &mut naive, one)?;
    }
    // Now everything can be finished and named; if not, something was lost on the way.
    for position in std::mem::take(&mut naive.unfinished) {
        if !ledger.finish(position) {
            return Err(format!("{position} was lost"));
        }
        naive.fresh.insert(position);
    }
    for _ in 0..2 {
        step(&mut ledger, &mut naive, &Step::Counted)?;
        step(&mut ledger, &mut naive, &Step::Take(usize::MAX))?;
    }
    step(&mut ledger, &mut naive, &Step::Counted)?;
    if ledger.low() < ledger.front() {
        return Err(format!("all is on record, and low stays at {}", ledger.low()));
    }
    Ok(())
}

fn gaps() -> impl Strategy<Value = u64> {
    prop_oneof![20 => Just(0u64), 2 => 1u64..4, 1 => 60u64..70, 1 => 500u64..1100, 1 => Just(1u64 << 40)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any_step = prop_oneof![
        30 => gaps().prop_map(Step::Read),
        2 => gaps().prop_map(Step::Passed),
        25 => any::<usize>().prop_map(Step::Finish),
        2 => (0u64..2500).prop_map(Step::FinishAt),
        2 => any::<usize>().prop_map(Step::Recorded),
        3 => (1usize..5).prop_map(Step::Take),
        2 => Just(Step::Take(usize::MAX)),
        4 => Just(Step::Counted),
    ];
    proptest::collection::vec(any_step, 0..400)
}

fn settled() -> impl Strategy<Value = Settled> {
    proptest::collection::vec((0u64..2500, 0u64..80), 0..6).prop_map(|ranges| {
        let mut settled = Settled::below(3);
        ranges.into_iter().for_each(|(start, length)| settled.settle(start..start + length));
        settled
    })
}

proptest! {
    /// COM-1: in whatever order reads, completions, takes and records come, exactly the finished positions and passed
    /// gaps are named, each once, from the lowest on.
    #[test]
    fn the_ledger_names_what_a_naive_set_names(settled in settled(), steps in steps()) {
        run(Ledger::resume(&settled), &settled, &steps).map_err(TestCaseError::fail)?;
    }
}

/// COM-1: all sequences of six steps on positions around the edge of a block, with a fresh and a resumed ledger.
#[test]
fn small_cases_hold_exhaustively() {
    let alphabet = [
        Step::Read(0),
        Step::Read(2),
        Step::Passed(1),
        Step::Finish(0),
        Step::FinishAt(511),
        Step::FinishAt(512),
        Step::FinishAt(513),
        Step::Recorded(0),
        Step::Take(1),
        Step::Take(9),
        Step::Counted,
    ];
    // Ranges on record above 510, as (start, end).
    let records: [&[(u64, u64)]; 4] = [&[], &[(511, 512)], &[(512, 514)], &[(511, 512), (513, 515)]];
    for record in records {
        let mut settled = Settled::below(510);
        for (start, end) in record {
            settled.settle(*start..*end);
        }
        explore(&Ledger::resume(&settled), &Naive::new(&settled), &alphabet, 6);
    }
}

fn explore(ledger: &Ledger, naive: &Naive, alphabet: &[Step], depth: u32) {
    if depth == 0 {
        return;
    }
    for one in alphabet {
        let (mut ledger, mut naive) = (ledger.clone(), naive.clone());
        if let Err(how) = step(&mut ledger, &mut naive, one) {
            panic!("{how} after {one:?}, {depth} steps before the end");
        }
        explore(&ledger, &naive, alphabet, depth - 1);
    }
}

/// COM-1: a stuck message keeps the commit down, but costs no more memory the further the other messages go.
#[test]
fn a_stuck_message_holds_the_commit_and_not_the_memory() {
    let mut ledger = Ledger::resume(&Settled::below(0));
    let mut bytes_max = 0;
    for position in 0..1_000_000 {
        assert!(ledger.arrived(position));
        if position != 7 {
            assert!(ledger.finish(position));
        }
        if position % 1000 == 999 {
            assert!(!ledger.take(usize::MAX).contains(7));
            ledger.counted();
            bytes_max = bytes_max.max(ledger.memory_bytes());
            assert_eq!(ledger.low(), 7);
        }
    }
    assert!(bytes_max < 10_000, "{bytes_max} bytes");
}

/// COM-1: a gap that the reader has passed waits to be named even if no message ever comes behind it, whether it lies
/// in the last message's block or beyond.
#[test]
fn a_gap_at_the_end_waits_until_it_is_named() {
    let mut ledger = Ledger::resume(&Settled::below(0));
    assert!(ledger.arrived(0) && ledger.finish(0));
    assert!(!ledger.gap_waits());
    for end in [10, 1_000] {
        ledger.passed(end);
        assert!(ledger.gap_waits() && ledger.low() < end);
        assert!(!ledger.take(usize::MAX).is_empty());
        ledger.counted();
        assert_eq!((ledger.low(), ledger.fresh(), ledger.gap_waits()), (end, 0, false));
    }
    // Positions that were on record before are no gap.
    let mut ledger = Ledger::resume(&Settled::below(50));
    ledger.passed(50);
    assert!(!ledger.gap_waits());
}

/// COM-1: committing the highest finished position would lose the unfinished ones below it. The comparison above
/// notices.
#[cfg(feature = "flaws")]
#[test]
fn a_ledger_that_commits_the_highest_finished_is_caught() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let found = runner.run(&(settled(), steps()), |(settled, steps)| {
        let flaws = keylane_core::ledger::Flaws { commit_highest: true };
        run(Ledger::resume_with_flaws(&settled, flaws), &settled, &steps).map_err(TestCaseError::fail)
    });
    let Err(proptest::test_runner::TestError::Fail(why, _)) = found else {
        panic!("not caught: {found:?}");
    };
    assert!(why.message().contains("is unfinished, and was named"), "{why}");
}
