//! Tests of bytes that are not as the broker wrote them: torn tails, flipped bits, old batches in recycled segments.
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use keylane_broker::embedded::disk::Fault;
use keylane_broker::{Broker, BrokerError, JournalName, LogKind, TopicSpec};
use rig::{Lines, Rig};

/// The offsets of the batches in a segment, found by their magic number.
fn batches(bytes: &[u8]) -> Vec<usize> {
    let starts = (0..bytes.len().saturating_sub(64)).step_by(8);
    starts.filter(|at| &bytes[at + 4..at + 8] == b"KLB1").collect()
}

/// Produces groups of two batches each: one or two messages for each of two partitions.
fn groups(rig: &Rig, count: usize) -> Messages {
    let mut sent = vec![Vec::new(), Vec::new()];
    for group in 0..count {
        let ids = [0, 1, 1].map(|partition| (partition, format!("{group}-{partition}")));
        let messages: Vec<_> = ids.iter().map(|(p, id)| (*p, id.as_str(), 40)).collect();
        let placed = rig.produce("orders", &messages);
        for ((partition, id), position) in ids.into_iter().zip(placed) {
            sent[partition as usize].push((position, id));
        }
    }
    sent
}

fn read(rig: &Rig) -> Result<Messages, BrokerError> {
    Ok(vec![rig.read("orders", 0)?, rig.read("orders", 1)?])
}

/// The messages of each partition, as positions and ids.
type Messages = Vec<Vec<(u64, String)>>;

/// A rig with a few groups in the first segment of a topic, whose process was then killed.
fn written(count: usize) -> (Rig, PathBuf, Vec<u8>, Messages) {
    let mut rig = Rig::new(1);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(2));
    let sent = groups(&rig, count);
    rig.kill();
    let path = rig.segments("topics/orders").remove(0);
    let bytes = rig.disk.contents(&path).expect("a segment");
    assert_eq!(batches(&bytes).len(), 2 * count);
    (rig, path, bytes, sent)
}

/// BRK-1, P1: wherever the last write was torn, everything before it is there, and no damage is reported.
#[test]
fn a_tail_torn_at_any_byte_is_cut_and_everything_before_it_is_kept() {
    let (mut rig, path, bytes, sent) = written(3);
    let starts = batches(&bytes);
    let end = (starts[5]..bytes.len()).rev().find(|at| bytes[*at] != 0).expect("a payload") + 1;
    let whole = |batches: usize| {
        // The batches of a group: one message in partition 0, two messages in partition 1.
        let zero = batches.div_ceil(2);
        vec![sent[0][..zero].to_vec(), sent[1][..2 * (batches / 2)].to_vec()]
    };
    // Each opening renews the file `end`. Before the next tear it is put back as the kill had left it.
    let record = path.with_file_name("end");
    let recorded = rig.disk.contents(&record).expect("a record of the end");
    for torn in starts[4]..end {
        for filler in [0, 0xff] {
            let mut bytes = bytes.clone();
            bytes[torn..end].fill(filler);
            rig.disk.set_contents(&path, bytes.clone());
            rig.disk.set_contents(&record, recorded.clone());
            rig.open().expect("a torn tail is no damage");
            let kept = if torn < starts[5] { 4 } else { 5 };
            let unchanged = bytes[torn..end].iter().all(|byte| *byte == filler)
                && rig.disk.contents(&path) == Some(bytes.clone());
            assert!(unchanged);
            let found = read(&rig).expect("a torn tail is no damage");
            assert!(found == whole(kept) || found == whole(kept + 1), "torn at {torn}: {found:?}");
            rig.kill();
        }
        // Sectors reach the disk in any order: here the end of the write is there, and its beginning is missing.
        let mut late = bytes.clone();
        late[starts[4]..torn].fill(0);
        rig.disk.set_contents(&path, late);
        rig.disk.set_contents(&record, recorded.clone());
        rig.open().expect("a torn tail is no damage");
        let found = read(&rig).expect("a torn tail is no damage");
        assert!(found == whole(if torn == starts[4] { 6 } else { 4 }), "missing up to {torn}");
        rig.kill();
    }
}

/// BRK-1: the log tells the operator once, with file and place, that the last write was incomplete.
#[test]
fn a_tail_that_is_cut_is_logged_once_with_its_place() {
    let (mut rig, path, bytes, _) = written(3);
    let starts = batches(&bytes);
    let mut torn = bytes.clone();
    torn[starts[4]..starts[4] + 8].fill(0);
    rig.disk.set_contents(&path, torn);
    let lines = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
        for _ in 0..2 {
            rig.open().expect("a torn tail is no damage");
            rig.kill();
        }
    });
    let lines = lines.lock().expect("nobody panics");
    let told: Vec<_> = lines.iter().filter(|line| line.contains("was not complete")).collect();
    assert_eq!(told.len(), 1, "{lines:?}");
    for part in ["WARN", &path.display().to_string(), &format!("byte={}", starts[4]), "batches=1"] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }
}

/// BRK-1: batches written behind a cut tail are never mixed with the remains of the tail.
#[test]
fn what_a_power_cut_left_behind_the_tail_does_not_come_back() {
    let (mut rig, path, bytes, sent) = written(3);
    let starts = batches(&bytes);
    let mut torn = bytes.clone();
    torn[starts[4]..starts[4] + 8].fill(0);
    rig.disk.set_contents(&path, torn);
    rig.open().expect("a torn tail");
    // As long as the torn batch, so that the next batch of the old group would follow exactly.
    let placed = rig.produce("orders", &[(0, "2-x", 40)]);
    assert_eq!(placed, [2]);
    let mut want = vec![sent[0][..2].to_vec(), sent[1][..4].to_vec()];
    want[0].push((2, "2-x".to_owned()));
    assert_eq!(batches(&rig.disk.contents(&path).expect("a segment")).len(), 6);
    for _ in 0..2 {
        rig.kill();
        rig.open().expect("nothing is damaged");
        assert_eq!(read(&rig), Ok(want.clone()));
    }
}

/// BRK-1: what a failed group left on the disk never counts as part of the next group.
#[test]
fn what_a_refused_write_left_behind_does_not_come_back() {
    let mut rig = Rig::new(1);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(2));
    rig.disk.fail(Fault::RefusedWrite, 1);
    let broker = Arc::clone(rig.broker());
    let refused = rig.run(broker.produce("orders", rig::frames(&[(0, "a", 40), (1, "b", 40)])));
    assert!(refused.iter().all(Result::is_err), "{refused:?}");
    drop(broker);
    // As long as the first batch of the failed group, so that the second would follow exactly.
    assert_eq!(rig.produce("orders", &[(0, "x", 40)]), [0]);
    for crash in [Rig::kill, Rig::cut_power] {
        crash(&mut rig);
        rig.open().expect("nothing is damaged");
        assert_eq!(read(&rig), Ok(vec![vec![(0, "x".to_owned())], Vec::new()]));
    }
}

/// BRK-1, P10: whichever bit flips, damage before a later group is reported with file and place, and never taken for
/// the end of the log.
#[test]
fn every_flipped_bit_before_the_last_group_is_reported_or_harmless() {
    let (mut rig, path, bytes, sent) = written(3);
    let last_group = batches(&bytes)[4];
    let mut reported = 0;
    for bit in 0..last_group * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        rig.disk.set_contents(&path, flipped);
        rig.open().expect("one damaged topic keeps no other from starting");
        match read(&rig) {
            // The bytes that pad a batch have no meaning.
            Ok(found) => assert_eq!(found, sent, "bit {bit}"),
            Err(BrokerError::Damaged(text)) => {
                assert!(text.contains(&path.display().to_string()) && text.contains("byte"), "{text}");
                assert!(text.contains("backup"), "{text}");
                reported += 1;
            }
            Err(other) => panic!("bit {bit}: {other}"),
        }
        rig.kill();
    }
    assert!(reported > last_group * 8 * 9 / 10, "{reported} of {}", last_group * 8);
}

/// BRK-1: after a clean close no batch can be a torn tail.
#[test]
fn after_a_close_a_flipped_bit_of_the_last_group_is_damage_too() {
    let (mut rig, path, _, sent) = written(2);
    rig.open().expect("all is well");
    rig.close();
    let bytes = rig.disk.contents(&path).expect("a segment");
    let starts = batches(&bytes);
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("batches") + 1;
    for at in starts[3]..end {
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        rig.disk.set_contents(&path, flipped);
        rig.open().expect("one damaged topic keeps no other from starting");
        let found = read(&rig);
        assert!(matches!(&found, Err(BrokerError::Damaged(_))) || found == Ok(sent.clone()), "{at}");
        rig.kill();
    }
}

/// BRK-1: damage in a full segment and a missing segment are reported.
#[test]
fn damage_in_a_closed_segment_and_a_missing_one_are_reported() {
    let mut rig = Rig::new(2);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    for index in 0..60 {
        rig.produce("orders", &[(0, &index.to_string(), 4000)]);
    }
    rig.kill();
    let paths = rig.segments("topics/orders");
    assert!(paths.len() >= 3, "{paths:?}");
    for path in &paths[..2] {
        let bytes = rig.disk.contents(path).expect("a segment");
        let starts = batches(&bytes);
        for at in [0, 20, starts[0] + 20, starts[3] + 200, starts[starts.len() - 1] + 100] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            rig.disk.set_contents(path, flipped);
            rig.open().expect("one damaged topic keeps no other from starting");
            assert!(matches!(rig.read("orders", 0), Err(BrokerError::Damaged(_))), "{at}");
            rig.kill();
        }
        rig.disk.set_contents(path, bytes);
    }
    rig.open().expect("all is well again");
    assert_eq!(rig.read("orders", 0).expect("all is well again").len(), 60);
    rig.kill();
    rig.disk.set_contents(&paths[1], Vec::new());
    rig.open().expect("one damaged topic keeps no other from starting");
    let broker = Arc::clone(rig.broker());
    assert!(matches!(rig.run(broker.topic("orders")), Err(BrokerError::Damaged(_))));
    // A damaged topic is not replaced by a new one.
    assert!(rig.run(broker.create_topic("orders", &rig::spec(1))).is_err());
}

/// BRK-1: a reader finds damage that appears while the broker runs, because it verifies every batch.
#[test]
fn a_bit_that_flips_while_the_broker_runs_is_reported_by_the_reader() {
    let mut rig = Rig::new(3);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    for index in 0..60 {
        rig.produce("orders", &[(0, &index.to_string(), 4000)]);
    }
    let path = rig.segments("topics/orders").remove(0);
    let mut bytes = rig.disk.contents(&path).expect("a segment");
    let third = batches(&bytes)[3];
    bytes[third + 300] ^= 1;
    rig.disk.set_contents(&path, bytes);
    assert!(matches!(rig.read("orders", 0), Err(BrokerError::Damaged(_))));
}

/// BRK-1, BRK-6: an owner learns only from the journals what is settled, so no owner may start on damaged ones.
#[test]
fn a_flipped_bit_in_the_journals_is_reported_at_the_start_or_harmless() {
    let mut rig = Rig::new(4);
    rig.open().expect("an empty disk");
    let name =
        JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind: LogKind::Journal };
    let broker = Arc::clone(rig.broker());
    let journal = rig.run(broker.journal(&name)).expect("a journal");
    for index in 0..5 {
        rig.run(journal.append(format!("record {index}").into(), Some(index))).expect("room");
    }
    rig.run(journal.cut(2)).expect("room");
    rig.run(journal.append("last".into(), None)).expect("room");
    drop((broker, journal));
    rig.kill();
    let path = rig.segments("journals").remove(0);
    let bytes = rig.disk.contents(&path).expect("a segment");
    let last = *batches(&bytes).last().expect("batches");
    for bit in 0..last * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        rig.disk.set_contents(&path, flipped);
        let broker = rig.open().expect("damaged journals keep no topic from starting");
        match rig.run(broker.journal(&name)) {
            Err(BrokerError::Damaged(text)) => assert!(text.contains("journals"), "{text}"),
            Err(other) => panic!("bit {bit}: {other}"),
            Ok(journal) => {
                let page = rig.run(journal.read(0, 10_000)).expect("harmless");
                assert_eq!((page.start, page.end, page.records.len()), (2, 6, 4), "bit {bit}");
            }
        }
        drop(broker);
        rig.kill();
    }
}

/// BRK-1: recycled segments hold old batches with good checksums, which are never read.
#[test]
fn old_batches_in_a_recycled_segment_are_never_read() {
    let mut rig = Rig::new(5);
    rig.open().expect("an empty disk");
    let small = TopicSpec { retention_bytes: Some(256 << 10), ..rig::spec(2) };
    rig.create("orders", &small);
    let mut recycled = 0;
    for round in 0..400 {
        rig.produce("orders", &[(0, &round.to_string(), 900), (1, &round.to_string(), 2000)]);
        let before = rig.ends("orders");
        if round % 10 == 0 {
            match round % 20 {
                0 => rig.kill(),
                _ => rig.cut_power(),
            }
            rig.open().expect("what a crash leaves can be opened");
        }
        assert_eq!(rig.ends("orders"), before);
        for partition in 0..2 {
            let last = rig.read("orders", partition).expect("no damage").pop();
            assert_eq!(last, Some((round, round.to_string())));
        }
        let newest = rig.segments("topics/orders").pop().expect("a segment");
        recycled += usize::from(holds_old_batches(&rig, &newest));
    }
    assert!(recycled > 50, "{recycled}");
    assert!(rig.disk.used() < 1 << 20, "{} bytes are in use", rig.disk.used());
}

fn holds_old_batches(rig: &Rig, path: &Path) -> bool {
    let bytes = rig.disk.contents(path).expect("a segment");
    let generation = &bytes[8..16];
    batches(&bytes).iter().any(|at| &bytes[at + 8..at + 16] != generation)
}

/// BRK-1, P1: after a power cut at any step of freeing, recycling and beginning segments, the log opens.
#[test]
fn a_power_cut_at_any_step_of_recycling_loses_nothing() {
    // Runs until the machine goes off, and returns how many messages were acknowledged.
    let run = |rig: &Rig, rounds: u64| {
        let small = TopicSpec { retention_bytes: Some(256 << 10), ..rig::spec(1) };
        let broker = Arc::clone(rig.broker());
        rig.run(broker.create_topic("orders", &small)).expect("a new topic");
        for round in 0..rounds {
            let frames = rig::frames(&[(0, &round.to_string(), 4000)]);
            if rig.run(broker.produce("orders", frames)).remove(0).is_err() {
                return round;
            }
        }
        rounds
    };
    for seed in 0..4 {
        let mut whole = Rig::new(seed);
        whole.open().expect("an empty disk");
        run(&whole, 100);
        let first = whole.disk.operations();
        run(&whole, 50);
        for step in first..whole.disk.operations() {
            let mut rig = Rig::new(seed);
            rig.disk.stop_after(step);
            rig.open().expect("an empty disk");
            let acknowledged = run(&rig, 200);
            rig.cut_power();
            rig.open().expect("what a power cut leaves can be opened");
            let read = rig.read("orders", 0).expect("nothing is damaged");
            assert!(read.iter().all(|(position, id)| *id == position.to_string()));
            assert!(rig.ends("orders")[0].end >= acknowledged, "seed {seed}, step {step}");
        }
    }
}
