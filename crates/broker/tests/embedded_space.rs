//! Tests of disks that are full, nearly full or read-only: what is refused, what goes on, and who is told (P10,
//! BRK-1, BRK-8).
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use keylane_broker::embedded::OpenError;
use keylane_broker::embedded::disk::Fault;
use keylane_broker::{Broker, BrokerError, Commit, Journal, JournalName, LogKind, ProduceError};
use rig::Rig;

fn journal(rig: &Rig, kind: LogKind) -> Arc<dyn Journal> {
    let name = JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind };
    let broker = Arc::clone(rig.broker());
    rig.run(broker.journal(&name)).expect("a journal")
}

fn produce(rig: &Rig, id: &str) -> Result<u64, ProduceError> {
    let broker = Arc::clone(rig.broker());
    rig.run(broker.produce("orders", rig::frames(&[(0, id, 3000)]))).remove(0)
}

fn health(rig: &Rig) -> Result<(), BrokerError> {
    let broker = Arc::clone(rig.broker());
    rig.run(broker.health())
}

/// A rig whose disk had this many bytes left, and whose topic was then filled until it refused a message.
fn full(seed: u64, left: u64) -> (Rig, u64) {
    let mut rig = Rig::new(seed);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    rig.disk.set_space(Some(rig.disk.used() + left));
    let mut taken = 0;
    while produce(&rig, &taken.to_string()).is_ok() {
        taken += 1;
        assert!(taken < 10_000, "the disk is full");
    }
    (rig, taken)
}

/// BRK-1: if the next segment does not fit on the disk, the log does not try to write it, however long it waits.
#[test]
fn a_nearly_full_disk_is_not_filled_again_and_again() {
    let (rig, _) = full(1, 190 << 10);
    let (operations, used) = (rig.disk.operations(), rig.disk.used());
    for _ in 0..100 {
        rig.now_ms.fetch_add(1000, Ordering::Relaxed);
        rig.broker().commit_once();
        assert_eq!(rig.disk.used(), used);
    }
    assert_eq!(rig.disk.operations(), operations, "nothing is even tried");
}

/// BRK-1: a full disk that does not report it is tried less and less often, and not every second.
#[test]
fn a_disk_that_hides_that_it_is_full_is_tried_less_and_less_often() {
    let mut rig = Rig::new(2);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    for index in 0..15 {
        produce(&rig, &index.to_string()).expect("room");
    }
    rig.broker().commit_once();
    let before = rig.disk.faults_met();
    // The roll uses up the spare that was made before, and the next one cannot be made.
    rig.disk.fail(Fault::ShortWrite, u32::MAX);
    rig.disk.fail_after(Fault::Create, 0, u32::MAX);
    let refused = (0..100).filter(|index| produce(&rig, &index.to_string()).is_err()).count();
    assert!(refused > 50, "{refused}");
    let tried = rig.disk.faults_met() - before;
    for _ in 0..600 {
        rig.now_ms.fetch_add(1000, Ordering::Relaxed);
        rig.broker().commit_once();
    }
    let later = rig.disk.faults_met() - before - tried;
    assert!(later <= 20, "{later} tries in ten minutes");
    rig.disk.heal();
    rig.now_ms.fetch_add(60_000, Ordering::Relaxed);
    produce(&rig, "room").expect("room again");
}

/// P10, BRK-1: topics stop before the journals must, so that settlements can still be recorded.
#[test]
fn a_disk_that_takes_no_message_any_more_still_takes_what_is_settled() {
    let (rig, taken) = full(3, 400 << 10);
    assert!(taken > 20);
    let broker = Arc::clone(rig.broker());
    for kind in [LogKind::Journal, LogKind::Hold] {
        let journal = journal(&rig, kind);
        // More than one segment of either log, with the cuts that owners make.
        for index in 0..60u64 {
            let appended = rig.run(journal.append(vec![7; 2000].into(), None));
            assert_eq!(appended, Ok(index), "{kind:?}");
            rig.run(journal.cut(index)).expect("room");
        }
    }
    let commit = Commit { position: taken, metadata: Bytes::from_static(b"ours") };
    rig.run(broker.commit("group", "orders", 0, commit)).expect("room");
    assert!(produce(&rig, "more").is_err());
}

/// BRK-8: health reports that a full disk refuses messages, why, and when that is over, even if no producer tries.
#[test]
fn health_says_when_a_full_disk_refuses_and_when_it_is_over() {
    let (rig, taken) = full(4, 300 << 10);
    let refused = produce(&rig, "more").expect_err("the disk is full").to_string();
    assert!(refused.contains("left") && refused.contains("needed"), "{refused}");
    for _ in 0..3 {
        let told = health(&rig);
        assert!(matches!(&told, Err(BrokerError::DiskFull(text)) if text.contains("orders")), "{told:?}");
        rig.broker().commit_once();
    }
    rig.disk.set_space(None);
    rig.broker().commit_once();
    assert_eq!(health(&rig), Ok(()));
    assert_eq!(produce(&rig, "more"), Ok(taken));
}

/// BRK-1, P1: a full disk does not prevent a start, because pipelines may make room by settling what is there.
#[test]
fn a_folder_on_a_disk_without_a_byte_left_opens_and_is_read() {
    for leave in [Rig::close as fn(&mut Rig), Rig::kill] {
        let (mut rig, taken) = full(5, 300 << 10);
        leave(&mut rig);
        rig.disk.set_space(Some(rig.disk.used()));
        rig.open().expect("a full disk is no damage");
        assert_eq!(rig.read("orders", 0).expect("no damage").len() as u64, taken);
        let appended = rig.run(journal(&rig, LogKind::Journal).append("settled".into(), None));
        assert_eq!(appended, Ok(0), "the journal's segment has room");
        rig.kill();
        rig.disk.set_space(None);
        rig.open().expect("no damage");
        assert_eq!(produce(&rig, "more"), Ok(taken));
    }
}

/// BRK-1: a new folder is opened on a nearly full disk.
#[test]
fn a_new_folder_without_room_says_so_and_can_be_made_later() {
    let mut rig = Rig::new(6);
    rig.options.journal_segment_bytes = 16 << 20;
    for left in [0, 1000, 1 << 20, (1 << 20) + 50_000] {
        rig.disk.set_space(Some(left));
        // Without room for its journals a folder may take messages, but no pipeline can join.
        let broker = rig.open().expect("a folder");
        let name = JournalName { group: "g".into(), topic: "t".into(), partition: 0, kind: LogKind::Journal };
        let refused = rig.run(broker.journal(&name)).err().expect("no room").to_string();
        drop(broker);
        assert!(refused.contains("bytes left") || refused.contains("no storage space"), "{refused}");
        assert!(refused.contains("cannot make data/"), "{refused}");
        rig.kill();
    }
    rig.disk.set_space(None);
    rig.open().expect("room");
    rig.create("orders", &rig::spec(1));
}

/// BRK-1: the disk becomes read-only, while the broker runs and before it starts.
#[test]
fn a_read_only_disk_says_so_and_loses_nothing() {
    let mut rig = Rig::new(7);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    produce(&rig, "kept").expect("room");
    rig.disk.set_read_only(true);
    assert!(produce(&rig, "refused").is_err());
    let told = health(&rig);
    assert!(matches!(&told, Err(BrokerError::Stopped(text)) if text.contains("read-only")), "{told:?}");
    assert_eq!(rig.read("orders", 0).expect("no damage").len(), 1);
    rig.kill();
    let refused = rig.open().err();
    assert!(
        matches!(&refused, Some(error @ OpenError::Io { .. }) if error.to_string().contains("read-only")),
        "{refused:?}"
    );
    rig.kill();
    rig.disk.set_read_only(false);
    rig.open().expect("no damage");
    assert_eq!(rig.read("orders", 0).expect("no damage").len(), 1);
}

/// P10: producers that come after a log has stopped are told why.
#[test]
fn producers_hear_why_a_log_has_stopped() {
    let mut rig = Rig::new(8);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    rig.disk.fail(Fault::Sync, 1);
    for _ in 0..3 {
        let refused = produce(&rig, "refused").expect_err("it has stopped").to_string();
        assert!(refused.contains("cannot sync data/topics/orders"), "{refused}");
    }
    let told = health(&rig);
    assert!(matches!(&told, Err(BrokerError::Stopped(text)) if text.contains("cannot sync")), "{told:?}");
}

/// P10, BRK-1: a disk so full that not even a file can be renamed does not keep a log from being opened.
#[test]
fn a_log_whose_end_cannot_be_recorded_for_want_of_room_is_opened_all_the_same() {
    for leave in [Rig::close as fn(&mut Rig), Rig::kill] {
        let mut rig = Rig::new(9);
        rig.open().expect("an empty disk");
        rig.create("orders", &rig::spec(1));
        for index in 0..3 {
            assert_eq!(produce(&rig, &index.to_string()), Ok(index));
        }
        leave(&mut rig);
        rig.disk.fail(Fault::Rename, 100);
        let broker = rig.open().expect("a full disk is no damage");
        assert_eq!(rig.run(broker.troubles()), []);
        assert_eq!(rig.read("orders", 0).expect("no damage").len(), 3);
        assert_eq!(produce(&rig, "more"), Ok(3));
        drop(broker);
        rig.kill();
        rig.open().expect("no damage");
        assert_eq!(rig.read("orders", 0).expect("no damage").len(), 4);
    }
}
