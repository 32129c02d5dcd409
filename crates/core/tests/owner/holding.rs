//! Tests of what an owner does with held messages and dead letters: what goes on record, what may be cut, what is due.

use super::*;
use bytes::Bytes;
use keylane_core::journal::{Cause, Effect, SnapshotBody};
use keylane_core::owner::Copied;
use keylane_core::{Applied, Entry};

const KEY: Option<u64> = Some(7);

/// A body that was stored and acknowledged at this position of `hold.p`.
fn stored(owner: &mut Owner, position: u64) -> keylane_core::Stored {
    owner.storing().expect("it owns").acknowledged(position)
}

fn copied(owner: &mut Owner, position: u64, body: u64) -> Copied {
    Copied {
        position,
        key_hash: KEY,
        body: stored(owner, body),
        due_ms: None,
        passes: false,
        judged: false,
        priority: 5,
        tries: 0,
    }
}

fn letter(owner: &mut Owner, position: u64, body: u64) -> Death {
    Death { key_hash: KEY, effect: DeadEffect::Holding, ..dead(owner, position, body) }
}

fn ask(id: u128, kind: CommandKind, position: u64) -> Record {
    Record::Command(Command {
        id,
        kind,
        positions: done(&[position..position + 1]),
        as_of: None,
        body: None,
        accept: None,
        partitions: None,
        format: None,
        who: "ops".to_owned(),
        when_ms: 0,
    })
}

/// The setup of an owner that raises `low` and moves bodies as soon as it can.
fn eager(instance: u128) -> Setup {
    let bounds = Bounds { low_step: 1, move_slack: 0, move_factor: 0, look_ms: 0, ..Bounds::default() };
    Setup { bounds, ..setup(instance) }
}

fn entry(owner: &Owner, position: u64) -> Option<Entry> {
    owner.state().and_then(|state| state.entries.get(position))
}

/// DLQ-5: a copy goes on record at once, and the driver hears of the changed entry before it hears that the copy
/// counts.
#[test]
fn a_copy_goes_on_record_at_once() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let copies = [copied(&mut owner, 100, 4)];
    let (said, _) = log.drive(&mut owner, 0, Input::Copied { epoch, copies: &copies });
    let [Action::Append { .. }, Action::Changed { effects }, Action::Counted { held, low: 101, .. }] =
        &said[..]
    else {
        panic!("{said:?}")
    };
    assert!(matches!(&effects[..], [Effect::Changed(change)] if change.cause == Cause::Held));
    assert_eq!((&held[..], owner.view(KEY, 8).heads.len()), (&[100][..], 1));
    // The message ran: its lane has gone through it, although it is on record as held until the next record.
    let (said, until_ms) = log.drive(&mut owner, 0, Input::Replayed { epoch, done: &[100] });
    assert!(said.is_empty() && until_ms > 0 && owner.view(KEY, 8).is_empty(), "{said:?}");
    let (said, _) = log.drive(&mut owner, 1_000, Input::Tick(1_000));
    assert!(matches!(said.last(), Some(Action::Counted { done, .. }) if done.contains(100)), "{said:?}");
    assert_eq!(entry(&owner, 100), None);
}

/// DLQ-5: when a ledger's range spans a held message, that message is not finished by it.
#[test]
fn what_a_ledger_names_takes_no_held_message_along() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let copies = [copied(&mut owner, 105, 4)];
    log.drive(&mut owner, 0, Input::Copied { epoch, copies: &copies });
    log.drive(&mut owner, 0, Input::Finished { epoch, done: &done(&[100..110]), dead: &[] });
    log.drive(&mut owner, 1_000, Input::Tick(1_000));
    let state = owner.state().expect("it owns");
    assert_eq!((state.settled.low(), state.open_low()), (110, 105));
    assert!(entry(&owner, 105).is_some());
}

/// BRK-6: when a held message dies, its body is not stored again: a record names it already.
#[test]
fn a_body_that_is_named_is_not_stored_again() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let copies = [copied(&mut owner, 100, 4)];
    log.drive(&mut owner, 0, Input::Copied { epoch, copies: &copies });
    let dies = Death { body: None, report: Some(stored(&mut owner, 9)), ..letter(&mut owner, 100, 5) };
    log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &[dies] });
    let dead = entry(&owner, 100).expect("it is dead");
    assert_eq!((dead.is_dead(), dead.body, dead.report), (true, 4, Some(9)));
}

/// BRK-6: `low` follows the named positions, stays below where a copy under way may land, and goes on record before
/// `hold.p` is cut.
#[test]
fn low_stays_below_what_is_named_or_under_way() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(eager(1));
    let cut = |said: &[Action]| {
        said.iter().find_map(|action| match action {
            Action::CutHold { below } => Some(*below),
            _ => None,
        })
    };
    // When this storing began, `hold.p` was only known to end at 0 or later, so its body may land anywhere.
    let early = owner.storing().expect("it owns");
    let copies = [copied(&mut owner, 101, 6)];
    let (said, _) = log.drive(&mut owner, 0, Input::Copied { epoch, copies: &copies });
    assert_eq!((cut(&said), owner.state().map(|state| state.low)), (None, Some(0)));
    // This storing began when `hold.p` ended behind 6, so its body will land behind 6: it keeps nothing below from
    // being cut.
    let late = owner.storing().expect("it owns");
    let (said, _) = log.drive(&mut owner, 0, Input::GivenUp(early));
    assert_eq!(cut(&said), Some(6));
    log.drive(&mut owner, 0, Input::Replayed { epoch, done: &[101] });
    log.drive(&mut owner, 1_000, Input::Tick(1_000));
    assert_eq!(owner.state().map(|state| (state.entries.len(), state.low)), Some((0, 7)));
    drop(late);
}

/// BRK-7, DLQ-4: a burst of dead letters whose bodies are all under way does not keep the owner from listening. This
/// test takes minutes if each number is searched for among those taken.
#[test]
fn a_hundred_thousand_bodies_under_way_cost_little() {
    let mut log = Log::default();
    let (mut owner, _) = log.own(eager(1));
    let bodies: Vec<_> = (0..100_000).map(|_| owner.storing().expect("it owns")).collect();
    for body in bodies {
        drop(owner.step(Input::GivenUp(body)));
    }
}

/// BRK-6, P9: a body that an earlier epoch stored, and that is handed over late, must not be taken for a body of this
/// epoch that is still on its way: `hold.p` is not cut where that one may land.
#[test]
fn a_body_of_an_earlier_epoch_lifts_no_guard_of_this_one() {
    let mut log = Log::default();
    let (mut first, _) = log.own(eager(1));
    let old = first.storing().expect("it owns").acknowledged(5);
    let mut owner = Owner::new(eager(2));
    log.drive(&mut owner, 0, Input::PredecessorDead(1));
    let epoch = owner.epoch().expect("it starts");
    let under_way = owner.storing().expect("it owns");
    let (due_ms, passes, judged) = (None, false, false);
    let late =
        Copied { position: 100, key_hash: KEY, body: old, due_ms, passes, judged, priority: 5, tries: 0 };
    log.drive(&mut owner, 0, Input::Copied { epoch, copies: &[late] });
    let copies = [copied(&mut owner, 101, 9)];
    log.drive(&mut owner, 0, Input::Copied { epoch, copies: &copies });
    log.drive(&mut owner, 0, Input::Replayed { epoch, done: &[100, 101] });
    log.drive(&mut owner, 1_000, Input::Tick(1_000));
    let low = owner.state().map(|state| state.low);
    assert_eq!(low, Some(0), "what is under way may land anywhere from where hold ended when it was begun");
    drop(under_way);
}

/// MSG-6, P3: due messages behind a key's stopped head, however many, do not keep other keys from hearing that theirs
/// are due.
#[test]
fn a_thousand_due_messages_behind_a_stopped_head_delay_no_other_key() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let halted = Death { effect: DeadEffect::Halting, ..letter(&mut owner, 100, 0) };
    log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &[halted] });
    let scheduled = |owner: &mut Owner, position, key_hash| Copied {
        key_hash,
        due_ms: Some(10),
        passes: true,
        ..copied(owner, position, position)
    };
    let mut copies: Vec<Copied> = (101..1_101).map(|at| scheduled(&mut owner, at, KEY)).collect();
    copies.push(scheduled(&mut owner, 2_000, Some(8)));
    log.drive(&mut owner, 0, Input::Copied { epoch, copies: &copies });
    owner.tell_wall(5_000);
    let (said, _) = log.drive(&mut owner, 5_000, Input::Tick(5_000));
    let told = |action: &Action| matches!(action, Action::Due { keys } if keys.contains(&Some(8)));
    assert!(said.iter().any(told), "{said:?}");
}

/// BRK-6: once nothing is under way, `hold.p` is cut below the lowest named position, after that `low` is on record.
#[test]
fn hold_is_cut_below_a_low_that_counts() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(eager(1));
    let copies = [copied(&mut owner, 100, 4), copied(&mut owner, 101, 6)];
    let (said, _) = log.drive(&mut owner, 0, Input::Copied { epoch, copies: &copies });
    let at = |wanted: &dyn Fn(&Action) -> bool| said.iter().position(wanted);
    let said_low = at(
        &|action| matches!(action, Action::Append { record, .. } if matches!(&**record, Record::Facts(facts) if facts.low == Some(4))),
    );
    let cuts = at(&|action| *action == Action::CutHold { below: 4 });
    assert!(said_low.is_some() && said_low < cuts, "{said:?}");
    assert_eq!(log.state().low, 4);
}

/// BRK-6: a copy or body that landed where `hold.p` may be cut is stored again, and not named.
#[test]
fn a_copy_below_low_is_stored_again() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(eager(1));
    let copies = [copied(&mut owner, 100, 40)];
    log.drive(&mut owner, 0, Input::Copied { epoch, copies: &copies });
    assert_eq!(log.state().low, 40);
    let (late, lost) = (copied(&mut owner, 101, 39), letter(&mut owner, 102, 38));
    let (said, _) = log.drive(&mut owner, 0, Input::Copied { epoch, copies: &[late] });
    assert_eq!(said, [Action::StoreAgain { position: 101 }]);
    let (said, _) = log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &[lost] });
    assert_eq!(said, [Action::StoreAgain { position: 102 }]);
}

/// BRK-6: a body that was stored in an earlier epoch is not named by a later one.
#[test]
fn what_was_stored_in_another_epoch_is_not_named() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let (old, of_old) = (copied(&mut owner, 100, 4), letter(&mut owner, 101, 5));
    let (mut next, _) = {
        log.append(claim(9));
        log.read(&mut owner, 0);
        log.drive(&mut owner, 0, Input::Quiet);
        log.own(setup(2))
    };
    let new = next.epoch().expect("it owns");
    assert_ne!(epoch, new);
    let (said, _) = log.drive(&mut next, 0, Input::Copied { epoch, copies: std::slice::from_ref(&old) });
    assert_eq!(said, []);
    let (said, _) = log.drive(&mut next, 0, Input::Copied { epoch: new, copies: &[old] });
    assert_eq!(said, [Action::StoreAgain { position: 100 }]);
    let dead = [of_old];
    let (said, _) =
        log.drive(&mut next, 0, Input::Finished { epoch: new, done: &Ranges::new(), dead: &dead });
    assert_eq!(said, [Action::StoreAgain { position: 101 }]);
}

/// BRK-6: a body that keeps most of `hold.p` from being cut is moved to the end, unless its message was edited
/// meanwhile.
#[test]
fn an_old_body_is_moved_to_the_end() {
    for edited in [false, true] {
        let mut log = Log::default();
        let (mut owner, epoch) = log.own(eager(1));
        let first = letter(&mut owner, 100, 2);
        log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &[first] });
        let copies = [Copied { key_hash: Some(8), ..copied(&mut owner, 101, 50) }];
        let (said, _) = log.drive(&mut owner, 0, Input::Copied { epoch, copies: &copies });
        let storing = said.into_iter().find_map(|action| match action {
            Action::Move { position: 100, from: 2, storing } => Some(storing),
            _ => None,
        });
        let storing = storing.expect("it is moved");
        if edited {
            let Record::Command(edit) = ask(1, CommandKind::Edit, 100) else { panic!("a command") };
            log.append(Record::Command(Command { body: Some(51), ..edit }));
            log.read(&mut owner, 0);
        }
        let to = storing.acknowledged(52);
        log.drive(&mut owner, 0, Input::Moved { position: 100, from: 2, to });
        let body = entry(&owner, 100).map(|entry| entry.body);
        assert_eq!(body, Some(if edited { 51 } else { 52 }));
        assert_eq!(log.state().low, 50, "nothing below is named any more");
    }
}

/// MSG-6, DLQ-6: entries that no successor waits for are reported as due when their time comes, once.
#[test]
fn what_is_due_is_told_once() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(eager(1));
    owner.tell_wall(1_000);
    let scheduled = Copied { due_ms: Some(2_000), passes: true, ..copied(&mut owner, 100, 4) };
    let passed = Death {
        key_hash: None,
        due_ms: Some(1_500),
        effect: DeadEffect::Passed,
        ..letter(&mut owner, 101, 5)
    };
    log.drive(&mut owner, 0, Input::Copied { epoch, copies: &[scheduled] });
    let (_, until_ms) =
        log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &[passed] });
    assert!((1..=500).contains(&until_ms), "{until_ms}");
    assert!(owner.view(KEY, 8).is_empty() && owner.view(None, 8).is_empty());
    owner.tell_wall(1_500);
    assert_eq!(log.drive(&mut owner, 500, Input::Tick(500)).0, [Action::Due { keys: vec![None] }]);
    assert_eq!(owner.view(None, 8).asides.len(), 1);
    owner.tell_wall(2_500);
    assert_eq!(log.drive(&mut owner, 1_500, Input::Tick(1_500)).0, [Action::Due { keys: vec![KEY] }]);
    assert_eq!(log.drive(&mut owner, 1_600, Input::Tick(1_600)).0, []);
    assert_eq!(owner.view(KEY, 8).asides.len(), 1);
}

/// DLQ-3: the owner discards expired dead letters by a command; those that wait for a person stay.
#[test]
fn expired_dead_letters_are_discarded_by_a_command() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(eager(1));
    owner.tell_wall(1_000);
    let at = |owner: &mut Owner, position, effect| Death {
        expires_ms: Some(2_000),
        effect,
        ..letter(owner, position, position)
    };
    let dead = [at(&mut owner, 100, DeadEffect::Holding), at(&mut owner, 101, DeadEffect::Halting)];
    log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &dead });
    owner.tell_wall(2_000);
    let (said, _) = log.drive(&mut owner, 1_000, Input::Tick(1_000));
    let expired = |action: &Action| matches!(action, Action::Append { record, .. } if matches!(&**record, Record::Command(command) if command.kind == CommandKind::Expire));
    assert!(expired(&said[0]), "{said:?}");
    let [Effect::Changed(change)] = (match &said[1] {
        Action::Changed { effects } => &effects[..],
        action => panic!("{action:?}"),
    }) else {
        panic!("{said:?}")
    };
    assert_eq!((change.cause, entry(&owner, 100).is_some()), (Cause::Expired, false));
    assert!(entry(&owner, 101).is_some());
    let (said, _) = log.drive(&mut owner, 2_000, Input::Tick(2_000));
    assert!(!said.iter().any(expired), "{said:?}");
}

/// DLQ-7: an owner acts on a command when it reads the command in the journal.
#[test]
fn a_command_is_acted_on_when_it_is_read() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    let dead = [letter(&mut owner, 100, 4)];
    log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &dead });
    log.append(ask(1, CommandKind::Retry, 100));
    assert!(!entry(&owner, 100).expect("dead").is_asked());
    let (said, _) = log.read(&mut owner, 0);
    assert!(matches!(&said[..], [Action::Changed { .. }]), "{said:?}");
    assert!(owner.view(KEY, 8).heads[0].is_asked());
    log.append(ask(2, CommandKind::Skip, 105));
    log.read(&mut owner, 0);
    assert!(owner.is_to_skip(105) && !owner.is_to_skip(104));
}

/// BRK-6, BRK-7: a state that is too large for a record goes into `hold.p` in chunks, which a record names once all are
/// stored; the next owner reads them back. If the chunks are gone the state is lost, and the owner says so.
#[test]
fn a_snapshot_in_chunks_is_named_when_stored_and_read_back() {
    let mut log = Log::default();
    let bounds = Bounds {
        snapshot_after_bytes: 3_000,
        snapshot_bytes_max: 10,
        chunk_bytes_max: 200,
        low_step: 1,
        look_ms: 0,
        ..Bounds::default()
    };
    let (mut owner, epoch) = log.own(Setup { bounds: bounds.clone(), ..setup(1) });
    let dead: Vec<Death> = (0..200).map(|at| letter(&mut owner, 100 + at, at)).collect();
    let (said, _) = log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &dead });
    let chunks = said.into_iter().find_map(|action| match action {
        Action::StoreChunks { storing, chunks } => Some((storing, chunks)),
        _ => None,
    });
    let (storing, chunks) = chunks.expect("it does not fit into a record");
    // Records that are written while the chunks are being stored are not in them.
    log.drive(&mut owner, 0, Input::Finished { epoch, done: &done(&[300..301]), dead: &[] });
    log.drive(&mut owner, 1_000, Input::Tick(1_000));
    let hold: Vec<Bytes> = chunks.collect();
    assert!(hold.len() > 2);
    let positions: Vec<u64> = (0..hold.len() as u64).map(|at| 500 + at).collect();
    let stored = storing.chunks_acknowledged(positions.clone());
    let (said, _) = log.drive(&mut owner, 1_000, Input::ChunksStored(stored));
    assert!(said.iter().any(|action| matches!(action, Action::Cut { .. })), "{said:?}");
    assert!(log.start > 0 && log.records.iter().any(|record| {
        matches!(&**record, Record::Snapshot(snapshot) if snapshot.body == SnapshotBody::Chunks(positions.clone()))
    }));
    assert_eq!(log.state(), *owner.state().expect("it owns"));
    for there in [true, false] {
        let mut log = Log { start: log.start, records: log.records.clone(), committed: None };
        let mut next = Owner::new(Setup { bounds: bounds.clone(), ..setup(2) });
        let mut action = next.step(Input::PredecessorDead(1));
        let (mut asked, mut stopped) = (false, None);
        for _ in 0..400 {
            action = match action {
                Action::ReadChunks { position, chunks } => {
                    asked = true;
                    assert_eq!(chunks, positions);
                    next.step(Input::Chunks { position, chunks: there.then_some(&hold[..]) })
                }
                Action::Read { from } => log.feed(&mut next, from, 2_000),
                Action::Append { record, .. } => {
                    log.records.push(record);
                    next.step(Input::Appended(Appended::At(log.end() - 1)))
                }
                Action::ReadCommit => next.step(Input::Committed(Committed::Unknown)),
                Action::Start { .. } => break,
                Action::Stop(why) => {
                    stopped = why.code();
                    break;
                }
                action => panic!("{action:?}"),
            };
        }
        assert!(asked);
        match there {
            true => {
                let (mut left, mut right) = (log.state(), next.state().expect("it owns").clone());
                assert_eq!(left.entries.len(), 200);
                // Both states were read up to the same record, but only this owner's was read from the chunks.
                (left.claim, right.claim) = (None, None);
                assert_eq!(left, right);
            }
            false => assert_eq!(stopped, Some(ErrorCode::JournalBeginningLost)),
        }
    }
}

/// BRK-6: an owner does not write records at which an older version would stop, where an older version may read.
#[test]
fn nothing_is_held_in_a_journal_of_an_older_format() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(Setup { format: FORMAT_HOLD - 1, ..setup(1) });
    assert!(!owner.state().expect("it owns").can_hold());
    log.append(ask(1, CommandKind::Retry, 100));
    assert_eq!(log.read(&mut owner, 0).0, [], "a command for it is ignored");
    let ignored = Applied::Ignored(keylane_core::journal::Ignored::OlderFormat);
    assert_eq!(keylane_core::apply(&mut log.state(), log.end(), &ask(2, CommandKind::Retry, 100)), ignored);
    let dead = [dead(&mut owner, 100, 4)];
    let (said, _) = log.drive(&mut owner, 0, Input::Finished { epoch, done: &Ranges::new(), dead: &dead });
    assert!(matches!(said.last(), Some(Action::Counted { low: 101, .. })), "{said:?}");
}
