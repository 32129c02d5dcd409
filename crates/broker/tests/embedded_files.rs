//! Tests of the embedded broker on real files: restarts, positions, topics, journals, commits, groups, reading.
#![allow(missing_docs, clippy::unwrap_used, clippy::field_reassign_with_default)]

use std::path::Path;

use bytes::Bytes;
use keylane_broker::embedded::{Embedded, OpenError, Options};
use keylane_broker::{
    AppendError, Broker, BrokerError, Change, Commit, Ends, JournalName, LogKind, ProduceError, Reader,
    TopicSpec,
};
use keylane_core::{Draft, Frames};

fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, Options::default()).expect("a folder of its own")
}

fn frames(messages: &[(u32, &str)]) -> Frames {
    let mut frames = Frames::default();
    for (partition, id) in messages {
        let draft = Draft { id, payload: Some(b"payload"), ..Draft::default() };
        frames.push(*partition, &draft).expect("a small message");
    }
    frames
}

fn spec(partitions: u32) -> TopicSpec {
    TopicSpec { partitions, ..TopicSpec::default() }
}

async fn next(reader: &mut dyn Reader, bytes_max: usize) -> Result<Vec<(u64, String)>, BrokerError> {
    let batch = std::future::poll_fn(|cx| reader.poll_batch(cx, bytes_max)).await?;
    let deliveries = batch.cursor(0).map(|delivery| delivery.expect("a good frame"));
    let read: Vec<_> = deliveries.map(|delivery| (delivery.position(), delivery.id().to_owned())).collect();
    assert_eq!(read.len() as u32, batch.count);
    Ok(read)
}

async fn read_all(broker: &Embedded, topic: &str, partition: u32, bytes_max: usize) -> Vec<(u64, String)> {
    let ends = broker.ends(topic).await.unwrap()[partition as usize];
    let mut reader = broker.reader(topic, partition, ends.start).await.unwrap();
    let mut read = Vec::new();
    while read.last().map_or(ends.start, |(position, _): &(u64, String)| position + 1) < ends.end {
        read.extend(next(&mut *reader, bytes_max).await.unwrap());
    }
    read
}

fn journal_name(kind: LogKind) -> JournalName {
    JournalName { group: "group".into(), topic: "orders".into(), partition: 3, kind }
}

/// BRK-1, BRK-5, MSG-3.
#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart_and_positions_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    let made = broker.create_topic("orders", &spec(3)).await.unwrap();
    let placed = broker.produce("orders", frames(&[(0, "a"), (2, "b"), (0, "c")])).await;
    assert_eq!(placed, [Ok(0), Ok(0), Ok(1)]);
    drop(broker);

    let broker = open(dir.path());
    assert_eq!(broker.topic("orders").await.unwrap(), Some(made));
    assert_eq!(read_all(&broker, "orders", 0, 1000).await, [(0, "a".into()), (1, "c".into())]);
    assert_eq!(broker.produce("orders", frames(&[(0, "d"), (1, "e")])).await, [Ok(2), Ok(0)]);
    assert_eq!(
        broker.ends("orders").await.unwrap(),
        [(0, 3), (0, 1), (0, 1)].map(|(start, end)| Ends { start, end })
    );
    for bytes_max in [1, 60, 1000] {
        let ids: Vec<_> = read_all(&broker, "orders", 0, bytes_max).await;
        assert_eq!(ids, [(0, "a".into()), (1, "c".into()), (2, "d".into())], "{bytes_max}");
    }
}

/// BPR-2: a reader at the end of the log is woken once more messages are durable.
#[tokio::test]
async fn a_reader_at_the_end_gets_what_comes_later() {
    let dir = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    broker.create_topic("orders", &spec(1)).await.unwrap();
    let mut reader = broker.reader("orders", 0, 0).await.unwrap();
    let (read, placed) =
        tokio::join!(next(&mut *reader, 1000), broker.produce("orders", frames(&[(0, "late")])));
    assert_eq!((read.unwrap(), placed), (vec![(0, "late".into())], vec![Ok(0)]));
    broker.close();
    assert_eq!(next(&mut *reader, 1000).await, Err(BrokerError::Closed));
}

/// BRK-10: a reader never silently begins at another position than the one asked for.
#[tokio::test]
async fn a_position_outside_of_the_log_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    broker.create_topic("orders", &spec(1)).await.unwrap();
    broker.produce("orders", frames(&[(0, "a")])).await;
    assert!(broker.reader("orders", 0, 1).await.is_ok());
    let refused = broker.reader("orders", 0, 2).await.err();
    assert_eq!(
        refused,
        Some(BrokerError::OutOfRange { topic: "orders".into(), partition: 0, position: 2, start: 0, end: 1 })
    );
}

/// BRK-10: another number of partitions would move keys.
#[tokio::test]
async fn a_topic_keeps_its_partitions_and_its_identity() {
    let dir = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    let made = broker.create_topic("orders", &spec(3)).await.unwrap();
    assert_eq!(broker.create_topic("orders", &spec(3)).await.unwrap(), made);
    let other = broker.create_topic("orders", &spec(4)).await;
    assert_eq!(other, Err(BrokerError::Partitions { topic: "orders".into(), there: 3, asked: 4 }));
    for name in ["", ".", "..", "a/b", "ü", &"x".repeat(256)] {
        let refused = broker.create_topic(name, &spec(1)).await;
        assert!(matches!(refused, Err(BrokerError::Invalid(_))), "{name}");
    }
    broker.create_topic(&"x".repeat(255), &spec(1)).await.expect("a name of 255 bytes is taken");
    assert_eq!(
        broker.produce("nothing", frames(&[(0, "a")])).await,
        [Err(ProduceError::UnknownTopic("nothing".into()))]
    );
}

/// BRK-1: one process at a time can use a folder.
#[tokio::test]
async fn a_folder_in_use_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    let second = Embedded::open(dir.path(), Options::default()).err().unwrap();
    assert!(matches!(&second, OpenError::Locked(path) if path == dir.path()));
    assert!(second.to_string().contains(&dir.path().display().to_string()));
    broker.close();
    open(dir.path());
}

/// BRK-6, BRK-7.
#[tokio::test]
async fn a_journal_appends_on_condition_cuts_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [LogKind::Journal, LogKind::Hold] {
        let broker = open(dir.path());
        let journal = broker.journal(&journal_name(kind)).await.unwrap();
        assert!(journal.conditional());
        assert_eq!(journal.append("zero".into(), None).await, Ok(0));
        assert_eq!(journal.append("one".into(), Some(1)).await, Ok(1));
        let moved = journal.append("never".into(), Some(1)).await;
        assert_eq!(moved, Err(AppendError::Moved { end: 2 }));
        let (beyond, appended) = tokio::join!(journal.beyond(2), journal.append("two".into(), None));
        assert_eq!((beyond, appended), (Ok(()), Ok(2)));
        journal.cut(1).await.unwrap();
        drop(broker);

        let broker = open(dir.path());
        let journal = broker.journal(&journal_name(kind)).await.unwrap();
        let page = journal.read(0, 1000).await.unwrap();
        assert_eq!((page.start, page.end), (1, 3));
        let two = Bytes::from_static(b"two");
        assert_eq!(page.records, [(1, "one".into()), (2, two)]);
        assert_eq!(journal.read(3, 1000).await.unwrap().records, []);
        journal.cut(1000).await.unwrap();
        let page = journal.read(0, 1000).await.unwrap();
        assert_eq!((page.start, page.end, page.records.len()), (3, 3, 0));
        assert_eq!(journal.append("three".into(), Some(3)).await, Ok(3));
    }
}

/// COM-3.
#[tokio::test]
async fn a_commit_survives_a_restart_with_its_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    broker.create_topic("orders", &spec(2)).await.unwrap();
    assert_eq!(broker.committed("group", "orders", 1).await, Ok(None));
    for position in [3, 7] {
        let metadata = Bytes::from_static(b"whose");
        let commit = Commit { position, metadata };
        broker.commit("group", "orders", 1, commit).await.unwrap();
    }
    drop(broker);
    let broker = open(dir.path());
    let commit = broker.committed("group", "orders", 1).await.unwrap().unwrap();
    assert_eq!((commit.position, &commit.metadata[..]), (7, &b"whose"[..]));
    assert_eq!(broker.committed("group", "orders", 0).await, Ok(None));
}

/// BRK-7: the folder's lock proves that every other process in the group is dead.
#[tokio::test]
async fn a_member_gets_all_partitions_once_and_proves_others_dead() {
    let dir = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    broker.create_topic("orders", &spec(2)).await.unwrap();
    let mut member = broker.join("group", "orders", "node").await.unwrap();
    assert!(broker.join("group", "orders", "node").await.is_err());
    assert_eq!(member.changed().await, Ok(Change::Assigned(0)));
    assert_eq!(member.changed().await, Ok(Change::Assigned(1)));
    assert_eq!(member.confirm(1).await, Ok(true));
    let instance = member.instance();
    assert!(!member.proves_dead(instance) && member.proves_dead(instance ^ 1));
    member.leave().await;
    assert!(broker.join("group", "orders", "node").await.is_ok());
    broker.close();
    assert_eq!(member.changed().await, Err(BrokerError::Closed));
}

/// BRK-5: each message has a result of its own.
#[tokio::test]
async fn one_message_too_large_does_not_spoil_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    let small = TopicSpec { message_bytes_max: 100, ..spec(1) };
    broker.create_topic("orders", &small).await.unwrap();
    let long = "x".repeat(100);
    let placed = broker.produce("orders", frames(&[(0, "a"), (0, &long), (0, "b"), (9, "c")])).await;
    assert_eq!((placed[0].clone(), placed[2].clone()), (Ok(0), Ok(1)));
    assert!(matches!(placed[1], Err(ProduceError::TooLarge { bytes_max: 100, .. })));
    assert!(placed[3].is_err());
}

/// BRK-1: a reader far behind the end reads what was written: from the disk, and across segments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_read_back_across_segments_from_disk_and_from_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.segment_bytes = 256 << 10;
    options.tail_bytes = 64 << 10;
    let broker = Embedded::open(dir.path(), options.clone()).unwrap();
    broker.create_topic("orders", &spec(3)).await.unwrap();
    let mut want = vec![Vec::new(); 3];
    for round in 0..200 {
        let names: Vec<_> = (0..60).map(|index| (index % 3, format!("{round}-{index}"))).collect();
        let borrowed: Vec<_> = names.iter().map(|(partition, id)| (*partition, id.as_str())).collect();
        let placed = broker.produce("orders", frames(&borrowed)).await;
        for ((partition, id), position) in names.into_iter().zip(placed) {
            want[partition as usize].push((position.unwrap(), id));
        }
    }
    for partition in 0..3 {
        assert_eq!(read_all(&broker, "orders", partition, 5000).await, want[partition as usize]);
    }
    drop(broker);
    let broker = Embedded::open(dir.path(), options).unwrap();
    for partition in 0..3 {
        assert_eq!(read_all(&broker, "orders", partition, 1 << 20).await, want[partition as usize]);
    }
}
