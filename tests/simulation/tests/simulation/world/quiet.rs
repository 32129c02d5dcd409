//! The quiet end of a run: nothing goes wrong any more, and everything must come to an end.

use super::{COORDINATE_MS, World};
use crate::process::{Life, Process};
use crate::{GROUP, TOPIC};

/// Once all is calm, everything must be settled within this much simulated time.
const QUIET_MS: u64 = 600_000;

impl World {
    pub(super) async fn quiet_end(&mut self) {
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
        for fell in self.processes.iter().filter_map(Process::fell) {
            self.eye.tell(|checker, _| checker.violate(now_ms, "tasks", fell));
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

    /// Proves that a drain ends within its deadline, and leaves nothing behind (ORD-10).
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
