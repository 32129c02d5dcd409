//! Tasks that end unasked: each such end is noticed and counted, and another task goes on in its place.
#![cfg(feature = "testing")]

mod wait;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::raw::{Clock, TaskKind, Tasks};
use keylane::status::PartitionState;
use keylane::{Keylane, Message, Pipeline, SpillOptions};
use keylane_broker::MemoryBroker;
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
