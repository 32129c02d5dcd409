//! How the suite gets at a broker: a [`Rig`] opens it, opens it again, and does to it what the contract has no call for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use crate::contract::{Broker, Topic, TopicSpec};
use crate::testing::memory::MemoryBroker;

/// A broker under test. Empty when it is made, or as good as: see [`Rig::name`].
#[async_trait]
pub trait Rig: Send {
    /// A handle, as one more process has it. A broker that belongs to one process gives the same one each time.
    async fn broker(&mut self) -> Arc<dyn Broker>;

    /// Closes the broker and opens it again. The case has dropped everything of it before.
    async fn reopen(&mut self) -> Arc<dyn Broker>;

    /// A name for a topic or a group that no other case uses. Rigs over a shared cluster add to it.
    fn name(&self, base: &str) -> String {
        base.to_owned()
    }

    /// `can delete`: messages below a position go, as retention has it; at the latest when the next one comes.
    async fn delete_below(&mut self, _topic: &str, _partition: u32, _position: u64) {
        panic!("{CANNOT}");
    }

    /// `can skip`: leaves a gap before the next message.
    async fn skip_positions(&mut self, _topic: &str, _partition: u32, _by: u64) {
        panic!("{CANNOT}");
    }

    /// `can recreate`: deletes a topic and makes it again. The case has dropped everything of the broker before, but for
    /// `can swap`, where members are told.
    async fn recreate_topic(&mut self, _topic: &str) {
        panic!("{CANNOT}");
    }

    /// `can close`: closes the broker under whoever still holds handles to it.
    async fn close(&mut self) {
        panic!("{CANNOT}");
    }

    /// `can kill`: opens the broker as it is after a process was killed that had it open. The case has dropped everything
    /// of it before; nothing is closed.
    async fn reopen_after_kill(&mut self) -> Arc<dyn Broker> {
        panic!("{CANNOT}");
    }

    /// `can begin_far`: lets partition 0 of an empty topic begin at this position. The case has dropped everything of the
    /// broker before.
    async fn begin_at(&mut self, _topic: &str, _position: u64) {
        panic!("{CANNOT}");
    }

    /// `can grow`: gives a topic more partitions, as an operator does.
    async fn grow_topic(&mut self, _topic: &str, _partitions: u32) {
        panic!("{CANNOT}");
    }
}

/// A case that does nothing must not look like one that passed.
const CANNOT: &str = "this rig cannot do that: leave the cases out that need it";

/// A new topic with default settings, and a handle to it.
pub async fn with_topic(rig: &mut dyn Rig, partitions: u32) -> (Arc<dyn Broker>, String) {
    let spec = TopicSpec { partitions, ..TopicSpec::default() };
    let (broker, topic) = with_spec(rig, &spec).await;
    (broker, topic.name)
}

/// A new topic of this kind, and a handle to it.
pub async fn with_spec(rig: &mut dyn Rig, spec: &TopicSpec) -> (Arc<dyn Broker>, Topic) {
    let broker = rig.broker().await;
    let topic = broker.create_topic(&rig.name("orders"), spec).await.expect("a new topic is made");
    (broker, topic)
}

/// The memory broker.
pub struct MemoryRig {
    cluster: MemoryBroker,
    nodes: u32,
}

impl MemoryRig {
    /// A new cluster.
    pub fn new(seed: u64) -> MemoryRig {
        // Ticks now and then, so that batches are ended by their append time sometimes and by their size sometimes.
        let calls = AtomicU64::new(32);
        let cluster = MemoryBroker::new(seed, move || calls.fetch_add(1, Ordering::Relaxed) / 32);
        MemoryRig { cluster, nodes: 0 }
    }

    /// One whose journals cannot append on condition.
    pub fn unconditional(self) -> MemoryRig {
        self.cluster.set_conditional(false);
        self
    }

    /// One with gaps between positions.
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

    /// The cluster lives on; what is opened again is a process of it.
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
