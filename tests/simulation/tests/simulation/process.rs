//! A simulated process: Keylane's runtime with one pipeline, behind a gate, on a broker of its own that misbehaves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::raw::{Clock, TaskKind, Tasks};
use keylane::testing::Gate;
use keylane::{Keylane, Pipeline};
use keylane_broker::{Broker, Faulty, MemoryBroker};
use keylane_simulation::Random;
use tokio::task::JoinHandle;

use crate::handler::{Eye, Worker};
use crate::scenario::Scenario;
use crate::{GROUP, TOPIC};

/// The wall time at which simulations begin; processes' clocks differ a little.
const WALL_MS: u64 = 1_700_000_000_000;

/// The states of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Running,
    /// Stopped at this simulated time.
    Frozen {
        since_ms: u64,
    },
    CutOff,
    /// Leaves on its own.
    Draining,
    /// Gone; and whether its group knows.
    Dead {
        known: bool,
    },
}

pub struct Process {
    pub name: String,
    pub life: Life,
    pub faulty: Arc<Faulty>,
    tasks: Tasks,
    /// How many of its tasks a test ended.
    struck: u64,
    gate: Arc<Gate>,
    keylane: Option<Keylane>,
    pipeline: Arc<Mutex<Option<Pipeline>>>,
    main: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts a process; it tries until its pipeline runs.
    pub fn start(
        name: String,
        cluster: &MemoryBroker,
        carrier: &Arc<dyn Broker>,
        scenario: &Scenario,
        work_seed: u64,
        random: &mut Random,
        eye: &Eye,
    ) -> Process {
        let faulty =
            Faulty::with_carrier(cluster.node(&name), Arc::clone(carrier), random.number(), scenario.rates);
        let gate = Arc::new(Gate::default());
        let clock = Clock::simulated(WALL_MS + random.between(0, 500)).seeded(random.number());
        let broker: Arc<dyn Broker> = Arc::clone(&faulty) as _;
        let tasks = Tasks::behind(Arc::clone(&gate));
        let keylane = Keylane::with_broker(broker, clock, tasks.clone(), false);
        let pipeline = Arc::<Mutex<Option<Pipeline>>>::default();
        let main = {
            let (keylane, pipeline) = (keylane.clone(), Arc::clone(&pipeline));
            let (settings, work) = (scenario.settings.clone(), scenario.work);
            let (process, eye) = (name.clone(), eye.clone());
            async move {
                loop {
                    let worker = Worker { process: process.clone(), seed: work_seed, work, eye: eye.clone() };
                    let builder =
                        keylane.pipeline(GROUP).topic(TOPIC).settings(settings.clone()).handle(worker);
                    match builder.start().await {
                        Ok(started) => {
                            *pipeline.lock().expect("no holder panics") = Some(started);
                            return;
                        }
                        Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
                    }
                }
            }
        };
        let main = tokio::spawn(Arc::clone(&gate).around(main));
        Process {
            name,
            life: Life::Running,
            faulty,
            tasks,
            struck: 0,
            gate,
            keylane: Some(keylane),
            pipeline,
            main: Some(main),
        }
    }

    /// Ends one of its tasks, as a bug would.
    pub fn strike(&mut self, kind: TaskKind) {
        self.struck += 1;
        self.tasks.strike(kind);
    }

    /// The tasks that ended unasked, beyond those that the test ended.
    pub fn fell(&self) -> Option<String> {
        let fallen: Vec<(TaskKind, u64)> = self.tasks.ended().filter(|(_, times)| *times > 0).collect();
        let times: u64 = fallen.iter().map(|(_, times)| times).sum();
        (times > self.struck).then(|| format!("{}: {fallen:?}, {} struck", self.name, self.struck))
    }

    /// Stops the process, as SIGSTOP does.
    pub fn freeze(&mut self, now_ms: u64) {
        self.gate.freeze();
        self.life = Life::Frozen { since_ms: now_ms };
    }

    /// Lets the process go on.
    pub fn thaw(&mut self) {
        self.gate.thaw();
        self.life = Life::Running;
    }

    /// Kills the process, as SIGKILL does.
    pub fn kill(&mut self, cluster: &MemoryBroker) {
        cluster.crash(&self.name);
        self.end();
    }

    /// Begins to drain the process; the returned task ends when that is done.
    pub fn drain(&mut self) -> Option<JoinHandle<()>> {
        let pipeline = self.pipeline.lock().expect("no holder panics").take()?;
        self.life = Life::Draining;
        let drain = async move {
            let _ = pipeline.drain().await;
        };
        Some(tokio::spawn(Arc::clone(&self.gate).around(drain)))
    }

    /// Ends everything that runs in the process.
    pub fn end(&mut self) {
        self.gate.kill();
        self.main.take().iter().for_each(JoinHandle::abort);
        self.pipeline.lock().expect("no holder panics").take();
        self.keylane = None;
        self.life = Life::Dead { known: false };
    }

    /// The status of its pipeline.
    pub async fn shown(&self) -> String {
        let pipeline = self.pipeline.lock().expect("no holder panics").clone();
        match pipeline {
            Some(pipeline) => format!("{:?}", pipeline.status().await.map(|status| status.partitions)),
            None => "no pipeline".to_owned(),
        }
    }

    pub fn is_alive(&self) -> bool {
        !matches!(self.life, Life::Dead { .. })
    }
}
