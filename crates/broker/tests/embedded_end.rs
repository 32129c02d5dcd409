//! Tests of logs that lost their end, by a missing or shortened file, and of what newer versions wrote (BRK-1, P10).
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::path::Path;
use std::sync::Arc;

use keylane_broker::embedded::disk::Fault;
use keylane_broker::{Broker, BrokerError, JournalName, LogKind};
use rig::Rig;

const LOGS: [&str; 3] = ["topics/orders", "journals", "holds"];

fn name(kind: LogKind) -> JournalName {
    JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind }
}

/// A rig with `count` entries of 4,000 bytes in each of its three logs.
fn filled(seed: u64, count: usize) -> Rig {
    let mut rig = Rig::new(seed);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    fill(&rig, count);
    rig
}

fn fill(rig: &Rig, count: usize) {
    let broker = Arc::clone(rig.broker());
    for index in 0..count {
        rig.produce("orders", &[(0, &index.to_string(), 4000)]);
        for kind in [LogKind::Journal, LogKind::Hold] {
            let journal = rig.run(broker.journal(&name(kind))).expect("a journal");
            rig.run(journal.append(vec![7; 4000].into(), None)).expect("room");
        }
    }
}

/// Opens the folder and returns why `log` cannot be used, if so. Fails if another log cannot be used.
fn trouble(rig: &mut Rig, log: &str) -> Option<BrokerError> {
    let broker = rig.open().expect("one log that cannot be read keeps no other from starting");
    let asked = [
        rig.run(broker.topic("orders")).err(),
        rig.run(broker.journal(&name(LogKind::Journal))).err(),
        rig.run(broker.journal(&name(LogKind::Hold))).err(),
    ];
    for (other, trouble) in LOGS.iter().zip(&asked) {
        assert!(*other == log || trouble.is_none(), "{other}: {trouble:?}");
    }
    asked.into_iter().flatten().next()
}

/// Like [`trouble`], and fails if the reason is not damage.
fn open_log(rig: &mut Rig, log: &str) -> Option<String> {
    trouble(rig, log).map(|error| match error {
        BrokerError::Damaged(text) => text,
        other => panic!("{log}: {other}"),
    })
}

fn counts(rig: &Rig) -> [u64; 3] {
    let broker = Arc::clone(rig.broker());
    let end = |kind| {
        let journal = rig.run(broker.journal(&name(kind))).expect("a journal");
        rig.run(journal.read(0, 100)).expect("no damage").end
    };
    [rig.ends("orders")[0].end, end(LogKind::Journal), end(LogKind::Hold)]
}

/// P10, BRK-1: the last segment is cut anywhere, after a close or a crash, in each of the logs.
#[test]
fn a_last_segment_that_was_cut_stops_its_log() {
    for log in LOGS {
        for (how, leave) in
            [("close", Rig::close as fn(&mut Rig)), ("kill", Rig::kill), ("cut", Rig::cut_power)]
        {
            let mut rig = filled(1, 9);
            leave(&mut rig);
            let last = rig.segments(log).pop().expect("a segment");
            let whole = rig.disk.contents(&last).expect("a segment");
            for left in [0, 10, 64, 300, whole.len() / 2, whole.len() - 4096, whole.len() - 1] {
                rig.disk.set_contents(&last, whole[..left].to_vec());
                let text = open_log(&mut rig, log).unwrap_or_else(|| panic!("{log}, {how}, {left}: silence"));
                assert!(text.contains(&last.display().to_string()) && text.contains("backup"), "{text}");
                rig.kill();
            }
            rig.disk.set_contents(&last, whole);
            assert_eq!(open_log(&mut rig, log), None, "{log}, {how}: whole again");
            assert_eq!(counts(&rig), [9; 3]);
        }
    }
}

/// P10, BRK-1.
#[test]
fn a_missing_last_segment_stops_its_log() {
    for log in LOGS {
        for leave in [Rig::close as fn(&mut Rig), Rig::kill, Rig::cut_power] {
            let mut rig = filled(2, 40);
            leave(&mut rig);
            let segments = rig.segments(log);
            assert!(segments.len() >= 2, "{segments:?}");
            let last = segments.last().expect("a segment");
            let whole = rig.disk.contents(last).expect("a segment");
            rig.disk.lose(last);
            let text = open_log(&mut rig, log).unwrap_or_else(|| panic!("{log}: silence"));
            assert!(text.contains("missing") && text.contains(&last.display().to_string()), "{text}");
            rig.kill();
            rig.disk.put_file(last, whole);
            assert_eq!(open_log(&mut rig, log), None);
            assert_eq!(counts(&rig), [40; 3]);
        }
    }
}

/// P10, BRK-1: the file `end` is guarded as the log is: missing, damaged or of another log, it stops the log.
#[test]
fn without_its_record_of_the_end_or_with_another_one_a_log_stops() {
    for log in LOGS {
        let mut rig = filled(3, 9);
        rig.close();
        let path = Path::new("data").join(log).join("end");
        let whole = rig.disk.contents(&path).expect("the record");
        rig.disk.lose(&path);
        let text = open_log(&mut rig, log).unwrap_or_else(|| panic!("{log}: silence"));
        assert!(text.contains("end") && text.contains("missing"), "{text}");
        rig.kill();
        for at in 0..whole.len() - 1 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            rig.disk.put_file(&path, flipped);
            assert!(open_log(&mut rig, log).is_some(), "{log}, byte {at}: silence");
            rig.kill();
        }
        let other = LOGS.iter().find(|other| **other != log).expect("three");
        let others = rig.disk.contents(&Path::new("data").join(other).join("end")).expect("the record");
        rig.disk.put_file(&path, others);
        assert!(open_log(&mut rig, log).is_some(), "{log}: another log's record");
        rig.kill();
        rig.disk.put_file(&path, whole);
        assert_eq!(open_log(&mut rig, log), None);
    }
}

/// BRK-1: after a close the last group can no longer be a torn tail.
#[test]
fn after_a_close_an_end_that_was_zeroed_is_damage() {
    for log in LOGS {
        let mut rig = filled(4, 3);
        rig.close();
        let last = rig.segments(log).pop().expect("a segment");
        let mut bytes = rig.disk.contents(&last).expect("a segment");
        let used = bytes.iter().rposition(|byte| *byte != 0).expect("batches") + 1;
        bytes[used - 4000..].fill(0);
        rig.disk.set_contents(&last, bytes);
        assert!(open_log(&mut rig, log).is_some(), "{log}: silence");
    }
}

/// P1, P10: the file `end` is never ahead of the log, wherever the power is cut: while a folder is made, opened,
/// written, rolled and closed.
#[test]
fn a_power_cut_at_any_step_leaves_a_folder_that_opens_with_all_that_was_acknowledged() {
    let run = |rig: &mut Rig, acknowledged: &mut [u64; 3]| -> Option<()> {
        for _ in 0..2 {
            let broker = rig.open().ok()?;
            rig.run(broker.create_topic("orders", &rig::spec(1))).ok()?;
            for index in 0..12 {
                let frames = rig::frames(&[(0, &index.to_string(), 6000)]);
                rig.run(broker.produce("orders", frames)).remove(0).ok()?;
                acknowledged[0] += 1;
                for (at, kind) in [(1, LogKind::Journal), (2, LogKind::Hold)] {
                    let journal = rig.run(broker.journal(&name(kind))).ok()?;
                    rig.run(journal.append(vec![7; 6000].into(), None)).ok()?;
                    acknowledged[at] += 1;
                }
            }
            drop(broker);
            rig.close();
        }
        Some(())
    };
    let mut whole = Rig::new(1);
    run(&mut whole, &mut [0; 3]).expect("nothing fails");
    let steps = whole.disk.operations();
    for step in 0..steps {
        for seed in 0..2 {
            let mut rig = Rig::new(seed);
            rig.disk.stop_after(step);
            let mut acknowledged = [0; 3];
            let ended = run(&mut rig, &mut acknowledged);
            rig.cut_power();
            if let Err(error) = rig.open() {
                panic!("step {step} of {steps}, seed {seed}: {error}");
            }
            rig.create("orders", &rig::spec(1));
            let found = counts(&rig);
            let lost = found.iter().zip(&acknowledged).any(|(found, acknowledged)| found < acknowledged);
            assert!(!lost, "step {step}, seed {seed}: {found:?} of {acknowledged:?}, {ended:?}");
        }
    }
}

/// P1, P10: after a failed sync and a restart the group is read from the cache; it is shown only once it is on the
/// disk.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_written_again_before_it_is_believed() {
    for log in LOGS {
        let mut rig = filled(5, 2);
        rig.disk.fail(Fault::Sync, 1);
        let broker = Arc::clone(rig.broker());
        match log {
            "topics/orders" => {
                let refused =
                    rig.run(broker.produce("orders", rig::frames(&[(0, "doubtful", 100)]))).remove(0);
                assert!(refused.is_err(), "{refused:?}");
            }
            _ => {
                let kind = if log == "holds" { LogKind::Hold } else { LogKind::Journal };
                let journal = rig.run(broker.journal(&name(kind))).expect("a journal");
                assert!(rig.run(journal.append("doubtful".into(), None)).is_err());
            }
        }
        drop(broker);
        // Only the process ends, so the cache still has the group.
        rig.kill();
        rig.open().expect("no damage");
        let found = counts(&rig);
        fill(&rig, 1);
        for _ in 0..3 {
            rig.cut_power();
            rig.open().expect("no damage");
            assert_eq!(counts(&rig), found.map(|count| count + 1), "{log}");
            assert_eq!(rig.read("orders", 0).expect("no damage").len() as u64, found[0] + 1);
        }
    }
}

/// P10: batches and files of a newer version are neither read nor overwritten.
#[test]
fn what_a_newer_version_wrote_stops_with_what_where_and_what_to_do() {
    for log in LOGS {
        let mut rig = filled(6, 3);
        rig.close();
        let last = rig.segments(log).pop().expect("a segment");
        let end = Path::new("data").join(log).join("end");
        let (segment, record) = (contents(&rig, &last), contents(&rig, &end));
        let newest_kind = {
            let mut bytes = segment.clone();
            let behind = bytes.iter().rposition(|byte| *byte != 0).expect("batches") + 1;
            let behind = behind.next_multiple_of(8);
            // A batch of kind 99 in a later group, as a newer version might append it.
            let mut header = [0; 64];
            header[4..8].copy_from_slice(b"KLB1");
            header[8..16].copy_from_slice(&segment[8..16]);
            header[16..24].copy_from_slice(&1000u64.to_le_bytes());
            header[24..28].copy_from_slice(&(behind as u32).to_le_bytes());
            header[60..62].copy_from_slice(&99u16.to_le_bytes());
            let crc = crc32c::crc32c(&header[4..]);
            header[0..4].copy_from_slice(&crc.to_le_bytes());
            bytes[behind..behind + 64].copy_from_slice(&header);
            bytes
        };
        let newer_segment = {
            let mut bytes = segment.clone();
            bytes[7] = b'2';
            let length = u32::from_le_bytes(bytes[52..56].try_into().expect("four")) as usize;
            let crc = crc32c::crc32c(&bytes[4..length]);
            bytes[0..4].copy_from_slice(&crc.to_le_bytes());
            bytes
        };
        let newer_record = {
            let text =
                String::from_utf8(record.clone()).expect("text").replace("keylane log 1", "keylane log 2");
            let body = text.split("crc ").next().expect("a body");
            format!("{body}crc {:08x}\n", crc32c::crc32c(body.as_bytes())).into_bytes()
        };
        for (path, bytes) in [(&last, newest_kind), (&last, newer_segment), (&end, newer_record)] {
            let before = contents(&rig, path);
            rig.disk.set_contents(path, bytes.clone());
            let text = match trouble(&mut rig, log) {
                Some(BrokerError::Newer(text)) => text,
                other => panic!("{log}: {other:?}"),
            };
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert!(text.contains("newer version") && text.contains("start that version"), "{text}");
            rig.kill();
            assert_eq!(contents(&rig, path), bytes, "{log}: nothing was overwritten");
            rig.disk.set_contents(path, before);
        }
        assert_eq!(open_log(&mut rig, log), None);
    }
}

fn contents(rig: &Rig, path: &Path) -> Vec<u8> {
    rig.disk.contents(path).expect("a file")
}
