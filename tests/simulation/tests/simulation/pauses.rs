//! A process that is stopped at one exact moment and goes on later (ORD-12): what random seeds seldom hit.
//!
//! Two processes on one partition; the first is stopped, the partition goes to the second, and news of that reaches the
//! first late. What it starts after it went on must be its own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::clock::Clock;
use keylane::spawn::{Gate, Tasks};
use keylane::{Attempt, Handler, Keylane, Message, Outcome, Pipeline, Settings};
use keylane_broker::memory::Landed;
use keylane_broker::{Broker, Faulty, LogKind, MemoryBroker, Rates, TopicSpec};
use keylane_core::Record;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::{GROUP, TOPIC};

const SLEEPER: &str = "sleeper";
const SUCCESSOR: &str = "successor";
/// Each way of a call to the broker.
const WAY: Duration = Duration::from_millis(400);
/// What the handler of a slow message takes.
const SLOW: Duration = Duration::from_secs(5);

/// A message that began to run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Start {
    process: &'static str,
    position: u64,
}

type Starts = Arc<Mutex<Vec<Start>>>;

struct Worker {
    process: &'static str,
    starts: Starts,
}

impl Handler for Worker {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let start = Start { process: self.process, position: attempt.position() };
        self.starts.lock().expect("no holder panics").push(start);
        match attempt.payload() {
            Some(b"slow") => sleep(SLOW).await,
            Some(b"never done") => std::future::pending().await,
            _ => {}
        }
        Outcome::Done
    }
}

/// One process; it lives as long as this.
struct Process {
    gate: Arc<Gate>,
    faulty: Arc<Faulty>,
    _pipeline: Pipeline,
    _keylane: Keylane,
}

struct Rig {
    cluster: MemoryBroker,
    producer: Keylane,
    starts: Starts,
}

impl Rig {
    async fn new() -> Rig {
        let cluster = MemoryBroker::new(1, || 0);
        let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
        cluster.node("any").create_topic(TOPIC, &spec).await.expect("a new topic");
        cluster.set_latency(WAY, WAY);
        cluster.by_hand(GROUP, TOPIC);
        let clock = Clock::simulated(0).seeded(7);
        let producer = Keylane::with_broker(cluster.node("client"), clock, Tasks::default(), false);
        Rig { cluster, producer, starts: Starts::default() }
    }

    /// A process that gives a handler so long.
    async fn process(&self, name: &'static str, timeout: Duration, seed: u64) -> Process {
        let faulty = Faulty::new(self.cluster.node(name), seed, Rates::none());
        let gate = Arc::<Gate>::default();
        let clock = Clock::simulated(0).seeded(seed);
        let broker: Arc<dyn Broker> = Arc::clone(&faulty) as _;
        let keylane = Keylane::with_broker(broker, clock, Tasks::behind(Arc::clone(&gate)), false);
        let mut settings = Settings::default();
        (settings.shards, settings.timeout) = (Some(1), timeout);
        let worker = Worker { process: name, starts: Arc::clone(&self.starts) };
        let builder = keylane.pipeline(GROUP).topic(TOPIC).settings(settings).handle(worker);
        let pipeline = builder.start().await.expect("starts");
        Process { gate, faulty, _pipeline: pipeline, _keylane: keylane }
    }

    async fn produce(&self, key: &str, payload: &'static str) {
        self.producer.produce(Message::new(TOPIC).key(key).payload(payload)).await.expect("durable");
    }

    fn started(&self, process: &str) -> Vec<u64> {
        let starts = self.starts.lock().expect("no holder panics");
        starts.iter().filter(|start| start.process == process).map(|start| start.position).collect()
    }

    /// Waits until a process has started so many; time is simulated, so this ends at once or never.
    async fn started_so_many(&self, process: &str, count: usize) {
        for _ in 0..10_000 {
            if self.started(process).len() >= count {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("{process} started {:?}", self.started(process));
    }

    /// Rings when a record lands that fits; called with it first.
    fn on_record(&self, mut fits: impl FnMut(&Record) -> bool + Send + 'static) -> Arc<Notify> {
        let rings = Arc::new(Notify::new());
        let ring = Arc::clone(&rings);
        self.cluster.observe(move |landed| {
            if let Landed::Record { kind: LogKind::Journal, record, .. } = landed
                && fits(&Record::decode(record).expect("what an owner wrote"))
            {
                ring.notify_one();
            }
        });
        rings
    }

    /// The partition is the successor's, and the sleeper will not hear so soon.
    fn hand_over(&self, sleeper: &Process) {
        self.cluster.lose(GROUP, TOPIC, 0);
        self.cluster.assign(GROUP, TOPIC, 0, SUCCESSOR);
        sleeper.faulty.set_rates(late_news());
    }
}

fn slow_answers() -> Rates {
    Rates { delay: 1000, delay_max: Duration::from_secs(100), ..Rates::none() }
}

fn late_news() -> Rates {
    Rates { news: 1000, late_max: Duration::from_secs(1_000_000), ..Rates::none() }
}

/// ORD-12: behind the fence that an owner reads stands another's, both in one page: it starts nothing. The answer to its
/// fence comes at different times after the pause: its shard must have noticed that before, or it would start nothing
/// for that reason.
#[tokio::test(start_paused = true)]
async fn an_owner_that_slept_behind_its_fence_starts_nothing_on_it() {
    for seed in 1..=10 {
        sleep_behind_a_fence(seed).await;
    }
}

async fn sleep_behind_a_fence(seed: u64) {
    let rig = Rig::new().await;
    rig.produce("k", "quick").await;
    let sleeper = rig.process(SLEEPER, Duration::from_secs(1), seed).await;
    let _successor = rig.process(SUCCESSOR, Duration::from_secs(1), 100 + seed).await;
    // The first owner of all puts more on record before it starts anything.
    rig.cluster.assign(GROUP, TOPIC, 0, SUCCESSOR);
    rig.started_so_many(SUCCESSOR, 1).await;
    sleep(Duration::from_secs(10)).await;
    let (gate, faulty) = (Arc::clone(&sleeper.gate), Arc::clone(&sleeper.faulty));
    let mut asleep = false;
    let fenced = rig.on_record(move |record| {
        match record {
            Record::Claim(_) if !asleep => faulty.set_rates(slow_answers()),
            Record::Fence(_) if !asleep => {
                gate.freeze();
                asleep = true;
                return true;
            }
            _ => {}
        }
        false
    });
    rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
    fenced.notified().await;
    rig.produce("k", "never done").await;
    rig.hand_over(&sleeper);
    rig.started_so_many(SUCCESSOR, 2).await;
    assert!(rig.started(SLEEPER).is_empty(), "it never had the partition");
    sleeper.gate.thaw();
    sleep(Duration::from_secs(2_000)).await;
    assert!(rig.started(SLEEPER).is_empty(), "it slept past the successor's fence");
}

/// ORD-12: after a long pause nothing starts until the assignment is confirmed, though nobody has fenced it.
#[tokio::test(start_paused = true)]
async fn after_a_long_pause_nothing_starts_before_the_assignment_is_confirmed() {
    let rig = Rig::new().await;
    for payload in ["slow", "queued"] {
        rig.produce("k", payload).await;
    }
    let sleeper = rig.process(SLEEPER, Duration::from_secs(600), 1).await;
    rig.cluster.assign(GROUP, TOPIC, 0, SLEEPER);
    rig.started_so_many(SLEEPER, 1).await;
    sleeper.gate.freeze();
    sleep(Duration::from_secs(30)).await;
    rig.cluster.lose(GROUP, TOPIC, 0);
    sleeper.faulty.set_rates(late_news());
    sleeper.gate.thaw();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(rig.started(SLEEPER), [0], "the broker would have said that it is not its own");
}
