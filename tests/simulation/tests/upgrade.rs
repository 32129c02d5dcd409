//! Nodes of this version beside nodes that write the next format of journals: when the format can be raised, and what
//! becomes of a node that is behind (BRK-6).
//!
//! A node that is ahead is this version with another number: it claims and writes format + 1, with fields in its
//! records that this version does not know.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::raw::{Clock, Tasks};
use keylane::status::PartitionState;
use keylane::testing::{Flaws, Gate};
use keylane::{Attempt, Error, Handler, Keylane, Message, Outcome, Pipeline, Settings};
use keylane_broker::testing::memory::Landed;
use keylane_broker::{LogKind, MemoryBroker, TopicSpec};
use keylane_core::journal::FORMAT;
use keylane_simulation::Random;
use tokio::time::sleep;

const TOPIC: &str = "orders";
const GROUP: &str = "orders";
const PARTITIONS: u32 = 2;
const KEYS: u64 = 6;
const SEEDS: u64 = 200;
/// Simulated time after which everything that was to happen has happened.
const ROUNDS_MAX: u32 = 2_000;

/// What handlers have done: which node finished which message, and the first message that began too early.
#[derive(Debug, Default)]
struct Seen {
    done: BTreeMap<(String, u64), Vec<String>>,
    wrong: Option<String>,
}

#[derive(Clone)]
struct Worker {
    node: String,
    seen: Arc<Mutex<Seen>>,
}

impl Handler for Worker {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let (key, number) = attempt.id().split_once('-').expect("a key and a number");
        let (key, number) = (key.to_owned(), number.parse::<u64>().expect("a number"));
        {
            let mut seen = self.seen.lock().expect("no holder panics");
            let early = (0..number).find(|before| !seen.done.contains_key(&(key.clone(), *before)));
            if let (Some(before), None) = (early, &seen.wrong) {
                seen.wrong = Some(format!("{key}-{number} begins before {key}-{before} was ever finished"));
            }
        }
        sleep(Duration::from_millis(20)).await;
        let mut seen = self.seen.lock().expect("no holder panics");
        seen.done.entry((key, number)).or_default().push(self.node.clone());
        Outcome::Done
    }
}

/// One process.
struct Node {
    name: String,
    ahead: bool,
    gate: Arc<Gate>,
    keylane: Keylane,
    pipeline: Pipeline,
}

/// What landed in journals.
#[derive(Debug, Default)]
struct Written {
    /// By format.
    records: BTreeMap<u8, u64>,
    /// Claims with a field that this version does not know.
    claims_ahead: u64,
}

struct World {
    cluster: MemoryBroker,
    seed: u64,
    seen: Arc<Mutex<Seen>>,
    written: Arc<Mutex<Written>>,
    nodes: Vec<Node>,
    started: u64,
    producer: Keylane,
    sent: BTreeMap<String, u64>,
}

impl World {
    async fn new(seed: u64, conditional: bool) -> World {
        let cluster = MemoryBroker::new(seed, || 0);
        cluster.set_conditional(conditional);
        let spec = TopicSpec { partitions: PARTITIONS, ..TopicSpec::default() };
        cluster.node("any").create_topic(TOPIC, &spec).await.expect("a new topic");
        cluster.by_hand(GROUP, TOPIC);
        let written = Arc::<Mutex<Written>>::default();
        let writing = Arc::clone(&written);
        cluster.observe(move |landed| {
            if let Landed::Record { kind: LogKind::Journal, record, .. } = landed {
                let mut written = writing.lock().expect("no holder panics");
                *written.records.entry(record[0]).or_default() += 1;
                written.claims_ahead += u64::from(record[1] == 2 && record.ends_with(&[200, 1, 1]));
            }
        });
        let clock = Clock::simulated(0).seeded(seed ^ 0x5eed);
        let producer = Keylane::with_broker(cluster.node("producer"), clock, Tasks::default(), false);
        let seen = Arc::default();
        World { cluster, seed, seen, written, nodes: Vec::new(), started: 0, producer, sent: BTreeMap::new() }
    }

    async fn start(&mut self, ahead: bool) -> String {
        self.started += 1;
        let name = format!("{}{}", if ahead { "ahead" } else { "behind" }, self.started);
        let gate = Arc::<Gate>::default();
        let clock = Clock::simulated(0).seeded(self.seed ^ (self.started << 32));
        let tasks = Tasks::behind(Arc::clone(&gate));
        let keylane = Keylane::with_broker(self.cluster.node(&name), clock, tasks, false);
        let mut settings = Settings::default();
        settings.flaws = Flaws { format: FORMAT + u8::from(ahead), ..Flaws::default() };
        let worker = Worker { node: name.clone(), seen: Arc::clone(&self.seen) };
        let starting = keylane.pipeline(GROUP).topic(TOPIC).settings(settings).handle(worker).start();
        let pipeline = starting.await.expect("it starts");
        self.nodes.push(Node { name: name.clone(), ahead, gate, keylane, pipeline });
        name
    }

    fn kill(&mut self, at: usize) {
        let node = self.nodes.swap_remove(at);
        self.cluster.crash(&node.name);
        node.gate.kill();
        self.cluster.expire(&node.name);
    }

    fn assign_all(&self, name: &str) {
        (0..PARTITIONS).for_each(|partition| self.cluster.assign(GROUP, TOPIC, partition, name));
    }

    async fn send(&mut self, count: u64, random: &mut Random) {
        for _ in 0..count {
            let key = format!("k{}", random.between(0, KEYS - 1));
            let number = self.sent.entry(key.clone()).or_default();
            let message = Message::to(TOPIC).key(key.as_str()).id(format!("{key}-{number}")).payload("x");
            *number += 1;
            self.producer.produce(message).await.expect("durable");
        }
    }

    fn all_done(&self) -> bool {
        let seen = self.seen.lock().expect("no holder panics");
        assert_eq!(seen.wrong, None, "seed {}", self.seed);
        seen.done.len() as u64 == self.sent.values().sum::<u64>()
    }

    fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).expect("it is there")
    }

    /// Waits until a condition holds, in simulated time.
    async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        for _ in 0..ROUNDS_MAX {
            if condition().await {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("seed {}: never: {what}", self.seed);
    }

    /// Waits until all partitions run at a node, and nothing is left to do.
    async fn runs_at(&self, name: &str) {
        let running = async || {
            let status = self.node(name).pipeline.status().await.expect("it answers");
            let runs = status.partitions.iter().all(|partition| partition.state == PartitionState::Running);
            runs && self.all_done()
        };
        self.until(&format!("{name} runs everything"), running).await;
    }

    /// Why a node's partition has stopped.
    async fn stopped(&self, name: &str, partition: usize) -> Option<String> {
        let status = self.node(name).pipeline.status().await.expect("it answers");
        let one = &status.partitions[partition];
        (one.state == PartitionState::Stopped).then(|| one.why.clone().unwrap_or_default())
    }
}

fn simulate(run: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can be built");
    runtime.block_on(run);
}

fn refused(answer: Result<Vec<keylane::Upgraded>, Error>) -> String {
    match answer {
        Err(error @ Error::Upgrade(..)) => {
            assert_eq!(error.code().as_str(), "KL-1313");
            error.to_string()
        }
        other => panic!("it is not refused: {other:?}"),
    }
}

async fn mixed_fleet(conditional: bool) {
    let mut random = Random::new(7);
    let mut world = World::new(7, conditional).await;
    let (behind, ahead) = (world.start(false).await, world.start(true).await);
    world.assign_all(&behind);
    world.send(20, &mut random).await;
    world.runs_at(&behind).await;

    // While a node that is behind owns anything, the format is not raised.
    let why = refused(world.node(&ahead).keylane.upgrade(TOPIC, "a test").await);
    // In a simulation all nodes have one name.
    let owns = format!("partition 0: node simulated owns it and reads formats up to {FORMAT} only");
    assert!(why.contains(&owns), "{why}");
    world.cluster.assign(GROUP, TOPIC, 0, &ahead);
    let claimed = async || {
        let why = refused(world.node(&ahead).keylane.upgrade(TOPIC, "a test").await);
        why.contains("partition 1: node simulated")
    };
    world.until("partition 0 changes hands", claimed).await;
    world.send(20, &mut random).await;
    world.until("both handle what is theirs", async || world.all_done()).await;
    assert_eq!(world.written.lock().expect("no holder panics").records.get(&(FORMAT + 1)), None);

    // Once no such node owns anything, the format is raised, and only once.
    world.assign_all(&ahead);
    world.runs_at(&ahead).await;
    let upgraded = world.node(&ahead).keylane.upgrade(TOPIC, "a test").await.expect("it is raised");
    let [one] = &upgraded[..] else { panic!("{upgraded:?}") };
    assert_eq!((one.from, one.to, one.partitions, &*one.group), (FORMAT, FORMAT + 1, PARTITIONS, GROUP));
    let again = world.node(&ahead).keylane.upgrade(TOPIC, "a test").await;
    assert_eq!(again.expect("it was raised"), []);
    world.send(20, &mut random).await;
    world.runs_at(&ahead).await;
    let newer = async || world.written.lock().expect("no holder panics").records.contains_key(&(FORMAT + 1));
    world.until("the newer format is written", newer).await;

    // A node that is behind stops and says so, before it has handled anything.
    world.cluster.assign(GROUP, TOPIC, 0, &behind);
    world.until("it stops", async || world.stopped(&behind, 0).await.is_some()).await;
    let why = world.stopped(&behind, 0).await.unwrap_or_default();
    let says = format!(
        "KL-1312: the journal is written in format {}, and this version of Keylane reads",
        FORMAT + 1
    );
    assert!(why.starts_with(&says), "{why}");
    world.send(20, &mut random).await;
    sleep(Duration::from_secs(60)).await;
    world.cluster.assign(GROUP, TOPIC, 0, &ahead);
    world.runs_at(&ahead).await;
    let seen = world.seen.lock().expect("no holder panics");
    let twice: Vec<_> = seen.done.iter().filter(|(_, by)| by.len() != 1).collect();
    assert!(twice.is_empty(), "planned hand-overs run nothing twice: {twice:?}");
    assert!(world.written.lock().expect("no holder panics").claims_ahead > 0, "fields were skipped");
}

/// BRK-6, P1, P9: two versions beside each other, from before the upgrade to after it.
#[test]
fn a_node_that_is_behind_works_until_the_format_is_raised_and_then_stops() {
    simulate(mixed_fleet(true));
    simulate(mixed_fleet(false));
}

async fn storm(seed: u64) -> bool {
    let mut random = Random::new(seed);
    let mut world = World::new(seed, random.percent(50)).await;
    world.cluster.set_latency(Duration::ZERO, Duration::from_millis(*random.one_of(&[0, 5, 100])));
    for ahead in [false, true, random.percent(50)] {
        world.start(ahead).await;
    }
    for _ in 0..random.between(5, 20) {
        world.send(random.between(0, 10), &mut random).await;
        let at = random.between(0, world.nodes.len() as u64 - 1) as usize;
        match random.between(0, 9) {
            0 => {
                let ahead = world.nodes[at].ahead;
                world.kill(at);
                world.start(ahead).await;
            }
            1..4 => {
                let keylane = world.nodes[at].keylane.clone();
                // The call may be refused, or come to nothing because its node is killed.
                tokio::spawn(Arc::clone(&world.nodes[at].gate).around(async move {
                    let _ = keylane.upgrade(TOPIC, "a test").await;
                }));
            }
            _ => {
                let partition = random.between(0, u64::from(PARTITIONS) - 1) as u32;
                world.cluster.assign(GROUP, TOPIC, partition, &world.nodes[at].name);
            }
        }
        sleep(random.time(1, 8_000)).await;
    }
    // What the errors ask for: the newer version on all nodes, and the command once more.
    let mut behind_stopped = false;
    while let Some(at) = world.nodes.iter().position(|node| !node.ahead) {
        let name = world.nodes[at].name.clone();
        for partition in 0..PARTITIONS as usize {
            let why = world.stopped(&name, partition).await;
            behind_stopped |= why.is_some_and(|why| why.starts_with("KL-1312"));
        }
        world.kill(at);
    }
    let last = world.start(true).await;
    world.assign_all(&last);
    world.runs_at(&last).await;
    world.node(&last).keylane.upgrade(TOPIC, "a test").await.expect("all nodes read it");
    world.send(10, &mut random).await;
    world.runs_at(&last).await;
    assert_eq!(world.node(&last).keylane.upgrade(TOPIC, "a test").await.expect("read"), []);
    behind_stopped
}

/// BRK-6, P1, P2: whatever happens while some nodes are behind and the upgrade is asked for again and again, each key
/// keeps its order, nothing is lost, and no node stops for any other reason.
#[test]
fn keys_keep_their_order_while_a_fleet_is_upgraded() {
    let mut stopped = 0;
    for seed in 0..SEEDS {
        println!("seed {seed}");
        simulate(async { stopped += u64::from(storm(seed).await) });
    }
    assert!(stopped > 0, "in no run was a node left behind");
    println!("in {stopped} of {SEEDS} runs a node was left behind");
}
