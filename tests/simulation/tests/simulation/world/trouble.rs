//! The troubles that happen to processes and partitions, now and later.

use std::time::Duration;

use keylane::raw::TaskKind;
use keylane_broker::{Hang, Rates};

use super::{COORDINATE_MS, SESSION_MS, World};
use crate::process::{Life, Process};
use crate::{GROUP, TOPIC};

/// How late news may come that does not reach a process.
const UNHEARD: Duration = Duration::from_secs(60);

/// Something that happens later.
#[derive(Debug, Clone)]
pub(super) enum Later {
    Thaw(String),
    SessionEnds(String),
    Reconnect(String),
    Expire(String),
    Answer(String),
    Displace(String),
    Start,
    Coordinate,
    /// Stops or kills the process that takes a partition over.
    Pounce(u32),
}

impl World {
    pub(super) fn trouble(&mut self) {
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
            t.hang,
            t.strike,
        ];
        let mut drawn = self.random.between(1, weights.iter().sum());
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
            3 => self.kill_any(),
            4 => self.freeze_one(),
            5 => self.cut_off(),
            6 => self.expire(),
            7 => self.lose(),
            8 => self.outage(),
            9 => self.disconnect(),
            10 => self.reset(),
            11 => self.hang(),
            _ => self.strike(),
        }
    }

    fn drain(&mut self) {
        let Some(at) = self.victim() else { return };
        let name = self.processes[at].name.clone();
        if let Some(drain) = self.processes[at].drain() {
            self.note(format_args!("drain {name}"));
            self.drains.push((name, drain));
            let again_ms = self.random.between(100, 20_000);
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

    /// A process can die at any time: also while it drains, is stopped, or is cut off.
    fn kill_any(&mut self) {
        if let Some(at) = self.one_of(Process::is_alive) {
            self.kill(at);
        }
    }

    fn freeze_one(&mut self) {
        if let Some(at) = self.victim() {
            self.freeze(at);
        }
    }

    /// Schedules trouble in the middle of a take-over.
    pub(super) fn pounce(&mut self, partitions: Vec<u32>) {
        let most_ms = 4 * self.scenario.latency_ms.1 + 10;
        for partition in partitions {
            if self.random.percent(self.scenario.pounce) {
                let after_ms = self.random.between(0, most_ms);
                self.schedule(after_ms, Later::Pounce(partition));
            }
        }
    }

    fn kill(&mut self, at: usize) {
        let name = self.processes[at].name.clone();
        self.note(format_args!("kill {name}, {:?}", self.processes[at].life));
        self.processes[at].kill(&self.cluster);
        // Its drain will not end any more.
        self.drains.retain(|(draining, _)| *draining != name);
        let known_ms = self.random.between(100, SESSION_MS);
        self.schedule(known_ms, Later::Expire(name));
        if self.random.percent(80) {
            let again_ms = self.random.between(100, 20_000);
            self.schedule(again_ms, Later::Start);
        }
    }

    fn freeze(&mut self, at: usize) {
        let name = self.processes[at].name.clone();
        let for_ms = self.random.time(200, 60_000).as_millis() as u64;
        self.note(format_args!("freeze {name} for {for_ms} ms"));
        let now_ms = self.now_ms();
        self.processes[at].freeze(now_ms);
        if for_ms > SESSION_MS {
            self.schedule(SESSION_MS, Later::SessionEnds(name.clone()));
        } else if self.random.percent(30) {
            // Broker and process need not agree about time.
            let early_ms = self.random.between(1, for_ms);
            self.schedule(early_ms, Later::SessionEnds(name.clone()));
        }
        self.schedule(for_ms, Later::Thaw(name));
    }

    fn cut_off(&mut self) {
        let Some(at) = self.victim() else { return };
        let name = self.processes[at].name.clone();
        let for_ms = self.random.time(200, 60_000).as_millis() as u64;
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
        let lasts = self.random.time(100, 20_000);
        let name = &self.processes[at].name;
        self.note(format_args!("outage of {name} for {} ms", lasts.as_millis()));
        self.processes[at].faulty.outage(lasts);
    }

    fn disconnect(&mut self) {
        let Some(at) = self.victim() else { return };
        self.note(format_args!("disconnect {}", self.processes[at].name));
        self.processes[at].faulty.disconnect();
    }

    /// Calls of one kind are not answered, as appends are not where a cluster has too few copies in sync. Often the
    /// process also loses its partitions meanwhile without hearing of it; it must then read that in its journals.
    fn hang(&mut self) {
        let Some(at) = self.victim() else { return };
        let kind = *self.random.one_of(&[
            Hang::JournalAppend,
            Hang::JournalAppend,
            Hang::HoldAppend,
            Hang::HoldAppend,
            Hang::JournalRead,
            Hang::Cut,
            Hang::Reader,
            Hang::Commit,
            Hang::Committed,
        ]);
        let for_ms = self.random.time(200, 60_000).as_millis() as u64;
        let name = self.processes[at].name.clone();
        self.note(format_args!("{kind:?} of {name} hangs for {for_ms} ms"));
        self.processes[at].faulty.hang(&[kind]);
        if self.random.percent(60) {
            let after_ms = self.random.between(100, 5_000);
            self.schedule(after_ms, Later::Displace(name.clone()));
        }
        self.schedule(for_ms, Later::Answer(name));
    }

    /// A bug ends one task of a process; the process lives on.
    fn strike(&mut self) {
        let Some(at) = self.victim() else { return };
        let kind = *self.random.one_of(&[
            TaskKind::Owner,
            TaskKind::Shard,
            TaskKind::Burial,
            TaskKind::Committer,
            TaskKind::Group,
        ]);
        self.note(format_args!("{kind:?} of {} ends", self.processes[at].name));
        self.processes[at].strike(kind);
    }

    /// An operator sets the group back or forward, and the partition's owner is made to start over.
    fn reset(&mut self) {
        let partition = self.partition();
        let (start, end) = self.eye.tell(|checker, _| checker.span(partition));
        let position = self.random.between(start, end);
        self.note(format_args!("reset {partition} to {position}"));
        self.cluster.lose(GROUP, TOPIC, partition);
        self.cluster.reset_commit(GROUP, TOPIC, partition, position);
    }

    fn partition(&mut self) -> u32 {
        self.random.between(0, u64::from(self.scenario.partitions) - 1) as u32
    }

    pub(super) fn do_later(&mut self) {
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
            Later::Answer(name) => {
                let rates = self.scenario.rates;
                let process = self.named(&name);
                process.faulty.answer();
                process.faulty.set_rates(rates);
            }
            Later::Displace(name) => {
                if self.named(&name).life == Life::Running {
                    self.note(format_args!("{name} loses its partitions, unheard"));
                    let unheard = Rates { news: 1000, late_max: UNHEARD, ..self.scenario.rates };
                    self.named(&name).faulty.set_rates(unheard);
                    self.cluster.expire(&name);
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
                    Some(at) if self.random.percent(80) => self.freeze(at),
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

    pub(super) fn thaw(&mut self, name: &str) {
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

    /// Assigns partitions without an owner to processes.
    pub(super) fn coordinate(&mut self) {
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
