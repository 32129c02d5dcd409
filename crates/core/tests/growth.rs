//! BRK-10: tests of topics that got more partitions, which an operator accepted: each key keeps its order, whatever is
//! read when.

use keylane_core::journal::{Claim, Command, CommandKind, FORMAT, Fence, Ignored};
use keylane_core::{Acceptance, Applied, Growth, Ranges, Record, Source, State, apply};
use proptest::prelude::*;

const INCARNATION: u128 = 7;

/// A topic, message by message: each message is its key and its number within the key, at its position.
#[derive(Debug, Clone, Default)]
struct Topic {
    partitions: Vec<Vec<(u32, u32)>>,
    sent: std::collections::BTreeMap<u32, u32>,
}

impl Topic {
    fn send(&mut self, key: u32) {
        let number = self.sent.entry(key).or_default();
        let partition = key as usize % self.partitions.len();
        self.partitions[partition].push((key, *number));
        *number += 1;
    }

    fn accept(&self, from: u32) -> Acceptance {
        let ends = self.partitions.iter().map(|partition| partition.len() as u64).collect();
        Acceptance { incarnation: INCARNATION, from, ends }
    }
}

fn accept(acceptance: Acceptance) -> Record {
    Record::Command(Command {
        id: 1,
        kind: CommandKind::Accept,
        positions: Ranges::new(),
        as_of: None,
        body: None,
        accept: Some(acceptance),
        partitions: None,
        format: None,
        who: "ops".to_owned(),
        when_ms: 0,
    })
}

fn source(partitions: u32) -> Source {
    Source { incarnation: INCARNATION, partitions }
}

proptest! {
    /// A key that moves only to an added partition keeps its order, whenever its messages were sent. Several growths,
    /// each accepted once the producers know of it, are worked off one after another.
    #[test]
    fn keys_keep_their_order_over_accepted_growths(
        partitions in 1usize..4,
        phases in prop::collection::vec((2usize..4, prop::collection::vec(0u32..24, 0..30), prop::collection::vec(0u32..24, 0..30)), 1..3),
        before in prop::collection::vec(0u32..24, 0..40),
        picks in prop::collection::vec(any::<u32>(), 400),
    ) {
        let mut topic = Topic { partitions: vec![Vec::new(); partitions], ..Topic::default() };
        let mut state = State { source: Some(source(partitions as u32)), ..State::default() };
        before.iter().for_each(|key| topic.send(*key));
        for (at, (times, meanwhile, after)) in (0..).zip(&phases) {
            let from = topic.partitions.len();
            topic.partitions.resize(from * times, Vec::new());
            meanwhile.iter().for_each(|key| topic.send(*key));
            let record = accept(topic.accept(from as u32));
            prop_assert_eq!(apply(&mut state, at, &record), Applied::Counted);
            after.iter().for_each(|key| topic.send(*key));
        }
        let count = topic.partitions.len();
        let mut growth = Growth::of(&state, source(count as u32)).expect("all was accepted");
        prop_assert_eq!(growth.former().len(), phases.len());
        let mut next = vec![0usize; count];
        let mut ran = std::collections::BTreeMap::<u32, u32>::new();
        let mut picks = picks.into_iter().cycle();
        loop {
            let may = |growth: &Growth, at: usize| {
                let limit = growth.limit(at as u32).unwrap_or(u64::MAX);
                next[at] < topic.partitions[at].len() && (next[at] as u64) < limit
            };
            let ready: Vec<usize> = (0..count).filter(|at| may(&growth, *at)).collect();
            let pick = picks.next().expect("it never ends");
            if ready.is_empty() || pick % 4 == 0 {
                // Settled positions are heard of late, and not of all partitions at once.
                let heard: Vec<usize> = (0..count).filter(|at| growth.limit(*at as u32).is_some() || pick % 3 == 0).collect();
                let Some(at) = heard.get(pick as usize % heard.len().max(1)) else {
                    if ready.is_empty() { break } else { continue }
                };
                growth.settle(*at as u32, next[*at] as u64);
                if ready.is_empty() {
                    (0..count).for_each(|at| growth.settle(at as u32, next[at] as u64));
                    if (0..count).all(|at| !may(&growth, at)) { break }
                }
                continue;
            }
            let at = ready[pick as usize % ready.len()];
            let (key, number) = topic.partitions[at][next[at]];
            next[at] += 1;
            let expected = ran.entry(key).or_default();
            prop_assert_eq!(number, *expected, "key {} of partition {}", key, at);
            *expected += 1;
        }
        prop_assert_eq!(&ran, &topic.sent, "all was read");
        prop_assert_eq!(growth.awaited().count(), 0);
    }
}

/// Of two acceptances of the same number only the first counts, and one that does not continue from the state counts
/// never.
#[test]
fn of_two_acceptances_the_first_counts() {
    let mut state = State { source: Some(source(2)), ..State::default() };
    let of = |from, ends: &[u64]| accept(Acceptance { incarnation: INCARNATION, from, ends: ends.to_vec() });
    let refused = Applied::Ignored(Ignored::AcceptedBefore);
    assert_eq!(apply(&mut state, 0, &of(1, &[5; 4])), refused, "it had two");
    assert_eq!(apply(&mut state, 0, &of(2, &[5; 2])), refused, "nothing was added");
    assert_eq!(apply(&mut state, 1, &of(2, &[5; 4])), Applied::Counted);
    assert_eq!(apply(&mut state, 2, &of(2, &[9; 4])), refused);
    assert_eq!(apply(&mut state, 3, &of(2, &[9; 6])), refused);
    assert_eq!(apply(&mut state, 4, &of(4, &[9; 6])), Applied::Counted);
    let recreated = Acceptance { incarnation: INCARNATION + 1, from: 6, ends: vec![0; 8] };
    assert_eq!(apply(&mut state, 5, &accept(recreated)), refused);
    assert_eq!(Growth::of(&state, source(4)), Err(6));
    let growth = Growth::of(&state, source(6)).expect("accepted");
    assert_eq!(growth.former(), [2, 4]);
    assert_eq!(
        (0..6).map(|at| growth.limit(at)).collect::<Vec<_>>(),
        [Some(5), Some(5), Some(0), Some(0), Some(0), Some(0)]
    );
    assert_eq!(growth.awaited().collect::<Vec<_>>(), (0..6).map(|at| (at, 9)).collect::<Vec<_>>());
}

/// Once it is on record that the older messages are settled, nothing waits for them again, whatever is done to commits
/// later. The number stays accepted.
#[test]
fn what_was_opened_stays_open() {
    let mut state = State { source: Some(source(2)), ..State::default() };
    let accepted = Acceptance { incarnation: INCARNATION, from: 2, ends: vec![5; 4] };
    assert_eq!(apply(&mut state, 0, &accept(accepted)), Applied::Counted);
    let Record::Command(command) = accept(Acceptance { incarnation: 0, from: 0, ends: Vec::new() }) else {
        panic!("a command");
    };
    let open = Command { kind: CommandKind::Open, accept: None, partitions: Some(4), ..command };
    assert_eq!(apply(&mut state, 1, &Record::Command(open.clone())), Applied::Counted);
    assert_eq!(apply(&mut state, 2, &Record::Command(open)), Applied::Ignored(Ignored::AcceptedBefore));
    let growth = Growth::of(&state, source(4)).expect("accepted");
    assert_eq!((growth.limit(0), growth.limit(3), growth.awaited().count()), (None, None, 0));
    assert_eq!((growth.former(), growth.is_new()), (vec![2], false));
}

/// A number that nobody accepted is reported, even if no number was ever accepted. A new group waits for nothing.
#[test]
fn a_number_that_nobody_accepted_is_told() {
    let fenced = State { source: Some(source(4)), ..State::default() };
    assert_eq!(Growth::of(&fenced, source(6)), Err(4));
    for state in [fenced, State::default()] {
        let growth = Growth::of(&state, source(4)).expect("nothing has changed");
        assert_eq!((0..4).find_map(|at| growth.limit(at)), None);
    }
}

/// A fence that lands behind the record of more partitions does not count, unless its claimant knows of them.
#[test]
fn a_fence_by_fewer_partitions_does_not_count() {
    let mut state = State::default();
    let Record::Command(command) = accept(Acceptance { incarnation: 0, from: 0, ends: Vec::new() }) else {
        panic!("a command");
    };
    let widen = Command { kind: CommandKind::Widen, accept: None, partitions: Some(5), ..command };
    let claim = Claim { id: 7, instance: 2, node: String::new(), format: FORMAT };
    let records = [Record::Identity { journal: 5 }, Record::Claim(claim), Record::Command(widen)];
    for (position, record) in (0..).zip(&records) {
        assert_eq!(apply(&mut state, position, record), Applied::Counted);
    }
    let fence = |partitions| {
        let source = source(partitions);
        Record::Fence(Fence { claim: 7, claim_position: 1, journal: 5, source, format: None, order: None })
    };
    assert_eq!(apply(&mut state, 3, &fence(4)), Applied::Ignored(Ignored::Outgrown));
    assert_eq!(apply(&mut state, 4, &fence(5)), Applied::Counted);
}
