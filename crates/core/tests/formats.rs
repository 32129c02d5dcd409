//! Journals of other versions: those of the first format are read and continued; fields that a newer version added are
//! skipped where that is allowed, and refused where not.

use keylane_core::journal::{
    Claim, Command, CommandKind, Epoch, FORMAT, FORMAT_FIRST, FORMAT_NEW, Facts, Fence, Malformed,
    NewestClaim, SKIPPABLE, Snapshot, SnapshotBody,
};
use keylane_core::ledger::Settled;
use keylane_core::owner::Bounds;
use keylane_core::{
    Acceptance, Action, Appended, Applied, Committed, Input, Order, Owner, Ranges, Record, RecordError,
    Replay, Setup, Source, State, apply,
};
use proptest::prelude::*;

/// A journal from before formats had numbers, one record a line: two owners, each with a snapshot and a dead letter,
/// and an accepted growth. The owner of that time wrote it; it must never be generated anew.
const FIRST_FORMAT: &str = include_str!("fixtures/first-format.hex");

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

fn first_format() -> Vec<Vec<u8>> {
    FIRST_FORMAT.lines().map(unhex).collect()
}

fn records() -> Vec<Record> {
    first_format().iter().map(|bytes| Record::decode(bytes).expect("it is read for ever")).collect()
}

/// BRK-6: every record of the first format is read, and written again byte for byte.
#[test]
fn a_journal_of_the_first_format_is_read_to_its_end() {
    for (bytes, record) in first_format().iter().zip(records()) {
        assert_eq!(&record.encode_as(FORMAT_FIRST)[..], &bytes[..], "{record:?}");
    }
    let mut replay = Replay::default();
    for (position, record) in (0..).zip(records()) {
        replay.read(position, &record, 1);
    }
    let state = replay.state().expect("nothing was cut");
    assert_eq!(
        (state.settled.low(), state.entries.iter().map(|dead| dead.position).collect::<Vec<_>>()),
        (176, vec![150, 175])
    );
    let epoch = state.epoch.as_ref().expect("it is owned");
    assert_eq!((epoch.position, epoch.node.as_str(), epoch.seq, epoch.released), (13, "node-2", 1, false));
    assert_eq!((state.widened, state.accepted.len(), state.started), (4, 1, true));
    assert_eq!((state.format, state.format(), state.order), (None, FORMAT_FIRST, None));
    assert_eq!(
        (epoch.format, state.claim.as_ref().map(|claim| claim.format)),
        (FORMAT_FIRST, Some(FORMAT_FIRST))
    );
}

/// BRK-6, R: a journal of the first format that was cut is read from either of its snapshots.
#[test]
fn a_snapshot_of_the_first_format_gives_the_same_state() {
    let whole = records().into_iter().zip(0..).fold(State::default(), |mut state, (record, position)| {
        apply(&mut state, position, &record);
        state
    });
    for start in [4, 11] {
        let mut replay = Replay::default();
        for (position, record) in (0..).zip(records()).skip(start) {
            replay.read(position, &record, 1);
        }
        assert_eq!(replay.state(), Some(&whole), "from {start}");
    }
}

/// BRK-6: the next owner continues the journal where it ends, and names format and order in its fence.
#[test]
fn a_journal_of_the_first_format_is_gone_on_with_in_a_numbered_one() {
    let mut journal = first_format();
    let mut owner = Owner::new(Setup {
        instance: 3,
        node: "node-3".to_owned(),
        seed: 3,
        conditional: false,
        source: Source { incarnation: 77, partitions: 4 },
        former: Vec::new(),
        format: FORMAT,
        order: Order::Partition,
        start: 0,
        handler_timeout_ms: 1,
        bounds: Bounds::default(),
    });
    let mut action = owner.step(Input::PredecessorDead(2));
    let epoch = loop {
        action = match action {
            Action::Append { record, .. } => {
                journal.push(owner.encode(&record).to_vec());
                owner.step(Input::Appended(Appended::At(journal.len() as u64 - 1)))
            }
            Action::Read { from } if from < journal.len() as u64 => {
                let bytes = &journal[from as usize];
                let record = owner.decode(bytes).expect("it reads both formats");
                owner.step(Input::Read { position: from, record: &record, bytes: bytes.len() })
            }
            Action::Read { .. } => {
                owner.step(Input::CaughtUp { start: 0, end: journal.len() as u64, now_ms: 0 })
            }
            Action::ReadCommit => owner.step(Input::Committed(Committed::Unknown)),
            Action::Start { epoch } => break epoch,
            other => panic!("{other:?}"),
        };
    };
    let state = owner.state().expect("read");
    assert_eq!((state.settled.low(), state.entries.len(), epoch), (176, 2, 16));
    assert_eq!((state.format, state.order), (Some(FORMAT_NEW), Some(Order::Partition)));
    let facts = Record::Facts(Facts { epoch, seq: 1, ..Facts::default() });
    assert_eq!(owner.encode(&facts)[0], FORMAT_NEW);
}

/// BRK-6: the bytes of newer fields, as today's version writes them. They must never change either.
#[test]
fn the_new_fields_have_their_tags() {
    let hex = |record: &Record| record.encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let claim = Claim { id: 1, instance: 2, node: "n".to_owned(), format: 2 };
    let (one, two) = ("01000000000000000000000000000000", "02000000000000000000000000000000");
    assert_eq!(hex(&Record::Claim(claim)), format!("01020110{one}0210{two}03016e800102"));
    let fence = Fence {
        claim: 1,
        claim_position: 7,
        journal: 2,
        source: Source { incarnation: 1, partitions: 4 },
        format: Some(2),
        order: Some(Order::Partition),
    };
    let plain = format!("01030110{one}0201070310{two}0410{one}050104");
    assert_eq!(hex(&Record::Fence(fence)), format!("{plain}060102070102"));
    assert_eq!(hex(&Record::Command(upgrade(3))), format!("01060110{one}02010c06036f70730701090a0103"));
    let facts = Record::Facts(Facts { epoch: 3, seq: 1, ..Facts::default() });
    assert_eq!(hex(&facts), "0304010103020101");
    assert_eq!(&facts.encode_as(2)[..], unhex("0204010103020101"));
    assert_eq!(&facts.encode_as(1)[..], unhex("0104010103020101"));
    let state = State { format: Some(2), order: Some(Order::None), ..State::default() };
    let body = SnapshotBody::State(Box::new(state));
    let snapshot = Record::Snapshot(Snapshot { epoch: 3, seq: 1, as_of: 9, body });
    assert_eq!(hex(&snapshot), "0305010103020101030109040c0601000901000d01020e0103");
}

fn upgrade(format: u8) -> Command {
    Command {
        id: 1,
        kind: CommandKind::Upgrade,
        positions: Ranges::new(),
        as_of: None,
        body: None,
        accept: None,
        partitions: None,
        format: Some(format),
        who: "ops".to_owned(),
        when_ms: 9,
    }
}

/// BRK-6: an order that this version does not know is refused: it decides which messages wait for which.
#[test]
fn an_unknown_order_is_refused() {
    let fence = records().remove(2).encode();
    for (code, known) in [(1, true), (2, true), (3, true), (4, false), (0, false)] {
        let mut bytes = fence.to_vec();
        bytes.extend_from_slice(&[6, 1, 2, 7, 1, code]);
        assert_eq!(Record::decode(&bytes).is_ok(), known, "{code}");
    }
}

fn any_order() -> impl Strategy<Value = Option<Order>> {
    proptest::sample::select(vec![None, Some(Order::Key), Some(Order::Partition), Some(Order::None)])
}

fn any_source() -> impl Strategy<Value = Source> {
    (any::<u128>(), any::<u32>()).prop_map(|(incarnation, partitions)| Source { incarnation, partitions })
}

fn any_state() -> impl Strategy<Value = State> {
    let claim = (any::<u128>(), any::<u64>(), any::<u128>(), ".{0,9}", any::<bool>(), any::<u8>()).prop_map(
        |(id, position, instance, node, fenced, format)| NewestClaim {
            id,
            position,
            instance,
            node,
            fenced,
            format,
        },
    );
    let epoch = (any::<u64>(), any::<u128>(), ".{0,9}", any::<u64>(), any::<bool>(), any::<u8>()).prop_map(
        |(position, instance, node, seq, released, format)| Epoch {
            position,
            instance,
            node,
            seq,
            released,
            format,
        },
    );
    let option = proptest::option::of::<BoxedStrategy<_>>;
    (
        any::<Option<u128>>(),
        proptest::option::of(claim),
        proptest::option::of(epoch),
        option(any_source().boxed()),
        any::<u64>(),
        any::<u32>(),
        any::<Option<u8>>(),
        any_order(),
    )
        .prop_map(|(journal, claim, epoch, source, low, widened, format, order)| State {
            journal,
            claim,
            epoch,
            source,
            settled: Settled::below(low),
            low,
            widened,
            format,
            order,
            ..State::default()
        })
}

fn any_record() -> impl Strategy<Value = Record> {
    let claim = (any::<u128>(), any::<u128>(), ".{0,9}", any::<u8>())
        .prop_map(|(id, instance, node, format)| Record::Claim(Claim { id, instance, node, format }));
    let fence = (any::<u128>(), any::<u64>(), any::<u128>(), any_source(), any::<Option<u8>>(), any_order())
        .prop_map(|(claim, claim_position, journal, source, format, order)| {
            Record::Fence(Fence { claim, claim_position, journal, source, format, order })
        });
    let snapshot =
        (any::<u64>(), any::<u64>(), any::<u64>(), any_state()).prop_map(|(epoch, seq, as_of, state)| {
            Record::Snapshot(Snapshot { epoch, seq, as_of, body: SnapshotBody::State(Box::new(state)) })
        });
    let command =
        (any::<u128>(), any::<Option<u32>>(), any::<Option<u8>>(), ".{0,9}", any::<u64>(), 0..4usize)
            .prop_map(|(id, partitions, format, who, when_ms, kind)| {
                let kinds =
                    [CommandKind::Upgrade, CommandKind::Widen, CommandKind::Accept, CommandKind::Retry];
                let accept = Acceptance { incarnation: id, from: 1, ends: vec![when_ms; kind] };
                let accept = (kind == 2).then_some(accept);
                Record::Command(Command {
                    id,
                    kind: kinds[kind],
                    partitions,
                    format,
                    who,
                    when_ms,
                    accept,
                    ..upgrade(0)
                })
            });
    let facts = (any::<u64>(), any::<u64>(), any::<Option<u64>>(), any::<bool>()).prop_map(
        |(epoch, seq, low, released)| Record::Facts(Facts { epoch, seq, low, released, ..Facts::default() }),
    );
    let identity = any::<u128>().prop_map(|journal| Record::Identity { journal });
    prop_oneof![claim, fence, snapshot, command, facts, identity]
}

proptest! {
    /// BRK-6: every record with every newer field is read back as it was, in every format.
    #[test]
    fn records_are_read_back_as_they_were(record in any_record(), format in FORMAT_FIRST..=FORMAT) {
        prop_assert_eq!(Record::decode(&record.encode_as(format)), Ok(record));
    }

    /// BRK-6: unknown fields that may be skipped are skipped, whatever their values; the record is what it is without
    /// them.
    #[test]
    fn unknown_fields_from_128_on_are_skipped(
        record in any_record(),
        tags in proptest::collection::btree_set(SKIPPABLE + 1..=255, 1..4),
        value in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = record.encode().to_vec();
        // Under test, a claim of a format ahead of this version ends with a field of its own.
        let last = if matches!(&record, Record::Claim(claim) if claim.format > FORMAT) { 200 } else { SKIPPABLE };
        for tag in tags.into_iter().filter(|tag| *tag > last) {
            bytes.extend_from_slice(&[tag, value.len() as u8]);
            bytes.extend_from_slice(&value);
        }
        prop_assert_eq!(Record::decode(&bytes), Ok(record));
    }

    /// BRK-6: unknown fields with lower tags are refused, whatever their values.
    #[test]
    fn unknown_fields_below_128_are_refused(
        record in any_record(), tag in 20..SKIPPABLE, value in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        // A claim's own format field has a higher tag than the field added here: the record would be refused for its
        // order instead.
        let record = match record {
            Record::Claim(claim) => Record::Claim(Claim { format: FORMAT_FIRST, ..claim }),
            record => record,
        };
        let mut bytes = record.encode().to_vec();
        bytes.extend_from_slice(&[tag, value.len() as u8]);
        bytes.extend_from_slice(&value);
        let unknown = Malformed("a field that this version does not know");
        prop_assert_eq!(Record::decode(&bytes), Err(RecordError::Malformed(unknown)));
    }

    /// Reading and applying a record ends with an answer, whatever bytes follow its format and kind.
    #[test]
    fn bytes_of_any_kind_and_format_never_panic(
        format in 0..=FORMAT + 1, kind in 0u8..8, bytes in proptest::collection::vec(any::<u8>(), 0..120),
        mut state in any_state(),
    ) {
        let mut all = vec![format, kind];
        all.extend_from_slice(&bytes);
        if let Ok(record) = Record::decode(&all) {
            apply(&mut state, 10, &record);
        }
    }

    /// BRK-6: in any state, the format in use never falls, and only an upgrade that counts raises it.
    #[test]
    fn the_format_in_use_never_falls(mut state in any_state(), record in any_record()) {
        let before = state.clone();
        let applied = apply(&mut state, 10, &record);
        match (&record, applied) {
            (Record::Command(command), Applied::Counted) if command.kind == CommandKind::Upgrade => {
                prop_assert!(state.format() > before.format());
                prop_assert_eq!(before.too_old_for(state.format()), None);
            }
            (Record::Fence(_), Applied::Counted) => {
                prop_assert!(before.format.is_none_or(|format| state.format == Some(format)));
            }
            _ => prop_assert_eq!(state.format, before.format),
        }
    }
}
