//! A topic gets more partitions while its keys are in flight: processes come, go and die, an operator accepts the
//! partitions once, twice, or is interrupted, and each key keeps its order (BRK-10, P2), also if the journal with the
//! decision is lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::raw::{Clock, Tasks};
use keylane::testing::Gate;
use keylane::{Attempt, Handler, Keylane, Message, Outcome, Pipeline, Settings};
use keylane_broker::{Broker, Faulty, MemoryBroker, Rates, TopicSpec};
use keylane_simulation::Random;
use tokio::time::sleep;

use crate::{GROUP, TOPIC};

/// What handlers have done: the finished messages of each key, and the first message that began too early.
#[derive(Debug, Default)]
struct Seen {
    done: BTreeMap<(String, u64), u32>,
    wrong: Option<String>,
}

#[derive(Clone)]
struct Worker {
    seen: Arc<Mutex<Seen>>,
    random: Arc<Mutex<Random>>,
    takes_ms: u64,
}

impl Handler for Worker {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let (key, number) = attempt.id().split_once('-').expect("a key and a number");
        let (key, number) = (key.to_owned(), number.parse::<u64>().expect("a number"));
        {
            let mut seen = self.seen.lock().expect("no holder panics");
            let early = (0..number).find(|before| !seen.done.contains_key(&(key.clone(), *before)));
            if let (Some(before), None) = (early, &seen.wrong) {
                let at = (attempt.partition(), attempt.position(), attempt.epoch());
                let text = format!("{key}-{number} at {at:?} begins before {key}-{before} was ever finished");
                seen.wrong = Some(text);
            }
        }
        let takes = self.random.lock().expect("no holder panics").time(1, self.takes_ms + 1);
        sleep(takes).await;
        *self.seen.lock().expect("no holder panics").done.entry((key, number)).or_default() += 1;
        Outcome::Done
    }
}

/// One process.
struct Node {
    name: String,
    gate: Arc<Gate>,
    keylane: Keylane,
    pipeline: Arc<Mutex<Option<Pipeline>>>,
}

struct World {
    cluster: MemoryBroker,
    random: Random,
    worker: Worker,
    nodes: Vec<Node>,
    started: u64,
    producer: Keylane,
    sent: BTreeMap<String, u64>,
    /// A call found nothing to accept since the topic last grew.
    accepted: Arc<AtomicBool>,
    /// After this many tries to accept, the journal of partition 0 is lost.
    loss: Option<u64>,
    lost: bool,
}

impl World {
    async fn new(seed: u64, partitions: u32) -> World {
        let mut random = Random::new(seed);
        let cluster = MemoryBroker::new(random.number(), || 0);
        cluster.set_conditional(random.percent(50));
        cluster.set_gaps(*random.one_of(&[0, 0, 3]));
        let latency = Duration::from_millis(*random.one_of(&[0, 5, 100]));
        cluster.set_latency(Duration::ZERO, latency);
        let spec = TopicSpec { partitions, ..TopicSpec::default() };
        cluster.node("any").create_topic(TOPIC, &spec).await.expect("a new topic");
        let (seen, takes_ms) = (Arc::default(), *random.one_of(&[1, 300, 3_000]));
        let worker = Worker { seen, random: Arc::new(Mutex::new(random.split())), takes_ms };
        let (clock, sent) = (Clock::simulated(0).seeded(random.number()), BTreeMap::new());
        let producer = Keylane::with_broker(cluster.node("producer"), clock, Tasks::default(), false);
        World {
            cluster,
            random,
            worker,
            nodes: Vec::new(),
            started: 0,
            producer,
            sent,
            accepted: Arc::default(),
            loss: None,
            lost: false,
        }
    }

    /// The journal of partition 0 may be lost now: its partition stops, and nothing of the others may run early.
    fn lose(&mut self) {
        self.loss = self.loss.and_then(|left| left.checked_sub(1));
        if self.loss == Some(0) {
            let keeps_end = self.random.percent(50);
            self.cluster.lose_journal(GROUP, TOPIC, 0, keeps_end);
            self.lost = true;
        }
    }

    fn start(&mut self) {
        self.started += 1;
        let name = format!("p{}", self.started);
        let gate = Arc::<Gate>::default();
        // News of the group comes late, so an owner goes on for a while as if nothing had changed.
        let news = if self.random.percent(50) { 1_000 } else { 0 };
        let rates = Rates { news, late_max: Duration::from_secs(30), ..Rates::none() };
        let (node, carrier) = (self.cluster.node(&name), self.cluster.node("carrier"));
        let broker: Arc<dyn Broker> = Faulty::with_carrier(node, carrier, self.random.number(), rates);
        let clock = Clock::simulated(0).seeded(self.random.number());
        let keylane = Keylane::with_broker(broker, clock, Tasks::behind(Arc::clone(&gate)), false);
        let pipeline = Arc::<Mutex<Option<Pipeline>>>::default();
        let mut settings = Settings::default();
        settings.shards = Some(self.random.between(1, 2) as usize);
        let builder = keylane.pipeline(GROUP).topic(TOPIC).settings(settings).handle(self.worker.clone());
        let starting = Arc::clone(&pipeline);
        tokio::spawn(Arc::clone(&gate).around(async move {
            let started = builder.start().await.expect("it starts");
            *starting.lock().expect("no holder panics") = Some(started);
        }));
        self.nodes.push(Node { name, gate, keylane, pipeline });
    }

    fn kill(&mut self) {
        let at = self.random.between(0, self.nodes.len() as u64 - 1) as usize;
        let node = self.nodes.swap_remove(at);
        self.cluster.crash(&node.name);
        node.gate.kill();
        self.cluster.expire(&node.name);
    }

    /// Sends messages of some keys, by a producer that may not know the new number of partitions yet.
    async fn send(&mut self, count: u64) {
        for _ in 0..count {
            let key = format!("k{}", self.random.between(0, 11));
            let number = self.sent.entry(key.clone()).or_default();
            let message = Message::to(TOPIC).key(key.as_str()).id(format!("{key}-{number}")).payload("x");
            *number += 1;
            self.producer.produce(message).await.expect("durable");
        }
    }

    /// A process begins to accept, and may die while it does.
    fn accept(&mut self) {
        let at = self.random.between(0, self.nodes.len() as u64 - 1) as usize;
        let Node { gate, keylane, .. } = &self.nodes[at];
        let keylane = keylane.clone();
        let accepted = Arc::clone(&self.accepted);
        let accepting = async move {
            if keylane.accept(TOPIC, "a test").await.is_ok_and(|accepted| accepted.is_empty()) {
                accepted.store(true, Ordering::Relaxed);
            }
        };
        tokio::spawn(Arc::clone(gate).around(accepting));
    }

    fn right(&self) {
        let seen = self.worker.seen.lock().expect("no holder panics");
        assert_eq!(seen.wrong, None);
    }

    async fn all_done(&self) -> bool {
        let seen = self.worker.seen.lock().expect("no holder panics");
        seen.done.len() as u64 == self.sent.values().sum::<u64>()
    }
}

async fn run(seed: u64, loses: bool) {
    let mut random = Random::new(seed ^ 0x9047);
    let mut partitions = random.between(1, 3) as u32;
    let mut world = World::new(seed, partitions).await;
    world.loss = loses.then(|| Random::new(seed ^ 0x1055).between(2, 8));
    for _ in 0..random.between(1, 3) {
        world.start();
    }
    world.send(random.between(1, 40)).await;
    // A group that begins later would know nothing of the time before.
    while world.worker.seen.lock().expect("no holder panics").done.is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
    for _ in 0..random.between(1, 2) {
        sleep(random.time(1, 8_000)).await;
        world.send(random.between(0, 40)).await;
        // A process that sleeps meanwhile has not heard of the growth when it goes on.
        let asleep = random.percent(50).then(|| Arc::clone(&random.one_of(&world.nodes).gate));
        asleep.iter().for_each(|gate| gate.freeze());
        // By a multiple, keys move only to new partitions. By any other number keys also move among the old partitions,
        // and nothing may be produced until the number is accepted.
        let multiple = random.percent(50);
        partitions = if multiple { partitions * random.between(2, 3) as u32 } else { partitions + 1 };
        world.cluster.grow_topic(TOPIC, partitions);
        world.accepted = Arc::default();
        let most = if multiple { 40 } else { 0 };
        world.send(random.between(0, most)).await;
        for _ in 0..random.between(1, 3) {
            sleep(random.time(1, 8_000)).await;
            if random.percent(40) {
                world.kill();
            }
            if world.nodes.is_empty() || random.percent(30) {
                world.start();
                sleep(Duration::from_secs(1)).await;
            }
            world.accept();
            world.send(random.between(0, most)).await;
            world.lose();
        }
        world.right();
        // One growth after the other: if partitions are added to unaccepted ones, the place of keys is unknown.
        let mut rounds = 0;
        while !world.accepted.load(Ordering::Relaxed) {
            rounds += 1;
            assert!(rounds < 200, "seed {seed}: nobody gets it accepted: {}", shown(&world).await);
            asleep.iter().filter(|_| random.percent(20)).for_each(|gate| gate.thaw());
            if world.nodes.is_empty() || random.percent(30) {
                world.start();
            }
            world.accept();
            sleep(random.time(1, 30_000)).await;
            world.lose();
            world.right();
            if world.lost {
                break;
            }
        }
        if world.lost {
            // Whether the number gets accepted is open, so no more is produced, and no more partitions are added.
            asleep.iter().for_each(|gate| gate.thaw());
            break;
        }
        world.send(random.between(0, 40)).await;
        asleep.iter().for_each(|gate| gate.thaw());
        world.send(random.between(0, 40)).await;
    }
    world.start();
    for round in 0.. {
        if world.all_done().await {
            break;
        }
        if world.lost && round == 20 {
            // The partition whose journal was lost has stopped, and the messages that wait for it go on waiting.
            break;
        }
        assert!(round < 60, "seed {seed}: not all is done: {}", shown(&world).await);
        // The process that began to accept may have died.
        world.accept();
        sleep(Duration::from_secs(20)).await;
        world.right();
    }
    world.right();
}

async fn shown(world: &World) -> String {
    let mut shown = String::new();
    for node in &world.nodes {
        let pipeline = node.pipeline.lock().expect("no holder panics").clone();
        if let Some(pipeline) = pipeline {
            shown +=
                &format!("{}: {:?}\n", node.name, pipeline.status().await.map(|status| status.partitions));
        }
    }
    shown
}

/// BRK-10, P2: whatever happens while more partitions are added and accepted, each key keeps its order and nothing is
/// left.
#[test]
fn keys_keep_their_order_when_more_partitions_are_accepted() {
    (0..300).for_each(|seed| simulate(seed, false));
}

/// BRK-10, P2: the journal of partition 0, which has the decision, is lost in the middle: the partitions concerned
/// stop, and nothing runs early.
#[test]
fn keys_keep_their_order_when_the_journal_that_has_the_decision_is_lost() {
    (0..100).for_each(|seed| simulate(seed, true));
}

fn simulate(seed: u64, loses: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can be built");
    println!("seed {seed}");
    runtime.block_on(run(seed, loses));
}
