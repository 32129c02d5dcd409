//! Tests with folders of older versions. `fixtures/folder-0.1.0` was written by the version before the file `end`
//! existed, with the smallest possible segments: `closed` after a clean close, `killed` as a kill leaves it. Each has
//! 20 messages of 2,000 bytes in both partitions of `orders`, ten records in a journal and in a hold, both cut below
//! 3, and a commit.
#![allow(missing_docs, clippy::unwrap_used, clippy::field_reassign_with_default)]

use std::path::{Path, PathBuf};

use keylane_broker::embedded::{Embedded, OpenError, Options};
use keylane_broker::{Broker, BrokerError, JournalName, LogKind};
use keylane_core::{Draft, Frames};

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => {
                std::fs::copy(entry.path(), to).unwrap();
            }
        }
    }
}

fn old_folder(which: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/folder-0.1.0").join(which), dir.path());
    dir
}

fn open(dir: &Path) -> Result<Embedded, OpenError> {
    let mut options = Options::default();
    options.segment_bytes = 4096;
    options.journal_segment_bytes = 4096;
    Embedded::open(dir, options)
}

async fn check(broker: &Embedded, more: u64) {
    for partition in 0..2 {
        let mut reader = broker.reader("orders", partition, 0).await.unwrap();
        let mut at = 0;
        while at < 20 {
            let batch = std::future::poll_fn(|cx| reader.poll_batch(cx, 100_000)).await.unwrap();
            for delivery in batch.cursor(0).map(Result::unwrap) {
                assert_eq!(delivery.position(), at);
                if at < 20 {
                    assert_eq!(delivery.id(), format!("m{}", 2 * at + u64::from(partition)));
                    assert_eq!(delivery.payload_bytes().len(), 2000);
                }
                at += 1;
            }
        }
        let end = broker.ends("orders").await.unwrap()[partition as usize].end;
        assert_eq!(end, 20 + if partition == 0 { more } else { 0 });
    }
    for kind in [LogKind::Journal, LogKind::Hold] {
        let name = JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind };
        let page = broker.journal(&name).await.unwrap().read(0, 1 << 20).await.unwrap();
        assert_eq!((page.start, page.end), (3, 10));
        for (position, record) in page.records {
            assert!(record.starts_with(format!("record {position} ").as_bytes()));
        }
    }
    let commit = broker.committed("group", "orders", 1).await.unwrap().unwrap();
    assert_eq!((commit.position, &commit.metadata[..]), (5, &b"whose"[..]));
}

fn ends(dir: &Path) -> [PathBuf; 3] {
    ["topics/orders/end", "journals/end", "holds/end"].map(|end| dir.join(end))
}

/// BRK-1: a folder without the files `end` is taken over once, with everything in it.
#[tokio::test]
async fn a_folder_from_before_ends_were_recorded_is_opened_and_taken_over() {
    for which in ["closed", "killed"] {
        let dir = old_folder(which);
        assert!(ends(dir.path()).iter().all(|end| !end.exists()));
        for more in 0..30 {
            let broker = open(dir.path()).unwrap();
            check(&broker, more).await;
            assert!(ends(dir.path()).iter().all(|end| end.exists()), "{which}");
            let mut frames = Frames::default();
            let draft = Draft { id: "new", payload: Some(&[7; 3000]), ..Draft::default() };
            frames.push(0, &draft).unwrap();
            assert_eq!(broker.produce("orders", frames).await, [Ok(20 + more)]);
        }
    }
}

/// P10: after the takeover a lost end is noticed, although the old segments do not state their length.
#[tokio::test]
async fn a_folder_that_was_taken_over_notices_a_cut_file() {
    for which in ["closed", "killed"] {
        let dir = old_folder(which);
        drop(open(dir.path()).unwrap());
        let last = dir.path().join("topics/orders/0000000000000002.seg");
        let file = std::fs::OpenOptions::new().write(true).open(&last).unwrap();
        file.set_len(60_000).unwrap();
        let broker = open(dir.path()).unwrap();
        let asked = broker.topic("orders").await;
        assert!(matches!(&asked, Err(BrokerError::Damaged(text)) if text.contains("cut")), "{asked:?}");
    }
}
