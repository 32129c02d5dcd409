//! Asks Kafka itself what a group has committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use keylane_tests::{Acked, Cluster, Committed, Sink, until};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const ASK: Duration = Duration::from_secs(30);
/// The time between two looks.
const COMMITS_EVERY: Duration = Duration::from_millis(20);

/// The commits of a group that is named like its topic, as with [`keylane_tests::Setup`].
pub struct Commits {
    consumer: BaseConsumer,
    topic: String,
    partitions: u32,
}

impl Commits {
    pub fn of(cluster: &Cluster, topic: &str, partitions: u32) -> Commits {
        let consumer = ClientConfig::new()
            .set("bootstrap.servers", &cluster.bootstrap)
            .set("group.id", topic)
            .create()
            .expect("a client that asks");
        Commits { consumer, topic: topic.to_owned(), partitions }
    }

    /// Partition and position of each commit; none while Kafka does not answer.
    pub fn now(&self) -> Option<Vec<(u32, u64)>> {
        let mut asked = TopicPartitionList::new();
        for partition in 0..self.partitions {
            asked.add_partition(&self.topic, partition as i32);
        }
        let answer = self.consumer.committed_offsets(asked, ASK).ok()?;
        let committed = answer.elements().into_iter().filter_map(|at| match (at.error(), at.offset()) {
            (Ok(()), Offset::Offset(position)) => Some((at.partition() as u32, position as u64)),
            _ => None,
        });
        Some(committed.collect())
    }

    /// Waits until all acknowledged messages lie below the commits.
    pub async fn follow(&self, acked: &[Acked]) {
        let mut ends = BTreeMap::new();
        for acked in acked {
            let end = ends.entry(acked.partition).or_insert(0);
            *end = (acked.position() + 1).max(*end);
        }
        until("Kafka's commits to follow", async || {
            let now: BTreeMap<u32, u64> = self.now()?.into_iter().collect();
            ends.iter().all(|(partition, end)| now.get(partition) >= Some(end)).then_some(())
        })
        .await;
    }

    /// Looks again and again until it is told to stop.
    pub fn watch(self, sink: &Sink) -> Watch {
        let ends = Arc::new(AtomicBool::new(false));
        let (count, ended) = (sink.count_reader(), Arc::clone(&ends));
        let watching = std::thread::spawn(move || {
            let mut seen = Vec::new();
            loop {
                let last = ended.load(Ordering::Relaxed);
                // The count is read after the answer: whatever is recorded with a higher count has happened later.
                seen.extend(self.now().map(|partitions| Committed { partitions, at: count() }));
                if last {
                    return seen;
                }
                std::thread::sleep(COMMITS_EVERY);
            }
        });
        Watch { ends, watching }
    }
}

/// The looks that are under way.
pub struct Watch {
    ends: Arc<AtomicBool>,
    watching: JoinHandle<Vec<Committed>>,
}

impl Watch {
    /// Looks once more, and returns everything that was seen.
    pub fn stop(self) -> Vec<Committed> {
        self.ends.store(true, Ordering::Relaxed);
        let seen = self.watching.join().expect("looking does not panic");
        assert!(seen.len() > 10, "only {} looks at the commits", seen.len());
        seen
    }
}
