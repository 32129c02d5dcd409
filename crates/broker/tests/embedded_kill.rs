//! Kills a process that appends to real files (kill -9), again and again, and checks what is left.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use keylane_broker::embedded::{Embedded, Options};
use keylane_broker::{Broker, JournalName, LogKind, TopicSpec};
use keylane_core::{Draft, Frames};

const FOLDER: &str = "KEYLANE_KILL_TEST_FOLDER";

fn open(dir: &Path) -> Embedded {
    let mut options = Options::default();
    options.segment_bytes = 256 << 10;
    options.journal_segment_bytes = 64 << 10;
    Embedded::open(dir, options).expect("what a kill leaves can be opened")
}

fn journal() -> JournalName {
    JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind: LogKind::Journal }
}

/// Not a test: the process that is killed. It prints what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test below"]
async fn appends_until_it_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let broker = open(Path::new(&folder));
    let spec = TopicSpec { partitions: 3, ..TopicSpec::default() };
    broker.create_topic("orders", &spec).await.unwrap();
    let journal = broker.journal(&journal()).await.unwrap();
    loop {
        let mut frames = Frames::default();
        for partition in 0..3 {
            let payload = vec![b'x'; 500];
            let draft = Draft { id: "message", payload: Some(&payload), ..Draft::default() };
            frames.push(partition, &draft).unwrap();
        }
        let (placed, appended) =
            tokio::join!(broker.produce("orders", frames), journal.append(vec![b'j'; 300].into(), None));
        for (partition, position) in placed.into_iter().enumerate() {
            println!("acknowledged {partition} {}", position.unwrap());
        }
        let appended = appended.unwrap();
        println!("acknowledged 3 {appended}");
        journal.cut(appended.saturating_sub(10)).await.unwrap();
    }
}

/// P1, BRK-1: what was acknowledged before the kill is there afterwards, and the next process goes on behind it.
#[tokio::test]
async fn what_was_acknowledged_before_a_kill_is_there_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = [None; 4];
    for cycle in 0..10 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "appends_until_it_is_killed", "--nocapture"])
            .env(FOLDER, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut wanted = 50 + 37 * cycle;
        for line in lines.map_while(Result::ok) {
            if let Some(text) = line.split("acknowledged ").nth(1)
                && let Some((stream, position)) = text.split_once(' ')
            {
                let (stream, position): (usize, u64) = (stream.parse().unwrap(), position.parse().unwrap());
                assert!(acknowledged[stream] < Some(position), "a position is given twice");
                acknowledged[stream] = Some(position);
                wanted -= 1;
            }
            if wanted == 0 {
                child.kill().unwrap();
            }
            wanted = wanted.max(1);
        }
        child.wait().unwrap();
        let broker = open(dir.path());
        let ends = broker.ends("orders").await.unwrap();
        for partition in 0..3 {
            assert!(acknowledged[partition] < Some(ends[partition].end));
            let mut reader = broker.reader("orders", partition as u32, 0).await.unwrap();
            let mut at = 0;
            while at < ends[partition].end {
                let batch = std::future::poll_fn(|cx| reader.poll_batch(cx, 10_000)).await.unwrap();
                for delivery in batch.cursor(0) {
                    assert_eq!(delivery.unwrap().position(), at);
                    at += 1;
                }
            }
        }
        let journal = broker.journal(&journal()).await.unwrap();
        let page = journal.read(0, 1 << 20).await.unwrap();
        assert!(acknowledged[3] < Some(page.end));
        assert_eq!(page.records.len() as u64, page.end - page.start);
    }
}
