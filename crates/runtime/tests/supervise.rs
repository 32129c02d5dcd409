//! Tasks that end unasked: each such end is noticed and counted, and another task goes on in its place.
#![cfg(feature = "testing")]

mod wait;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::raw::{Clock, TaskKind, Tasks};
use keylane::status::PartitionState;
use keylane::{Keylane, Message, Pipeline, SpillOptions};
use keylane_broker::{MemoryBroker, TopicSpec};
use wait::until;

struct World {
    keylane: Keylane,
    tasks: Tasks,
    pipeline: Pipeline,
    seen: Arc<Mutex<Vec<String>>>,
    produced: usize,
}

impl World {
    async fn new() -> World {
        let cluster = MemoryBroker::new(1, || 0);
        let tasks = Tasks::default();
        let keylane = Keylane::with_broker(cluster.node("n"), Clock::system(), tasks.clone(), true);
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&seen);
        let pipeline = keylane
            .pipeline("t")
            .handle(move |message: Message| {
                let payload = String::from_utf8_lossy(message.payload()).into_owned();
                let log = Arc::clone(&log);
                async move {
                    tokio::task::yield_now().await;
                    log.lock().expect("free").push(payload);
                }
            })
            .start()
            .await
            .expect("starts");
        World { keylane, tasks, pipeline, seen, produced: 0 }
    }

    /// Produces more messages, of keys in all partitions, and waits until all are handled.
    async fn goes_on(&mut self) {
        let from = self.produced;
        self.produced += 40;
        for n in from..self.produced {
            let message = Message::to("t").key(format!("k{}", n % 20)).payload(n.to_string());
            self.keylane.produce(message).await.expect("produced");
        }
        let seen = Arc::clone(&self.seen);
        let all = move |seen: &[String]| (from..from + 40).all(|n| seen.contains(&n.to_string()));
        until("all are handled", || all(&seen.lock().expect("free"))).await;
    }

    fn ended(&self, kind: TaskKind) -> u64 {
        self.tasks.ended().find(|(of, _)| *of == kind).expect("every kind is counted").1
    }

    /// Ends one task of that kind, and proves that all goes on.
    async fn survives(mut self, kind: TaskKind) {
        self.goes_on().await;
        self.tasks.strike(kind);
        if kind == TaskKind::Reader {
            // The reader moves only when there is something to read.
            self.keylane.produce(Message::to("t").key("k").payload("x")).await.expect("produced");
        }
        until("it ended", || self.ended(kind) == 1).await;
        self.goes_on().await;
        let running = || async {
            let status = self.pipeline.status().await.expect("answers");
            status.partitions.iter().all(|partition| partition.state == PartitionState::Running)
        };
        while !running().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let others: u64 = self.tasks.ended().filter(|(of, _)| *of != kind).map(|(_, ended)| ended).sum();
        assert_eq!((self.ended(kind), others), (1, 0), "nothing else ended");
        // The last runs of a key's messages are in order, however often some of them ran.
        let seen = self.seen.lock().expect("free").clone();
        for key in 0..20 {
            let of_key = seen.iter().filter_map(|n| n.parse::<usize>().ok()).filter(|n| n % 20 == key);
            let mut last = None;
            for n in of_key {
                assert!(
                    last.is_none_or(|last| n <= last + 20),
                    "{n} ran before what stands before it: {seen:?}"
                );
                last = last.max(Some(n));
            }
        }
        self.pipeline.drain().await.expect("drained");
    }
}

/// P10: a shard that ended is replaced, and its partitions start over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_ends_is_replaced_and_its_partitions_start_over() {
    World::new().await.survives(TaskKind::Shard).await;
}

/// P10: an owner that ended begins anew; its shard has forgotten the partition meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_ends_begins_anew() {
    World::new().await.survives(TaskKind::Owner).await;
}

/// P10: a reader that ended makes its own partition start over, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_ends_makes_its_partition_start_over() {
    World::new().await.survives(TaskKind::Reader).await;
}

/// P10: a pipeline whose task that follows the group ended joins the group anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_the_group_joins_anew() {
    World::new().await.survives(TaskKind::Group).await;
}

/// ORD-4: a watchdog that ended watches again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watchdog_that_ends_watches_again() {
    World::new().await.survives(TaskKind::Watchdog).await;
}

/// PRD-3: the spill's tasks begin anew: messages that are kept while the broker is away still reach it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_the_spill_begin_anew() {
    let cluster = MemoryBroker::new(1, || 0);
    let log = MemoryBroker::new(2, || 0);
    let tasks = Tasks::default();
    let options = SpillOptions::default();
    let (broker, log) = (cluster.node("n"), log.node("n"));
    let keylane = Keylane::with_spill(broker, log, options, Clock::system(), tasks.clone(), true);
    let keylane = keylane.await.expect("opens");
    let ended = |kind| tasks.ended().find(|(of, _)| *of == kind).expect("every kind is counted").1;
    for kind in [TaskKind::SpillWatch, TaskKind::SpillWriter, TaskKind::SpillDrain] {
        for times in 1..=2 {
            // The second round strikes the task that took the first one's place.
            tasks.strike(kind);
            until("it ended", || ended(kind) == times).await;
        }
    }
    keylane.produce(Message::to("t").key("k").payload("x")).await.expect("produced");
}

/// A broker that can be cut off, with a spill beside it.
struct Spilling {
    cluster: MemoryBroker,
    tasks: Tasks,
    keylane: Keylane,
}

impl Spilling {
    async fn new() -> Spilling {
        let (cluster, log) = (MemoryBroker::new(1, || 0), MemoryBroker::new(2, || 0));
        let tasks = Tasks::default();
        let mut options = SpillOptions::default();
        options.drain_every = Duration::from_millis(20);
        let (broker, log) = (cluster.node("n"), log.node("n"));
        let keylane = Keylane::with_spill(broker, log, options, Clock::system(), tasks.clone(), true);
        let keylane = keylane.await.expect("opens");
        let spilling = Spilling { cluster, tasks, keylane };
        spilling.produce("0", 1).await;
        spilling
    }

    async fn produce(&self, id: &str, bytes: usize) {
        let message = Message::to("t").key("k").id(id).payload(vec![b'x'; bytes]);
        self.keylane.produce(message).await.expect("it is stored or kept");
    }

    /// Changes the largest message that the topic takes.
    async fn takes_up_to(&self, message_bytes_max: usize) {
        let operator = self.cluster.node("operator");
        let there = operator.topic("t").await.expect("it answers").expect("it was made");
        let spec = TopicSpec { message_bytes_max, ..there.spec };
        operator.create_topic("t", &spec).await.expect("it is changed");
    }

    fn ended(&self, kind: TaskKind) -> u64 {
        self.tasks.ended().find(|(of, _)| *of == kind).expect("every kind is counted").1
    }

    /// The first time that each message is with the broker, in their order.
    async fn ids(&self) -> Vec<String> {
        let mut ids = Vec::new();
        let operator = self.cluster.node("operator");
        for (partition, ends) in (0..).zip(operator.ends("t").await.expect("it answers")) {
            for message in self.keylane.peek("t", partition, ends.start, 100).await.expect("it answers") {
                let id = message.id().to_owned();
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }

    /// All that is kept is brought to the broker, though one of that kind ended, and all of it is there in its order.
    async fn drains(&self, kind: TaskKind, ids: &[&str]) {
        until("it ended", || self.ended(kind) == 1).await;
        until("nothing is kept any more", || {
            let spill = self.keylane.spill();
            spill.messages == 0 && spill.failed == 0 && spill.lines.is_empty()
        })
        .await;
        assert_eq!(self.ids().await, ids);
        assert_eq!(self.tasks.ended().map(|(_, ended)| ended).sum::<u64>(), 1, "nothing else ended");
    }
}

/// PRD-3, P2: a partition of the spill whose try ended as nobody asked is tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_of_the_spill_is_tried_again_when_who_brings_it_ends() {
    let spilling = Spilling::new().await;
    spilling.cluster.cut_off("n");
    for id in ["1", "2"] {
        spilling.produce(id, 1).await;
    }
    spilling.tasks.strike(TaskKind::SpillPartition);
    until("it ended", || spilling.ended(TaskKind::SpillPartition) == 1).await;
    spilling.cluster.reconnect("n");
    spilling.drains(TaskKind::SpillPartition, &["0", "1", "2"]).await;
}

/// PRD-3, P2: what the broker refused is tried again as it was asked for, though who tries it ends as nobody asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_is_tried_again_when_who_tries_it_ends() {
    let spilling = Spilling::new().await;
    spilling.cluster.cut_off("n");
    for id in ["1", "2"] {
        spilling.produce(id, 5_000).await;
    }
    spilling.takes_up_to(1_000).await;
    spilling.cluster.reconnect("n");
    until("it is refused", || spilling.keylane.spill().failed == 2).await;
    spilling.takes_up_to(1 << 20).await;
    spilling.tasks.strike(TaskKind::SpillRefused);
    spilling.keylane.drain_spill();
    spilling.drains(TaskKind::SpillRefused, &["0", "1", "2"]).await;
}

/// PRD-3, P2: a call whose task ends as nobody asked has no answer: its messages are kept like others that were not
/// acknowledged, its caller hears so, and what is called back with it does not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_task_ends_is_kept() {
    let spilling = Spilling::new().await;
    // So that the broker does not answer at once.
    spilling.cluster.set_latency(Duration::from_millis(1), Duration::from_millis(1));
    spilling.tasks.strike(TaskKind::SpillCall);
    for id in ["1", "2"] {
        spilling.produce(id, 1).await;
    }
    spilling.drains(TaskKind::SpillCall, &["0", "1", "2"]).await;
}

/// PRD-3, P2: what was called back is kept, though who called it back ends as nobody asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calling_back_begins_anew() {
    let spilling = Spilling::new().await;
    spilling.tasks.strike(TaskKind::SpillRecall);
    spilling.cluster.cut_off("n");
    for id in ["1", "2"] {
        spilling.produce(id, 1).await;
    }
    spilling.cluster.reconnect("n");
    spilling.drains(TaskKind::SpillRecall, &["0", "1", "2"]).await;
}

/// P10: a pipeline that nobody runs any more does not say that it runs, and gives its partitions up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_that_ends_says_that_it_has_stopped() {
    let mut world = World::new().await;
    world.goes_on().await;
    world.tasks.strike(TaskKind::Pipeline);
    until("it ended", || world.ended(TaskKind::Pipeline) == 1).await;
    until("it says so", || world.pipeline.seen().state == "stopped").await;
    let why = world.pipeline.seen().why.expect("it says why");
    assert!(why.contains("KL-1321"), "{why}");
    until("its partitions are given up", || {
        world.pipeline.seen().partitions.iter().all(|partition| partition.state == PartitionState::Idle)
    })
    .await;
    world.pipeline.drain().await.expect("there is nothing left to drain");
}
