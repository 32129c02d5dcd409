//! A small world around one partition: its journal, two processes, a coordinator, and everything that can go wrong.
//!
//! In comes an [`Event`]; out comes the world after it, or what was violated. The processes' decisions are core's own:
//! [`Owner::step`] and `apply`. Here are only the broker, which may land an append late, twice, in another order or
//! after its sender is dead; a plain lane per key; and the checks L, O, C, D, W, T, R of the protocol.
//!
//! Reductions, each of which merges worlds that no later step can tell apart:
//! - Clocks stand at zero. Time matters only where it runs out, and that is an event of its own.
//! - Reading the last record and learning that it was the last are one step, as they are one answer of a broker.
//! - `Quiet` is said as soon as nothing runs: to say it later is to end the last handler later.
//! - Without snapshots, what every live process has read is kept as the state it makes; a new process starts with it.
//! - Unless a scope is `full`, facts of a dead epoch are dropped when nobody waits for their answer: they would land and
//!   be ignored by all.

mod broker;
mod checks;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use foldhash::quality::FixedState;
use keylane_core::journal::{Command, CommandKind, FORMAT};
use keylane_core::owner::Bounds;
use keylane_core::{
    Action, Appended, DeadEffect, DeadEntry, DeadReason, Input, Order, Owner, Ranges, Record, Replay, Setup,
    Source, State, Stop,
};

use crate::scope::{Event, Scope};

/// Later than every deadline.
const LATE_MS: u64 = 1 << 40;
const PROCESSES: usize = 2;
/// The sender of what no process sends; no life has this number.
const NOBODY: u8 = u8::MAX;

/// A value with its hash, shared by the worlds in which it is the same.
#[derive(Debug, Clone)]
struct Shared<T> {
    hash: u64,
    value: Arc<T>,
}

impl<T: Hash> Shared<T> {
    fn new(value: T) -> Shared<T> {
        Shared { hash: FixedState::with_seed(7).hash_one(&value), value: Arc::new(value) }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Process {
    /// Which life it is in; 0: none yet.
    life: u8,
    owner: Option<Owner>,
    /// The owner has asked to read, up to the end if need be.
    must_read: bool,
    stepped_back: bool,
    revoked: bool,
    /// Between `Start` and the end of ownership.
    active: bool,
    draining: bool,
    quiet: bool,
    running: u8,
    /// Handed over as done, perhaps not on record yet.
    done: u8,
    /// Rejected: its body is under way, or it is not on record yet.
    burying: u8,
    storing: u8,
}

#[derive(Debug, Clone)]
struct Flight {
    record: Shared<Record>,
    life: u8,
    expect: Option<u64>,
    /// The sender waits for the answer.
    answer: bool,
}

/// The world.
#[derive(Debug, Clone)]
pub struct World {
    /// The records from `kept` on.
    journal: Vec<(Shared<Record>, bool)>,
    kept: u64,
    /// What a new process knows of the journal below `kept`.
    base: Shared<Replay>,
    /// The journal's first position, after cuts.
    start: u64,
    truth: Shared<State>,
    flights: Vec<Flight>,
    processes: [Shared<Process>; PROCESSES],
    /// Which message's body lies at each position of `hold.p`.
    hold: Vec<u8>,
    /// Bodies on their way to `hold.p`: sender, its epoch, message.
    bodies: Vec<(u8, u64, u8)>,
    cuts: Vec<u64>,
    /// The epoch of the broker's commit.
    mirrored: Option<u64>,
    handled: u8,
    /// Begun by anyone, ever.
    begun: u8,
    assigned: usize,
    lives: u8,
    /// Something unplanned has happened.
    fault: bool,
    left: Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Left {
    rejections: u8,
    crashes: u8,
    moves: u8,
    impatience: u8,
    unknowns: u8,
    repeats: u8,
    upgrades: u8,
}

/// What was violated.
pub type Violation = String;

fn upgrade(id: u8) -> Record {
    Record::Command(Command {
        id: u128::from(id),
        kind: CommandKind::Upgrade,
        positions: Ranges::new(),
        as_of: None,
        body: None,
        accept: None,
        partitions: None,
        format: Some(FORMAT + 1),
        who: String::new(),
        when_ms: 0,
    })
}

fn bit(message: u8) -> u8 {
    1 << message
}

fn bits(mask: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |message| mask & bit(*message) != 0)
}

fn entry(message: u8, body: u64) -> DeadEntry {
    DeadEntry {
        position: u64::from(message),
        key_hash: Some(1),
        effect: DeadEffect::Passed,
        reason: DeadReason::Rejected,
        body,
        report: None,
        tries: 1,
        due_ms: None,
        priority: 0,
        command: None,
    }
}

impl World {
    pub fn new(scope: &Scope) -> World {
        let mut world = World::cold(scope);
        let mut events = Vec::new();
        while scope.warm && !world.processes[0].value.active {
            world.events(scope, &mut events);
            let (event, _) =
                events.iter().find(|(_, must)| *must).expect("a process can always go on to own");
            world.run(scope, *event).expect("nothing has gone wrong yet");
        }
        world
    }

    fn cold(scope: &Scope) -> World {
        World {
            journal: Vec::new(),
            kept: 0,
            base: Shared::new(Replay::default()),
            start: 0,
            truth: Shared::new(State::default()),
            flights: Vec::new(),
            processes: [Shared::new(Process::default()), Shared::new(Process::default())],
            hold: Vec::new(),
            bodies: Vec::new(),
            cuts: Vec::new(),
            mirrored: None,
            handled: 0,
            begun: 0,
            assigned: 0,
            lives: 0,
            fault: false,
            left: Left {
                rejections: scope.rejections,
                crashes: scope.crashes,
                moves: scope.moves,
                impatience: scope.impatience,
                unknowns: scope.unknowns,
                repeats: scope.repeats,
                upgrades: scope.upgrades,
            },
        }
    }

    /// Equal for worlds that no later step can tell apart.
    pub fn fingerprint(&self) -> u64 {
        let state = FixedState::with_seed(11);
        let mut hasher = state.build_hasher();
        self.journal.iter().for_each(|(record, _)| record.hash.hash(&mut hasher));
        (self.kept, self.start, self.base.hash, self.truth.hash).hash(&mut hasher);
        // In flight there is no order.
        let flights = self
            .flights
            .iter()
            .map(|flight| state.hash_one((flight.record.hash, flight.life, flight.expect, flight.answer)));
        flights.fold(0u64, u64::wrapping_add).hash(&mut hasher);
        self.processes.iter().for_each(|process| process.hash.hash(&mut hasher));
        self.bodies.iter().map(|body| state.hash_one(body)).fold(0u64, u64::wrapping_add).hash(&mut hasher);
        self.cuts.iter().map(|cut| state.hash_one(cut)).fold(0u64, u64::wrapping_add).hash(&mut hasher);
        (&self.hold, self.mirrored, self.handled, self.begun, self.assigned, self.lives, self.fault)
            .hash(&mut hasher);
        self.left.hash(&mut hasher);
        hasher.finish()
    }

    fn end(&self) -> u64 {
        self.kept + self.journal.len() as u64
    }

    /// What can happen now; true beside what must happen sooner or later.
    pub fn events(&self, scope: &Scope, out: &mut Vec<(Event, bool)>) {
        out.clear();
        for at in 0..self.flights.len() {
            // Equal appends of dead senders are one.
            out.push((Event::Land(at, false), true));
            if self.left.repeats > 0 {
                out.push((Event::Land(at, true), false));
            }
            if self.left.unknowns > 0 && self.flights[at].answer {
                out.push((Event::Forget(at), false));
            }
        }
        (0..self.bodies.len()).for_each(|at| out.push((Event::Store(at), true)));
        (0..self.cuts.len()).for_each(|at| out.push((Event::Cut(at), true)));
        for index in 0..PROCESSES {
            self.events_of(scope, index, out);
        }
        if self.left.moves > 0 {
            out.push((Event::Move, false));
        }
        if self.left.upgrades > 0 {
            out.push((Event::Upgrade, false));
        }
    }

    fn events_of(&self, scope: &Scope, index: usize, out: &mut Vec<(Event, bool)>) {
        let process = &*self.processes[index].value;
        let Some(owner) = &process.owner else {
            if self.assigned == index {
                out.push((Event::Begin(index), true));
            }
            return;
        };
        if owner.next() < self.end() {
            out.push((Event::Read(index), true));
        } else if process.must_read {
            out.push((Event::CaughtUp(index), true));
        }
        if self.assigned != index && !process.revoked {
            out.push((Event::Revoke(index), true));
        }
        if self.assigned == index && process.stepped_back {
            out.push((Event::Confirm(index), true));
        }
        if let Some(predecessor) = owner.predecessor()
            && !process.must_read
            && owner.next() == self.end()
        {
            let alive = self.lives_on(predecessor);
            if !alive || self.left.impatience > 0 {
                out.push((Event::GiveUp(index), !alive));
            }
        }
        for message in bits(process.running) {
            out.push((Event::Finish(index, message), true));
            if self.left.rejections > 0 {
                out.push((Event::Reject(index, message), false));
            }
        }
        if process.active && !process.draining {
            for message in (0..scope.messages()).filter(|message| process.is_head(scope, *message)) {
                out.push((Event::Start(index, message), true));
            }
        }
        if self.left.crashes > 0 {
            out.push((Event::Crash(index, false), false));
            out.push((Event::Crash(index, true), false));
        }
    }

    /// On record, and whatever the process believes.
    fn owns(&self, process: &Process) -> bool {
        let epoch = self.truth.value.epoch.as_ref().filter(|epoch| !epoch.released);
        epoch.is_some_and(|epoch| epoch.instance == u128::from(process.life))
    }

    fn lives_on(&self, instance: u128) -> bool {
        self.processes
            .iter()
            .any(|other| u128::from(other.value.life) == instance && other.value.owner.is_some())
    }

    /// Lets `event` happen.
    pub fn run(&mut self, scope: &Scope, event: Event) -> Result<(), Violation> {
        match event {
            Event::Begin(index) => self.begin(scope, index),
            Event::Read(index) => {
                let process = &self.processes[index].value;
                let next = process.owner.as_ref().map_or(0, Owner::next).max(self.start);
                let record = self.journal[(next - self.kept) as usize].0.value.clone();
                let bytes = usize::from(scope.snapshot_after.is_some());
                self.feed(scope, index, Input::Read { position: next, record: &record, bytes })?;
                let process = &self.processes[index].value;
                if process.must_read && process.owner.as_ref().is_some_and(|owner| owner.next() == self.end())
                {
                    self.caught_up(scope, index, 0)?;
                }
                Ok(())
            }
            Event::CaughtUp(index) => self.caught_up(scope, index, 0),
            Event::Land(at, again) => self.land(scope, at, again),
            Event::Forget(at) => {
                self.left.unknowns -= 1;
                self.flights[at].answer = false;
                let life = self.flights[at].life;
                self.answer(scope, life, Input::Appended(Appended::Unknown))
            }
            Event::Start(index, message) => {
                self.check_start(scope, index, message)?;
                self.begun |= bit(message);
                self.change(index, |process| process.running |= bit(message));
                Ok(())
            }
            Event::Finish(index, message) => {
                self.check_finish(scope, message)?;
                self.handled |= bit(message);
                self.change(index, |process| {
                    process.running &= !bit(message);
                    process.done |= bit(message);
                });
                let mut done = Ranges::new();
                done.insert(u64::from(message)..u64::from(message) + 1);
                {
                    let epoch = self.processes[index].value.epoch();
                    self.feed(scope, index, Input::Finished { epoch, done: &done, dead: &[] })
                }
            }
            Event::Reject(index, message) => {
                self.left.rejections -= 1;
                let process = &self.processes[index].value;
                self.bodies.push((process.life, process.epoch(), message));
                self.change(index, |process| {
                    process.running &= !bit(message);
                    process.burying |= bit(message);
                    process.storing |= bit(message);
                });
                Ok(())
            }
            Event::Store(at) => self.store(scope, at),
            Event::Cut(at) => {
                let below = self.cuts.swap_remove(at);
                self.cut(below);
                self.check_rebuilt(scope)
            }
            Event::Move => {
                self.left.moves -= 1;
                self.assigned = 1 - self.assigned;
                Ok(())
            }
            Event::Upgrade => {
                self.left.upgrades -= 1;
                let record = Shared::new(upgrade(self.left.upgrades));
                self.flights.push(Flight { record, life: NOBODY, expect: None, answer: false });
                Ok(())
            }
            Event::Revoke(index) => {
                self.change(index, |process| process.revoked = true);
                self.feed(scope, index, Input::Revoked)
            }
            Event::Confirm(index) => {
                self.change(index, |process| process.stepped_back = false);
                self.feed(scope, index, Input::Confirmed)?;
                self.feed(scope, index, Input::Tick(LATE_MS))
            }
            Event::GiveUp(index) => self.give_up(scope, index),
            Event::Crash(index, away) => {
                self.left.crashes -= 1;
                self.fault = true;
                self.processes[index] = Shared::new(Process::default());
                if away {
                    self.assigned = 1 - index;
                }
                self.trim(scope);
                Ok(())
            }
        }
    }

    fn change(&mut self, index: usize, change: impl FnOnce(&mut Process)) {
        let mut process = Process::clone(&self.processes[index].value);
        change(&mut process);
        self.processes[index] = Shared::new(process);
    }

    fn begin(&mut self, scope: &Scope, index: usize) -> Result<(), Violation> {
        self.lives += 1;
        let life = self.lives;
        let bounds = Bounds {
            batch_ms: 0,
            ranges_per_record: scope.ranges_per_record,
            snapshot_after_bytes: scope.snapshot_after.unwrap_or(u64::MAX),
            ..Bounds::default()
        };
        let setup = Setup {
            instance: u128::from(life),
            node: String::new(),
            seed: u128::from(life),
            conditional: scope.conditional,
            source: Source { incarnation: 1, partitions: 1 },
            former: Vec::new(),
            format: scope.reads(index),
            order: Order::Key,
            start: 0,
            handler_timeout_ms: 30_000,
            bounds,
        };
        let base = Replay::clone(&self.base.value);
        let owner = Owner::with_rules(scope.rules, base, Arc::new(setup));
        self.processes[index] = Shared::new(Process { life, owner: Some(owner), ..Process::default() });
        self.feed(scope, index, Input::Tick(0))
    }

    fn caught_up(&mut self, scope: &Scope, index: usize, now_ms: u64) -> Result<(), Violation> {
        let (start, end) = (self.start, self.end());
        self.feed(scope, index, Input::CaughtUp { start, end, now_ms })
    }

    fn give_up(&mut self, scope: &Scope, index: usize) -> Result<(), Violation> {
        let owner = self.processes[index].value.owner.as_ref();
        if owner.and_then(Owner::predecessor).is_some_and(|predecessor| self.lives_on(predecessor)) {
            self.left.impatience -= 1;
        }
        self.fault = true;
        // Not through `feed`, which would turn the clock back in between.
        let mut process = Process::clone(&self.processes[index].value);
        if let Some(owner) = &mut process.owner {
            owner.step(Input::Tick(LATE_MS));
        }
        self.processes[index] = Shared::new(process);
        self.caught_up(scope, index, LATE_MS)
    }

    /// Says `input` to a process, and does what it answers until it wants to wait or read.
    fn feed(&mut self, scope: &Scope, index: usize, input: Input<'_>) -> Result<(), Violation> {
        let mut process = Process::clone(&self.processes[index].value);
        let result = self.follow(scope, &mut process, input);
        self.processes[index] = Shared::new(process);
        self.trim(scope);
        result
    }

    fn follow(&mut self, scope: &Scope, process: &mut Process, input: Input<'_>) -> Result<(), Violation> {
        let Some(mut owner) = process.owner.take() else {
            return Ok(());
        };
        let mut action = owner.step(input);
        loop {
            let mut next = Input::Tick(0);
            match action {
                Action::Append { record, expect } => {
                    let record = Shared { hash: FixedState::with_seed(7).hash_one(&*record), value: record };
                    self.flights.push(Flight { record, life: process.life, expect, answer: true });
                }
                Action::ReadCommit => next = Input::Committed(self.committed(&owner)),
                Action::Start { .. } => process.active = true,
                Action::Counted { epoch, done, dead, low } => {
                    self.check_commit(scope, low)?;
                    self.mirrored = Some(epoch);
                    process.done &= !bits_of(done.iter().flatten());
                    process.burying &= !bits_of(dead.iter().map(|dead| dead.position));
                }
                Action::Cut { below } => self.cuts.push(below),
                Action::Drain => process.draining = true,
                Action::Resume => {}
                Action::StepBack(_) => {
                    let (life, revoked) = (process.life, process.revoked);
                    *process = Process { life, revoked, stepped_back: true, ..Process::default() };
                }
                Action::Stop(Stop::Revoked | Stop::Lost | Stop::DrainTimedOut) => {
                    *process = Process::default();
                    return Ok(());
                }
                // It owns nothing: the partition goes to the process that can read on.
                Action::Stop(Stop::NewerFormat { .. }) if !self.owns(process) => {
                    self.assigned = 1;
                    *process = Process::default();
                    return Ok(());
                }
                Action::Stop(why) => return Err(format!("R: a process cannot go on: {why}")),
                Action::Read { .. } | Action::Wait { .. } => {
                    process.must_read = matches!(action, Action::Read { .. });
                    if process.draining && !process.quiet && process.running | process.storing == 0 {
                        process.quiet = true;
                        next = Input::Quiet;
                    } else {
                        break;
                    }
                }
            }
            action = owner.step(next);
        }
        owner.rewind();
        process.owner = Some(owner);
        Ok(())
    }
}

fn replay_under(scope: &Scope, replay: &mut Replay, position: u64, record: &Record) {
    replay.read_with(scope.rules, position, record, usize::from(scope.snapshot_after.is_some()));
}

fn bits_of(positions: impl Iterator<Item = u64>) -> u8 {
    positions.fold(0, |mask, position| mask | bit(position as u8))
}

impl Process {
    /// The epoch that it acts under; 0, which is never one, if none.
    fn epoch(&self) -> u64 {
        self.owner.as_ref().and_then(Owner::epoch).unwrap_or(0)
    }

    /// The protocol's walk: everything earlier of its key is settled, or done here.
    fn is_head(&self, scope: &Scope, message: u8) -> bool {
        let Some(settled) = self.owner.as_ref().and_then(Owner::state).map(|state| &state.settled) else {
            return false;
        };
        let through = |message: u8| settled.contains(u64::from(message)) || self.done & bit(message) != 0;
        let here = self.running | self.burying;
        !through(message)
            && here & bit(message) == 0
            && (0..message).all(|earlier| !scope.same_key(earlier, message) || through(earlier))
    }
}
