//! Conformance cases through [`Faulty`]: what is sent or asked again until it is answered, as Keylane does, is there
//! and in order.
//!
//! With faults an append may stand twice, or land long after its sender has sent it again. So three things must hold:
//! every acknowledged message or record is where the acknowledgement said; every one that was sent is there at least
//! once; and the first occurrences stand in the order in which they were sent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylane_core::Batch;

use super::client::{
    PLENTY, deliveries, frames, journal_from, next_batch, positions, produce, read_from, spec, texts,
};
use super::commits::commit;
use super::journals::with_journal;
use super::rig::{Rig, with_topic};
use crate::contract::{AppendError, Broker, BrokerError, Change, Journal, JournalPage, ProduceError};
use crate::testing::faults::{FaultCounts, Faulty, Rates};

/// A few seeds, so that each case meets each fault in at least one of them.
pub const SEEDS: std::ops::Range<u64> = 1..4;

/// The pause between one try and the next.
const BACKOFF: Duration = Duration::from_millis(1);

/// A handle of the broker under test that injects faults. Late appends land through the same handle.
async fn rough(rig: &mut dyn Rig, seed: u64) -> Arc<Faulty> {
    Faulty::new(rig.broker().await, seed, Rates::rough())
}

/// Asks again until there is an answer.
async fn answered<T, A>(mut ask: impl FnMut() -> A) -> T
where
    A: Future<Output = Result<T, BrokerError>>,
{
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(BrokerError::Unavailable(_)) => tokio::time::sleep(BACKOFF).await,
            Err(other) => panic!("no fault that was injected: {other}"),
        }
    }
}

/// The first occurrence of each text, in order.
fn firsts(texts: Vec<String>) -> Vec<String> {
    let mut firsts: Vec<String> = Vec::new();
    for text in texts {
        if !firsts.contains(&text) {
            firsts.push(text);
        }
    }
    firsts
}

/// BRK-5, MSG-3: a producer that sends unacknowledged messages again, before any new ones, loses none and keeps their
/// order.
pub async fn a_message_sent_again_until_acknowledged_is_there_in_order(rig: &mut dyn Rig, seed: u64) {
    const PRODUCERS: usize = 3;
    const CALLS: usize = 25;
    let (plain, topic) = with_topic(rig, 2).await;
    let mut producing = Vec::new();
    for producer in 0..PRODUCERS {
        let (faulty, topic) = (rough(rig, seed * 10 + producer as u64).await, topic.clone());
        producing.push(tokio::spawn(async move {
            let mut placed = Vec::new();
            for call in 0..CALLS {
                let payloads = [format!("{producer} {call} a"), format!("{producer} {call} b")];
                let at = send_until_taken(&*faulty, &topic, producer as u32 % 2, &payloads).await;
                placed.extend(at.into_iter().zip(payloads));
            }
            faulty.quiet().await;
            assert_ne!(faulty.counts(), FaultCounts::default(), "there were no faults");
            placed
        }));
    }
    let mut placed = Vec::new();
    for task in producing {
        placed.push(task.await.expect("a producer does not panic"));
    }
    let ends = plain.ends(&topic).await.expect("asked");
    for (producer, placed) in placed.into_iter().enumerate() {
        let partition = producer % 2;
        let read =
            read_to(&*plain, &topic, partition as u32, ends[partition].start, ends[partition].end).await;
        for acknowledged in &placed {
            assert!(read.contains(acknowledged), "{acknowledged:?} is not where it was said to be");
        }
        let prefix = format!("{producer} ");
        let own = read.into_iter().map(|(_, text)| text).filter(|text| text.starts_with(&prefix));
        let sent: Vec<String> = placed.into_iter().map(|(_, text)| text).collect();
        assert_eq!(firsts(own.collect()), sent);
    }
}

async fn send_until_taken(broker: &dyn Broker, topic: &str, partition: u32, payloads: &[String]) -> Vec<u64> {
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    loop {
        let results = broker.produce(topic, frames(partition, &payloads)).await;
        let taken: Result<Vec<u64>, ProduceError> = results.into_iter().collect();
        match taken {
            Ok(positions) => return positions,
            Err(ProduceError::Unavailable(_)) => tokio::time::sleep(BACKOFF).await,
            Err(other) => panic!("no fault that was injected: {other}"),
        }
    }
}

async fn read_to(
    broker: &dyn Broker,
    topic: &str,
    partition: u32,
    from: u64,
    end: u64,
) -> Vec<(u64, String)> {
    let mut reader = broker.reader(topic, partition, from).await.expect("in range");
    let (mut at, mut found) = (from, Vec::new());
    while at < end {
        let batch = next_batch(&mut *reader, PLENTY).await.expect("no faults here");
        let read = deliveries(&batch);
        found.extend(positions(&read).into_iter().zip(texts(&read)));
        at = batch.next;
    }
    found
}

/// BRK-5, BRK-8.
pub async fn a_reader_opened_again_where_it_stood_misses_and_repeats_nothing(rig: &mut dyn Rig, seed: u64) {
    const MESSAGES: usize = 200;
    let (plain, topic) = with_topic(rig, 1).await;
    let faulty = rough(rig, seed).await;
    let mut from = plain.ends(&topic).await.expect("asked")[0].start;
    let start = from;
    let producer = plain.clone();
    let name = topic.clone();
    let producing = tokio::spawn(async move {
        for index in 0..MESSAGES {
            produce(&*producer, &name, 0, &[&format!("m{index}")]).await;
            tokio::task::yield_now().await;
        }
    });
    let mut found = Vec::new();
    while found.len() < MESSAGES {
        let mut reader = answered(|| faulty.reader(&topic, 0, from)).await;
        loop {
            let batch: Result<Batch, BrokerError> = next_batch(&mut *reader, 300).await;
            let Ok(batch) = batch else { break };
            found.extend(deliveries(&batch));
            from = batch.next;
            if found.len() >= MESSAGES {
                break;
            }
        }
    }
    producing.await.expect("the producer does not panic");
    let expected = read_from(&*plain, &topic, 0, start, MESSAGES).await;
    assert_eq!(positions(&found), positions(&expected));
    assert_eq!(texts(&found), texts(&expected));
}

/// BRK-6: a writer with one record under way sends it again until it reads it back; all its records are there, in
/// order.
pub async fn a_record_sent_again_until_read_back_is_there_in_order(rig: &mut dyn Rig, seed: u64) {
    const RECORDS: usize = 30;
    let (plain, _, name) = with_journal(rig).await;
    let mut writing = Vec::new();
    for writer in 0..2 {
        let faulty = rough(rig, seed * 10 + writer).await;
        let journal = answered(|| faulty.journal(&name)).await;
        writing.push(tokio::spawn(async move {
            let (mut cursor, mut acknowledged) = (0, Vec::new());
            for seq in 0..RECORDS {
                let record = Bytes::from(format!("{writer} {seq}"));
                while !read_back(&*journal, &mut cursor, &record).await {
                    match journal.append(record.clone(), None).await {
                        Ok(position) => acknowledged.push((position, record.clone())),
                        Err(AppendError::Unknown(_)) => tokio::time::sleep(BACKOFF).await,
                        Err(other) => panic!("no fault that was injected: {other}"),
                    }
                }
            }
            faulty.quiet().await;
            acknowledged
        }));
    }
    let mut acknowledged = Vec::new();
    for task in writing {
        acknowledged.extend(task.await.expect("a writer does not panic"));
    }
    let journal = plain.journal(&name).await.expect("a journal opens");
    let all = journal_from(&*journal, 0).await;
    assert!(all.iter().map(|(position, _)| *position).eq(0..all.len() as u64), "dense");
    assert!(acknowledged.iter().all(|record| all.contains(record)));
    for writer in 0..2 {
        let prefix = format!("{writer} ");
        let texts = all.iter().map(|(_, record)| String::from_utf8_lossy(record).into_owned());
        let own = firsts(texts.filter(|text| text.starts_with(&prefix)).collect());
        let sent: Vec<String> = (0..RECORDS).map(|seq| format!("{writer} {seq}")).collect();
        assert_eq!(own, sent);
    }
    let elsewhere = rig.broker().await.journal(&name).await.expect("a journal opens");
    assert_eq!(journal_from(&*elsewhere, 0).await, all);
}

/// Reads on from `cursor` to the journal's end; true if the record was met. The first call starts at the journal's
/// beginning, as a new owner does.
async fn read_back(journal: &dyn Journal, cursor: &mut u64, record: &Bytes) -> bool {
    loop {
        let page: JournalPage = answered(|| journal.read(*cursor, 100)).await;
        let Some((last, _)) = page.records.last() else {
            return false;
        };
        *cursor = last + 1;
        if page.records.iter().any(|(_, found)| found == record) {
            return true;
        }
    }
}

/// BRK-6: an append on condition lands only where the log ended as expected, even if it is late or repeated. A broker
/// that cannot append on condition says so.
pub async fn an_append_on_condition_lands_only_where_it_was_meant_to(rig: &mut dyn Rig, seed: u64) {
    let (plain, _, name) = with_journal(rig).await;
    let mut writing = Vec::new();
    for writer in 0..2 {
        let faulty = rough(rig, seed * 10 + writer).await;
        let journal = answered(|| faulty.journal(&name)).await;
        writing.push(tokio::spawn(async move {
            let (mut landed, mut refused) = (Vec::new(), Vec::new());
            for attempt in 0..60 {
                let end = answered(|| journal.read(0, 1)).await.end;
                let record = Bytes::from(format!("{writer} {attempt} at {end}"));
                match journal.append(record.clone(), Some(end)).await {
                    Ok(position) => landed.push((position, record)),
                    Err(AppendError::Moved { .. }) => refused.push(record),
                    Err(AppendError::Unconditional) => assert!(!journal.conditional()),
                    Err(AppendError::Unknown(_) | AppendError::Stopped(_)) => {}
                }
            }
            faulty.quiet().await;
            (landed, refused)
        }));
    }
    let (mut landed, mut refused) = (Vec::new(), Vec::new());
    for task in writing {
        let (own_landed, own_refused) = task.await.expect("a writer does not panic");
        landed.extend(own_landed);
        refused.extend(own_refused);
    }
    let journal = plain.journal(&name).await.expect("a journal opens");
    let all = journal_from(&*journal, 0).await;
    assert_eq!(all.is_empty(), !journal.conditional());
    for (position, record) in &all {
        let text = String::from_utf8_lossy(record);
        assert!(text.ends_with(&format!(" at {position}")), "{text} stands at {position}");
        assert!(!refused.contains(record), "{text} was refused, and is there");
    }
    assert!(landed.iter().all(|record| all.contains(record)));
}

/// BRK-6, BRK-8.
pub async fn a_journal_is_followed_through_disconnects(rig: &mut dyn Rig, seed: u64) {
    const RECORDS: u64 = 60;
    let (plain, _, name) = with_journal(rig).await;
    let faulty = rough(rig, seed).await;
    let followed = answered(|| faulty.journal(&name)).await;
    let written = plain.journal(&name).await.expect("a journal opens");
    let writing = tokio::spawn(async move {
        for index in 0..RECORDS {
            super::client::append(&*written, &index.to_string()).await;
            tokio::task::yield_now().await;
        }
    });
    let mut read = Vec::new();
    while (read.len() as u64) < RECORDS {
        let end = read.len() as u64;
        answered(|| followed.beyond(end)).await;
        let page = answered(|| followed.read(end, 20)).await;
        assert!(!page.records.is_empty(), "it ends beyond {end}");
        read.extend(page.records);
    }
    writing.await.expect("the writer does not panic");
    let expected: Vec<(u64, Bytes)> = (0..RECORDS).map(|at| (at, Bytes::from(at.to_string()))).collect();
    assert_eq!(read, expected);
}

/// BRK-6.
pub async fn a_cut_sent_again_takes_what_was_asked_and_no_more(rig: &mut dyn Rig, seed: u64) {
    let (_, journal, name) = with_journal(rig).await;
    let faulty = rough(rig, seed).await;
    let cutting = answered(|| faulty.journal(&name)).await;
    let mut expected = Vec::new();
    for at in 0..40 {
        super::client::append(&*journal, &at.to_string()).await;
        expected.push((at, Bytes::from(at.to_string())));
    }
    for below in (0..=30).step_by(3) {
        answered(|| cutting.cut(below)).await;
        let page = journal.read(0, PLENTY).await.expect("no faults here");
        assert_eq!((page.start, page.end), (below, 40));
    }
    faulty.quiet().await;
    assert_eq!(journal_from(&*journal, 0).await, expected[30..]);
}

/// BRK-5: a commit that is sent again until it is answered is kept. An older commit may land after it: a commit
/// mirrors, and decides nothing.
pub async fn a_commit_sent_again_is_kept(rig: &mut dyn Rig, seed: u64) {
    let (plain, topic) = with_topic(rig, 1).await;
    let group = rig.name("billing");
    let faulty = rough(rig, seed).await;
    let placed = produce(&*plain, &topic, 0, &["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    for position in &placed {
        answered(|| faulty.commit(&group, &topic, 0, commit(*position, "m"))).await;
    }
    faulty.quiet().await;
    let kept = plain.committed(&group, &topic, 0).await.expect("asked").expect("there");
    assert!(placed.contains(&kept.position));
    answered(|| faulty.commit(&group, &topic, 0, commit(placed[3], "last"))).await;
    let kept = answered(|| faulty.committed(&group, &topic, 0)).await;
    assert_eq!(kept, Some(commit(placed[3], "last")));
}

/// BRK-5, BRK-8.
pub async fn a_group_joined_again_gives_its_partitions_back(rig: &mut dyn Rig, seed: u64) {
    let faulty = rough(rig, seed).await;
    let (topic, group) = (rig.name("orders"), rig.name("billing"));
    let spec = spec(4);
    let made = answered(|| faulty.create_topic(&topic, &spec)).await;
    assert_eq!(answered(|| faulty.topic(&topic)).await, Some(made));
    let mut owned = Vec::new();
    let mut joined = None;
    while owned.len() < 4 {
        let member = match &mut joined {
            Some(member) => member,
            None => joined.insert(answered(|| faulty.join(&group, &topic, "a")).await),
        };
        match member.changed().await {
            Ok(Change::Assigned(partition)) => owned.push(partition),
            Ok(other) => panic!("nobody else is there, and yet: {other:?}"),
            Err(BrokerError::Unavailable(_)) => {
                joined = None;
                owned.clear();
            }
            Err(other) => panic!("no fault that was injected: {other}"),
        }
    }
    faulty.calm();
    owned.sort_unstable();
    assert_eq!(owned, [0, 1, 2, 3]);
    let mut member = joined.expect("it has all partitions");
    for partition in owned {
        assert_eq!(member.confirm(partition).await, Ok(true));
    }
}
