//! Tests of held messages and dead letters: the packed entries compared with a naive map, and snapshots in chunks.

use std::collections::BTreeMap;

use bytes::Bytes;
use keylane_core::journal::{
    Applied, Chunks, Command, CommandKind, DeadEffect, DeadReason, Effect, Epoch, FORMAT, Facts, Fate, Held,
    Moved, NewestClaim, Snapshot, SnapshotBody, apply_telling,
};
use keylane_core::{DeadEntry, Entry, Ranges, Record, State, apply};
use proptest::prelude::*;

const EPOCH: u64 = 3;

fn running() -> State {
    State {
        journal: Some(1),
        claim: Some(NewestClaim {
            id: 1,
            position: 2,
            instance: 1,
            node: String::new(),
            fenced: true,
            format: FORMAT,
        }),
        epoch: Some(Epoch {
            position: EPOCH,
            instance: 1,
            node: String::new(),
            seq: 0,
            released: false,
            format: FORMAT,
        }),
        format: Some(FORMAT),
        started: true,
        ..State::default()
    }
}

fn facts(seq: u64) -> Facts {
    Facts { epoch: EPOCH, seq, ..Facts::default() }
}

fn held(position: u64, key_hash: Option<u64>) -> Held {
    Held {
        position,
        key_hash,
        body: position,
        due_ms: None,
        passes: false,
        judged: true,
        priority: 5,
        tries: 0,
    }
}

fn dead(position: u64, key_hash: Option<u64>, effect: DeadEffect) -> DeadEntry {
    DeadEntry {
        position,
        key_hash,
        effect,
        reason: DeadReason::DownstreamError,
        body: position,
        report: Some(position + 1),
        tries: 4,
        due_ms: None,
        expires_ms: None,
        priority: 5,
        command: None,
    }
}

fn command(id: u128, kind: CommandKind, positions: Ranges) -> Command {
    Command {
        id,
        kind,
        positions,
        as_of: None,
        body: None,
        accept: None,
        partitions: None,
        format: None,
        who: "ops".to_owned(),
        when_ms: 0,
    }
}

/// A hash of a number, scattered as the hashes of keys are.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.rotate_left(31).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// All chunks of a state.
fn chunks_of(state: &State) -> Vec<Bytes> {
    Chunks::of(state.clone(), 5_000, 512).collect()
}

/// What the entries must be, as a plain map.
#[derive(Debug, Clone, Default)]
struct Naive(BTreeMap<u64, Entry>);

impl Naive {
    fn follow(&mut self, effect: Effect) {
        let Effect::Changed(change) = effect else { return };
        let position = change.before.or(change.after).expect("something changed").position;
        assert_eq!(self.0.get(&position).copied(), change.before, "what it was");
        match change.after {
            Some(entry) => self.0.insert(position, entry),
            None => self.0.remove(&position),
        };
    }
}

fn any_step() -> impl Strategy<Value = (u8, u64, u64, u64)> {
    (0u8..12, 0u64..200, 1u64..6, 0u64..4)
}

fn record(step: (u8, u64, u64, u64), seq: u64, id: u128) -> Record {
    let (what, position, length, key) = step;
    let hash = (key > 0).then(|| scattered(key));
    let positions: Ranges = [position..position + length].into_iter().collect();
    let all = |each: &dyn Fn(u64) -> DeadEntry| (position..position + length).map(each).collect();
    let asked = |kind| Record::Command(command(id, kind, positions.clone()));
    match what {
        0 | 1 => {
            let passes = length % 2 == 0;
            let due_ms = passes.then_some(1_000 + position);
            let one = |position| Held { passes, due_ms, ..held(position, hash) };
            Record::Facts(Facts { held: (position..position + length).map(one).collect(), ..facts(seq) })
        }
        2 | 3 => Record::Facts(Facts {
            dead: all(&|position| DeadEntry {
                due_ms: (position % 3 == 0).then_some(2_000 + position),
                expires_ms: Some(3_000 + position),
                command: (position % 2 == 0).then_some(seq),
                ..dead(
                    position,
                    hash,
                    [DeadEffect::Holding, DeadEffect::Passed, DeadEffect::Halting][key as usize % 3],
                )
            }),
            ..facts(seq)
        }),
        4 => Record::Facts(Facts { done: positions, ..facts(seq) }),
        5 => asked(CommandKind::Retry),
        6 => asked(CommandKind::Discard),
        7 => asked(CommandKind::Release),
        8 => Record::Command(Command {
            body: Some(900 + position),
            ..command(id, CommandKind::Edit, positions)
        }),
        9 => asked(CommandKind::Expire),
        10 => asked(CommandKind::Skip),
        _ => Record::Facts(Facts {
            moved: vec![Moved { position, from: position, to: 500 + position }],
            low: Some(position / 2),
            ..facts(seq)
        }),
    }
}

proptest! {
    /// DLQ-5, BRK-6: after any records, entries and indexes are what a naive map says, the reported effects are all
    /// that changed, and a state that went through a snapshot is the same, in one record or in chunks (R).
    #[test]
    fn entries_are_a_map_with_its_indexes(steps in prop::collection::vec(any_step(), 1..120), cut in 0usize..120) {
        let (mut state, mut naive) = (running(), Naive::default());
        let mut seq = 0;
        for (at, step) in steps.into_iter().enumerate() {
            let record = record(step, seq + 1, at as u128);
            let before = state.clone();
            let applied = apply_telling(&mut state, 100 + at as u64, &record, &mut |effect| naive.follow(effect));
            seq = state.epoch.as_ref().map_or(0, |epoch| epoch.seq);
            prop_assert_eq!(applied, Applied::Counted);
            let named = state.lowest_named().unwrap_or(u64::MAX);
            prop_assert!(state.low == before.low || before.low < state.low && state.low <= named);
            if at == cut {
                let body = SnapshotBody::State(Box::new(state.clone()));
                let snapshot = Record::Snapshot(Snapshot { epoch: 0, seq: 0, as_of: 0, body });
                let Ok(Record::Snapshot(read)) = Record::decode(&snapshot.encode()) else { panic!("read back") };
                let SnapshotBody::State(read) = read.body else { panic!("a state") };
                prop_assert_eq!(&*read, &state);
                state = *read;
            }
        }
        let all: Vec<Entry> = naive.0.values().copied().collect();
        prop_assert_eq!(state.entries.iter().collect::<Vec<_>>(), all.clone());
        for entry in &all {
            prop_assert_eq!(state.entries.get(entry.position), Some(*entry));
            prop_assert!(state.settled.contains(entry.position));
        }
        for key in 0..4 {
            let hash = (key > 0).then(|| scattered(key));
            let of_key: Vec<Entry> = all.iter().filter(|entry| entry.key_hash == hash).copied().collect();
            prop_assert_eq!(state.entries.of_key(hash), of_key.clone());
            let stops: Vec<Entry> = of_key.iter().filter(|entry| !entry.is_passed()).copied().collect();
            prop_assert_eq!(state.entries.stopping(hash).collect::<Vec<_>>(), stops);
        }
        let named = all.iter().flat_map(|entry| [Some(entry.body), entry.report]).flatten().min();
        prop_assert_eq!(state.entries.lowest_named(), named);
        let open = all.iter().filter(|entry| entry.is_open()).map(|entry| entry.position).min();
        prop_assert_eq!(state.entries.lowest_open(), open);
        prop_assert_eq!(state.open_low(), open.unwrap_or(u64::MAX).min(state.settled.low()));
        let due: Vec<Entry> = all.iter().copied()
            .filter(|entry| entry.is_passed() && !entry.is_asked() && entry.due_ms.is_some_and(|due| due <= 1_100)).collect();
        prop_assert_eq!(state.entries.due(1_100).collect::<Vec<_>>(), due);
        let ended = all.iter().filter(|entry| {
            !entry.is_asked() && !matches!(entry.fate, Fate::Held { .. } | Fate::Dead { effect: DeadEffect::Halting, .. })
        });
        prop_assert_eq!(state.entries.next_end_ms(), ended.clone().filter_map(|entry| entry.expires_ms).min());
        let chunks = chunks_of(&state);
        prop_assert_eq!(Chunks::read(5_000, &chunks), Ok(state));
    }

    /// Reading a damaged chunk ends with an answer, whatever its bytes are.
    #[test]
    fn damaged_chunks_never_panic(
        steps in prop::collection::vec(any_step(), 1..30), which in any::<u16>(), at in any::<u16>(), value in any::<u8>(),
    ) {
        let mut state = running();
        for (number, step) in steps.into_iter().enumerate() {
            let seq = state.epoch.as_ref().map_or(0, |epoch| epoch.seq) + 1;
            apply(&mut state, 100 + number as u64, &record(step, seq, number as u128));
        }
        let mut chunks = chunks_of(&state);
        let which = usize::from(which) % chunks.len();
        let mut bytes = chunks[which].to_vec();
        let at = usize::from(at) % bytes.len();
        bytes[at] = value;
        chunks[which] = bytes.into();
        if let Ok(read) = Chunks::read(5_000, &chunks) {
            prop_assert!(read.entries.iter().count() == read.entries.len());
        }
    }
}
