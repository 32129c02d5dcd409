//! Tests of an owner's life, step by step, on a journal in memory.

#![allow(clippy::single_range_in_vec_init, reason = "a set of one range is a set too")]

mod handing_over;
mod holding;
mod upgrading;

use std::sync::Arc;

use keylane_core::journal::{
    Claim, Command, CommandKind, DeadEffect, DeadReason, FORMAT, FORMAT_HOLD, Facts, Fence,
};
use keylane_core::owner::{Bounds, Death};
use keylane_core::{
    Action, Appended, Committed, ErrorCode, Input, Mirror, Order, Owner, Ranges, Record, RecordError, Replay,
    Setup, Source, State, StepBack, Stop, commit_metadata, parse_commit_metadata,
};
use proptest::prelude::*;

const SOURCE: Source = Source { incarnation: 77, partitions: 4 };

fn setup(instance: u128) -> Setup {
    Setup {
        instance,
        node: format!("node-{instance}"),
        seed: instance * 1_000,
        conditional: false,
        source: SOURCE,
        former: Vec::new(),
        format: FORMAT,
        order: Order::Key,
        start: 100,
        handler_timeout_ms: 30_000,
        bounds: Bounds::default(),
    }
}

fn done(ranges: &[std::ops::Range<u64>]) -> Ranges {
    ranges.iter().cloned().collect()
}

/// A message that was rejected, with its body stored at that position of `hold.p`.
fn dead(owner: &mut Owner, position: u64, body: u64) -> Death {
    let body = owner.storing().expect("it owns").acknowledged(body);
    Death {
        position,
        key_hash: None,
        effect: DeadEffect::Passed,
        reason: DeadReason::Rejected,
        body: Some(body),
        report: None,
        tries: 1,
        due_ms: None,
        expires_ms: None,
        priority: 0,
        command: None,
    }
}

/// A journal in memory that takes every append at once.
#[derive(Debug, Default)]
struct Log {
    start: u64,
    records: Vec<Arc<Record>>,
    committed: Option<Committed>,
}

impl Log {
    fn end(&self) -> u64 {
        self.records.len() as u64
    }

    fn append(&mut self, record: Record) {
        self.records.push(Arc::new(record));
    }

    fn facts(&self) -> impl Iterator<Item = &Facts> {
        self.records.iter().filter_map(|record| match &**record {
            Record::Facts(facts) => Some(facts),
            _ => None,
        })
    }

    fn state(&self) -> State {
        let mut replay = Replay::default();
        for (position, record) in self.records.iter().enumerate() {
            replay.read(position as u64, record, 0);
        }
        replay.state().expect("nothing was cut").clone()
    }

    /// Lets the owner act until it waits; returns its actions on the way, and until when it waits.
    fn drive(&mut self, owner: &mut Owner, now_ms: u64, input: Input<'_>) -> (Vec<Action>, u64) {
        let mut said = Vec::new();
        let mut action = owner.step(input);
        loop {
            action = match action {
                Action::Append { expect: Some(expect), .. } if expect != self.end() => {
                    owner.step(Input::Appended(Appended::Moved))
                }
                Action::Append { record, expect } => {
                    self.records.push(record.clone());
                    said.push(Action::Append { record, expect });
                    owner.step(Input::Appended(Appended::At(self.end() - 1)))
                }
                Action::Read { from } => self.feed(owner, from, now_ms),
                Action::ReadCommit => {
                    owner.step(Input::Committed(self.committed.unwrap_or(Committed::Unknown)))
                }
                Action::Wait { until_ms } => return (said, until_ms),
                Action::Cut { below } => {
                    self.start = below;
                    said.push(action);
                    owner.step(Input::Tick(now_ms))
                }
                action => {
                    said.push(action);
                    owner.step(Input::Tick(now_ms))
                }
            };
        }
    }

    fn feed(&self, owner: &mut Owner, from: u64, now_ms: u64) -> Action {
        let from = from.max(self.start);
        if from == self.end() {
            return owner.step(Input::CaughtUp { start: self.start, end: self.end(), now_ms });
        }
        let record = &self.records[from as usize];
        let bytes = record.encode().len();
        owner.step(Input::Read { position: from, record, bytes })
    }

    /// Lets the owner read all records that have landed.
    fn read(&mut self, owner: &mut Owner, now_ms: u64) -> (Vec<Action>, u64) {
        let mut said = Vec::new();
        while owner.next() < self.end() {
            let record = self.records[owner.next().max(self.start) as usize].clone();
            let position = owner.next().max(self.start);
            said.extend(self.drive(owner, now_ms, Input::Read { position, record: &record, bytes: 1 }).0);
        }
        let (more, until_ms) = self.drive(owner, now_ms, Input::Tick(now_ms));
        said.extend(more);
        (said, until_ms)
    }

    fn own(&mut self, setup: Setup) -> (Owner, u64) {
        let mut owner = Owner::new(setup);
        let (said, _) = self.drive(&mut owner, 0, Input::Tick(0));
        let epoch = owner.epoch();
        (owner, epoch.unwrap_or_else(|| panic!("does not start: {said:?}")))
    }
}

fn claim(id: u128) -> Record {
    Record::Claim(Claim { id, instance: id, node: String::new(), format: FORMAT })
}

fn stop_of(said: &[Action]) -> &Stop {
    match said.last() {
        Some(Action::Stop(why)) => why,
        _ => panic!("does not stop: {said:?}"),
    }
}

/// BRK-7, BRK-10: the first owner claims, names the journal, fences, and puts on record where the group starts; only
/// then it starts.
#[test]
fn the_first_owner_puts_on_record_where_it_starts() {
    let mut log = Log::default();
    let (owner, epoch) = log.own(setup(1));
    assert_eq!(epoch, 2);
    let state = owner.state().expect("read");
    assert_eq!((state.settled.low(), state.started, state.source), (100, true, Some(SOURCE)));
    assert_eq!(log.facts().map(|facts| facts.start).collect::<Vec<_>>(), [Some(100)]);
}

/// COM-3: an operator's reset is on record, and the operator's commit is replaced, before anything starts.
#[test]
fn an_operators_reset_is_obeyed_before_the_start() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let letter = dead(&mut owner, 150, 0);
    log.drive(&mut owner, 0, Input::Finished { epoch, done: &done(&[100..150]), dead: &[letter] });
    log.committed = Some(Committed::Operator(120));
    let mut next = Owner::new(setup(2));
    let (said, _) = log.drive(&mut next, 0, Input::PredecessorDead(1));
    let at = said.iter().position(|action| matches!(action, Action::Counted { low: 120, .. }));
    assert!(at.is_some() && matches!(said.last(), Some(Action::Start { .. })), "{said:?}");
    let settled = &next.state().expect("read").settled;
    assert!(settled.contains(119) && !settled.contains(120) && settled.contains(150));
}

/// COM-2: completions wait for a second, or until there are 1,000; a dead letter waits for nothing.
#[test]
fn completions_are_batched_and_dead_letters_are_not() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let (said, until_ms) =
        log.drive(&mut owner, 0, Input::Finished { epoch, done: &done(&[100..200]), dead: &[] });
    assert_eq!((said, until_ms), (Vec::new(), 1_000));
    let (said, _) = log.drive(&mut owner, 1_000, Input::Tick(1_000));
    assert!(matches!(&said[..], [Action::Append { .. }, Action::Counted { low: 200, .. }]), "{said:?}");
    let (said, _) =
        log.drive(&mut owner, 1_000, Input::Finished { epoch, done: &done(&[200..1_200]), dead: &[] });
    assert!(matches!(said.last(), Some(Action::Counted { low: 1_200, .. })), "{said:?}");
    let letter = dead(&mut owner, 1_200, 9);
    let (said, _) =
        log.drive(&mut owner, 1_000, Input::Finished { epoch, done: &Ranges::new(), dead: &[letter] });
    assert!(matches!(said.last(), Some(Action::Counted { low: 1_201, .. })), "{said:?}");
}

/// COM-3: completions that do not fit into one record go on record in ascending order, and no record is larger than its
/// bound.
#[test]
fn what_does_not_fit_goes_in_ascending_records() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    // The set that takes the most bytes: every run and every hole has another size.
    let mut at = 100u64;
    let mut ranges = Ranges::new();
    for index in 0..5_000u64 {
        let length = 1 + (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (20 + index % 40)) % (1 << 44);
        ranges.insert(at..at + length);
        at += 2 * length;
    }
    let letters: Vec<Death> = (0..500)
        .map(|index| Death {
            key_hash: Some(u64::MAX),
            report: Some(owner.storing().expect("it owns").acknowledged(u64::MAX)),
            tries: u32::MAX,
            due_ms: Some(u64::MAX),
            expires_ms: Some(u64::MAX),
            priority: 255,
            command: Some(u64::MAX),
            ..dead(&mut owner, (1 << 63) + index, u64::MAX)
        })
        .collect();
    log.drive(&mut owner, 0, Input::Finished { epoch, done: &ranges, dead: &letters });
    log.drive(&mut owner, 2_000, Input::Tick(2_000));
    let sent: Vec<&Facts> =
        log.facts().filter(|facts| !facts.done.is_empty() || !facts.dead.is_empty()).collect();
    assert!(sent.len() >= 3, "{}", sent.len());
    let starts: Vec<u64> = sent.iter().filter_map(|facts| Some(facts.done.iter().next()?.start)).collect();
    assert!(starts.is_sorted());
    assert_eq!(sent.iter().flat_map(|facts| facts.done.iter()).collect::<Ranges>(), ranges);
    assert_eq!(sent.iter().map(|facts| facts.dead.len()).sum::<usize>(), 500);
    for record in &log.records {
        assert!(record.encode().len() <= keylane_core::owner::RECORD_BYTES_MAX, "{}", record.encode().len());
    }
}

/// BRK-7: an acknowledgement proves nothing; here a foreign fence lands before the acknowledged record.
#[test]
fn a_record_counts_only_once_it_is_read_back() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let letter = dead(&mut owner, 100, 0);
    let action = owner.step(Input::Finished { epoch, done: &Ranges::new(), dead: &[letter] });
    let Action::Append { record, expect: None } = action else { panic!("{action:?}") };
    log.append(claim(9));
    log.append(Record::Fence(Fence {
        claim: 9,
        claim_position: log.end() - 1,
        journal: log.state().journal.expect("there is one"),
        source: SOURCE,
        format: log.state().format,
        order: None,
    }));
    log.records.push(record);
    assert!(matches!(owner.step(Input::Appended(Appended::At(log.end() - 1))), Action::Read { .. }));
    let (said, _) = log.read(&mut owner, 0);
    assert_eq!(said, [Action::Drain, Action::StepBack(StepBack::Fenced)]);
}

/// BRK-7: where appends are conditional, success is the read-back, and after a refusal the owner reads on.
#[test]
fn a_conditional_append_is_its_own_read_back() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(Setup { conditional: true, ..setup(1) });
    let next = owner.next();
    let letter = dead(&mut owner, 100, 0);
    let action = owner.step(Input::Finished { epoch, done: &Ranges::new(), dead: &[letter] });
    assert!(matches!(action, Action::Append { expect: Some(expect), .. } if expect == next));
    assert!(matches!(owner.step(Input::Appended(Appended::Moved)), Action::Read { .. }));
    let action = owner.step(Input::CaughtUp { start: 0, end: next, now_ms: 0 });
    assert!(matches!(action, Action::Append { expect: Some(expect), .. } if expect == next));
    let action = owner.step(Input::Appended(Appended::At(next)));
    assert!(matches!(action, Action::Changed { .. }), "{action:?}");
    let action = owner.step(Input::Tick(0));
    assert!(matches!(action, Action::Counted { low: 101, .. }), "{action:?}");
    assert_eq!(owner.next(), next + 1);
}

/// P10, BRK-9: a journal that ends before what was read of it stops its owner, because nothing that is appended to it
/// would ever count.
#[test]
fn a_journal_that_went_back_stops_its_owner() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let (read, _) =
        (owner.next(), owner.step(Input::Finished { epoch, done: &done(&[100..101]), dead: &[] }));
    let action = owner.step(Input::CaughtUp { start: 0, end: read - 1, now_ms: 0 });
    let said = std::iter::successors(Some(action), |_| Some(owner.step(Input::Tick(0))));
    let stop = said.take(10).find(|action| matches!(action, Action::Stop(_)));
    assert_eq!(stop, Some(Action::Stop(Stop::WentBack { read, end: read - 1 })));
}

/// BRK-7: if the fate of a record is unknown, the same record is sent again, and counts once.
#[test]
fn a_record_of_unknown_fate_is_sent_again_as_it_was() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let letter = dead(&mut owner, 100, 0);
    let action = owner.step(Input::Finished { epoch, done: &Ranges::new(), dead: &[letter] });
    let Action::Append { record: first, .. } = action else { panic!("{action:?}") };
    assert!(matches!(owner.step(Input::Appended(Appended::Unknown)), Action::Read { .. }));
    let (said, _) = log.drive(&mut owner, 0, Input::Tick(0));
    let [Action::Append { record: second, .. }, Action::Changed { .. }, Action::Counted { .. }] = &said[..]
    else {
        panic!("{said:?}")
    };
    assert_eq!(first, *second);
    log.records.push(first);
    assert_eq!(log.read(&mut owner, 0).0, []);
}

/// ORD-12: after a pause of the process nothing starts until the journal was read to its end.
#[test]
fn a_paused_owner_resumes_only_behind_the_end_of_the_journal() {
    let mut log = Log::default();
    let (mut owner, _) = log.own(setup(1));
    assert!(matches!(owner.step(Input::Paused), Action::Read { .. }));
    let mut fenced = owner.clone();
    assert_eq!(log.drive(&mut owner, 0, Input::Tick(0)).0, [Action::Resume]);
    log.append(claim(9));
    assert_eq!(log.drive(&mut fenced, 0, Input::Tick(0)).0, [Action::Drain]);
}

/// BRK-10: a journal, commit or source topic that does not belong together stops the partition, with a code and a
/// remedy.
#[test]
fn a_journal_or_source_that_does_not_belong_here_stops_the_partition() {
    let mut log = Log::default();
    let (_, epoch) = log.own(setup(1));
    let journal = log.state().journal.expect("there is one");
    let stop = |log: &Log, setup: Setup, committed: Option<Committed>| {
        let mut log = Log { start: log.start, records: log.records.clone(), committed };
        let mut owner = Owner::new(setup);
        let (said, _) = log.drive(&mut owner, 0, Input::Tick(0));
        stop_of(&said).clone()
    };
    let mirror = |journal, epoch| Some(Committed::Mirror(Mirror { journal, epoch }));
    let other = Setup { source: Source { incarnation: 78, ..SOURCE }, ..setup(2) };
    let more = Setup { source: Source { partitions: 5, ..SOURCE }, ..setup(2) };
    let mut newer = Log { records: log.records.clone(), ..Log::default() };
    newer.append(Record::Facts(Facts { epoch, seq: 2, control: Some(1), ..Facts::default() }));
    let cut = Log { start: 2, records: log.records.clone(), ..Log::default() };
    let stops = [
        ("KL-1301", stop(&log, setup(2), mirror(journal + 1, epoch))),
        ("KL-1301", stop(&Log::default(), setup(2), mirror(journal, epoch))),
        ("KL-1302", stop(&log, setup(2), mirror(journal, epoch + 1))),
        ("KL-1302", stop(&log, setup(2), mirror(journal, 1_000))),
        ("KL-1303", stop(&log, other, None)),
        ("KL-1304", stop(&log, more, None)),
        ("KL-1306", stop(&newer, setup(2), None)),
        ("KL-1307", stop(&cut, setup(2), None)),
    ];
    for (code, why) in stops {
        assert_eq!(why.code().map(ErrorCode::as_str), Some(code), "{why}");
    }
    // Once an operator has accepted them, more partitions do not stop the owner.
    let accepted =
        Setup { former: vec![SOURCE.partitions], source: Source { partitions: 5, ..SOURCE }, ..setup(2) };
    let mut further = Log { records: log.records.clone(), ..Log::default() };
    let (said, _) = further.drive(&mut Owner::new(accepted), 0, Input::PredecessorDead(1));
    assert!(said.iter().any(|action| matches!(action, Action::Start { .. })), "{said:?}");
    assert_eq!(further.state().source.map(|source| source.partitions), Some(5));
    let mut owner = Owner::new(setup(2));
    let unknown = Input::Unreadable { position: 7, error: RecordError::Kind(9) };
    assert_eq!(stop_of(&log.drive(&mut owner, 0, unknown).0).code().map(ErrorCode::as_str), Some("KL-1305"));
}

/// BRK-10: once it is on record that the topic has more partitions, a process that goes by fewer must not own: an owner
/// drains, and does not own again.
#[test]
fn who_goes_by_fewer_partitions_than_there_are_does_not_own() {
    let widen = || {
        Record::Command(Command {
            id: 1,
            kind: CommandKind::Widen,
            positions: Ranges::new(),
            as_of: None,
            body: None,
            accept: None,
            partitions: Some(SOURCE.partitions + 1),
            format: None,
            who: String::new(),
            when_ms: 0,
        })
    };
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    log.append(widen());
    assert_eq!(log.read(&mut owner, 0).0, [Action::Drain]);
    log.drive(&mut owner, 0, Input::Quiet);
    assert!(log.state().epoch.is_some_and(|ended| ended.position == epoch && ended.released));
    log.drive(&mut owner, 0, Input::Confirmed);
    let (said, _) = log.drive(&mut owner, 1_000, Input::Tick(1_000));
    assert_eq!(stop_of(&said).code().map(ErrorCode::as_str), Some("KL-1304"));
}

/// In a format without chunks, a state that is too large for a snapshot costs room, and nothing else.
#[test]
fn a_state_too_large_for_a_snapshot_is_not_written_and_not_cut() {
    let mut log = Log::default();
    let bounds = Bounds { snapshot_after_bytes: 100, snapshot_bytes_max: 10, ..Bounds::default() };
    let (mut owner, epoch) = log.own(Setup { bounds, format: FORMAT_HOLD - 1, ..setup(1) });
    for position in 100..120 {
        let letter = dead(&mut owner, position, position);
        log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &[letter] });
    }
    log.drive(&mut owner, 0, Input::Revoked);
    let (said, _) = log.drive(&mut owner, 0, Input::Quiet);
    assert_eq!(stop_of(&said), &Stop::Revoked);
    assert_eq!(log.start, 0);
    assert!(log.records.iter().all(|record| !matches!(**record, Record::Snapshot(_))));
    let state = log.state();
    assert!(state.epoch.expect("ran").released && state.settled.low() == 120);
}

/// COM-3: journal id and epoch are read back from the broker's commit.
#[test]
fn a_commit_says_whose_it_is() {
    let metadata = commit_metadata(0xabc, 42);
    assert_eq!(parse_commit_metadata(&metadata), Some(Mirror { journal: 0xabc, epoch: 42 }));
    let mirror = Committed::Mirror(Mirror { journal: 0xabc, epoch: 42 });
    assert_eq!(Committed::read(Some((7, &metadata)), true), mirror);
    assert_eq!(Committed::read(Some((7, b"")), true), Committed::Operator(7));
    assert_eq!(Committed::read(Some((7, b"")), false), Committed::Unknown);
    assert_eq!(Committed::read(None, true), Committed::Unknown);
}

proptest! {
    /// R: a reader that starts at any counting snapshot ends with the same state as one that read everything.
    #[test]
    fn a_state_rebuilt_from_any_snapshot_is_the_state(
        steps in proptest::collection::vec((0u64..60, 1u64..9, 0u8..8), 1..60), conditional in any::<bool>(),
    ) {
        let mut log = Log::default();
        let bounds = Bounds { snapshot_after_bytes: 60, batch_ms: 0, ..Bounds::default() };
        let (mut owner, mut epoch) = log.own(Setup { bounds: bounds.clone(), conditional, ..setup(1) });
        let mut lives = 1;
        for (start, length, what) in steps {
            let position = 100 + start;
            let finished = done(&[position..position + length]);
            match what {
                0 => {
                    // A record of an old epoch that lands late, and a claim of a process that then goes away.
                    log.append(Record::Facts(Facts { epoch: 1, seq: 1, done: finished, ..Facts::default() }));
                    log.append(claim(u128::from(position)));
                }
                1 => {
                    lives += 1;
                    let setup = Setup { bounds: bounds.clone(), conditional, ..setup(lives) };
                    owner = Owner::new(setup);
                    log.drive(&mut owner, 0, Input::PredecessorDead(lives - 1));
                    let epoch_now = owner.epoch();
                    prop_assert!(epoch_now.is_some());
                    epoch = epoch_now.expect("just checked");
                }
                2 => {
                    let letter = dead(&mut owner, position, length);
                    log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &[letter] });
                }
                _ => {
                    log.drive(&mut owner, 0, Input::Finished { epoch, done: &finished, dead: &[] });
                }
            }
        }
        let state = log.state();
        for (position, record) in log.records.iter().enumerate() {
            let Record::Snapshot(snapshot) = &**record else { continue };
            let mut replay = Replay::default();
            let decoded = log.records.iter().map(|record| Record::decode(&record.encode()).expect("just encoded"));
            for (position, record) in decoded.enumerate().skip(snapshot.as_of as usize) {
                replay.read(position as u64, &record, 0);
            }
            prop_assert_eq!(replay.state(), Some(&state), "from the snapshot at {}", position);
        }
    }
}
