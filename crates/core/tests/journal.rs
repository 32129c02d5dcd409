//! Tests of the journal's bytes: bytes that older versions wrote are read, today's bytes are what older readers expect,
//! and no bytes do harm.

#![allow(clippy::single_range_in_vec_init, reason = "a set of one range is a set too")]

use keylane_core::journal::{
    Claim, Command, CommandKind, DeadEffect, DeadEntry, DeadReason, Entry, Epoch, FORMAT, FORMAT_FIRST,
    Facts, Fate, Fence, Held, Ignored, Malformed, Moved, NewestClaim, NotCarriedOut, Snapshot, SnapshotBody,
};
use keylane_core::ledger::Settled;
use keylane_core::{Acceptance, Applied, Ranges, Record, RecordError, Source, State, apply, key_hash};
use proptest::prelude::*;

const ID: u128 = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10;

fn ranges(ranges: &[std::ops::Range<u64>]) -> Ranges {
    ranges.iter().cloned().collect()
}

fn dead(position: u64, effect: DeadEffect) -> DeadEntry {
    DeadEntry {
        position,
        key_hash: Some(0x1122_3344_5566_7788),
        effect,
        reason: DeadReason::Rejected,
        body: 300,
        report: Some(301),
        tries: 2,
        due_ms: Some(1_700_000_000_000),
        expires_ms: None,
        priority: 5,
        command: Some(77),
    }
}

fn accepted() -> Acceptance {
    Acceptance { incarnation: ID, from: 2, ends: vec![300, 0, 7, 1] }
}

fn state() -> State {
    let mut settled = Settled::below(40);
    settled.settle(42..45);
    State {
        journal: Some(ID),
        claim: Some(NewestClaim {
            id: 7,
            position: 9,
            instance: 8,
            node: "b".to_owned(),
            fenced: false,
            format: FORMAT_FIRST,
        }),
        epoch: Some(Epoch { node: "a".to_owned(), seq: 12, released: true, ..running_epoch() }),
        source: Some(Source { incarnation: 5, partitions: 4 }),
        started: true,
        settled,
        entries: [entry_43()].into_iter().collect(),
        low: 200,
        ..State::default()
    }
}

fn entry_43() -> Entry {
    Entry {
        position: 43,
        key_hash: None,
        fate: Fate::Dead { effect: DeadEffect::Passed, reason: DeadReason::Rejected, asked: false },
        body: 300,
        report: Some(301),
        tries: 2,
        due_ms: Some(1_700_000_000_000),
        expires_ms: None,
        priority: 5,
        changed: 77,
    }
}

fn running_epoch() -> Epoch {
    Epoch { position: 3, instance: 6, node: String::new(), seq: 0, released: false, format: FORMAT_FIRST }
}

fn facts() -> Facts {
    Facts {
        epoch: 3,
        seq: 1,
        start: Some(0),
        reset: Some(1_000),
        done: ranges(&[10..20, 22..23, 25..400]),
        held: vec![Held {
            position: 30,
            key_hash: Some(1),
            body: 4,
            due_ms: None,
            passes: true,
            judged: false,
            priority: 3,
            tries: 1,
        }],
        moved: vec![Moved { position: 30, from: 4, to: 400 }],
        dead: vec![dead(41, DeadEffect::Holding), dead(42, DeadEffect::Halting)],
        again: ranges(&[2..3]),
        versions: vec![(9, 10)],
        forgotten: vec![11],
        published: Some(12),
        control: Some(13),
        low: Some(14),
        released: true,
    }
}

fn records() -> Vec<(&'static str, Record, &'static str)> {
    let snapshot = |body| Record::Snapshot(Snapshot { epoch: 3, seq: 13, as_of: 500, body });
    vec![
        ("identity", Record::Identity { journal: ID }, "01010110100f0e0d0c0b0a090807060504030201"),
        (
            "claim",
            Record::Claim(Claim { id: ID, instance: 2, node: "node-1".to_owned(), format: FORMAT_FIRST }),
            concat!(
                "01020110100f0e0d0c0b0a09080706050403020102100200000000000000000000000000000003066e6f64652d",
                "31",
            ),
        ),
        (
            "fence",
            Record::Fence(Fence {
                claim: ID,
                claim_position: 300,
                journal: 3,
                source: Source { incarnation: 4, partitions: 12 },
                format: None,
                order: None,
            }),
            concat!(
                "01030110100f0e0d0c0b0a0908070605040302010202ac02031003000000000000000000000000000000041004",
                "00000000000000000000000000000005010c",
            ),
        ),
        (
            "facts, all fields",
            Record::Facts(facts()),
            concat!(
                "01040101030201010301000402e80705090a8603860092007d3606101e01010000000000000004000100030107",
                "041e049003083829018877665544332211010aac0201ad02020180d095ffbc3105014d2a018877665544332211",
                "020aac0201ad02020180d095ffbc3105014d090202010a0909000000000000000a0b080b000000000000000c01",
                "0c0d010d0e010e0f00",
            ),
        ),
        (
            "facts, plain completions",
            Record::Facts(Facts { epoch: 300, seq: 2, done: ranges(&[7..8]), ..Facts::default() }),
            "01040102ac0202010205020701",
        ),
        (
            "snapshot",
            snapshot(SnapshotBody::State(Box::new(state()))),
            concat!(
                "010501010302010d0302f4030483010110100f0e0d0c0b0a090807060504030201022307000000000000000000",
                "00000000000009080000000000000000000000000000000062031403060000000000000000000000000000000c",
                "016104110500000000000000000000000000000004050006012807022a0308142b00000aac0201ad02020180d0",
                "95ffbc3105014d0902c801",
            ),
        ),
        (
            "snapshot in chunks",
            snapshot(SnapshotBody::Chunks(vec![1, 300])),
            "010501010302010d0302f403050301ac02",
        ),
        (
            "snapshot with accepted partitions",
            snapshot(SnapshotBody::State(Box::new(State {
                accepted: vec![accepted()],
                widened: 6,
                opened: 4,
                ..State::default()
            }))),
            concat!(
                "010501010302010d0302f40304250601000901000a17100f0e0d0c0b0a0908070605040302010204ac02000701",
                "0b01060c0104",
            ),
        ),
        (
            "command to accept partitions",
            Record::Command(Command {
                id: ID,
                kind: CommandKind::Accept,
                positions: ranges(&[]),
                as_of: None,
                body: None,
                accept: Some(accepted()),
                partitions: None,
                format: None,
                who: "ops".to_owned(),
                when_ms: 1_700_000_000_000,
            }),
            concat!(
                "01060110100f0e0d0c0b0a09080706050403020102010906036f7073070680d095ffbc310817100f0e0d0c0b0a",
                "0908070605040302010204ac02000701",
            ),
        ),
        (
            "command to widen",
            Record::Command(Command {
                id: ID,
                kind: CommandKind::Widen,
                positions: ranges(&[]),
                as_of: None,
                body: None,
                accept: None,
                partitions: Some(6),
                format: None,
                who: "ops".to_owned(),
                when_ms: 1_700_000_000_000,
            }),
            "01060110100f0e0d0c0b0a09080706050403020102010a06036f7073070680d095ffbc31090106",
        ),
        (
            "command",
            Record::Command(Command {
                id: ID,
                kind: CommandKind::Edit,
                positions: ranges(&[41..42]),
                as_of: Some(600),
                body: Some(9),
                who: "ops".to_owned(),
                when_ms: 1_700_000_000_000,
                accept: None,
                partitions: None,
                format: None,
            }),
            concat!(
                "01060110100f0e0d0c0b0a090807060504030201020104030229010402d80405010906036f7073070680d095ff",
                "bc31",
            ),
        ),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// BRK-6: a journal outlives the version that wrote it. These bytes must never change; new fields get new tags.
#[test]
fn yesterdays_bytes_are_read_and_written_byte_for_byte() {
    for (name, record, golden) in records() {
        assert_eq!(hex(&record.encode_as(FORMAT_FIRST)), golden, "{name}");
        assert_eq!(Record::decode(&unhex(golden)).as_ref(), Ok(&record), "{name}");
    }
}

/// BRK-6: a version, kind or field that only a newer version knows is an error, and never skipped.
#[test]
fn an_unknown_version_kind_or_field_is_an_error() {
    for (name, record, _) in records() {
        let bytes = record.encode();
        for version in [0, FORMAT + 1, 255] {
            let mut newer = bytes.to_vec();
            newer[0] = version;
            assert_eq!(Record::decode(&newer), Err(RecordError::Version(version)), "{name}");
        }
        let mut newer = bytes.to_vec();
        newer[1] = 99;
        assert_eq!(Record::decode(&newer), Err(RecordError::Kind(99)), "{name}");
        newer = bytes.to_vec();
        newer.extend_from_slice(&[127, 1, 0]);
        let unknown = Malformed("a field that this version does not know");
        assert_eq!(Record::decode(&newer), Err(RecordError::Malformed(unknown)), "{name}");
    }
}

/// A record that is cut off, at whatever length, is never taken for the whole record.
#[test]
fn a_record_that_is_cut_off_is_not_taken_for_a_whole_one() {
    for (name, record, _) in records() {
        let bytes = record.encode();
        for length in 0..bytes.len() {
            assert_ne!(Record::decode(&bytes[..length]).as_ref(), Ok(&record), "{name} at {length}");
        }
    }
}

/// A counting record stops the partition if this version cannot carry it out; one that does not count does not stop it.
/// In a journal of an older format, this version stops wherever nodes of that format would.
#[test]
fn what_is_not_carried_out_stops_the_partition() {
    let running = |format| State { epoch: Some(running_epoch()), format, ..state() };
    let plain = || Facts { epoch: 3, seq: 1, ..Facts::default() };
    let all = facts();
    let never = [
        Facts { again: all.again.clone(), ..plain() },
        Facts { versions: all.versions.clone(), ..plain() },
        Facts { forgotten: all.forgotten.clone(), ..plain() },
        Facts { published: Some(0), ..plain() },
        Facts { control: Some(1), ..plain() },
    ];
    let since_hold = [
        Facts { held: all.held.clone(), ..plain() },
        Facts { moved: all.moved.clone(), ..plain() },
        Facts { dead: vec![dead(50, DeadEffect::Holding)], ..plain() },
        Facts { dead: vec![dead(50, DeadEffect::Halting)], ..plain() },
    ];
    let stops = |format, record: &Record| matches!(apply(&mut running(format), 10, record), Applied::Stop(_));
    for (facts, carried_out) in
        never.map(|facts| (facts, false)).into_iter().chain(since_hold.map(|facts| (facts, true)))
    {
        let stale = Record::Facts(Facts { epoch: 2, ..facts.clone() });
        assert_eq!(apply(&mut running(Some(2)), 10, &stale), Applied::Ignored(Ignored::OtherEpoch));
        let record = Record::Facts(facts);
        assert!(stops(None, &record) && stops(Some(2), &record), "{record:?}");
        assert_eq!(stops(Some(FORMAT), &record), !carried_out, "{record:?}");
    }
    let now = Facts { control: Some(0), low: Some(9), dead: vec![dead(50, DeadEffect::Passed)], ..plain() };
    assert_eq!(apply(&mut running(None), 10, &Record::Facts(now)), Applied::Counted);
    let chunks = Snapshot { epoch: 3, seq: 1, as_of: 9, body: SnapshotBody::Chunks(vec![1]) };
    let chunks = Record::Snapshot(chunks);
    assert!(stops(Some(2), &chunks) && !stops(Some(FORMAT), &chunks));
    let (_, Record::Command(command), _) = records().pop().expect("the last one") else {
        panic!("a command")
    };
    let retry = Record::Command(command.clone());
    assert_eq!(apply(&mut running(Some(2)), 10, &retry), Applied::Ignored(Ignored::OlderFormat));
    assert_eq!(apply(&mut running(Some(FORMAT)), 10, &retry), Applied::Counted);
    let suspect = Record::Command(Command { kind: CommandKind::Suspect, ..command });
    assert_eq!(apply(&mut running(Some(FORMAT)), 10, &suspect), Applied::Stop(NotCarriedOut("a command")));
}

/// COM-3: a reset settles every position below it, and unsettles all from it on except dead letters.
#[test]
fn a_reset_keeps_dead_letters_and_nothing_else() {
    let mut state = state();
    state.epoch = Some(running_epoch());
    let reset = Record::Facts(Facts { epoch: 3, seq: 1, reset: Some(41), ..Facts::default() });
    assert_eq!(apply(&mut state, 10, &reset), Applied::Counted);
    let settled: Vec<u64> = (38..50).filter(|position| state.settled.contains(*position)).collect();
    assert_eq!((settled, state.settled.low()), (vec![38, 39, 40, 43], 41));
    assert_eq!(state.entries.len(), 1);
}

/// BRK-6: `low` never rises above what the state names, so `hold.p` is never cut there.
#[test]
fn low_is_capped_by_what_the_state_names_and_never_falls() {
    let mut state = state();
    state.epoch = Some(running_epoch());
    for (seq, low, want) in [(1, 250, 250), (2, 10_000, 300), (3, 20, 300)] {
        let facts = Record::Facts(Facts { epoch: 3, seq, low: Some(low), ..Facts::default() });
        assert_eq!(apply(&mut state, 10, &facts), Applied::Counted);
        assert_eq!(state.low, want);
    }
}

/// The reference vector of SipHash-2-4: the key is the bytes 0 to 15, the input the bytes 0 to 14.
#[test]
fn the_key_hash_is_siphash_2_4_keyed_with_the_journal_id() {
    let journal = u128::from_le_bytes(std::array::from_fn(|at| at as u8));
    let key: Vec<u8> = (0..15).collect();
    assert_eq!(key_hash(journal, &key), 0xa129_ca61_49be_45e5);
}

fn entry(dead: &DeadEntry) -> Entry {
    Entry {
        position: dead.position,
        key_hash: dead.key_hash,
        fate: Fate::Dead { effect: dead.effect, reason: dead.reason, asked: dead.tries % 2 == 1 },
        body: dead.body,
        report: dead.report,
        tries: dead.tries,
        due_ms: dead.due_ms,
        expires_ms: dead.expires_ms,
        priority: dead.priority,
        changed: dead.body / 3,
    }
}

fn any_ranges() -> impl Strategy<Value = Ranges> {
    proptest::collection::vec((0u64..2_000, 1u64..9), 0..20)
        .prop_map(|ranges| ranges.into_iter().map(|(start, length)| start..start + length).collect())
}

fn any_dead() -> impl Strategy<Value = DeadEntry> {
    (
        any::<u64>(),
        any::<Option<u64>>(),
        any::<u64>(),
        any::<Option<u64>>(),
        any::<u32>(),
        any::<Option<u64>>(),
    )
        .prop_map(|(position, key_hash, body, report, tries, due_ms)| DeadEntry {
            position,
            key_hash,
            body,
            report,
            tries,
            due_ms,
            expires_ms: due_ms.map(|due_ms| due_ms ^ 77),
            priority: tries as u8,
            ..dead(0, [DeadEffect::Passed, DeadEffect::Holding, DeadEffect::Halting][tries as usize % 3])
        })
}

proptest! {
    /// BRK-6: facts are read as they were written.
    #[test]
    fn facts_are_read_back_as_they_were(
        epoch in any::<u64>(), seq in any::<u64>(), start in any::<Option<u64>>(), done in any_ranges(),
        dead in proptest::collection::vec(any_dead(), 0..5), low in any::<Option<u64>>(), released in any::<bool>(),
    ) {
        let record = Record::Facts(Facts { epoch, seq, start, done, dead, low, released, ..Facts::default() });
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
    }

    /// BRK-6: a state in a snapshot is read as it was written.
    #[test]
    fn a_snapshot_is_read_back_as_it_was(
        low in 0u64..100, above in any_ranges(), dead in proptest::collection::vec(any_dead(), 0..5), node in ".{0,9}",
    ) {
        let mut settled = Settled::below(low);
        above.iter().for_each(|range| settled.settle(range));
        let mut state = state();
        state.settled = settled;
        state.entries = dead.into_iter().map(|dead| entry(&dead)).collect();
        state.format = Some(FORMAT);
        state.claim.as_mut().expect("there is one").node = node;
        let body = SnapshotBody::State(Box::new(state));
        let record = Record::Snapshot(Snapshot { epoch: 1, seq: 2, as_of: 3, body });
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
    }

    /// Reading any bytes ends with an answer, and so does applying the record that was read.
    #[test]
    fn bytes_from_anywhere_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        decode_and_apply(&bytes);
    }

    /// The same for records with a few damaged bytes.
    #[test]
    fn damaged_records_never_panic(
        which in 0usize..8, damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = records()[which].1.encode().to_vec();
        for (at, value) in damage {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        decode_and_apply(&bytes);
    }
}

fn decode_and_apply(bytes: &[u8]) {
    if let Ok(record) = Record::decode(bytes) {
        assert_eq!(Record::decode(&record.encode()), Ok(record.clone()));
        let mut state = state();
        if let (Some(epoch), Record::Facts(facts)) = (&mut state.epoch, &record) {
            (epoch.position, epoch.seq, epoch.released) = (facts.epoch, facts.seq.wrapping_sub(1), false);
        }
        apply(&mut state, 10, &record);
    }
}
