//! A data folder on the machine's own disk, and what operators and accidents do to one.
#![allow(unused, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)]

use std::path::{Path, PathBuf};

use keylane_broker::embedded::data::{Damage, Report, check, repair};
use keylane_broker::embedded::{Embedded, Options};
use keylane_broker::{Broker, BrokerError, Commit, JournalName, LogKind, TopicSpec};
use keylane_core::{Draft, Frames};

pub const PARTITIONS: u32 = 3;

pub fn options() -> Options {
    let mut options = Options::default();
    options.segment_bytes = 64 << 10;
    options.journal_segment_bytes = 64 << 10;
    options.tail_bytes = 0;
    options
}

pub fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, options()).unwrap()
}

pub fn found(dir: &Path) -> Report {
    check(dir, &options()).unwrap()
}

pub fn frame(partition: u32, id: &str, bytes: usize) -> Frames {
    let (mut frames, payload) = (Frames::default(), vec![b'p'; bytes]);
    let draft = Draft { id, payload: Some(&payload), ..Draft::default() };
    frames.push(partition, &draft).expect("a small message");
    frames
}

pub async fn produce(broker: &Embedded, partition: u32, id: &str, bytes: usize) -> u64 {
    broker.produce("orders", frame(partition, id, bytes)).await.remove(0).unwrap()
}

/// What can be read of a partition: positions and ids.
pub async fn read(broker: &Embedded, partition: u32) -> Result<Vec<(u64, String)>, BrokerError> {
    let ends = broker.ends("orders").await?[partition as usize];
    let mut reader = broker.reader("orders", partition, ends.start).await?;
    let (mut read, mut at) = (Vec::new(), ends.start);
    while at < ends.end {
        let batch = std::future::poll_fn(|cx| reader.poll_batch(cx, 1 << 20)).await?;
        let deliveries = batch.cursor(0).map(|delivery| delivery.expect("a good frame"));
        read.extend(deliveries.map(|delivery| (delivery.position(), delivery.id().to_owned())));
        at = batch.next;
    }
    Ok(read)
}

pub fn name_of(group: &str, kind: LogKind) -> JournalName {
    JournalName { group: group.into(), topic: "orders".into(), partition: 0, kind }
}

/// A topic with `rounds` batches in each partition, one at a time, and two groups with journals.
pub async fn filled(dir: &Path, rounds: u64, bytes: usize) -> Vec<Vec<(u64, String)>> {
    fill(&open(dir), rounds, bytes).await
}

/// The same, as a kill leaves it: nobody has closed it.
pub async fn filled_and_killed(dir: &Path, rounds: u64, bytes: usize) -> Vec<Vec<(u64, String)>> {
    let running = tempfile::tempdir().unwrap();
    let broker = open(running.path());
    let sent = fill(&broker, rounds, bytes).await;
    copy_folder(running.path(), dir);
    sent
}

/// Makes the topic and the groups, and fills them.
pub async fn fill(broker: &Embedded, rounds: u64, bytes: usize) -> Vec<Vec<(u64, String)>> {
    broker
        .create_topic("orders", &TopicSpec { partitions: PARTITIONS, ..TopicSpec::default() })
        .await
        .unwrap();
    let mut sent = vec![Vec::new(); PARTITIONS as usize];
    for round in 0..rounds {
        for partition in 0..PARTITIONS {
            let id = format!("{round}-{partition}");
            let position = produce(broker, partition, &id, bytes).await;
            sent[partition as usize].push((position, id));
        }
    }
    for group in ["one", "two"] {
        drop(broker.join(group, "orders", "node").await.unwrap());
        for kind in [LogKind::Journal, LogKind::Hold] {
            let journal = broker.journal(&name_of(group, kind)).await.unwrap();
            for record in 0..4 {
                journal.append(format!("record {record} of {group}").into(), None).await.unwrap();
            }
        }
        broker.commit(group, "orders", 0, Commit { position: 1, metadata: "m".into() }).await.unwrap();
    }
    sent
}

pub fn segment(dir: &Path, log: &str, number: u64) -> PathBuf {
    dir.join(log).join(format!("{number:016x}.seg"))
}

/// Where batches begin in a file.
pub fn batches(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len() - 64).step_by(8).filter(|at| &bytes[at + 4..at + 8] == b"KLB1").collect()
}

pub fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

pub fn only(report: &Report) -> &Damage {
    let damages: Vec<_> = report.damages().collect();
    assert_eq!((damages.len(), report.troubles.len()), (1, 0), "{report:?}");
    assert!(!report.is_whole());
    damages[0]
}

pub fn skip(dir: &Path, word: &str) {
    skip_all(dir, &[word.to_owned()]);
}

pub fn skip_all(dir: &Path, words: &[String]) {
    let done = repair(dir, &options(), words).unwrap();
    assert!(done.iter().zip(words).all(|(done, word)| done.word == *word));
    let left = found(dir);
    assert!(left.is_whole(), "{left:?}");
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

pub fn cut(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}
