//! The suite on real Kafka, and what only Kafka has.
#![cfg(feature = "kafka")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use keylane_broker::testing::conformance::Rig;
use keylane_broker::{Broker, Kafka, KafkaOptions, conformance};
use keylane_tests::Cluster;

conformance!(kafka, KafkaRig::new(), can delete recreate share);

/// A cluster that all cases of this process share.
struct KafkaRig {
    cluster: Arc<Cluster>,
    case: u32,
    opened: Option<Arc<Kafka>>,
}

impl KafkaRig {
    fn new() -> KafkaRig {
        static CASES: AtomicU32 = AtomicU32::new(0);
        KafkaRig { cluster: Cluster::shared(), case: CASES.fetch_add(1, Ordering::Relaxed), opened: None }
    }

    fn open(&mut self) -> Arc<Kafka> {
        let mut options = KafkaOptions::new(&self.cluster.bootstrap);
        // Cases wait for nothing but the cluster: who vanished is noticed soon.
        options.settings.insert("session.timeout.ms".to_owned(), "6000".to_owned());
        options.settings.insert("heartbeat.interval.ms".to_owned(), "100".to_owned());
        let opened = Arc::new(Kafka::open(options).expect("it opens"));
        self.opened = Some(Arc::clone(&opened));
        opened
    }

    fn any(&mut self) -> Arc<Kafka> {
        match &self.opened {
            Some(opened) => Arc::clone(opened),
            None => self.open(),
        }
    }
}

#[async_trait]
impl Rig for KafkaRig {
    /// Each is a process of its own, as far as the cluster can tell.
    async fn broker(&mut self) -> Arc<dyn Broker> {
        self.open()
    }

    async fn reopen(&mut self) -> Arc<dyn Broker> {
        self.opened = None;
        self.open()
    }

    fn name(&self, base: &str) -> String {
        format!("{base}.{}.{}", std::process::id(), self.case)
    }

    async fn delete_below(&mut self, topic: &str, partition: u32, position: u64) {
        self.any().delete_below(topic, partition, position).await.expect("records are deleted");
    }

    async fn recreate_topic(&mut self, topic: &str) {
        self.any().recreate(topic).await.expect("a topic is made again");
    }
}
