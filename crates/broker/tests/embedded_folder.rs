//! Tests of the data folder as a whole: what one bad file stops, who may read the files, and which groups hold back.
#![cfg(feature = "testing")]
#![allow(missing_docs, clippy::unwrap_used, clippy::field_reassign_with_default)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keylane_broker::embedded::disk::RealDisk;
use keylane_broker::embedded::{Embedded, OpenError, Options};
use keylane_broker::{
    Broker, BrokerError, Commit, HeldBack, JournalName, LogKind, ProduceError, Reader, TopicSpec,
};
use keylane_core::{Draft, Frames};

fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, Options::default()).expect("whatever is damaged, the folder opens")
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

async fn next(reader: &mut dyn Reader) -> Result<Vec<String>, BrokerError> {
    let batch = std::future::poll_fn(|cx| reader.poll_batch(cx, 1 << 20)).await?;
    Ok(batch.cursor(0).map(|delivery| delivery.expect("a good frame").id().to_owned()).collect())
}

async fn ids(broker: &Embedded, topic: &str, partition: u32) -> Result<Vec<String>, BrokerError> {
    let ends = broker.ends(topic).await?[partition as usize];
    let mut reader = broker.reader(topic, partition, ends.start).await?;
    let mut ids = Vec::new();
    while (ids.len() as u64) < ends.end - ends.start {
        ids.extend(next(&mut *reader).await?);
    }
    Ok(ids)
}

fn segment(dir: &Path, log: &str) -> PathBuf {
    dir.join(log).join(format!("{:016x}.seg", 1))
}

/// Flips a bit of the batch number `nth` of a segment, `at` bytes behind the batch's beginning.
fn flip(path: &Path, nth: usize, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let starts = (0..bytes.len() - 64).step_by(8).filter(|at| &bytes[at + 4..at + 8] == b"KLB1");
    let start = starts.collect::<Vec<_>>()[nth];
    bytes[start + at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn journal_of(topic: &str, kind: LogKind) -> JournalName {
    JournalName { group: "group".into(), topic: topic.into(), partition: 0, kind }
}

/// Fills a folder with two topics, groups that read them, and a record in each kind of journal.
async fn filled(dir: &Path) {
    let broker = open(dir);
    for topic in ["good", "bad"] {
        broker.create_topic(topic, &spec(2)).await.unwrap();
        for id in ["a", "b", "c"] {
            broker.produce(topic, frames(&[(0, id)])).await.remove(0).unwrap();
        }
        broker.join("group", topic, "node").await.unwrap();
        for kind in [LogKind::Journal, LogKind::Hold] {
            let journal = broker.journal(&journal_of(topic, kind)).await.unwrap();
            journal.append("record".into(), None).await.unwrap();
        }
    }
}

/// P10, BRK-1: damage, an unreadable file, and a file that is not Keylane's affect only their own topic.
#[tokio::test]
async fn a_topic_that_cannot_be_opened_is_kept_apart_with_its_cause_and_all_others_run() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("damaged", |dir| flip(&segment(dir, "topics/bad"), 0, 70)),
        ("damaged", |dir| std::fs::write(dir.join("topics/bad/topic"), "keylane topic 1\n").unwrap()),
        ("stopped", |dir| {
            std::fs::remove_file(segment(dir, "topics/bad")).unwrap();
            std::fs::create_dir(segment(dir, "topics/bad")).unwrap();
        }),
        ("stopped", |dir| {
            std::fs::remove_file(dir.join("topics/bad/topic")).unwrap();
            std::fs::create_dir(dir.join("topics/bad/topic")).unwrap();
        }),
    ];
    for (index, (kind, harm)) in harms.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path()).await;
        harm(dir.path());
        std::fs::write(dir.path().join("topics/readme.txt"), "somebody else's").unwrap();

        let broker = open(dir.path());
        assert_eq!(ids(&broker, "good", 0).await.unwrap(), ["a", "b", "c"], "{index}");
        assert_eq!(broker.produce("good", frames(&[(0, "d")])).await, [Ok(3)]);
        let refused = broker.produce("bad", frames(&[(0, "d")])).await.remove(0).unwrap_err();
        let cause = dir.path().join("topics/bad");
        assert!(
            matches!(&refused, ProduceError::Unavailable(why) if why.contains(cause.to_str().unwrap())),
            "{refused}"
        );
        for error in [
            broker.topic("bad").await.map(|_| ()).unwrap_err(),
            broker.create_topic("bad", &spec(2)).await.map(|_| ()).unwrap_err(),
            broker.join("group", "bad", "node").await.map(|_| ()).unwrap_err(),
            broker.troubles().await.remove(0),
        ] {
            let told = match &error {
                BrokerError::Damaged(_) => "damaged",
                BrokerError::Stopped(_) => "stopped",
                other => panic!("{index}: {other}"),
            };
            assert_eq!(told, kind, "{index}: {error}");
            assert!(error.to_string().contains("topic bad"), "{error}");
        }
        assert_eq!(broker.health().await, Ok(()), "messages are taken");
        assert!(dir.path().join("topics/readme.txt").exists());
    }
}

/// P10, BRK-6: without journals no group reads and nothing is deleted, but messages are taken.
#[tokio::test]
async fn damaged_journals_stop_groups_and_retention_and_nothing_else() {
    for missing in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path()).await;
        match missing {
            true => std::fs::remove_file(dir.path().join("broker")).unwrap(),
            false => flip(&segment(dir.path(), "journals"), 1, 66),
        }
        let broker = open(dir.path());
        assert_eq!(broker.produce("good", frames(&[(0, "d")])).await, [Ok(3)]);
        assert_eq!(ids(&broker, "good", 0).await.unwrap(), ["a", "b", "c", "d"]);
        let commit = Commit { position: 2, metadata: Default::default() };
        let small = TopicSpec { retention_bytes: Some(1), ..spec(2) };
        broker.create_topic("good", &small).await.expect("bounds can change");
        let full = broker.produce("good", frames(&[(0, "e")])).await.remove(0);
        assert!(matches!(full, Err(ProduceError::Full { .. })), "nobody knows what is settled: {full:?}");
        for error in [
            broker.join("group", "good", "node").await.map(|_| ()).unwrap_err(),
            broker.journal(&journal_of("good", LogKind::Journal)).await.map(|_| ()).unwrap_err(),
            broker.commit("group", "good", 0, commit).await.unwrap_err(),
            broker.committed("group", "good", 0).await.map(|_| ()).unwrap_err(),
            broker.troubles().await.remove(0),
        ] {
            assert!(matches!(error, BrokerError::Damaged(_)), "{error}");
        }
    }
}

/// P10: without the holds no dead letter can be stored, but journals and topics work.
#[tokio::test]
async fn damaged_holds_leave_journals_and_topics_alone() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path()).await;
    flip(&segment(dir.path(), "holds"), 1, 66);
    let broker = open(dir.path());
    assert_eq!(broker.produce("good", frames(&[(0, "d")])).await, [Ok(3)]);
    let journal = broker.journal(&journal_of("good", LogKind::Journal)).await.expect("journals are whole");
    assert_eq!(journal.read(0, 100).await.unwrap().records.len(), 1);
    let hold = broker.journal(&journal_of("good", LogKind::Hold)).await.map(|_| ()).unwrap_err();
    assert!(matches!(&hold, BrokerError::Damaged(why) if why.contains("holds")), "{hold}");
}

/// P10, BRK-1: a batch that is damaged while the broker runs stops the readers of its partition only.
#[tokio::test]
async fn a_batch_that_turns_bad_while_the_broker_runs_concerns_its_own_partition_alone() {
    // A byte in the payload, where the header still names the partition; and two in the header, where only the gap
    // does.
    for at in [70, 20, 3] {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::default();
        options.tail_bytes = 0;
        let broker = Embedded::open(dir.path(), options).unwrap();
        broker.create_topic("orders", &spec(3)).await.unwrap();
        for round in 0..5 {
            let names: Vec<_> = (0..3).map(|partition| (partition, format!("{round}-{partition}"))).collect();
            let messages: Vec<_> = names.iter().map(|(partition, id)| (*partition, id.as_str())).collect();
            broker
                .produce("orders", frames(&messages))
                .await
                .into_iter()
                .for_each(|placed| assert!(placed.is_ok()));
        }
        // The batch of partition 1 in the third round.
        flip(&segment(dir.path(), "topics/orders"), 7, at);
        for partition in [0, 2] {
            let want: Vec<_> = (0..5).map(|round| format!("{round}-{partition}")).collect();
            assert_eq!(ids(&broker, "orders", partition).await.unwrap(), want, "{at}");
        }
        let mut reader = broker.reader("orders", 1, 0).await.unwrap();
        let mut before = Vec::new();
        let error = loop {
            match next(&mut *reader).await {
                Ok(ids) => before.extend(ids),
                Err(error) => break error,
            }
        };
        assert_eq!(before, ["0-1", "1-1"], "what lies before it is read");
        let said = error.to_string();
        assert!(
            matches!(error, BrokerError::Damaged(_)) && said.contains("position 2 of orders/1"),
            "{said}"
        );
        assert!(said.contains("byte"), "{said}");
        let behind = broker.reader("orders", 1, 3).await.map(drop);
        assert_eq!(behind, Ok(()), "what lies behind it can be read, by whoever decides to");
    }
}

/// BRK-1: one process per folder, even if the lock's file is removed.
#[test]
fn a_folder_whose_lock_file_was_removed_is_still_locked() {
    let dir = tempfile::tempdir().unwrap();
    let broker = open(dir.path());
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    let second = Embedded::open(dir.path(), Options::default()).err();
    assert!(matches!(second, Some(OpenError::Locked(_))), "{second:?}");
    broker.close();
    open(dir.path());
}

/// BRK-1: files and folders are readable for their owner only.
#[tokio::test]
async fn files_are_the_owners_alone_and_those_of_an_earlier_version_become_so() {
    fn modes(dir: &Path, found: &mut Vec<(PathBuf, u32)>) {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        found.push((dir.to_owned(), mode(dir)));
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => modes(&path, found),
                false => found.push((path.clone(), mode(&path))),
            }
        }
    }
    let check = |data: &Path| {
        let mut found = Vec::new();
        modes(data, &mut found);
        assert!(found.len() > 10, "{found:?}");
        for (path, mode) in found {
            assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("a/data");
    filled(&data).await;
    check(&data);
    let mut found = Vec::new();
    modes(&data, &mut found);
    for (path, mode) in found {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode | 0o055)).unwrap();
    }
    drop(open(&data));
    check(&data);
}

/// A folder, and a clock that the test sets, for the tests of groups.
struct Timed {
    dir: tempfile::TempDir,
    now_ms: Arc<AtomicU64>,
}

const DAY_MS: u64 = 24 * 3600 * 1000;

impl Timed {
    fn new() -> Timed {
        Timed { dir: tempfile::tempdir().unwrap(), now_ms: Arc::new(AtomicU64::new(1_000 * DAY_MS)) }
    }

    fn open(&self) -> Embedded {
        let clock = Arc::clone(&self.now_ms);
        let now = Arc::new(move || clock.load(Ordering::Relaxed));
        let options = Options::on_disk(Arc::new(RealDisk), now, 7);
        Embedded::open(self.dir.path(), options).unwrap()
    }

    fn pass(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

/// Produces until the topic is full. Returns `Ok` once so much was taken that the topic will not become full.
async fn fill(broker: &Embedded) -> Result<(), ProduceError> {
    for index in 0..200 {
        let (id, payload) = (index.to_string(), vec![b'p'; 4000]);
        let mut frames = Frames::default();
        let draft = Draft { id: &id, payload: Some(&payload), ..Draft::default() };
        frames.push(0, &draft).expect("a small message");
        broker.produce("orders", frames).await.remove(0)?;
    }
    Ok(())
}

fn pair(group: &str) -> (String, String) {
    (group.to_owned(), "orders".to_owned())
}

/// BRK-1: beyond the bound only messages are kept that configured pipelines have not settled; a group that lost its
/// pipeline holds back for a day, so that a mistyped name does not lose messages at once.
#[tokio::test]
async fn a_group_that_no_pipeline_is_configured_for_holds_back_for_a_day_and_then_no_more() {
    let timed = Timed::new();
    let small = TopicSpec { retention_bytes: Some(256 << 10), ..spec(1) };
    let broker = timed.open();
    broker.create_topic("orders", &small).await.unwrap();
    drop(broker.join("old", "orders", "node").await.unwrap());
    assert!(matches!(fill(&broker).await, Err(ProduceError::Full { .. })));
    let held = HeldBack { group: "old".into(), until_ms: None };
    assert_eq!(broker.held_back("orders").await.unwrap(), [held]);

    // The groups are reported at each start; only the first report without this group begins its day.
    broker.configured(&[pair("new")]).await.unwrap();
    let until_ms = Some(timed.now_ms.load(Ordering::Relaxed) + DAY_MS);
    for _ in 0..2 {
        timed.pass(DAY_MS / 3);
        broker.configured(&[pair("new")]).await.unwrap();
        let held = HeldBack { group: "old".into(), until_ms };
        assert_eq!(broker.held_back("orders").await.unwrap(), [held]);
        assert!(matches!(fill(&broker).await, Err(ProduceError::Full { .. })));
    }
    drop(broker);
    let broker = timed.open();
    assert!(matches!(fill(&broker).await, Err(ProduceError::Full { .. })), "a restart begins no new day");
    timed.pass(DAY_MS / 2);
    fill(&broker).await.expect("nothing holds it back any more");
    assert_eq!(broker.held_back("orders").await.unwrap(), []);

    // The group was not forgotten: configured again, it holds back what is left.
    broker.configured(&[pair("old")]).await.unwrap();
    assert!(matches!(fill(&broker).await, Err(ProduceError::Full { .. })));
    broker.configured(&[]).await.unwrap();
    // A pipeline that joins without being reported as configured counts as well.
    drop(broker.join("old", "orders", "node").await.unwrap());
    timed.pass(2 * DAY_MS);
    assert!(matches!(fill(&broker).await, Err(ProduceError::Full { .. })));
}

/// BRK-1, BRK-6: a forgotten group leaves nothing behind, holds nothing back, and begins anew if it returns.
#[tokio::test]
async fn a_forgotten_group_holds_nothing_back_and_begins_anew() {
    let timed = Timed::new();
    let small = TopicSpec { retention_bytes: Some(256 << 10), ..spec(1) };
    let mut broker = timed.open();
    broker.create_topic("orders", &small).await.unwrap();
    let journal =
        |group: &str, kind| JournalName { group: group.into(), topic: "orders".into(), partition: 0, kind };
    for group in ["stays", "goes"] {
        drop(broker.join(group, "orders", "node").await.unwrap());
        let commit = Commit { position: 0, metadata: Default::default() };
        broker.commit(group, "orders", 0, commit).await.unwrap();
        for kind in [LogKind::Journal, LogKind::Hold] {
            let log = broker.journal(&journal(group, kind)).await.unwrap();
            for _ in 0..3 {
                log.append(format!("of {group}").into(), None).await.unwrap();
            }
        }
    }
    assert!(matches!(fill(&broker).await, Err(ProduceError::Full { .. })));
    let member = broker.join("goes", "orders", "node").await.unwrap();
    assert!(broker.forget_group("goes", "orders").await.is_err(), "somebody is in it");
    drop(member);
    assert_eq!(broker.forget_group("never", "orders").await, Ok(false));
    assert_eq!(broker.forget_group("goes", "orders").await, Ok(true));
    assert_eq!(broker.forget_group("goes", "orders").await, Ok(false));
    for _ in 0..2 {
        assert_eq!(broker.committed("goes", "orders", 0).await, Ok(None));
        let held = HeldBack { group: "stays".into(), until_ms: None };
        assert_eq!(broker.held_back("orders").await.unwrap(), [held]);
        for kind in [LogKind::Journal, LogKind::Hold] {
            let gone = broker.journal(&journal("goes", kind)).await.unwrap();
            let page = gone.read(0, 1000).await.unwrap();
            assert_eq!((page.start, page.end, page.records.len()), (0, 0, 0));
            let stays = broker.journal(&journal("stays", kind)).await.unwrap();
            assert_eq!(stays.read(0, 1000).await.unwrap().records.len(), 3);
        }
        drop(broker);
        broker = timed.open();
    }
    let anew = broker.journal(&journal("goes", LogKind::Journal)).await.unwrap();
    assert_eq!(anew.append("anew".into(), Some(0)).await, Ok(0));
    drop((anew, broker));
    let broker = timed.open();
    let anew = broker.journal(&journal("goes", LogKind::Journal)).await.unwrap();
    assert_eq!(anew.read(0, 1000).await.unwrap().records, [(0, "anew".into())]);
    assert_eq!(broker.forget_group("stays", "orders").await, Ok(true));
    assert_eq!(broker.forget_group("goes", "orders").await, Ok(true));
    fill(&broker).await.expect("nothing holds it back any more");
}

/// BRK-1, P10: damage is found before a reader needs the messages, and is counted and reported once.
#[tokio::test]
async fn damage_is_found_before_anybody_reads_it() {
    let timed = Timed::new();
    let broker = timed.open();
    let small = TopicSpec { retention_bytes: Some(512 << 10), ..spec(1) };
    broker.create_topic("orders", &small).await.unwrap();
    for _ in 0..40 {
        let mut frames = Frames::default();
        frames.push(0, &Draft { id: "a", payload: Some(&[b'p'; 4000]), ..Draft::default() }).unwrap();
        broker.produce("orders", frames).await.remove(0).unwrap();
    }
    broker.scrub_once();
    let whole = broker.scrubbed();
    assert!(whole.bytes > 64 << 10 && whole.damaged == 0, "{whole:?}");
    assert_eq!(broker.troubles().await, []);
    flip(&segment(timed.dir.path(), "topics/orders"), 3, 300);
    for _ in 0..2 {
        broker.scrub_once();
        assert_eq!(broker.scrubbed().damaged, 1);
        let told = broker.troubles().await;
        assert!(
            matches!(&told[..], [BrokerError::Damaged(why)] if why.contains("topics/orders")),
            "{told:?}"
        );
    }
    assert_eq!(broker.health().await, Ok(()));
}

/// A folder whose threads may panic, with one topic whose messages lie on the disk alone. It is filled by an earlier
/// broker, and `thread` panics in the next.
async fn struck(dir: &Path, thread: &str) -> Embedded {
    let mut options = Options::default();
    (options.segment_bytes, options.tail_bytes) = (64 << 10, 0);
    let broker = Embedded::open(dir, options.clone()).unwrap();
    broker.create_topic("orders", &TopicSpec { retention_bytes: Some(512 << 10), ..spec(1) }).await.unwrap();
    for _ in 0..40 {
        let mut frames = Frames::default();
        frames.push(0, &Draft { id: "a", payload: Some(&[b'p'; 4000]), ..Draft::default() }).unwrap();
        broker.produce("orders", frames).await.remove(0).unwrap();
    }
    drop(broker);
    options.strike(thread);
    Embedded::open(dir, options).unwrap()
}

/// P10: a read that panics is told of as what may pass, so that its partition starts over, and counted.
#[tokio::test]
async fn a_read_that_panics_says_so_and_the_next_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let broker = struck(dir.path(), "log-read").await;
    let mut reader = broker.reader("orders", 0, 0).await.unwrap();
    let told = next(&mut *reader).await.expect_err("it panicked");
    assert!(matches!(&told, BrokerError::Unavailable(why) if why.contains("KL-1321")), "{told}");
    assert_eq!(broker.threads_ended(), 1);
    assert_eq!(next(&mut *reader).await.unwrap()[0], "a");
}

/// P10: a log whose thread panics stops and says so, and that is counted; other logs go on.
#[tokio::test]
async fn a_log_whose_thread_panics_has_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let broker = struck(dir.path(), "log-orders").await;
    let answers = broker.produce("orders", frames(&[(0, "b")])).await;
    assert!(matches!(&answers[..], [Err(ProduceError::Unavailable(_))]), "{answers:?}");
    // Who waits is told before the panic is counted.
    while broker.threads_ended() < 1 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(broker.health().await, Err(BrokerError::Stopped(_))));
    broker.create_topic("other", &spec(1)).await.unwrap();
    assert_eq!(broker.produce("other", frames(&[(0, "b")])).await, [Ok(0)]);
}

/// BRK-1: who reads the log again to find damage early begins anew after a panic.
#[tokio::test]
async fn who_looks_for_damage_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let broker = struck(dir.path(), "log-scrub").await;
    while broker.scrubbed().bytes == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(broker.threads_ended(), 1);
}
