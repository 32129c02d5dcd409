//! What Kafka's client has in memory of messages that nobody has asked for yet.
#![cfg(feature = "kafka")]

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use keylane_broker::{Broker, Kafka, KafkaOptions, Reader, TopicSpec};
use keylane_core::{Draft, Frames};
use keylane_tests::Cluster;

const PARTITIONS: u32 = 16;
/// Of each partition: far more than is read ahead.
const MESSAGES: usize = 12_000;
/// What Kafka gives at least, if it gives anything: a batch of the producer.
const BATCH_BYTES: usize = 256 << 10;

/// P5, BPR-1: what is read ahead of partitions that nobody reads stays within the memory that was given for it, for
/// small messages too, and what comes out of them is still everything.
#[tokio::test]
async fn what_is_read_ahead_stays_within_its_bound() {
    let cluster = Cluster::shared();
    let mut options = KafkaOptions::new(&cluster.bootstrap);
    options.settings.insert("statistics.interval.ms".to_owned(), "100".to_owned());
    // As they are, or the queue would have less than was fetched.
    options.settings.insert("compression.type".to_owned(), "none".to_owned());
    let broker = Kafka::open(options).expect("it opens");
    let spec = TopicSpec { partitions: PARTITIONS, ..TopicSpec::default() };
    broker.create_topic("ahead", &spec).await.expect("it is made");
    let mut frames = Frames::default();
    let payload = [7; 200];
    for number in 0..MESSAGES * PARTITIONS as usize {
        let id = number.to_string();
        let draft = Draft { id: &id, payload: Some(&payload), ..Draft::default() };
        frames.push(number as u32 % PARTITIONS, &draft).expect("a valid draft");
    }
    assert!(broker.produce("ahead", frames).await.iter().all(Result::is_ok));
    for (ahead_bytes, is_first) in [(256 << 10, true), (1 << 20, false)] {
        let mut readers: Vec<Box<dyn Reader>> = Vec::new();
        for partition in 0..PARTITIONS {
            let reader = broker.reader_ahead("ahead", partition, 0, ahead_bytes).await.expect("it opens");
            readers.push(reader);
        }
        let bound = ahead_bytes.max(2 * BATCH_BYTES) as u64 * u64::from(PARTITIONS);
        // It is filled as far as it goes, which takes some reports; none may be above the bound.
        let (mut highest, mut steady) = (0, 0);
        while steady < 10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = broker.client_figures().expect("it tells").ahead_bytes;
            assert!(now <= bound, "{now} bytes are read ahead, {bound} were given");
            steady = if now == highest && now > 0 { steady + 1 } else { 0 };
            highest = highest.max(now);
        }
        assert!(highest > bound / 16, "{highest} of {bound}: it does read ahead");
        if !is_first {
            continue;
        }
        let mut cx = Context::from_waker(Waker::noop());
        for (partition, reader) in readers.iter_mut().enumerate() {
            let mut read = 0;
            while read < MESSAGES {
                match reader.poll_batch(&mut cx, 256 << 10) {
                    Poll::Ready(batch) => read += batch.expect("it reads").count as usize,
                    Poll::Pending => tokio::task::yield_now().await,
                }
            }
            assert_eq!(read, MESSAGES, "partition {partition}");
        }
    }
}
