//! One run: processes, producers, trouble, and the quiet end. Everything follows from the seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use keylane::clock::Clock;
use keylane::spawn::{Gate, Tasks};
use keylane::{Flaws, Keylane, Message};
use keylane_broker::{Broker, Faulty, MemoryBroker, TopicSpec};
use keylane_simulation::{Dice, Trace};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::checker::{Checker, Counts, Terms, Violation};
use crate::handler::Eye;
use crate::process::{Life, Process};
use crate::scenario::Scenario;
use crate::{GROUP, TOPIC};

/// A broker gives a process up that it has not heard of for so long.
const SESSION_MS: u64 = 10_000;
/// Once all is calm, everything must be settled within so much simulated time.
const QUIET_MS: u64 = 600_000;
/// How often the group's coordinator looks where it is the test's part.
const COORDINATE_MS: u64 = 3_000;

/// What a run came to.
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
        let mut dice = Dice::new(seed);
        let scenario = Scenario::new(&mut dice, flaws);
        if show {
            println!("{scenario:#?}");
        }
        World::new(scenario, dice, Trace::new(show)).await.run().await
    })
}

/// Something that happens later.
#[derive(Debug, Clone)]
enum Later {
    Thaw(String),
    SessionEnds(String),
    Reconnect(String),
    Expire(String),
    Start,
    Coordinate,
    /// Stops or kills who takes a partition over.
    Pounce(u32),
}

struct World {
    scenario: Scenario,
    dice: Dice,
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
    async fn new(scenario: Scenario, mut dice: Dice, trace: Trace) -> World {
        let terms = Terms {
            order: scenario.settings.order,
            concurrency: scenario.settings.concurrency,
            planned: scenario.trouble.is_planned(),
        };
        let eye = Eye::new(Checker::new(terms, scenario.partitions, trace));
        let begin = Instant::now();
        let cluster = MemoryBroker::new(dice.number(), move || begin.elapsed().as_millis() as u64);
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
            work_seed: dice.number(),
            scenario,
            dice,
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
        for client in 0..self.dice.between(1, 2) {
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
        self.dice.between(most_ms / 20, most_ms)
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
        let mut dice = self.dice.split();
        let process = Process::start(
            name,
            &self.cluster,
            &self.carrier,
            &self.scenario,
            self.work_seed,
            &mut dice,
            &self.eye,
        );
        self.processes.push(process);
    }

    fn client(&mut self, number: u64) {
        let mut dice = self.dice.split();
        let node = self.cluster.node(&format!("client{number}"));
        let faulty =
            Faulty::with_carrier(node, Arc::clone(&self.carrier), dice.number(), self.scenario.rates);
        let broker: Arc<dyn Broker> = Arc::clone(&faulty) as _;
        let tasks = Tasks::behind(Arc::<Gate>::default());
        let clock = Clock::simulated(0).seeded(dice.number());
        let keylane = Keylane::with_broker(broker, clock, tasks, false);
        let task = produce(keylane, number, self.scenario.clone(), dice, self.eye.clone());
        self.clients.push((faulty, tokio::spawn(task)));
    }

    fn living(&self) -> usize {
        self.processes.iter().filter(|process| process.is_alive()).count()
    }

    /// One of the processes that run undisturbed.
    fn victim(&mut self) -> Option<usize> {
        let running: Vec<usize> =
            (0..self.processes.len()).filter(|at| self.processes[*at].life == Life::Running).collect();
        (!running.is_empty()).then(|| *self.dice.one_of(&running))
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

/// Trouble.
impl World {
    fn trouble(&mut self) {
        let t = self.scenario.trouble;
        let weights = [
            t.start,
            t.drain,
            t.hand_over,
            t.kill,
            t.freeze,
            t.cut_off,
            t.expire,
            t.lose,
            t.outage,
            t.disconnect,
            t.reset,
        ];
        let mut drawn = self.dice.between(1, weights.iter().sum());
        let which = weights.iter().position(|weight| {
            let hit = drawn <= *weight;
            drawn = drawn.saturating_sub(*weight);
            hit
        });
        match which.expect("one of them is hit") {
            0 => {
                if self.living() < self.scenario.processes_max {
                    self.start();
                }
            }
            1 => self.drain(),
            2 => self.hand_over(),
            3 => self.on_victim(World::kill),
            4 => self.on_victim(World::freeze),
            5 => self.cut_off(),
            6 => self.expire(),
            7 => self.lose(),
            8 => self.outage(),
            9 => self.disconnect(),
            _ => self.reset(),
        }
    }

    fn drain(&mut self) {
        let Some(at) = self.victim() else { return };
        let name = self.processes[at].name.clone();
        if let Some(drain) = self.processes[at].drain() {
            self.note(format_args!("drain {name}"));
            self.drains.push((name, drain));
            let again_ms = self.dice.between(100, 20_000);
            self.schedule(again_ms, Later::Start);
        }
    }

    fn hand_over(&mut self) {
        let partition = self.partition();
        if !self.scenario.by_hand {
            return self.drain();
        }
        if let Some(at) = self.victim() {
            let name = self.processes[at].name.clone();
            let assigned = self.cluster.try_assign(GROUP, TOPIC, partition, &name);
            self.note(format_args!("hand {partition} to {name}: {assigned}"));
        }
    }

    fn on_victim(&mut self, act: impl FnOnce(&mut World, usize)) {
        if let Some(at) = self.victim() {
            act(self, at);
        }
    }

    /// In the middle of a take-over.
    fn pounce(&mut self, partitions: Vec<u32>) {
        let most_ms = 4 * self.scenario.latency_ms.1 + 10;
        for partition in partitions {
            if self.dice.percent(self.scenario.pounce) {
                let after_ms = self.dice.between(0, most_ms);
                self.schedule(after_ms, Later::Pounce(partition));
            }
        }
    }

    fn kill(&mut self, at: usize) {
        let name = self.processes[at].name.clone();
        self.note(format_args!("kill {name}"));
        self.processes[at].kill(&self.cluster);
        let known_ms = self.dice.between(100, SESSION_MS);
        self.schedule(known_ms, Later::Expire(name));
        if self.dice.percent(80) {
            let again_ms = self.dice.between(100, 20_000);
            self.schedule(again_ms, Later::Start);
        }
    }

    fn freeze(&mut self, at: usize) {
        let name = self.processes[at].name.clone();
        let for_ms = self.dice.time(200, 60_000).as_millis() as u64;
        self.note(format_args!("freeze {name} for {for_ms} ms"));
        let now_ms = self.now_ms();
        self.processes[at].freeze(now_ms);
        if for_ms > SESSION_MS {
            self.schedule(SESSION_MS, Later::SessionEnds(name.clone()));
        } else if self.dice.percent(30) {
            // Broker and process need not agree about time.
            let early_ms = self.dice.between(1, for_ms);
            self.schedule(early_ms, Later::SessionEnds(name.clone()));
        }
        self.schedule(for_ms, Later::Thaw(name));
    }

    fn cut_off(&mut self) {
        let Some(at) = self.victim() else { return };
        let name = self.processes[at].name.clone();
        let for_ms = self.dice.time(200, 60_000).as_millis() as u64;
        self.note(format_args!("cut {name} off for {for_ms} ms"));
        self.cluster.cut_off(&name);
        self.processes[at].life = Life::CutOff;
        if for_ms > SESSION_MS {
            self.schedule(SESSION_MS, Later::Expire(name.clone()));
        }
        self.schedule(for_ms, Later::Reconnect(name));
    }

    fn expire(&mut self) {
        let Some(at) = self.victim() else { return };
        let name = self.processes[at].name.clone();
        self.note(format_args!("expire {name}"));
        self.cluster.expire(&name);
    }

    fn lose(&mut self) {
        let partition = self.partition();
        self.note(format_args!("lose {partition}"));
        self.cluster.lose(GROUP, TOPIC, partition);
    }

    fn outage(&mut self) {
        let Some(at) = self.victim() else { return };
        let lasts = self.dice.time(100, 20_000);
        let name = &self.processes[at].name;
        self.note(format_args!("outage of {name} for {} ms", lasts.as_millis()));
        self.processes[at].faulty.outage(lasts);
    }

    fn disconnect(&mut self) {
        let Some(at) = self.victim() else { return };
        self.note(format_args!("disconnect {}", self.processes[at].name));
        self.processes[at].faulty.disconnect();
    }

    /// An operator sets the group back or forward, and whoever owns the partition is made to start over.
    fn reset(&mut self) {
        let partition = self.partition();
        let (start, end) = self.eye.tell(|checker, _| checker.span(partition));
        let position = self.dice.between(start, end);
        self.note(format_args!("reset {partition} to {position}"));
        self.cluster.lose(GROUP, TOPIC, partition);
        self.cluster.reset_commit(GROUP, TOPIC, partition, position);
    }

    fn partition(&mut self) -> u32 {
        self.dice.between(0, u64::from(self.scenario.partitions) - 1) as u32
    }

    fn do_later(&mut self) {
        while let Some(((at_ms, _), _)) = self.later.first_key_value() {
            if *at_ms > self.now_ms() {
                return;
            }
            let (_, later) = self.later.pop_first().expect("just seen");
            self.do_now(later);
        }
    }

    fn do_now(&mut self, later: Later) {
        match later {
            Later::Thaw(name) => self.thaw(&name),
            Later::SessionEnds(name) => {
                if matches!(self.named(&name).life, Life::Frozen { .. }) {
                    self.note(format_args!("the session of {name} ends"));
                    self.cluster.cut_off(&name);
                    self.cluster.expire(&name);
                }
            }
            Later::Reconnect(name) => {
                if self.named(&name).life == Life::CutOff {
                    self.note(format_args!("reconnect {name}"));
                    self.cluster.reconnect(&name);
                    self.named(&name).life = Life::Running;
                }
            }
            Later::Expire(name) => {
                let life = self.named(&name).life;
                if matches!(life, Life::Dead { .. } | Life::CutOff) {
                    self.note(format_args!("the session of {name} ends"));
                    self.cluster.expire(&name);
                }
                if let Life::Dead { known } = &mut self.named(&name).life {
                    *known = true;
                }
            }
            Later::Start => {
                if self.living() < self.scenario.processes_max {
                    self.start();
                }
            }
            Later::Pounce(partition) => {
                let owner = self.cluster.owner(GROUP, TOPIC, partition);
                let at = self.processes.iter().position(|process| {
                    Some(&process.name) == owner.as_ref() && process.life == Life::Running
                });
                match at {
                    Some(at) if self.dice.percent(80) => self.freeze(at),
                    Some(at) => self.kill(at),
                    None => {}
                }
            }
            Later::Coordinate => {
                self.coordinate();
                self.schedule(COORDINATE_MS, Later::Coordinate);
            }
        }
    }

    fn thaw(&mut self, name: &str) {
        let now_ms = self.now_ms();
        let Life::Frozen { since_ms } = self.named(name).life else {
            return;
        };
        self.note(format_args!("thaw {name}"));
        self.eye.tell(|checker, now_ms| checker.thawed(now_ms, name, now_ms - since_ms));
        debug_assert!(now_ms >= since_ms);
        self.cluster.reconnect(name);
        self.named(name).thaw();
    }

    /// Gives partitions that nobody owns to somebody.
    fn coordinate(&mut self) {
        for partition in 0..self.scenario.partitions {
            let owner = self.cluster.owner(GROUP, TOPIC, partition);
            if owner.is_none()
                && let Some(at) = self.victim()
            {
                let name = self.processes[at].name.clone();
                let assigned = self.cluster.try_assign(GROUP, TOPIC, partition, &name);
                self.note(format_args!("give {partition} to {name}: {assigned}"));
            }
        }
    }
}

/// The quiet end.
impl World {
    async fn quiet_end(&mut self) {
        if !self.goes_on() {
            return;
        }
        self.note(format_args!("calm"));
        self.eye.calm();
        for (faulty, _) in &self.clients {
            faulty.calm();
        }
        for (_, client) in std::mem::take(&mut self.clients) {
            client.await.expect("a producer does not panic");
        }
        self.later.clear();
        let names: Vec<String> = self.processes.iter().map(|process| process.name.clone()).collect();
        for name in &names {
            self.named(name).faulty.calm();
            match self.named(name).life {
                Life::Frozen { .. } => self.thaw(name),
                Life::CutOff => {
                    self.cluster.reconnect(name);
                    self.named(name).life = Life::Running;
                }
                Life::Dead { .. } => self.cluster.expire(name),
                Life::Running | Life::Draining => {}
            }
        }
        if !self.processes.iter().any(|process| process.life == Life::Running) {
            self.start();
            self.processes.last().expect("just started").faulty.calm();
        }
        self.settle().await;
        if self.goes_on() {
            self.drain_all().await;
        }
        let now_ms = self.now_ms();
        if self.goes_on() {
            self.eye.tell(|checker, _| checker.finish(now_ms));
        }
    }

    /// Waits until everything is settled.
    async fn settle(&mut self) {
        let give_up_ms = self.now_ms() + QUIET_MS;
        let mut coordinate_ms = 0;
        while self.goes_on() {
            let unsettled = self.eye.tell(|checker, _| checker.unsettled());
            let Some(what) = unsettled else { return };
            if self.now_ms() >= give_up_ms {
                for partition in 0..self.scenario.partitions {
                    let owner = self.cluster.owner(GROUP, TOPIC, partition);
                    self.note(format_args!("{partition} is assigned to {owner:?}"));
                }
                for process in &self.processes {
                    let shown = process.shown().await;
                    self.note(format_args!("{} is {:?}: {shown}", process.name, process.life));
                }
                self.eye.tell(|checker, now_ms| checker.violate(now_ms, "ends", what));
                return;
            }
            if self.scenario.by_hand && self.now_ms() >= coordinate_ms {
                self.coordinate();
                coordinate_ms = self.now_ms() + COORDINATE_MS;
            }
            self.sleep_until(self.now_ms() + 1_000).await;
            self.bury_drained();
        }
    }

    /// A drain ends within its deadline, and leaves nothing behind (ORD-10).
    async fn drain_all(&mut self) {
        for at in 0..self.processes.len() {
            if self.processes[at].life == Life::Running
                && let Some(drain) = self.processes[at].drain()
            {
                self.drains.push((self.processes[at].name.clone(), drain));
            }
        }
        let give_up_ms = self.now_ms() + 2 * self.scenario.settings.drain.as_millis() as u64;
        while !self.drains.is_empty() {
            self.sleep_until(self.now_ms() + 500).await;
            self.bury_drained();
            if self.now_ms() >= give_up_ms {
                let what = format!("{} does not end its drain", self.drains[0].0);
                self.eye.tell(|checker, now_ms| checker.violate(now_ms, "ends", what));
                return;
            }
        }
    }
}

/// A producer: calls of a few messages, each awaited.
async fn produce(keylane: Keylane, client: u64, scenario: Scenario, mut dice: Dice, eye: Eye) {
    let mut sent = 0u64;
    while eye.now_ms() < scenario.busy_ms && sent < scenario.messages_max {
        tokio::time::sleep(dice.time(1, scenario.produce_ms)).await;
        let mut tickets = Vec::new();
        for _ in 0..dice.between(1, scenario.burst) {
            sent += 1;
            let mut message = Message::new(TOPIC).id(format!("c{client}-{sent}")).payload("x");
            if !dice.percent(scenario.keyless) {
                message = message.key(format!("k{}", dice.between(1, scenario.keys)));
            }
            if let Ok(ticket) = keylane.producer().send(message).await {
                tickets.push(ticket);
            }
        }
        for ticket in tickets {
            if let Ok(receipt) = ticket.await {
                eye.tell(|checker, now_ms| {
                    checker.acknowledged(now_ms, receipt.partition, receipt.offset, &receipt.id);
                });
            }
        }
    }
}
