//! Tests of operators' commands: every row of the table in docs/protocol.md, and which attempts answer a command.

use keylane_core::journal::{
    Applied, COMMANDS_MAX, Cause, Command, CommandKind, DeadEffect, DeadReason, Effect, Epoch, FORMAT, Facts,
    Fate, Held, Ignored, Refusal, apply_telling,
};
use keylane_core::{DeadEntry, Entry, Ranges, Record, State, apply};

const EPOCH: u64 = 3;
/// The journal position that the state is read up to.
const AT: u64 = 50;

fn facts(state: &State) -> Facts {
    Facts { epoch: EPOCH, seq: state.epoch.as_ref().map_or(0, |epoch| epoch.seq + 1), ..Facts::default() }
}

fn died(position: u64, effect: DeadEffect, command: Option<u64>) -> DeadEntry {
    DeadEntry {
        position,
        key_hash: Some(7),
        effect,
        reason: DeadReason::DownstreamError,
        body: position + 20,
        report: None,
        tries: 4,
        due_ms: None,
        expires_ms: Some(9),
        priority: 5,
        command,
    }
}

fn command(id: u128, kind: CommandKind, position: u64) -> Command {
    Command {
        id,
        kind,
        positions: [position..position + 1].into_iter().collect(),
        as_of: None,
        body: (kind == CommandKind::Edit).then_some(90),
        accept: None,
        partitions: None,
        format: None,
        who: "ops".to_owned(),
        when_ms: 0,
    }
}

/// What one record changed.
fn effects(state: &mut State, at: u64, record: Record) -> (Applied, Vec<Effect>) {
    let mut effects = Vec::new();
    let applied = apply_telling(state, at, &record, &mut |effect| effects.push(effect));
    (applied, effects)
}

/// A state in which 1 is dead and holding, 2 dead and passed, 3 and 4 the same with a retry asked for, 5 held, 6
/// halting, 7 done, and 8 not settled.
fn state() -> State {
    let mut state = State {
        journal: Some(1),
        epoch: Some(Epoch {
            position: EPOCH,
            instance: 1,
            node: String::new(),
            seq: 0,
            released: false,
            format: FORMAT,
        }),
        format: Some(FORMAT),
        low: 10,
        ..State::default()
    };
    use DeadEffect::{Halting, Holding, Passed};
    let dead = [(1, Holding), (2, Passed), (3, Holding), (4, Passed), (6, Halting)];
    let dead = dead.map(|(position, effect)| died(position, effect, None)).to_vec();
    let held = Held {
        position: 5,
        key_hash: Some(7),
        body: 25,
        due_ms: None,
        passes: false,
        judged: false,
        priority: 5,
        tries: 0,
    };
    let done: Ranges = [0..1, 7..8].into_iter().collect();
    let record = Facts { dead, held: vec![held], done, ..facts(&state) };
    apply(&mut state, 40, &Record::Facts(record));
    for position in [3, 4] {
        apply(
            &mut state,
            40 + position,
            &Record::Command(command(position.into(), CommandKind::Retry, position)),
        );
    }
    state
}

/// Effect, whether a retry is asked, and body of a dead letter; `None` if the message is held or has no entry.
fn after(state: &State, position: u64) -> Option<(DeadEffect, bool, u64)> {
    match state.entries.get(position)?.fate {
        Fate::Dead { effect, asked, .. } => Some((effect, asked, state.entries.get(position)?.body)),
        Fate::Held { .. } => None,
    }
}

/// DLQ-5, DLQ-7, DLQ-8: each command does to each entry what the table says, row by row and column by column.
#[test]
fn every_command_does_to_every_state_what_the_table_says() {
    use CommandKind::{Discard, Edit, Expire, Release, Retry, Skip};
    use DeadEffect::{Halting, Holding, Passed};
    let changed = |cause, effect, asked, body| (Some(cause), None, Some((effect, asked, body)));
    let gone = |cause| (Some(cause), None, None);
    let refused = |why, left| (None, Some(why), left);
    let (holding, passed) = (Some((Holding, false, 21)), Some((Passed, false, 22)));
    let (asked, asked_passed) = (Some((Holding, true, 23)), Some((Passed, true, 24)));
    let halting = Some((Halting, false, 26));
    let rows = [
        (Retry, 1, changed(Cause::Asked, Holding, true, 21)),
        (Retry, 2, changed(Cause::Asked, Passed, true, 22)),
        (Retry, 3, changed(Cause::Asked, Holding, true, 23)),
        (Retry, 4, changed(Cause::Asked, Passed, true, 24)),
        (Retry, 5, refused(Refusal::Held, None)),
        (Retry, 6, changed(Cause::Asked, Halting, true, 26)),
        (Discard, 1, gone(Cause::Discarded)),
        (Discard, 2, gone(Cause::Discarded)),
        (Discard, 3, gone(Cause::Discarded)),
        (Discard, 4, gone(Cause::Discarded)),
        (Discard, 5, gone(Cause::Discarded)),
        (Discard, 6, gone(Cause::Discarded)),
        (Release, 1, changed(Cause::Released, Passed, false, 21)),
        (Release, 2, refused(Refusal::NoChange, passed)),
        (Release, 3, changed(Cause::Released, Passed, true, 23)),
        (Release, 4, refused(Refusal::NoChange, asked_passed)),
        (Release, 5, refused(Refusal::Held, None)),
        (Release, 6, changed(Cause::Released, Passed, false, 26)),
        (Edit, 1, changed(Cause::Edited, Holding, true, 90)),
        (Edit, 2, changed(Cause::Edited, Passed, true, 90)),
        (Edit, 3, changed(Cause::Edited, Holding, true, 90)),
        (Edit, 4, changed(Cause::Edited, Passed, true, 90)),
        (Edit, 5, refused(Refusal::Held, None)),
        (Expire, 1, gone(Cause::Expired)),
        (Expire, 2, gone(Cause::Expired)),
        (Expire, 3, refused(Refusal::Wanted, asked)),
        (Expire, 4, refused(Refusal::Wanted, asked_passed)),
        (Expire, 5, refused(Refusal::Held, None)),
        (Expire, 6, refused(Refusal::Wanted, halting)),
        (Skip, 1, refused(Refusal::Dead, holding)),
    ];
    for (kind, position, (cause, why, left)) in rows {
        let mut state = state();
        let (applied, told) = effects(&mut state, AT, Record::Command(command(99, kind, position)));
        assert_eq!(applied, Applied::Counted, "{kind:?} {position}");
        let (mut causes, mut refusals) = (None, None);
        for effect in told {
            match effect {
                Effect::Changed(change) => {
                    causes = Some(change.cause);
                    assert_eq!(change.after, state.entries.get(position), "{kind:?} {position}");
                    assert!(change.after.is_none_or(|entry| entry.changed == AT));
                }
                Effect::Refused { why, .. } => refusals = Some(why),
                Effect::Skip(range) => panic!("{kind:?} {position} {range:?}"),
            }
        }
        assert_eq!((causes, refusals, after(&state, position)), (cause, why, left), "{kind:?} {position}");
        assert!(state.settled.contains(position), "{kind:?} {position}");
    }
    // Messages that are done, discarded or not settled.
    for kind in [Retry, Discard, Release, Edit, Expire] {
        for position in [7, 8] {
            let mut state = state();
            let before = state.clone();
            let (applied, told) = effects(&mut state, AT, Record::Command(command(99, kind, position)));
            assert_eq!((applied, told), (Applied::Counted, Vec::new()), "{kind:?} {position}");
            assert_eq!((&state.entries, &state.settled), (&before.entries, &before.settled));
        }
    }
}

/// DLQ-2: a skip is noted for held and unsettled messages, until each is buried or done.
#[test]
fn skip_notes_what_is_held_or_not_settled() {
    let mut state = state();
    let all = Command { positions: [0..12].into_iter().collect(), ..command(99, CommandKind::Skip, 0) };
    let (_, told) = effects(&mut state, AT, Record::Command(all));
    let noted: Vec<u64> = state.skip.iter().flatten().collect();
    assert_eq!(noted, [5, 8, 9, 10, 11]);
    assert_eq!(told.iter().filter(|effect| matches!(effect, Effect::Skip(_))).count(), 2);
    let skipped = DeadEntry { reason: DeadReason::Skipped, ..died(5, DeadEffect::Passed, None) };
    let done: Ranges = [8..10].into_iter().collect();
    let record = Facts { dead: vec![skipped], done, ..facts(&state) };
    apply(&mut state, AT + 1, &Record::Facts(record));
    assert_eq!(state.skip.iter().flatten().collect::<Vec<_>>(), [10, 11]);
    assert_eq!(state.entries.get(5).and_then(|entry| entry.reason()), Some(DeadReason::Skipped));
    let reset = Record::Facts(Facts { reset: Some(11), ..facts(&state) });
    apply(&mut state, AT + 2, &reset);
    assert_eq!(
        state.skip.iter().flatten().collect::<Vec<_>>(),
        [11],
        "what is skipped by a reset is settled"
    );
}

/// DLQ-7: an attempt answers a retry only if it had seen the newest command, edits included. Whatever the attempt
/// answers, the named body stays.
#[test]
fn only_an_attempt_that_had_seen_the_newest_command_answers() {
    for newest in [CommandKind::Retry, CommandKind::Edit, CommandKind::Release] {
        let mut state = state();
        let seen = state.entries.get(3).and_then(|entry| entry.command());
        assert_eq!(seen, Some(43));
        apply(&mut state, AT, &Record::Command(command(99, newest, 3)));
        let body = state.entries.get(3).map(|entry| entry.body);
        let late = Facts {
            dead: vec![DeadEntry { tries: 5, ..died(3, DeadEffect::Holding, seen) }],
            ..facts(&state)
        };
        let (_, told) = effects(&mut state, AT + 1, Record::Facts(late));
        assert!(
            matches!(&told[..], [Effect::Changed(change)] if change.cause == Cause::FailedUnanswered),
            "{newest:?}"
        );
        let entry = state.entries.get(3).expect("it is dead");
        assert_eq!(
            (entry.is_asked(), entry.command(), Some(entry.body)),
            (true, Some(AT), body),
            "{newest:?}"
        );
        let next = Facts { dead: vec![died(3, DeadEffect::Holding, Some(AT))], ..facts(&state) };
        apply(&mut state, AT + 2, &Record::Facts(next));
        let entry = state.entries.get(3).expect("it is dead");
        assert_eq!((entry.is_asked(), Some(entry.body)), (false, body), "{newest:?}");
        let passed = newest == CommandKind::Release;
        assert_eq!(entry.is_passed(), passed, "what was released stays passed");
    }
    // An attempt that began by itself had seen no command.
    let mut state = state();
    let by_itself = Facts { dead: vec![died(3, DeadEffect::Holding, None)], ..facts(&state) };
    apply(&mut state, AT, &Record::Facts(by_itself));
    assert!(state.entries.get(3).is_some_and(|entry| entry.is_asked()));
}

/// DLQ-10, BRK-6: a command that was sent twice counts once: by its id, and, once the id is forgotten, by its `as_of`.
#[test]
fn a_repeated_command_is_ignored_by_its_id_and_later_by_as_of() {
    let mut state = state();
    let first = Record::Command(Command { as_of: Some(AT), ..command(99, CommandKind::Retry, 1) });
    assert_eq!(apply(&mut state, AT, &first), Applied::Counted);
    assert_eq!(apply(&mut state, AT + 1, &first), Applied::Ignored(Ignored::RepeatedCommand));
    for id in 0..COMMANDS_MAX as u128 {
        apply(&mut state, AT + 2, &Record::Command(command(1_000 + id, CommandKind::Retry, 8)));
    }
    assert_eq!(state.commands.len(), COMMANDS_MAX);
    let (applied, told) = effects(&mut state, AT + 3, first);
    assert_eq!(applied, Applied::Counted);
    assert_eq!(told, [Effect::Refused { position: 1, why: Refusal::ChangedSince }]);
}

/// BRK-6: a body below the counted `low` may be cut away already, so an edit that names it is refused and changes
/// nothing.
#[test]
fn an_edit_below_low_is_refused() {
    let mut state = state();
    for (body, taken) in [(9, false), (10, true)] {
        let edit = Command { body: Some(body), ..command(u128::from(body) + 90, CommandKind::Edit, 1) };
        let (_, told) = effects(&mut state, AT + body, Record::Command(edit));
        assert_eq!(matches!(told[..], [Effect::Changed(_)]), taken, "{told:?}");
        assert_eq!(state.entries.get(1).map(|entry| entry.body == body), Some(taken));
    }
}

/// DLQ-5: a message that was done or discarded never becomes held or dead again, whatever lands late.
#[test]
fn what_is_final_stays_so() {
    let mut state = state();
    apply(&mut state, AT, &Record::Command(command(99, CommandKind::Discard, 3)));
    let late = Held {
        position: 7,
        key_hash: Some(7),
        body: 30,
        due_ms: None,
        passes: false,
        judged: false,
        priority: 5,
        tries: 0,
    };
    let dead = vec![died(3, DeadEffect::Holding, Some(43)), died(7, DeadEffect::Holding, None)];
    let record = Facts { dead, held: vec![late], ..facts(&state) };
    let (applied, told) = effects(&mut state, AT + 1, Record::Facts(record));
    assert_eq!((applied, told), (Applied::Counted, Vec::new()));
    let left: Vec<u64> = state.entries.iter().map(|entry: Entry| entry.position).collect();
    assert_eq!(left, [1, 2, 4, 5, 6]);
}

/// COM-3: a reset unsettles done positions from its position on; held and dead messages stay, wherever they are.
#[test]
fn a_reset_keeps_what_is_held_and_dead() {
    let mut state = state();
    let before = state.entries.clone();
    let reset = Record::Facts(Facts { reset: Some(3), ..facts(&state) });
    apply(&mut state, AT, &reset);
    assert_eq!(state.entries, before);
    let settled: Vec<u64> = (0..10).filter(|position| state.settled.contains(*position)).collect();
    assert_eq!(settled, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!((state.settled.low(), state.open_low()), (7, 1), "BRK-10: what holds counts as not settled");
}
