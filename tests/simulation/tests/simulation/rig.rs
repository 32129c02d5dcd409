//! Two processes on one partition, for things that must happen at one exact moment and that random seeds seldom hit.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::raw::{Clock, Tasks};
use keylane::testing::Gate;
use keylane::{Attempt, Handler, Keylane, Message, Outcome, Pipeline, Settings};
use keylane_broker::testing::memory::Landed;
use keylane_broker::{Broker, Faulty, LogKind, MemoryBroker, Rates, TopicSpec};
use keylane_core::Record;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::{GROUP, TOPIC};

/// The process that has the partition first.
pub const SLEEPER: &str = "sleeper";
/// The process that gets the partition next.
pub const SUCCESSOR: &str = "successor";
/// The time of each way of a call to the broker.
const WAY: Duration = Duration::from_millis(400);
/// How long the handler of a slow message takes.
const SLOW: Duration = Duration::from_secs(5);

/// A message that began to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
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
            Some(b"rejected") => return Outcome::rejected("never"),
            _ => {}
        }
        Outcome::Done
    }
}

/// One process; it lives as long as this.
pub struct Process {
    pub gate: Arc<Gate>,
    pub faulty: Arc<Faulty>,
    pub pipeline: Pipeline,
    _keylane: Keylane,
}

/// Two processes on one partition, and a producer.
pub struct Rig {
    pub cluster: MemoryBroker,
    producer: Keylane,
    starts: Starts,
}

impl Rig {
    /// A topic of one partition; the test assigns the partition.
    pub async fn new() -> Rig {
        Rig::with_partitions(1).await
    }

    /// A topic of this many partitions.
    pub async fn with_partitions(partitions: u32) -> Rig {
        let cluster = MemoryBroker::new(1, || 0);
        let spec = TopicSpec { partitions, ..TopicSpec::default() };
        cluster.node("any").create_topic(TOPIC, &spec).await.expect("a new topic");
        cluster.set_latency(WAY, WAY);
        cluster.by_hand(GROUP, TOPIC);
        let clock = Clock::simulated(0).seeded(7);
        let producer = Keylane::with_broker(cluster.node("client"), clock, Tasks::default(), false);
        Rig { cluster, producer, starts: Starts::default() }
    }

    /// A process that gives a handler this much time.
    pub async fn process(&self, name: &'static str, timeout: Duration, seed: u64) -> Process {
        self.process_with(name, seed, |settings| settings.timeout = timeout).await
    }

    /// A process with settings of its own.
    pub async fn process_with(
        &self,
        name: &'static str,
        seed: u64,
        change: impl FnOnce(&mut Settings),
    ) -> Process {
        let faulty = Faulty::new(self.cluster.node(name), seed, Rates::none());
        let gate = Arc::<Gate>::default();
        let clock = Clock::simulated(0).seeded(seed);
        let broker: Arc<dyn Broker> = Arc::clone(&faulty) as _;
        let keylane = Keylane::with_broker(broker, clock, Tasks::behind(Arc::clone(&gate)), false);
        let mut settings = Settings::default();
        settings.shards = Some(1);
        change(&mut settings);
        let worker = Worker { process: name, starts: Arc::clone(&self.starts) };
        let builder = keylane.pipeline(GROUP).topic(TOPIC).settings(settings).handle(worker);
        let pipeline = builder.start().await.expect("starts");
        Process { gate, faulty, pipeline, _keylane: keylane }
    }

    /// Sends a message; its payload says what becomes of it.
    pub async fn produce(&self, key: &str, payload: &'static str) {
        self.producer.produce(Message::to(TOPIC).key(key).payload(payload)).await.expect("durable");
    }

    /// Positions that a process began, in that order.
    pub fn started(&self, process: &str) -> Vec<u64> {
        let starts = self.starts.lock().expect("no holder panics");
        starts.iter().filter(|start| start.process == process).map(|start| start.position).collect()
    }

    /// Waits until a process has started this many; time is simulated, so this ends at once or never.
    pub async fn started_so_many(&self, process: &str, count: usize) {
        for _ in 0..10_000 {
            if self.started(process).len() >= count {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("{process} started {:?}", self.started(process));
    }

    /// Rings when a record lands that `fits` accepts. Anything that `fits` itself does happens before the bell rings.
    pub fn on_record(&self, mut fits: impl FnMut(&Record) -> bool + Send + 'static) -> Arc<Notify> {
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

    /// Gives the partition to the successor; the sleeper hears of that only late.
    pub fn hand_over(&self, sleeper: &Process) {
        self.cluster.lose(GROUP, TOPIC, 0);
        self.cluster.assign(GROUP, TOPIC, 0, SUCCESSOR);
        sleeper.faulty.set_rates(late_news());
    }
}

/// News of an assignment does not come.
pub fn late_news() -> Rates {
    Rates { news: 1000, late_max: Duration::from_secs(1_000_000), ..Rates::none() }
}
