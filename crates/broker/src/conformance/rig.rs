//! How the suite gets at a broker: a [`Rig`] opens it, opens it again, and does to it what the contract has no call for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use crate::contract::{Broker, Topic, TopicSpec};
use crate::memory::MemoryBroker;

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

    /// True if several processes can be members of a group.
    fn has_many_processes(&self) -> bool {
        false
    }

    /// Deletes messages below a position, as retention does. False: cannot be done here, and is not asked for.
    async fn delete_below(&mut self, _topic: &str, _partition: u32, _position: u64) -> bool {
        false
    }

    /// Leaves a gap before the next message. False: cannot be done here.
    async fn skip_positions(&mut self, _topic: &str, _partition: u32, _by: u64) -> bool {
        false
    }

    /// Deletes a topic and makes it again. False: cannot be done here.
    async fn recreate_topic(&mut self, _topic: &str) -> bool {
        false
    }
}

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

    fn has_many_processes(&self) -> bool {
        true
    }

    async fn delete_below(&mut self, topic: &str, partition: u32, position: u64) -> bool {
        self.cluster.delete_below(topic, partition, position);
        true
    }

    async fn skip_positions(&mut self, topic: &str, partition: u32, by: u64) -> bool {
        self.cluster.skip_positions(topic, partition, by);
        true
    }

    async fn recreate_topic(&mut self, topic: &str) -> bool {
        self.cluster.recreate_topic(topic);
        true
    }
}

/// A broker that belongs to one process, such as the embedded one: opened by a closure, closed by dropping it.
pub struct OpenedBy<F> {
    open: F,
    opened: Option<Arc<dyn Broker>>,
}

impl<F> OpenedBy<F> {
    /// `open` opens it, the first time and each time again, on the same folder.
    pub fn new(open: F) -> OpenedBy<F> {
        OpenedBy { open, opened: None }
    }
}

#[async_trait]
impl<F, O> Rig for OpenedBy<F>
where
    F: FnMut() -> O + Send,
    O: Future<Output = Arc<dyn Broker>> + Send,
{
    async fn broker(&mut self) -> Arc<dyn Broker> {
        if self.opened.is_none() {
            self.opened = Some((self.open)().await);
        }
        self.opened.clone().expect("opened on the line above")
    }

    async fn reopen(&mut self) -> Arc<dyn Broker> {
        if let Some(opened) = self.opened.take() {
            assert_eq!(Arc::strong_count(&opened), 1, "a case drops its handles before it reopens");
        }
        self.broker().await
    }
}
