//! What a million held messages and a million dead letters cost: memory, a snapshot, a take-over (PRF-18).
//!
//! The test is alone in this file, so that its process's memory is not that of other tests too.

use std::time::Instant;

use bytes::Bytes;
use keylane_core::journal::{
    Applied, Chunks, DeadEffect, DeadReason, Epoch, FORMAT, Facts, Held, NewestClaim, Snapshot, SnapshotBody,
};
use keylane_core::{DeadEntry, Ranges, Record, Replay, State, apply};

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

/// The memory of this process, as the system counts it.
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("tests run on Linux");
    let resident = pages.split(' ').nth(1).expect("the second number");
    resident.parse::<usize>().expect("pages") * 4_096
}

/// A hash of a number, scattered as the hashes of keys are.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.rotate_left(31).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// `each` held messages and as many dead letters, each with its own key, as records bring them.
fn millions(each: u64) -> State {
    let mut state = running();
    let mut seq = 0;
    for start in (0..2 * each).step_by(1_000) {
        seq += 1;
        let mut facts = facts(seq);
        for position in start..start + 1_000 {
            let hash = Some(scattered(position));
            let body = 3 * position;
            if position % 2 == 0 {
                facts.held.push(Held {
                    body,
                    due_ms: Some(1_790_000_000_000 + position),
                    ..held(position, hash)
                });
            } else {
                let due_ms = Some(1_790_000_000_000 + scattered(position) % 3_600_000);
                let expires_ms = Some(1_790_604_800_000 + position * 10);
                let report = Some(body + 1);
                let dead = dead(position, hash, DeadEffect::Holding);
                facts.dead.push(DeadEntry { body, report, due_ms, expires_ms, ..dead });
            }
        }
        assert_eq!(apply(&mut state, 1_000 + seq, &Record::Facts(facts)), Applied::Counted);
    }
    state
}

/// PRF-18, DLQ-12: a million held messages beside a million dead letters take at most 64 bytes of memory each, indexes
/// included, whether records or a snapshot brought them. A copy for a snapshot takes next to nothing until it changes,
/// and a take-over stays far below 5 s.
#[test]
fn a_million_held_and_a_million_dead_letters_take_64_bytes_each() {
    what_is_left_of_many_takes_no_more_each();
    let (began, empty) = (Instant::now(), resident_bytes());
    let state = millions(1_000_000);
    let resident = (resident_bytes() - empty) as f64 / 2e6;
    assert!(resident <= 64.0, "{resident} bytes of memory each, as the system counts them");
    let applied_ms = began.elapsed().as_millis();
    let tally = state.entries.tally();
    assert_eq!((tally.held, tally.dead, tally.holding), (1_000_000, 1_000_000, 1_000_000));
    let each = state.entries.memory_bytes() as f64 / 2e6;
    assert!(each <= 64.0, "{each} bytes each");

    let began = Instant::now();
    let copy = state.clone();
    let copied_us = began.elapsed().as_micros();
    drop(copy);

    let (chunks, longest_us, written_ms) = chunks_of(&state);
    let began = Instant::now();
    let mut replay = Replay::default();
    let as_of = 5_000;
    let snapshot = Snapshot {
        epoch: EPOCH,
        seq: state.epoch.as_ref().map_or(0, |epoch| epoch.seq + 1),
        as_of,
        body: SnapshotBody::Chunks((0..chunks.len() as u64).collect()),
    };
    replay.read(as_of, &Record::Snapshot(snapshot), 100);
    let wanted = replay.wanted().expect("the journal was cut").clone();
    replay.provide(wanted.position, Some(&chunks));
    let taken_ms = began.elapsed().as_millis();
    let read = replay.state().expect("a snapshot that counts");
    assert!(read.entries == state.entries);
    let each_read = read.entries.memory_bytes() as f64 / 2e6;
    assert!(each_read <= 64.0, "{each_read} bytes each after a take-over");
    println!(
        "memory: {each:.1} bytes each ({resident:.1} as the system counts them), {each_read:.1} after a take-over; applied in {applied_ms} ms, copied in \
         {copied_us} us; {} chunks in {written_ms} ms, the longest in {longest_us} us; taken over in {taken_ms} ms",
        chunks.len()
    );
}

/// The chunks of a state, how long the slowest took to make in us, and how long all took in ms.
fn chunks_of(state: &State) -> (Vec<Bytes>, u128, u128) {
    // Made like an owner's: from a copy of the state, one after another.
    let mut chunks = Chunks::of(state.clone(), 5_000, 512 << 10);
    let (mut all, mut longest) = (Vec::new(), 0);
    let began = Instant::now();
    loop {
        let one = Instant::now();
        let Some(chunk) = chunks.next() else { break };
        longest = longest.max(one.elapsed().as_micros());
        assert!(chunk.len() <= (512 << 10) + 100);
        all.push(chunk);
    }
    (all, longest, began.elapsed().as_millis())
}

/// Entries that are left when most of the others, here and there, are done take little memory, too.
fn what_is_left_of_many_takes_no_more_each() {
    let mut state = millions(100_000);
    let mut seq = state.epoch.as_ref().map_or(0, |epoch| epoch.seq);
    for start in (0..200_000u64).step_by(10_000) {
        seq += 1;
        let gone = (start..start + 10_000).filter(|position| !scattered(*position).is_multiple_of(10));
        let done: Ranges = gone.map(|position| position..position + 1).collect();
        apply(&mut state, 5_000 + seq, &Record::Facts(Facts { done, ..facts(seq) }));
    }
    let (left, bytes) = (state.entries.len(), state.entries.memory_bytes());
    assert!((18_000..22_000).contains(&left), "{left}");
    assert!(bytes as f64 / left as f64 <= 80.0, "{} bytes each of {left}", bytes as f64 / left as f64);
}
