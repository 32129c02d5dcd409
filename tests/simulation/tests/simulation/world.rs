//! One run of the simulation: processes, producers, trouble, and the quiet end. Everything follows from the seed.

mod producer;
mod quiet;
mod trouble;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use keylane::Keylane;
use keylane::raw::{Clock, Tasks};
use keylane::testing::{Flaws, Gate};
use keylane_broker::{Broker, Faulty, MemoryBroker, TopicSpec};
use keylane_simulation::{Random, Trace};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::producer::produce;
use self::trouble::Later;
use crate::checker::{Checker, Counts, Terms, Violation};
use crate::handler::Eye;
use crate::process::{Life, Process};
use crate::scenario::Scenario;
use crate::{GROUP, TOPIC};

/// A broker gives up a process from which it has not heard for this long.
const SESSION_MS: u64 = 10_000;
/// How often the group's coordinator looks, where the test plays the coordinator.
const COORDINATE_MS: u64 = 3_000;

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Ended {
    pub violation: Option<Violation>,
    pub hash: u64,
    pub simulated_ms: u64,
    pub counts: Counts,
    /// The newest lines of the trace.
    pub tail: String,
}

/// Runs the scenario of a seed. The same seed and flaws give the same trace, everywhere.
pub fn run(seed: u64, flaws: Flaws, show: bool) -> Ended {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can be built");
    runtime.block_on(async {
        let mut random = Random::new(seed);
        let scenario = Scenario::new(&mut random, flaws);
        if show {
            println!("{scenario:#?}");
        }
        World::new(scenario, random, Trace::new(show)).await.run().await
    })
}

struct World {
    scenario: Scenario,
    random: Random,
    eye: Eye,
    cluster: MemoryBroker,
    carrier: Arc<dyn Broker>,
    processes: Vec<Process>,
    clients: Vec<(Arc<Faulty>, JoinHandle<()>)>,
    drains: Vec<(String, JoinHandle<()>)>,
    later: BTreeMap<(u64, u64), Later>,
    started: u64,
    scheduled: u64,
    work_seed: u64,
    begin: Instant,
}

impl World {
    async fn new(scenario: Scenario, mut random: Random, trace: Trace) -> World {
        let terms = Terms {
            order: scenario.settings.order,
            concurrency: scenario.settings.concurrency,
            planned: scenario.trouble.is_planned(),
        };
        let eye = Eye::new(Checker::new(terms, scenario.partitions, trace));
        let begin = Instant::now();
        let cluster = MemoryBroker::new(random.number(), move || begin.elapsed().as_millis() as u64);
        let spec = TopicSpec { partitions: scenario.partitions, ..TopicSpec::default() };
        let carrier = cluster.node("carrier");
        carrier.create_topic(TOPIC, &spec).await.expect("a new topic");
        cluster.set_conditional(scenario.conditional);
        cluster.set_proves_dead(scenario.proves_dead);
        cluster.set_gaps(scenario.gaps);
        let (least, most) = scenario.latency_ms;
        cluster.set_latency(Duration::from_millis(least), Duration::from_millis(most));
        if scenario.by_hand {
            cluster.by_hand(GROUP, TOPIC);
        }
        let seen = eye.clone();
        cluster.observe(move |landed| {
            if let Some(partition) = seen.tell(|checker, now_ms| checker.landed(now_ms, landed)) {
                seen.take_over(partition);
            }
        });
        World {
            work_seed: random.number(),
            scenario,
            random,
            eye,
            cluster,
            carrier,
            processes: Vec::new(),
            clients: Vec::new(),
            drains: Vec::new(),
            later: BTreeMap::new(),
            started: 0,
            scheduled: 0,
            begin,
        }
    }

    async fn run(mut self) -> Ended {
        for _ in 0..self.scenario.processes {
            self.start();
        }
        for client in 0..self.random.between(1, 2) {
            self.client(client);
        }
        if self.scenario.by_hand {
            self.schedule(1, Later::Coordinate);
        }
        let end_ms = self.scenario.busy_ms;
        let mut trouble_ms = self.next_trouble();
        while self.now_ms() < end_ms && self.goes_on() {
            let later_ms = self.later.first_key_value().map_or(u64::MAX, |((at_ms, _), _)| *at_ms);
            tokio::select! {
                biased;
                partitions = self.eye.taken_over() => self.pounce(partitions),
                () = self.sleep_until(end_ms.min(trouble_ms).min(later_ms)) => {}
            }
            self.bury_drained();
            self.do_later();
            if self.now_ms() >= trouble_ms {
                self.trouble();
                trouble_ms = self.now_ms() + self.next_trouble();
            }
        }
        self.quiet_end().await;
        self.ended()
    }

    fn ended(self) -> Ended {
        let simulated_ms = self.now_ms();
        self.eye.tell(|checker, _| Ended {
            violation: checker.violation.clone(),
            hash: checker.trace.hash(),
            simulated_ms,
            counts: checker.counts,
            tail: checker.trace.tail(60),
        })
    }

    fn now_ms(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }

    async fn sleep_until(&self, at_ms: u64) {
        tokio::time::sleep_until(self.begin + Duration::from_millis(at_ms)).await;
    }

    fn goes_on(&self) -> bool {
        self.eye.tell(|checker, _| checker.violation.is_none())
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.eye.tell(|checker, now_ms| checker.note(now_ms, what));
    }

    fn next_trouble(&mut self) -> u64 {
        let most_ms = self.scenario.trouble_ms;
        self.random.between(most_ms / 20, most_ms)
    }

    fn schedule(&mut self, after_ms: u64, later: Later) {
        self.scheduled += 1;
        self.later.insert((self.now_ms() + after_ms, self.scheduled), later);
    }
}

/// Processes and producers.
impl World {
    fn start(&mut self) {
        let name = format!("p{}", self.started);
        self.started += 1;
        self.note(format_args!("start {name}"));
        let mut random = self.random.split();
        let process = Process::start(
            name,
            &self.cluster,
            &self.carrier,
            &self.scenario,
            self.work_seed,
            &mut random,
            &self.eye,
        );
        self.processes.push(process);
    }

    fn client(&mut self, number: u64) {
        let mut random = self.random.split();
        let node = self.cluster.node(&format!("client{number}"));
        let faulty =
            Faulty::with_carrier(node, Arc::clone(&self.carrier), random.number(), self.scenario.rates);
        let broker: Arc<dyn Broker> = Arc::clone(&faulty) as _;
        let tasks = Tasks::behind(Arc::<Gate>::default());
        let clock = Clock::simulated(0).seeded(random.number());
        let keylane = Keylane::with_broker(broker, clock, tasks, false);
        let task = produce(keylane, number, self.scenario.clone(), random, self.eye.clone());
        self.clients.push((faulty, tokio::spawn(task)));
    }

    fn living(&self) -> usize {
        self.processes.iter().filter(|process| process.is_alive()).count()
    }

    /// One of the processes that run undisturbed.
    fn victim(&mut self) -> Option<usize> {
        self.one_of(|process| process.life == Life::Running)
    }

    fn one_of(&mut self, fits: impl Fn(&Process) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.processes.len()).filter(|at| fits(&self.processes[*at])).collect();
        (!fitting.is_empty()).then(|| *self.random.one_of(&fitting))
    }

    fn named(&mut self, name: &str) -> &mut Process {
        self.processes.iter_mut().find(|process| process.name == name).expect("processes are never forgotten")
    }

    fn bury_drained(&mut self) {
        let (ended, rest) =
            std::mem::take(&mut self.drains).into_iter().partition(|(_, drain)| drain.is_finished());
        self.drains = rest;
        for (name, _) in ended {
            self.note(format_args!("drained {name}"));
            self.cluster.crash(&name);
            self.named(&name).end();
            self.schedule(SESSION_MS, Later::Expire(name));
        }
    }
}
