//! The spill's own log, on a real disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylane_broker::embedded::Options;
use keylane_broker::embedded::disk::RealDisk;
use keylane_broker::{Broker, Embedded, MemoryBroker, TopicSpec};
use keylane_core::{Draft, Frames};

use super::SpillOptions;
use super::store::{Kind, Place, Store};
use crate::clock::Clock;
use crate::tasks::Tasks;
use crate::{Keylane, Message};

const BYTES_MAX: u64 = 1 << 30;

/// A log with small segments, and a clock that goes on by a second whenever it is read.
fn log(folder: &Path) -> Arc<dyn Broker> {
    log_of(folder, 4 << 10, 1_000)
}

/// A log with segments of that size, and a clock that goes on by so much whenever it is read.
fn log_of(folder: &Path, segment_bytes: u64, step_ms: u64) -> Arc<dyn Broker> {
    let now_ms = AtomicU64::new(1_700_000_000_000);
    let clock = Arc::new(move || now_ms.fetch_add(step_ms, Ordering::Relaxed));
    let mut options = Options::on_disk(Arc::new(RealDisk), clock, 1);
    (options.segment_bytes, options.tail_bytes) = (segment_bytes, 1 << 10);
    Arc::new(Embedded::open(folder, options).expect("the folder is free"))
}

async fn append(store: &Store, place: &Place, id: &str) {
    append_bytes(store, place, id, 1_000).await;
}

async fn append_bytes(store: &Store, place: &Place, id: &str, bytes: usize) {
    let mut frames = Frames::default();
    let payload = vec![b'x'; bytes];
    let draft = Draft { id, key: Some(b"k"), payload: Some(&payload), ..Draft::default() };
    frames.push(0, &draft).expect("it is small");
    let results = store.append(Kind::Waiting, &place.topic, place.partitions, frames).await;
    assert!(results.iter().all(Result::is_ok), "{id}: {results:?}");
}

/// PRD-3: what is drained is freed at once, and what waits costs no file for each message all the same.
#[tokio::test]
async fn a_thousand_messages_that_come_one_by_one_do_not_take_a_segment_each() {
    let folder = tempfile::tempdir().expect("a folder is made");
    let (store, _) = Store::open(log_of(folder.path(), 512 << 10, 5), BYTES_MAX).await.expect("it opens");
    let place = Place { topic: "orders".into(), partition: 0, partitions: 1 };
    for number in 0..1_000 {
        append_bytes(&store, &place, &number.to_string(), 100).await;
    }
    let files = std::fs::read_dir(folder.path().join("topics/w1.orders")).expect("it was made");
    let files = files.map(|file| file.expect("an entry").path());
    let segments = files.filter(|path| path.extension().is_some_and(|of| of == "seg")).count();
    assert!(segments < 3, "{segments} segments");
}

/// PRD-3, P1: a process may end after it made a log of the spill and before the commit that protects it. What the next
/// one keeps in it stays all the same.
#[tokio::test]
async fn a_log_that_was_made_and_no_more_keeps_what_is_put_into_it() {
    let folder = tempfile::tempdir().expect("a folder is made");
    let spec = TopicSpec {
        partitions: 1,
        retention_ms: Some(1),
        retention_bytes: None,
        message_bytes_max: 128 << 20,
        ..TopicSpec::default()
    };
    log(folder.path()).create_topic("w1.orders", &spec).await.expect("a topic is made");
    let (store, _) = Store::open(log(folder.path()), BYTES_MAX).await.expect("it opens");
    let kept: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    let place = Place { topic: "orders".into(), partition: 0, partitions: 1 };
    for id in &kept {
        append(&store, &place, id).await;
    }
    let mut found = Vec::new();
    let mut reading = store.read(Kind::Waiting, &place, 0).await.expect("nothing was freed");
    while found.len() < kept.len() {
        let (messages, _) = reading.next(1 << 20).await.expect("it is read");
        found.extend(messages.iter().map(|message| message.id().to_owned()));
    }
    assert_eq!(found, kept);
}

/// PRD-3: every topic can be spilled, also one whose name is as long as Kafka takes it and one that is called like a
/// log of the spill; and what is kept is found again under its name.
#[tokio::test]
async fn every_name_of_a_topic_can_be_spilled() {
    let folder = tempfile::tempdir().expect("a folder is made");
    let long = "x".repeat(249);
    let names = ["w3.orders", "12.orders", "orders", "r.orders", &long];
    let (store, _) = Store::open(log(folder.path()), BYTES_MAX).await.expect("it opens");
    for (name, partitions) in names.into_iter().flat_map(|name| [(name, 1), (name, 9_999)]) {
        append(&store, &Place { topic: name.into(), partition: 0, partitions }, "a").await;
    }
    drop(store);
    let (store, kept) = Store::open(log(folder.path()), BYTES_MAX).await.expect("it opens");
    for name in names {
        let found = kept.iter().filter(|kept| &*kept.place.topic == name && kept.end == 1);
        let mut partitions: Vec<u32> = found.map(|kept| kept.place.partitions).collect();
        partitions.sort_unstable();
        assert_eq!(partitions, [1, 9_999], "{name}");
        assert_eq!(store.partitions(name), Some(9_999));
    }
}

/// PRD-3, P2: what fails at once is not overtaken by what comes before its partition waits.
#[tokio::test]
async fn what_fails_at_once_is_not_overtaken() {
    let folder = tempfile::tempdir().expect("a folder is made");
    let cluster = MemoryBroker::new(1, || 0);
    let tasks = Tasks::default();
    let options = SpillOptions { drain_every: Duration::from_millis(20), ..SpillOptions::default() };
    let opened =
        Keylane::with_spill(cluster.node("n"), log(folder.path()), options, Clock::system(), tasks, true);
    let keylane = opened.await.expect("it opens");
    let message = |id: &str| Message::to("orders").key("k").payload("1").id(id);
    let partition = keylane.produce(message("0")).await.expect("the broker is there").partition;
    cluster.cut_off("n");
    let mut first = Box::pin(keylane.produce(message("1")));
    assert!(futures_util::poll!(&mut first).is_pending(), "it is to be kept");
    cluster.reconnect("n");
    let (first, second) = futures_util::future::join(first, keylane.produce(message("2"))).await;
    first.expect("it is kept");
    second.expect("it is kept or sent");
    let mut ids = Vec::new();
    while ids.len() < 3 {
        tokio::task::yield_now().await;
        let there = keylane.peek("orders", partition, 0, 10).await.expect("it answers");
        ids = there.iter().map(|message| message.id().to_owned()).collect();
    }
    assert_eq!(ids, ["0", "1", "2"]);
}
