//! A plain client of a broker for the conformance cases: takes drafts, returns positions and deliveries, and panics
//! where a test fails.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use keylane_core::{Batch, Delivery, Draft, Frames};

use crate::contract::{
    Broker, BrokerError, Change, Journal, JournalName, LogKind, Membership, ProduceError, Reader, TopicSpec,
};

/// More bytes than any case's batch has, so that a read is not bounded by its size.
pub const PLENTY: usize = 64 << 20;

/// A topic with this many partitions and default settings.
pub fn spec(partitions: u32) -> TopicSpec {
    TopicSpec { partitions, ..TopicSpec::default() }
}

/// A frame for each payload, all for `partition`; the payload is also the message's id.
pub fn frames(partition: u32, payloads: &[&str]) -> Frames {
    let mut frames = Frames::default();
    for payload in payloads {
        let draft = Draft {
            id: payload,
            key: Some(b"key"),
            payload: Some(payload.as_bytes()),
            produced_ms: 1,
            ..Draft::default()
        };
        frames.push(partition, &draft).expect("a valid draft");
    }
    frames
}

/// Produces all payloads in one call; the broker must take every message.
pub async fn produce(broker: &dyn Broker, topic: &str, partition: u32, payloads: &[&str]) -> Vec<u64> {
    let results = broker.produce(topic, frames(partition, payloads)).await;
    let positions: Result<Vec<u64>, ProduceError> = results.into_iter().collect();
    positions.expect("every message is taken")
}

/// The reader's next batch.
pub async fn next_batch(reader: &mut dyn Reader, bytes_max: usize) -> Result<Batch, BrokerError> {
    poll_fn(|cx| reader.poll_batch(cx, bytes_max)).await
}

/// Whole batches until there are at least `count` messages.
pub async fn read(reader: &mut dyn Reader, count: usize) -> Vec<Delivery> {
    let mut read = Vec::new();
    while read.len() < count {
        let batch = next_batch(reader, PLENTY).await.expect("the reader goes on at the tail");
        read.extend(deliveries(&batch));
    }
    read
}

/// Opens a reader and reads the first `count` messages from `from` on.
pub async fn read_from(
    broker: &dyn Broker,
    topic: &str,
    partition: u32,
    from: u64,
    count: usize,
) -> Vec<Delivery> {
    let mut reader = broker.reader(topic, partition, from).await.expect("the position is within the log");
    read(&mut *reader, count).await
}

/// The messages of a batch.
pub fn deliveries(batch: &Batch) -> Vec<Delivery> {
    let read: Vec<Delivery> =
        batch.cursor(0).map(|delivery| delivery.expect("a broker hands out whole frames")).collect();
    assert_eq!(read.len(), batch.count as usize, "the count is of the frames");
    read
}

/// The payloads of deliveries, as text.
pub fn texts(deliveries: &[Delivery]) -> Vec<String> {
    let text = |delivery: &Delivery| String::from_utf8_lossy(&delivery.payload_bytes()).into_owned();
    deliveries.iter().map(text).collect()
}

/// The positions of deliveries.
pub fn positions(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(Delivery::position).collect()
}

/// The name of a journal beside partition 0.
pub fn journal_name(group: &str, topic: &str, kind: LogKind) -> JournalName {
    JournalName { group: group.to_owned(), topic: topic.to_owned(), partition: 0, kind }
}

/// Appends a text as a record, which must land.
pub async fn append(journal: &dyn Journal, record: &str) -> u64 {
    journal.append(Bytes::copy_from_slice(record.as_bytes()), None).await.expect("the record lands")
}

/// All records from `from` on, page by page.
pub async fn journal_from(journal: &dyn Journal, from: u64) -> Vec<(u64, Bytes)> {
    let mut records: Vec<(u64, Bytes)> = Vec::new();
    loop {
        let next = records.last().map_or(from, |(position, _)| position + 1);
        let page = journal.read(next, 1 << 16).await.expect("a journal can be read");
        if page.records.is_empty() {
            return records;
        }
        records.extend(page.records);
    }
}

/// The next `count` changes of a membership.
pub async fn changes(membership: &mut dyn Membership, count: usize) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..count {
        changes.push(membership.changed().await.expect("the membership goes on"));
    }
    changes
}

/// Polls a future once and drops it, which cancels the call if it was not ready.
pub async fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
