//! How a conformance case reaches a broker: a [`Rig`] opens it, opens it again, and does to it what the contract has no
//! call for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use crate::contract::{Broker, Topic, TopicSpec};
use crate::testing::memory::MemoryBroker;

/// A broker under test. New rigs are empty, or use names that no other case uses: see [`Rig::name`].
#[async_trait]
pub trait Rig: Send {
    /// A handle to the broker, as a further process would have it. A broker that belongs to one process returns the
    /// same handle each time.
    async fn broker(&mut self) -> Arc<dyn Broker>;

    /// Closes the broker and opens it again. Before this, the case drops every handle to it.
    async fn reopen(&mut self) -> Arc<dyn Broker>;

    /// A name for a topic or group that no other case uses. Rigs on a shared cluster add something to `base`.
    fn name(&self, base: &str) -> String {
        base.to_owned()
    }

    /// `can delete`: deletes messages below a position, as retention does, at the latest when the next message comes.
    async fn delete_below(&mut self, _topic: &str, _partition: u32, _position: u64) {
        panic!("{CANNOT}");
    }

    /// `can skip`: leaves a gap before the next message.
    async fn skip_positions(&mut self, _topic: &str, _partition: u32, _by: u64) {
        panic!("{CANNOT}");
    }

    /// `can recreate`: deletes a topic and makes it again. Before this, the case drops every handle to the broker; with
    /// `can swap` it keeps its members, which must be told.
    async fn recreate_topic(&mut self, _topic: &str) {
        panic!("{CANNOT}");
    }

    /// `can close`: closes the broker while handles to it are still held.
    async fn close(&mut self) {
        panic!("{CANNOT}");
    }

    /// `can kill`: opens the broker as it is after a process that had it open was killed. Before this, the case drops
    /// every handle; nothing is closed.
    async fn reopen_after_kill(&mut self) -> Arc<dyn Broker> {
        panic!("{CANNOT}");
    }

    /// `can begin_far`: lets partition 0 of an empty topic begin at this position. Before this, the case drops every
    /// handle to the broker.
    async fn begin_at(&mut self, _topic: &str, _position: u64) {
        panic!("{CANNOT}");
    }

    /// `can grow`: gives a topic more partitions, as an operator does.
    async fn grow_topic(&mut self, _topic: &str, _partitions: u32) {
        panic!("{CANNOT}");
    }
}

/// Panics with this text: a case that silently does nothing would look like one that passed.
const CANNOT: &str = "this rig cannot do that: leave the cases out that need it";

/// A new topic with default settings, and a handle to the broker. Returns the topic's name.
pub async fn with_topic(rig: &mut dyn Rig, partitions: u32) -> (Arc<dyn Broker>, String) {
    let spec = TopicSpec { partitions, ..TopicSpec::default() };
    let (broker, topic) = with_spec(rig, &spec).await;
    (broker, topic.name)
}

/// A new topic with these settings, and a handle to the broker.
pub async fn with_spec(rig: &mut dyn Rig, spec: &TopicSpec) -> (Arc<dyn Broker>, Topic) {
    let broker = rig.broker().await;
    let topic = broker.create_topic(&rig.name("orders"), spec).await.expect("a new topic is made");
    (broker, topic)
}

/// Runs the suite against the memory broker.
pub struct MemoryRig {
    cluster: MemoryBroker,
    nodes: u32,
}

impl MemoryRig {
    /// A rig over a new cluster in memory.
    pub fn new(seed: u64) -> MemoryRig {
        // The clock ticks every 32 calls, so that some batches end at a change of append time and some at their size.
        let calls = AtomicU64::new(32);
        let cluster = MemoryBroker::new(seed, move || calls.fetch_add(1, Ordering::Relaxed) / 32);
        MemoryRig { cluster, nodes: 0 }
    }

    /// A cluster whose journals cannot append on condition.
    pub fn unconditional(self) -> MemoryRig {
        self.cluster.set_conditional(false);
        self
    }

    /// A cluster with gaps between positions.
    pub fn with_gaps(self, most: u64) -> MemoryRig {
        self.cluster.set_gaps(most);
        self
    }
}

#[async_trait]
impl Rig for MemoryRig {
    async fn broker(&mut self) -> Arc<dyn Broker> {
        self.nodes += 1;
        self.cluster.node(&format!("node-{}", self.nodes))
    }

    /// The cluster lives on; only a new process of it is opened.
    async fn reopen(&mut self) -> Arc<dyn Broker> {
        self.broker().await
    }

    async fn delete_below(&mut self, topic: &str, partition: u32, position: u64) {
        self.cluster.delete_below(topic, partition, position);
    }

    async fn skip_positions(&mut self, topic: &str, partition: u32, by: u64) {
        self.cluster.skip_positions(topic, partition, by);
    }

    async fn recreate_topic(&mut self, topic: &str) {
        self.cluster.recreate_topic(topic);
    }

    async fn close(&mut self) {
        self.cluster.crash(&format!("node-{}", self.nodes));
    }

    async fn reopen_after_kill(&mut self) -> Arc<dyn Broker> {
        self.close().await;
        self.broker().await
    }

    async fn begin_at(&mut self, topic: &str, position: u64) {
        self.cluster.skip_positions(topic, 0, position);
    }

    async fn grow_topic(&mut self, topic: &str, partitions: u32) {
        self.cluster.grow_topic(topic, partitions);
    }
}
