//! A broker on another machine, as a good client of it behaves: calls wait as long as it is away, land in order, and
//! calls without an answer can be taken back, though they may have landed or may still land.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use keylane_broker::{
    Broker, BrokerError, Commit, Ends, Journal, JournalName, Membership, ProduceError, Reader, Topic,
    TopicSpec,
};
use keylane_core::Frames;
use keylane_simulation::Random;
use tokio::sync::{Notify, oneshot};

/// A call, an index in it, and what became of that message.
type Landed = (u64, usize, Result<u64, ProduceError>);
type Results = Vec<Result<u64, ProduceError>>;

/// The cluster, as all processes see it.
pub struct Cluster {
    pub log: Arc<dyn Broker>,
    away: Mutex<HashSet<u32>>,
    /// Partitions that answer and accept nothing, like those with too few replicas.
    short: Mutex<HashSet<u32>>,
    back: Notify,
}

impl Cluster {
    pub fn new(log: Arc<dyn Broker>) -> Arc<Cluster> {
        Arc::new(Cluster { log, away: Mutex::default(), short: Mutex::default(), back: Notify::new() })
    }

    pub fn leave(&self, partition: u32) {
        lock(&self.away).insert(partition);
    }

    pub fn fall_short(&self, partition: u32) {
        lock(&self.short).insert(partition);
    }

    pub fn come_back(&self, partition: u32) {
        lock(&self.away).remove(&partition);
        lock(&self.short).remove(&partition);
        self.back.notify_waiters();
    }

    fn is_away(&self, partition: u32) -> bool {
        lock(&self.away).contains(&partition)
    }

    async fn there(&self, partition: u32) {
        loop {
            let back = self.back.notified();
            if !self.is_away(partition) && !lock(&self.short).contains(&partition) {
                return;
            }
            back.await;
        }
    }
}

/// One process's client.
pub struct Remote {
    cluster: Arc<Cluster>,
    inner: Arc<Mutex<Inner>>,
    more: Arc<Notify>,
    recalls: AtomicU64,
    asked: AtomicU64,
}

struct Inner {
    random: Random,
    calls: HashMap<u64, Open>,
    next: u64,
    queues: HashMap<u32, VecDeque<Entry>>,
    /// Messages that have landed and whose answer is on its way.
    landed: HashMap<u32, VecDeque<Landed>>,
    pumped: HashSet<u32>,
}

struct Open {
    results: Results,
    left: usize,
    done: oneshot::Sender<Results>,
}

struct Entry {
    call: u64,
    index: usize,
    topic: String,
    frame: Vec<u8>,
}

impl Remote {
    pub fn new(cluster: &Arc<Cluster>, seed: u64) -> Remote {
        let inner = Inner {
            random: Random::new(seed),
            calls: HashMap::new(),
            next: 0,
            queues: HashMap::new(),
            landed: HashMap::new(),
            pumped: HashSet::new(),
        };
        Remote {
            cluster: Arc::clone(cluster),
            inner: Arc::new(Mutex::new(inner)),
            more: Arc::default(),
            recalls: AtomicU64::default(),
            asked: AtomicU64::default(),
        }
    }

    /// How often it was asked whether a partition accepts messages.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// How often all calls were taken back.
    pub fn recalls(&self) -> u64 {
        self.recalls.load(Ordering::Relaxed)
    }

    /// The process is gone: what was on the wire lands or does not.
    pub async fn cut(&self) {
        self.wire().await;
    }

    /// Of each partition's queue, some of the first entries land after all; the rest is gone. All calls end.
    async fn wire(&self) {
        let (landing, ended) = {
            let mut inner = lock(&self.inner);
            let inner = &mut *inner;
            let mut landing = Vec::new();
            let mut partitions: Vec<u32> = inner.queues.keys().copied().collect();
            partitions.sort_unstable();
            for partition in partitions {
                let queue = inner.queues.get_mut(&partition).expect("it is there");
                let on_the_wire = inner.random.between(0, queue.len().min(5) as u64) as usize;
                landing.extend(queue.drain(..on_the_wire).map(|entry| (partition, entry)));
                queue.clear();
            }
            inner.landed.clear();
            let mut ended: Vec<(u64, Open)> = inner.calls.drain().collect();
            ended.sort_unstable_by_key(|(call, _)| *call);
            (landing, ended)
        };
        for (partition, entry) in landing {
            let _nobody_hears = land(&self.cluster, partition, &entry).await;
        }
        // The callers hear of it one by one, as a client's thread gets to them.
        for (_, open) in ended {
            let wait = lock(&self.inner).random.between(0, 300);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(wait)).await;
                let _ = open.done.send(open.results);
            });
        }
    }

    fn pump(&self, partition: u32) {
        if !lock(&self.inner).pumped.insert(partition) {
            return;
        }
        let (cluster, inner, more) =
            (Arc::clone(&self.cluster), Arc::downgrade(&self.inner), Arc::clone(&self.more));
        tokio::spawn(async move {
            loop {
                let waits = more.notified();
                let Some(here) = inner.upgrade() else { return };
                let wait = lock(&here).random.between(0, 20);
                if lock(&here).queues.get(&partition).is_none_or(VecDeque::is_empty) {
                    drop(here);
                    waits.await;
                    continue;
                }
                tokio::time::sleep(Duration::from_millis(wait)).await;
                cluster.there(partition).await;
                let entry = lock(&here).queues.get_mut(&partition).and_then(VecDeque::pop_front);
                let Some(entry) = entry else { continue };
                let landed = land(&cluster, partition, &entry).await;
                lock(&here).landed.entry(partition).or_default().push_back((entry.call, entry.index, landed));
                let (here, cluster, back) =
                    (Arc::clone(&here), Arc::clone(&cluster), lock(&here).random.between(0, 20));
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(back)).await;
                    // While the cluster is away, an answer is lost on its way, and asked for again afterwards.
                    cluster.there(partition).await;
                    answer(&here, partition);
                });
            }
        });
    }
}

/// The message lands, unless it is too large for the topic.
async fn land(cluster: &Cluster, partition: u32, entry: &Entry) -> Result<u64, ProduceError> {
    let mut frames = Frames::default();
    frames.push_frame(partition, &entry.frame);
    let landed = cluster.log.produce(&entry.topic, frames).await.pop().expect("a result each");
    assert!(matches!(landed, Ok(_) | Err(ProduceError::TooLarge { .. })), "{landed:?}");
    landed
}

/// The next answer of a partition comes: answers keep their order.
fn answer(inner: &Mutex<Inner>, partition: u32) {
    let mut inner = lock(inner);
    let Some((call, index, landed)) = inner.landed.get_mut(&partition).and_then(VecDeque::pop_front) else {
        return;
    };
    let Some(open) = inner.calls.get_mut(&call) else { return };
    open.results[index] = landed;
    open.left -= 1;
    if open.left == 0 {
        let open = inner.calls.remove(&call).expect("it is there");
        let _ = open.done.send(open.results);
    }
}

#[async_trait]
impl Broker for Remote {
    fn kind(&self) -> &'static str {
        "remote"
    }

    async fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        self.cluster.log.create_topic(name, spec).await
    }

    async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError> {
        self.cluster.log.topic(name).await
    }

    async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        self.cluster.log.topics().await
    }

    async fn produce(&self, topic: &str, frames: Frames) -> Results {
        let answered = {
            let (done, answered) = oneshot::channel();
            let mut inner = lock(&self.inner);
            let unknown = Err(ProduceError::Unavailable("away".to_owned()));
            inner.next += 1;
            let call = inner.next;
            let open = Open { results: vec![unknown; frames.len()], left: frames.len(), done };
            inner.calls.insert(call, open);
            for (index, (partition, frame)) in frames.iter().enumerate() {
                let entry = Entry { call, index, topic: topic.to_owned(), frame: frame.to_vec() };
                inner.queues.entry(partition).or_default().push_back(entry);
            }
            answered
        };
        frames.iter().for_each(|(partition, _)| self.pump(partition));
        self.more.notify_waiters();
        answered.await.expect("every call is answered")
    }

    async fn recall(&self) {
        self.recalls.fetch_add(1, Ordering::Relaxed);
        // The client takes a while to get to the recall, and more messages may be handed over meanwhile.
        let wait = lock(&self.inner).random.between(0, 200);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        self.wire().await;
    }

    async fn takes(&self, _topic: &str, partition: u32) -> Result<(), BrokerError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.cluster.is_away(partition) {
            true => Err(BrokerError::Unavailable("away".to_owned())),
            false => Ok(()),
        }
    }

    async fn reader(&self, topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError> {
        self.cluster.log.reader(topic, partition, from).await
    }

    async fn ends(&self, topic: &str) -> Result<Vec<Ends>, BrokerError> {
        self.cluster.log.ends(topic).await
    }

    async fn commit_all(
        &self,
        group: &str,
        topic: &str,
        commits: Vec<(u32, Commit)>,
    ) -> Vec<Result<(), BrokerError>> {
        self.cluster.log.commit_all(group, topic, commits).await
    }

    async fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError> {
        self.cluster.log.committed(group, topic, partition).await
    }

    async fn join(&self, group: &str, topic: &str, node: &str) -> Result<Box<dyn Membership>, BrokerError> {
        self.cluster.log.join(group, topic, node).await
    }

    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError> {
        self.cluster.log.journal(name).await
    }

    async fn journals(&self, group: &str, topic: &str) -> Result<Option<u32>, BrokerError> {
        self.cluster.log.journals(group, topic).await
    }

    async fn grow_journals(&self, group: &str, topic: &str, partitions: u32) -> Result<(), BrokerError> {
        self.cluster.log.grow_journals(group, topic, partitions).await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}
