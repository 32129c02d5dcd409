//! Simulates the spill: a broker that comes and goes by partition, a process that is killed, and at the end a look at
//! each key's messages in the log.

mod aside;
mod remote;

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use keylane::raw::{Clock, Draft, Tasks};
use keylane::spill::{SpillEntryState, SpillState};
use keylane::testing::Gate;
use keylane::{Keylane, Message, Severity, SpillOptions, WhenFull};
use keylane_broker::{Broker, MemoryBroker, TopicSpec};
use keylane_core::partition_of;
use keylane_simulation::Random;

use self::remote::{Cluster, Remote};

const TOPIC: &str = "orders";
const PARTITIONS: u32 = 3;
const KEYS: u64 = 6;
const SEEDS: u64 = 300;
/// A limit that some messages exceed.
const SMALL: usize = 1_000;
/// Calls that may be in flight.
const CALLS_MAX: usize = 1_000;
/// Longer than any outage lasts and any drain waits.
const LONG: Duration = Duration::from_secs(600);

/// The messages that were acknowledged, and how.
#[derive(Default)]
struct Acked {
    ids: BTreeSet<String>,
    spilled: u64,
}

struct World {
    random: Random,
    cluster: Arc<Cluster>,
    /// The topics that hold the cluster's log.
    topics: MemoryBroker,
    disk: MemoryBroker,
    acked: Arc<Mutex<Acked>>,
    /// The next number of each key.
    numbers: BTreeMap<u64, u64>,
    options: SpillOptions,
    partitions: u32,
    /// The largest message that the topic accepts.
    bytes_max: usize,
}

struct Process {
    gate: Arc<Gate>,
    remote: Arc<Remote>,
    keylane: Keylane,
}

impl World {
    async fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let (topics, log) = log_of(random.number(), PARTITIONS).await;
        let disk = MemoryBroker::new(random.number(), || 0);
        disk.set_latency(Duration::ZERO, Duration::from_millis(random.between(0, 100)));
        let mut options = SpillOptions::default();
        options.after = Duration::from_millis(random.between(200, 5_000));
        World {
            cluster: Cluster::new(log),
            topics,
            disk,
            acked: Arc::default(),
            numbers: (0..KEYS).map(|key| (key, 0)).collect(),
            options,
            partitions: PARTITIONS,
            bytes_max: 1 << 20,
            random,
        }
    }

    async fn start(&mut self) -> Process {
        let gate = Arc::new(Gate::default());
        let remote = Arc::new(Remote::new(&self.cluster, self.random.number()));
        let clock = Clock::simulated(1_700_000_000_000).seeded(self.random.number());
        let tasks = Tasks::behind(Arc::clone(&gate));
        let broker: Arc<dyn Broker> = Arc::clone(&remote) as _;
        let log = self.disk.node("disk");
        let opened = Keylane::with_spill(broker, log, self.options.clone(), clock, tasks, false).await;
        let keylane = opened.expect("the spill opens");
        keylane.declare_topic(TOPIC, &TopicSpec { partitions: self.partitions, ..TopicSpec::default() });
        Process { gate, remote, keylane }
    }

    /// Gives the topic this many partitions from now on, with nothing in them.
    async fn grow(&mut self, partitions: u32) {
        let (topics, log) = log_of(self.random.number(), partitions).await;
        (self.cluster, self.topics, self.partitions) = (Cluster::new(log), topics, partitions);
    }

    fn leave(&self) {
        (0..self.partitions).for_each(|partition| self.cluster.leave(partition));
    }

    fn come_back(&self) {
        (0..self.partitions).for_each(|partition| self.cluster.come_back(partition));
    }

    /// Sets the largest message that the topic accepts.
    async fn limit(&mut self, bytes: usize) {
        self.bytes_max = bytes;
        let partitions = self.partitions;
        let spec = TopicSpec { partitions, message_bytes_max: bytes, ..TopicSpec::default() };
        self.cluster.log.create_topic(TOPIC, &spec).await.expect("the limit is set");
    }

    /// Sends a few messages of some key, one after another, without waiting for any.
    async fn send(&mut self, process: &Process) {
        let count = self.random.between(1, 8);
        self.send_some(process, count).await;
    }

    /// Sends for longer than the broker may take to answer, so that it counts as away amid all that.
    async fn send_on(&mut self, process: &Process) {
        let until = tokio::time::Instant::now() + self.options.after + Duration::from_millis(600);
        while tokio::time::Instant::now() < until {
            self.send_some(process, 1).await;
            tokio::time::sleep(Duration::from_millis(self.random.between(1, 20))).await;
        }
    }

    async fn send_some(&mut self, process: &Process, count: u64) {
        let key = self.random.between(0, KEYS - 1);
        let first = self.numbers[&key];
        self.numbers.insert(key, first + count);
        for number in first..first + count {
            let id = format!("{key}-{number}");
            // Not over the known limit: a message refused for that, whose producer goes on, would be overtaken.
            let bytes = if self.bytes_max > SMALL && self.random.between(0, 9) == 0 { 2 * SMALL } else { 1 };
            let message = Message::to(TOPIC).id(&id).key(key.to_string()).payload(vec![b'x'; bytes]);
            let ticket = process.keylane.producer().send(message).await.expect("there is room");
            let acked = Arc::clone(&self.acked);
            let answered = async move {
                if let Ok(receipt) = ticket.await {
                    let mut acked = acked.lock().expect("no holder panics");
                    acked.spilled += u64::from(receipt.is_spilled());
                    acked.ids.insert(id);
                }
            };
            tokio::spawn(Arc::clone(&process.gate).around(answered));
        }
    }

    /// Sends a message of every key in one call, which then goes to several partitions.
    async fn send_all(&mut self, process: &Process) {
        let mut call = process.keylane.producer().call(TOPIC).await.expect("the topic is known");
        let mut ids = Vec::new();
        for (key, next) in &mut self.numbers {
            let (id, key) = (format!("{key}-{next}"), key.to_string());
            call.push(&Draft { id: &id, key: Some(key.as_bytes()), payload: Some(b"x"), ..Draft::default() });
            *next += 1;
            ids.push(id);
        }
        let mut sending = Box::pin(call.send());
        // The call's place is that of its first poll.
        let first = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
        assert!(first.is_pending(), "it takes time");
        let acked = Arc::clone(&self.acked);
        let answered = async move {
            let results = sending.await.expect("there is room");
            let mut acked = acked.lock().expect("no holder panics");
            for (id, result) in ids.into_iter().zip(results) {
                if let Ok(receipt) = result {
                    acked.spilled += u64::from(receipt.is_spilled());
                    acked.ids.insert(id);
                }
            }
        };
        tokio::spawn(Arc::clone(&process.gate).around(answered));
    }

    async fn kill(&mut self, process: Process) {
        process.gate.kill();
        process.remote.cut().await;
        drop(process);
        // Whatever the process's tasks held goes when they are dropped.
        tokio::task::yield_now().await;
    }

    /// Each key's numbers as they stand in the log, repeats included: those of its first partition before those of the
    /// partition to which it moved, as pipelines read them after an acceptance.
    async fn log(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut keys = BTreeMap::<u64, Vec<u64>>::new();
        let keylane =
            Keylane::with_broker(Arc::clone(&self.cluster.log), Clock::simulated(0), Tasks::default(), false);
        for partition in 0..self.partitions {
            for message in keylane.peek(TOPIC, partition, 0, usize::MAX).await.expect("the log is read") {
                let (key, number) = message.id().split_once('-').expect("an id of ours");
                let number = number.parse().expect("a number");
                keys.entry(key.parse().expect("a key")).or_default().push(number);
            }
        }
        keys
    }
}

async fn log_of(seed: u64, partitions: u32) -> (MemoryBroker, Arc<dyn Broker>) {
    let topics = MemoryBroker::new(seed, || 0);
    let log = topics.node("log");
    let spec = TopicSpec { partitions, ..TopicSpec::default() };
    log.create_topic(TOPIC, &spec).await.expect("a topic is made");
    (topics, log)
}

/// PRD-3, P1, P2: whatever comes and goes, acknowledged messages reach the broker, and the first copies of each key's
/// messages are in the order in which they were produced.
#[test]
fn a_spilled_key_keeps_its_order_and_loses_nothing() {
    let (mut spilled, mut repeated, mut aside) = (0, 0, 0);
    for seed in 1..=SEEDS {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let (more, again, refused) = runtime.expect("a runtime is made").block_on(run(seed));
        spilled += more;
        repeated += again;
        aside += refused;
    }
    assert!(
        spilled > 1_000 && repeated > 100 && aside > 100,
        "{spilled} spilled, {repeated} repeated, {aside} refused: nothing was tested"
    );
}

async fn run(seed: u64) -> (u64, u64, u64) {
    let mut world = World::new(seed).await;
    let mut process = world.start().await;
    let mut aside = 0;
    for _ in 0..world.random.between(20, 120) {
        match world.random.between(0, 19) {
            0 => world.cluster.leave(world.random.between(0, u64::from(world.partitions) - 1) as u32),
            1 => world.leave(),
            2 | 3 => world.cluster.come_back(world.random.between(0, u64::from(world.partitions) - 1) as u32),
            4 => world.come_back(),
            5 => {
                world.kill(process).await;
                process = world.start().await;
            }
            8..=10 => world.send_all(&process).await,
            11 => {
                world.cluster.leave(world.random.between(0, u64::from(world.partitions) - 1) as u32);
                world.send_on(&process).await;
            }
            12 => process.keylane.drain_spill(),
            13 if world.random.between(0, 2) == 0 => world.limit(1 << 20).await,
            13 => {
                world.leave();
                world.send_all(&process).await;
                // Nothing is offered when the limit comes: a message refused then would be overtaken in its batch.
                tokio::time::sleep(LONG).await;
                world.send(&process).await;
                world.limit(SMALL).await;
                world.come_back();
            }
            14 if world.partitions == PARTITIONS && world.random.between(0, 2) == 0 => {
                world.partitions = 2 * PARTITIONS;
                world.topics.grow_topic(TOPIC, world.partitions);
            }
            6 | 7 => tokio::time::sleep(Duration::from_millis(world.random.between(0, 40_000))).await,
            _ => {
                world.send(&process).await;
                tokio::time::sleep(Duration::from_millis(world.random.between(0, 60))).await;
            }
        }
    }
    world.limit(1 << 20).await;
    world.come_back();
    tokio::time::sleep(LONG).await;
    aside += process.keylane.spill().failed;
    process.keylane.drain_spill();
    tokio::time::sleep(LONG).await;
    let status = process.keylane.spill();
    assert_eq!(status.state, SpillState::Healthy, "seed {seed}: {status:?}");
    assert_eq!((status.messages, status.bytes), (0, 0), "seed {seed}");
    let log = world.log().await;
    let acked = world.acked.lock().expect("no holder panics");
    let mut repeated = 0;
    let mut there = BTreeSet::new();
    for (key, numbers) in &log {
        let mut newest = None;
        for number in numbers {
            match there.insert(format!("{key}-{number}")) {
                false => repeated += 1,
                true => {
                    assert!(newest < Some(*number), "seed {seed}: key {key} is out of order: {numbers:?}");
                    newest = Some(*number);
                }
            }
        }
    }
    let lost: Vec<_> = acked.ids.difference(&there).collect();
    assert!(lost.is_empty(), "seed {seed}: {} acknowledged messages are lost: {lost:?}", lost.len());
    (acked.spilled, repeated, aside)
}

/// Ids of a partition, in order.
async fn ids_of(world: &World, partition: u32) -> Vec<String> {
    let keylane =
        Keylane::with_broker(Arc::clone(&world.cluster.log), Clock::simulated(0), Tasks::default(), false);
    let found = keylane.peek(TOPIC, partition, 0, usize::MAX).await.expect("the log is read");
    found.iter().map(|message| message.id().to_owned()).collect()
}

/// Ids in the log, by key, each key in its order, without repeats.
async fn ids(world: &World) -> Vec<String> {
    let keylane =
        Keylane::with_broker(Arc::clone(&world.cluster.log), Clock::simulated(0), Tasks::default(), false);
    let mut ids = Vec::new();
    for partition in 0..world.partitions {
        let found = keylane.peek(TOPIC, partition, 0, usize::MAX).await.expect("the log is read");
        ids.extend(
            found.iter().map(|message| (message.key().expect("a key").to_vec(), message.id().to_owned())),
        );
    }
    ids.sort_by(|one, other| one.0.cmp(&other.0));
    let mut seen = BTreeSet::new();
    ids.into_iter().map(|(_, id)| id).filter(|id| seen.insert(id.clone())).collect()
}

/// PRD-3: a partition that answers and accepts nothing, as one with too few replicas, does not disturb the others:
/// their calls are seldom taken back, and they are drained while it hangs. Messages that wait for it land when they
/// can.
#[tokio::test(start_paused = true)]
async fn a_partition_that_takes_nothing_disturbs_no_other() {
    let mut world = World::new(14).await;
    world.options.after = Duration::from_secs(5);
    let process = world.start().await;
    let short = partition_of(b"a", PARTITIONS);
    let other = (b'b'..=b'z').find(|key| partition_of(&[*key], PARTITIONS) != short).expect("one of them");
    let away = partition_of(&[other], PARTITIONS);
    let send = async |key: u8, number: u64| {
        let key = char::from(key).to_string();
        let message = Message::to(TOPIC).id(format!("{key}-{number:04}")).key(key).payload("x");
        process.keylane.produce(message).await.expect("it is taken").is_spilled()
    };
    world.cluster.fall_short(short);
    assert!(send(b'a', 0).await);
    let mut spilled = 0;
    for number in 0..1_800 {
        spilled += u64::from(send(other, number).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let recalls = process.remote.recalls();
    assert!(recalls < 10 && spilled < 20, "{recalls} recalls, {spilled} spilled");
    let line = &process.keylane.spill().lines[0];
    assert!(line.last_error.as_deref().is_some_and(|error| error.contains("acknowledge")), "{line:?}");
    world.cluster.leave(away);
    assert!(send(other, 1_800).await);
    world.cluster.come_back(away);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!send(other, 1_801).await, "it was drained while the first still hangs");
    assert_eq!(process.keylane.spill().messages, 1);
    world.cluster.come_back(short);
    tokio::time::sleep(LONG).await;
    let expected = (0..=1_801).map(|number| format!("{}-{number:04}", char::from(other)));
    let expected: Vec<_> = std::iter::once("a-0000".to_owned()).chain(expected).collect();
    assert_eq!(ids(&world).await, expected);
    assert_eq!(process.keylane.spill().state, SpillState::Healthy);
}

/// PRD-3, P5: past its bound the spill refuses messages, and says so; it accepts more when it was drained.
#[tokio::test(start_paused = true)]
async fn a_full_spill_refuses() {
    let mut world = World::new(8).await;
    world.options.bytes_max = 2_000;
    let process = world.start().await;
    world.leave();
    let send = async |id: String| {
        process.keylane.produce(Message::to(TOPIC).id(id).key("a").payload(vec![b'x'; 500])).await
    };
    let mut taken = 0;
    let refused = loop {
        match send(format!("a-{taken}")).await {
            Ok(receipt) => assert!(receipt.is_spilled()),
            Err(error) => break error,
        }
        taken += 1;
    };
    assert_eq!((taken, refused.code().as_str()), (3, "KL-1220"), "{refused}");
    assert_eq!(process.keylane.spill().state, SpillState::Refusing);
    world.come_back();
    tokio::time::sleep(LONG).await;
    assert_eq!(process.keylane.spill().state, SpillState::Healthy);
    assert!(!send("a-last".to_owned()).await.expect("it is taken").is_spilled());
}

/// REC-6: a backlog is reported by levels, on the way up and on the way down, with its depth and age.
#[tokio::test(start_paused = true)]
async fn a_growing_backlog_is_told_by_levels() {
    let mut world = World::new(9).await;
    world.options.after = LONG;
    let process = world.start().await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let producer = process.keylane.producer();
    producer.on_backlog(move |backlog| tell.lock().expect("no holder panics").push(*backlog));
    world.leave();
    for number in 0..950 {
        let message = Message::to(TOPIC).id(format!("0-{number}")).key("0").payload("x");
        drop(producer.send(message).await.expect("there is room"));
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let backlog = producer.backlog();
    assert_eq!((backlog.calls, backlog.severity), (950, Severity::Critical));
    assert!(backlog.oldest_ms.is_some_and(|ms| ms >= 3_000), "{backlog:?}");
    world.come_back();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(producer.backlog().rate > 1.0, "{:?}", producer.backlog());
    let told = told.lock().expect("no holder panics");
    let levels: Vec<_> = told.iter().map(|backlog| (backlog.severity, backlog.calls)).collect();
    use Severity::{Critical, High, Low, Medium, None};
    let (up, down) = levels.split_at(4);
    assert_eq!(up, [(Low, 300), (Medium, 500), (High, 700), (Critical, 900)]);
    assert_eq!(down, [(High, 899), (Medium, 699), (Low, 499), (None, 299)]);
}

/// BRK-2, PRD-1: closing waits for messages that were sent and forgotten.
#[tokio::test(start_paused = true)]
async fn closing_waits_for_what_is_on_its_way() {
    let mut world = World::new(10).await;
    let process = world.start().await;
    let producer = process.keylane.producer();
    for number in 0..50 {
        let message = Message::to(TOPIC).id(format!("0-{number}")).key("0").payload("x");
        drop(producer.send(message).await.expect("there is room"));
    }
    assert!(world.log().await.get(&0).map_or(0, Vec::len) < 50, "not all has landed yet");
    assert!(process.keylane.close().await);
    assert_eq!(world.log().await[&0], (0..50).collect::<Vec<_>>());
    world.leave();
    world.options.after = LONG;
    let patient = world.start().await;
    let message = Message::to(TOPIC).id("0-50").key("0").payload("x");
    drop(patient.keylane.producer().send(message).await.expect("there is room"));
    assert!(!patient.keylane.close().await, "the cluster is away for longer than that");
}

/// PRD-2, P5: messages in flight are bounded even if no caller waits for them any more, be they with the broker or on
/// their way to the disk.
#[tokio::test(start_paused = true)]
async fn what_nobody_waits_for_is_in_flight_all_the_same() {
    let mut world = World::new(13).await;
    world.disk.set_latency(Duration::from_secs(10), Duration::from_secs(10));
    world.options.after = LONG;
    let process = world.start().await;
    let producer = process.keylane.producer().when_full(WhenFull::Fail);
    let forgotten = async || {
        // A topic not used for long is looked at first; here each call takes its place at its first poll.
        drop(producer.call(TOPIC).await.expect("the topic is known"));
        for _ in 0..CALLS_MAX {
            let message = Message::to(TOPIC).key("a").payload("x");
            let mut sending = Box::pin(producer.produce(message));
            let first = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
            assert!(first.is_pending(), "{first:?}");
        }
        let refused = producer.produce(Message::to(TOPIC).key("a").payload("x")).await;
        assert_eq!(refused.expect_err("too much is in flight").code().as_str(), "KL-1205");
    };
    world.leave();
    forgotten().await;
    // All calls are taken back and kept, and their room is free again: later messages go to the disk at once.
    tokio::time::sleep(4 * LONG).await;
    assert_eq!((producer.backlog().calls, process.keylane.spill().messages), (0, CALLS_MAX as u64));
    forgotten().await;
    tokio::time::sleep(4 * LONG).await;
    assert_eq!((producer.backlog().calls, process.keylane.spill().messages), (0, 2 * CALLS_MAX as u64));
}
