//! Tests on the simulated disk: full and failing disks, the bounds of topics, and long-lived records of journals.
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use keylane_broker::embedded::disk::Fault;
use keylane_broker::{
    AppendError, Broker, BrokerError, Commit, Ends, Journal, JournalName, LogKind, ProduceError, TopicSpec,
};
use rig::{Rig, frames, poll};

fn journal(rig: &Rig, kind: LogKind, partition: u32) -> Arc<dyn Journal> {
    let name = JournalName { group: "group".into(), topic: "orders".into(), partition, kind };
    let broker = Arc::clone(rig.broker());
    rig.run(broker.journal(&name)).expect("a journal")
}

fn produce(rig: &Rig, id: &str, bytes: usize) -> Result<u64, ProduceError> {
    let broker = Arc::clone(rig.broker());
    rig.run(broker.produce("orders", frames(&[(0, id, bytes)]))).remove(0)
}

fn commit(rig: &Rig, position: u64) {
    let broker = Arc::clone(rig.broker());
    let metadata = Bytes::from_static(b"ours");
    rig.run(broker.commit("group", "orders", 0, Commit { position, metadata })).expect("room");
}

/// P1, P10: a full disk is an error for the producer, loses nothing, and the topic goes on once there is room.
#[test]
fn a_full_disk_refuses_loses_nothing_and_goes_on_when_there_is_room() {
    let mut rig = Rig::new(1);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    rig.disk.set_space(Some(rig.disk.used() + (100 << 10)));
    let mut want = Vec::new();
    let refused = loop {
        match produce(&rig, &want.len().to_string(), 3000) {
            Ok(position) => want.push((position, want.len().to_string())),
            Err(error) => break error,
        }
        assert!(want.len() < 1000, "the disk is full");
    };
    assert!(matches!(refused, ProduceError::Unavailable(_)), "{refused}");
    assert!(want.len() > 10);
    assert!(produce(&rig, "again", 3000).is_err());
    assert_eq!(rig.read("orders", 0), Ok(want.clone()));
    rig.disk.set_space(None);
    for _ in 0..30 {
        let id = want.len().to_string();
        want.push((produce(&rig, &id, 3000).expect("room again"), id));
    }
    for crash in [Rig::kill, Rig::cut_power, Rig::close] {
        assert_eq!(rig.read("orders", 0), Ok(want.clone()));
        crash(&mut rig);
        rig.open().expect("no damage");
    }
}

/// P10: after a failed sync a log stops and never syncs again, because the pages may be gone. The other logs go on.
#[test]
fn a_failed_sync_stops_the_log_and_nothing_is_guessed() {
    let mut rig = Rig::new(2);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    assert_eq!(produce(&rig, "kept", 10), Ok(0));
    rig.disk.fail(Fault::Sync, 1);
    assert!(matches!(produce(&rig, "lost", 10), Err(ProduceError::Unavailable(_))));
    assert!(matches!(produce(&rig, "after", 10), Err(ProduceError::Unavailable(_))));
    let broker = Arc::clone(rig.broker());
    assert_eq!(rig.read("orders", 0), Ok(vec![(0, "kept".to_owned())]));
    let at_the_end = rig.run(broker.reader("orders", 0, 1)).err();
    assert!(matches!(at_the_end, Some(BrokerError::Stopped(_))), "{at_the_end:?}");
    let mut reader = rig.run(broker.reader("orders", 0, 0)).expect("what is durable can be read");
    let mut next = || poll(std::pin::pin!(std::future::poll_fn(|cx| reader.poll_batch(cx, 100))));
    assert!(matches!(next(), Poll::Ready(Ok(_))));
    assert!(matches!(next(), Poll::Ready(Err(BrokerError::Stopped(_)))));
    assert_eq!(rig.run(journal(&rig, LogKind::Journal, 0).append("works".into(), None)), Ok(0));
    drop((broker, reader));
    rig.cut_power();
    rig.open().expect("no damage");
    assert_eq!(rig.read("orders", 0), Ok(vec![(0, "kept".to_owned())]));
    assert_eq!(produce(&rig, "new", 10), Ok(1));
}

/// P10, BRK-6.
#[test]
fn a_failed_sync_of_the_journals_stops_them_and_tells_whoever_waits() {
    let mut rig = Rig::new(3);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    let first = journal(&rig, LogKind::Journal, 0);
    assert_eq!(rig.run(first.append("kept".into(), None)), Ok(0));
    let mut beyond = first.beyond(1);
    assert_eq!(poll(beyond.as_mut()), Poll::Pending);
    rig.disk.fail(Fault::Sync, 1);
    assert!(matches!(rig.run(first.append("lost".into(), None)), Err(AppendError::Unknown(_))));
    assert!(matches!(rig.run(first.append("after".into(), None)), Err(AppendError::Stopped(_))));
    assert!(matches!(rig.run(first.cut(1)), Err(BrokerError::Stopped(_))));
    assert!(matches!(poll(beyond.as_mut()), Poll::Ready(Err(BrokerError::Stopped(_)))));
    let page = rig.run(first.read(0, 100)).expect("what is durable can be read");
    assert_eq!((page.start, page.end, page.records.len()), (0, 1, 1));
    assert_eq!(produce(&rig, "works", 10), Ok(0));
    drop(beyond);
    drop(first);
    rig.cut_power();
    rig.open().expect("no damage");
    let first = journal(&rig, LogKind::Journal, 0);
    assert_eq!(rig.run(first.append("new".into(), Some(1))), Ok(1));
}

fn bounded() -> TopicSpec {
    TopicSpec { retention_bytes: Some(512 << 10), retention_ms: Some(60_000), ..rig::spec(2) }
}

/// BRK-1: messages that a group has not settled are never deleted; at the bound, producing is refused.
#[test]
fn a_topic_full_of_what_a_group_has_not_settled_is_full_until_it_has() {
    let mut rig = Rig::new(4);
    rig.open().expect("an empty disk");
    rig.create("orders", &bounded());
    let broker = Arc::clone(rig.broker());
    // The group joins and commits nothing. It is known all the same, also after a restart.
    drop(rig.run(broker.join("group", "orders", "node")).expect("a topic"));
    drop(broker);
    rig.cut_power();
    rig.open().expect("no damage");
    let mut sent = 0;
    let refused = loop {
        match produce(&rig, &sent.to_string(), 4000) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 1000, "the bound is passed");
    };
    let ProduceError::Full { bytes, bytes_max, .. } = &refused else {
        panic!("{refused}");
    };
    assert_eq!(*bytes_max, 512 << 10);
    assert!(*bytes <= *bytes_max && *bytes > *bytes_max * 9 / 10, "{bytes}");
    rig.now_ms.fetch_add(1_000_000, Ordering::Relaxed);
    rig.broker().commit_once();
    assert_eq!(rig.ends("orders")[0], Ends { start: 0, end: sent });
    commit(&rig, sent / 2);
    assert_eq!(produce(&rig, "room", 4000), Ok(sent));
    let ends = rig.ends("orders")[0];
    assert!(ends.start > 0 && ends.start <= sent / 2, "{ends:?}");
    let read = rig.read("orders", 0).expect("no damage");
    assert_eq!(read.first().map(|(position, _)| *position), Some(ends.start));
    rig.cut_power();
    rig.open().expect("no damage");
    assert_eq!(rig.ends("orders")[0], ends);
    assert_eq!(rig.ends("orders")[1], Ends::default());
}

/// BRK-1: an operator can forget a group, which then holds nothing back.
#[test]
fn a_forgotten_group_keeps_nothing_any_more() {
    let mut rig = Rig::new(5);
    rig.open().expect("an empty disk");
    rig.create("orders", &bounded());
    commit(&rig, 0);
    let full = (0..1000).any(|_| produce(&rig, "x", 4000).is_err());
    assert!(full, "the bound is passed");
    let broker = Arc::clone(rig.broker());
    rig.run(broker.forget_group("group", "orders")).expect("room");
    assert!(produce(&rig, "room", 4000).is_ok());
    drop(broker);
    rig.kill();
    rig.open().expect("no damage");
    let broker = Arc::clone(rig.broker());
    assert_eq!(rig.run(broker.committed("group", "orders", 0)), Ok(None));
    for _ in 0..300 {
        assert!(produce(&rig, "room", 4000).is_ok());
    }
}

/// BRK-1: retention by size and by age deletes whole segments, and positions go on.
#[test]
fn old_segments_go_by_size_and_by_time_and_positions_go_on() {
    let mut rig = Rig::new(6);
    rig.open().expect("an empty disk");
    rig.create("orders", &bounded());
    for index in 0..500 {
        assert_eq!(produce(&rig, &index.to_string(), 4000), Ok(index));
    }
    let ends = rig.ends("orders")[0];
    assert!(ends.start > 300 && ends.end == 500, "{ends:?}");
    assert!(rig.disk.used() < 2 << 20, "{}", rig.disk.used());
    let broker = Arc::clone(rig.broker());
    let below = rig.run(broker.reader("orders", 0, ends.start - 1)).err();
    assert!(matches!(below, Some(BrokerError::OutOfRange { .. })), "{below:?}");
    rig.now_ms.fetch_add(60_001, Ordering::Relaxed);
    broker.commit_once();
    assert_eq!(rig.ends("orders")[0], Ends { start: 500, end: 500 });
    drop(broker);
    for crash in [Rig::kill, Rig::cut_power, Rig::close] {
        crash(&mut rig);
        rig.open().expect("no damage");
        assert_eq!(rig.ends("orders")[0], Ends { start: 500, end: 500 });
    }
    assert_eq!(produce(&rig, "next", 10), Ok(500));
}

/// BRK-6: a long-lived record keeps no space from being freed, and survives every rewrite.
#[test]
fn a_long_lived_record_moves_along_and_keeps_no_space() {
    for kind in [LogKind::Journal, LogKind::Hold] {
        let mut rig = Rig::new(7);
        rig.open().expect("an empty disk");
        let old = journal(&rig, kind, 0);
        let busy = journal(&rig, kind, 1);
        for index in 0..3 {
            assert_eq!(rig.run(old.append(format!("old {index}").into(), None)), Ok(index));
        }
        rig.run(old.cut(1)).expect("room");
        drop((old, busy));
        let mut crashes = [Rig::kill, Rig::cut_power, Rig::close].iter().cycle();
        for round in 0..1000u64 {
            let busy = journal(&rig, kind, 1);
            let record = Bytes::from(vec![b'r'; 2000]);
            assert_eq!(rig.run(busy.append(record, Some(round))), Ok(round));
            rig.run(busy.cut(round)).expect("room");
            rig.broker().commit_once();
            drop(busy);
            if round % 97 == 0 {
                crashes.next().expect("endless")(&mut rig);
                rig.open().expect("no damage");
            }
        }
        let folder = ["journals", "holds"][kind as usize];
        let segments = rig.segments(folder);
        assert!(segments.len() <= 4, "{segments:?}");
        assert!(rig.disk.used() < 1 << 20, "{} bytes are in use", rig.disk.used());
        let page = rig.run(journal(&rig, kind, 0).read(0, 1000)).expect("no damage");
        let records: Vec<_> = page.records.iter().map(|(at, record)| (*at, &record[..])).collect();
        assert_eq!((page.start, page.end), (1, 3));
        assert_eq!(records, [(1, &b"old 1"[..]), (2, &b"old 2"[..])]);
        let page = rig.run(journal(&rig, kind, 1).read(0, 10_000)).expect("no damage");
        assert_eq!((page.start, page.end, page.records.len()), (999, 1000, 1));
    }
}

/// BRK-6: a journal takes records that are larger than a segment.
#[test]
fn a_record_larger_than_a_segment_is_taken() {
    let mut rig = Rig::new(8);
    rig.open().expect("an empty disk");
    let hold = journal(&rig, LogKind::Hold, 0);
    for index in 0..3 {
        let record = Bytes::from(vec![index as u8; 300_000]);
        assert_eq!(rig.run(hold.append(record, None)), Ok(index));
    }
    drop(hold);
    rig.cut_power();
    rig.open().expect("no damage");
    let page = rig.run(journal(&rig, LogKind::Hold, 0).read(1, 1)).expect("no damage");
    assert_eq!(page.records, [(1, Bytes::from(vec![1; 300_000]))]);
}

/// P1: appends to all streams and partitions that wait together cost one write and one sync for each log.
#[test]
fn one_group_commit_serves_all_that_wait() {
    let mut rig = Rig::new(9);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(12));
    let broker = Arc::clone(rig.broker());
    let mut calls: Vec<_> =
        (0..12).map(|partition| broker.produce("orders", frames(&[(partition, "id", 100)]))).collect();
    calls.iter_mut().for_each(|call| assert!(poll(call.as_mut()).is_pending()));
    let before = rig.disk.operations();
    broker.commit_once();
    // One write, one sync.
    assert_eq!(rig.disk.operations() - before, 2);
    for call in &mut calls {
        assert_eq!(poll(call.as_mut()), Poll::Ready(vec![Ok(0)]));
    }
}
