//! The explorer's world around one partition: its journal and its hold, two processes, a coordinator, operators, and
//! everything that can go wrong.
//!
//! An [`Event`] comes in; out comes the world after it, or the promise that was violated. The processes' decisions are
//! the core's own: [`Owner::step`], `apply`, and [`HeldLane`] for what a key may do next. This folder adds the broker,
//! which may land an append late, twice, in another order or after its sender is dead; what waits in memory; and the
//! checks L, O, C, D, W, T, R, K of docs/protocol.md.
//!
//! To keep the number of worlds small, worlds that no later step can tell apart are merged:
//! - Clocks stand at zero. Time matters only where it runs out, and that is an event of its own.
//! - Reading the last record and learning that it was the last are one step, as they are one answer of a broker.
//! - `Quiet` is said as soon as nothing runs: to say it later would be to end the last handler later.
//! - Without snapshots, records that every live process has read are kept only as a state, with which a new process
//!   starts.
//! - A lane is shown at once what its owner knows: to show it later would be to read the record later.
//! - Unless a scope is `full`, facts of a dead epoch are dropped if no sender waits for their answer: they would land
//!   and be ignored by every reader.

mod broker;
mod checks;
mod process;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use foldhash::quality::FixedState;
use keylane_core::journal::{Command, CommandKind, DeadEffect, FORMAT};
use keylane_core::owner::{Bounds, StoredChunks};
use keylane_core::{
    Action, Appended, Copied, Death, HeldLane, Input, Order, Owner, Ranges, Record, Replay, Setup, Source,
    State, Stop, Stored, Storing,
};

use crate::scope::{Event, Scope};

/// Later than every deadline.
const LATE_MS: u64 = 1 << 40;
const PROCESSES: usize = 2;
/// How many keys a scope may have.
const KEYS: usize = 2;
/// How many messages a scope may have.
const MESSAGES: usize = 5;
/// How many entries of its key a lane is shown at once: so few that there are often more.
const SHOWN: usize = 1;
/// The sender of records that no process sends; no life has this number.
const NOBODY: u8 = u8::MAX;
/// After this many claims without an owner the world is taken to go on for ever.
const CLAIMS_MAX: u8 = 8;

/// A value with its hash, shared by all worlds in which it is the same.
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
    /// The number of the process's present life; 0 if it has none.
    life: u8,
    owner: Option<Owner>,
    /// The owner has asked to read, perhaps to the journal's end.
    must_read: bool,
    stepped_back: bool,
    revoked: bool,
    /// True from `Start` to the end of ownership.
    active: bool,
    draining: bool,
    quiet: bool,
    /// The next message of the source to read.
    reader: u8,
    running: u8,
    /// Messages handed over as done that may not be on record yet.
    done: u8,
    /// Messages that failed for good, until they are on record as dead.
    dying: u8,
    storing: u8,
    /// Messages that are being copied, until they are on record as held.
    copying: u8,
    /// For each message, the newest command that its attempt had seen when it began.
    seen: [Option<u64>; MESSAGES],
    lanes: [HeldLane; KEYS],
    /// Only where commits are taken for the truth: messages below this are skipped, all others run.
    resumes: Option<u64>,
    /// Only where copies count that the journal does not name: messages whose copies were found.
    strays: u8,
}

#[derive(Debug, Clone)]
struct Flight {
    record: Shared<Record>,
    life: u8,
    expect: Option<u64>,
    /// The sender waits for the answer.
    answer: bool,
}

/// A body or chunks on the way to `hold.p`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Body {
    life: u8,
    epoch: u64,
    storing: Storing,
    what: What,
    message: u8,
    /// The number of the edit that made the body; 0 for none.
    version: u8,
    /// The sender waits for the answer.
    answer: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum What {
    Copy,
    Death,
    Move { from: u64 },
    Chunks(Vec<Bytes>),
}

/// What lies at a position of `hold.p`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Item {
    Body { message: u8, version: u8, copy: bool },
    Chunk(Bytes),
}

/// The whole world at one moment.
#[derive(Debug, Clone)]
pub struct World {
    /// The journal's records from `kept` on, each with whether it counted.
    journal: Vec<(Shared<Record>, bool)>,
    kept: u64,
    /// What a new process knows of the journal below `kept`.
    base: Shared<Replay>,
    /// The first position that the journal keeps after cuts.
    start: u64,
    truth: Shared<State>,
    flights: Vec<Flight>,
    processes: [Shared<Process>; PROCESSES],
    hold: Vec<Item>,
    /// The first position that `hold.p` keeps after cuts.
    hold_start: u64,
    bodies: Vec<Body>,
    /// Bodies that landed, with their positions, and whose senders have not heard of it yet.
    acks: Vec<(Body, Vec<u64>)>,
    cuts: Vec<u64>,
    hold_cuts: Vec<u64>,
    /// The epoch of the broker's commit.
    mirrored: Option<u64>,
    /// Only where commits are taken for the truth: the commits under way, and the one that landed last.
    commits: Vec<u64>,
    committed: u64,
    handled: u8,
    discarded: u8,
    /// Messages of which an attempt that had seen the newest command has begun.
    tried: u8,
    /// Messages of which any attempt was ever begun.
    begun: u8,
    assigned: usize,
    lives: u8,
    claims: u8,
    edits: u8,
    wall_ms: u64,
    /// True once something unplanned has happened.
    fault: bool,
    left: Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Left {
    failures: u8,
    overflows: u8,
    commands: u8,
    moved: u8,
    times: u8,
    crashes: u8,
    moves: u8,
    impatience: u8,
    unknowns: u8,
    repeats: u8,
    upgrades: u8,
    confirms: u8,
}

/// The promise that was violated, and how.
pub type Violation = String;

fn command(id: u128, kind: CommandKind) -> Command {
    Command {
        id,
        kind,
        positions: Ranges::new(),
        as_of: None,
        body: None,
        accept: None,
        partitions: None,
        format: None,
        who: String::new(),
        when_ms: 0,
    }
}

fn bit(message: u8) -> u8 {
    1 << message
}

fn bits(mask: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |message| mask & bit(*message) != 0)
}

fn bits_of(positions: impl Iterator<Item = u64>) -> u8 {
    positions.filter(|position| *position < 8).fold(0, |mask, position| mask | bit(position as u8))
}

fn only(message: u8) -> Ranges {
    let mut ranges = Ranges::new();
    ranges.insert(u64::from(message)..u64::from(message) + 1);
    ranges
}

fn hash_all<T: Hash>(items: &[T]) -> u64 {
    let state = FixedState::with_seed(11);
    items.iter().map(|item| state.hash_one(item)).fold(0u64, u64::wrapping_add)
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
            hold_start: 0,
            bodies: Vec::new(),
            acks: Vec::new(),
            cuts: Vec::new(),
            hold_cuts: Vec::new(),
            mirrored: None,
            commits: Vec::new(),
            committed: 0,
            handled: 0,
            discarded: 0,
            tried: 0,
            begun: 0,
            assigned: 0,
            lives: 0,
            claims: 0,
            edits: 0,
            wall_ms: 0,
            fault: false,
            left: Left {
                failures: scope.failures,
                overflows: scope.overflows,
                commands: scope.commands,
                moved: scope.moved,
                times: scope.times,
                crashes: scope.crashes,
                moves: scope.moves,
                impatience: scope.impatience,
                unknowns: scope.unknowns,
                repeats: scope.repeats,
                upgrades: scope.upgrades,
                confirms: 2,
            },
        }
    }

    /// Equal for worlds that no later step can tell apart.
    pub fn fingerprint(&self) -> u64 {
        let state = FixedState::with_seed(11);
        let mut hasher = state.build_hasher();
        self.journal.iter().for_each(|(record, _)| record.hash.hash(&mut hasher));
        (self.kept, self.start, self.base.hash, self.truth.hash).hash(&mut hasher);
        // Appends in flight have no order.
        let flights = self
            .flights
            .iter()
            .map(|flight| state.hash_one((flight.record.hash, flight.life, flight.expect, flight.answer)));
        flights.fold(0u64, u64::wrapping_add).hash(&mut hasher);
        self.processes.iter().for_each(|process| process.hash.hash(&mut hasher));
        (hash_all(&self.bodies), hash_all(&self.acks), hash_all(&self.cuts)).hash(&mut hasher);
        (hash_all(&self.hold_cuts), hash_all(&self.commits), self.committed).hash(&mut hasher);
        // Positions of `hold.p` that were cut away cannot be read any more.
        (&self.hold[self.hold_start as usize..], self.hold_start).hash(&mut hasher);
        (self.mirrored, self.handled, self.begun, self.assigned, self.lives, self.fault).hash(&mut hasher);
        (self.discarded, self.tried, self.edits, self.wall_ms).hash(&mut hasher);
        self.left.hash(&mut hasher);
        hasher.finish()
    }

    fn end(&self) -> u64 {
        self.kept + self.journal.len() as u64
    }

    fn is_assigned(&self, scope: &Scope, index: usize) -> bool {
        scope.believers || self.assigned == index
    }

    /// The events that can happen now; true for an event that must happen sooner or later.
    pub fn events(&self, scope: &Scope, out: &mut Vec<(Event, bool)>) {
        out.clear();
        for at in 0..self.flights.len() {
            out.push((Event::Land(at, false), true));
            if self.left.repeats > 0 {
                out.push((Event::Land(at, true), false));
            }
            if self.left.unknowns > 0 && self.flights[at].answer {
                out.push((Event::Forget(at), false));
            }
        }
        for at in 0..self.bodies.len() {
            out.push((Event::Store(at, false), true));
            if self.left.repeats > 0 && scope.overflows > 0 {
                out.push((Event::Store(at, true), false));
            }
        }
        (0..self.acks.len()).for_each(|at| out.push((Event::Acknowledge(at), true)));
        (0..self.cuts.len()).for_each(|at| out.push((Event::Cut(at), true)));
        (0..self.hold_cuts.len()).for_each(|at| out.push((Event::CutHold(at), true)));
        (0..self.commits.len()).for_each(|at| out.push((Event::Commit(at), true)));
        for index in 0..PROCESSES {
            self.events_of(scope, index, out);
        }
        if self.left.moves > 0 {
            out.push((Event::Assign, false));
        }
        if self.left.upgrades > 0 {
            out.push((Event::Upgrade, false));
        }
        if self.left.times > 0 && self.truth.value.epoch.is_some() {
            out.push((Event::Time, false));
        }
        if self.left.commands > 0 {
            self.commands(scope, out);
        }
        if scope.believers && self.left.confirms > 0 && !out.iter().any(|(_, must)| *must) {
            // The wait before claiming again is longer than anything under way takes.
            let waits = (0..PROCESSES).filter(|index| self.processes[*index].value.stepped_back);
            out.extend(waits.map(|index| (Event::Confirm(index), true)));
        }
    }

    fn commands(&self, scope: &Scope, out: &mut Vec<(Event, bool)>) {
        for entry in self.truth.value.entries.iter() {
            let message = entry.position as u8;
            for kind in scope.kinds {
                let both = matches!(kind, CommandKind::Discard | CommandKind::Skip);
                if (entry.is_dead() && *kind != CommandKind::Skip) || (both && !entry.is_dead()) {
                    out.push((Event::Command(*kind, message), false));
                    for index in 0..PROCESSES {
                        if !scope.rules.commands_by_journal && self.processes[index].value.active {
                            out.push((Event::Call(index, *kind, message), false));
                        }
                    }
                }
            }
        }
    }

    /// True if the process owns the partition on record, whatever it believes itself.
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
            Event::Source(index) => {
                self.change(index, |process| process.reader += 1);
                Ok(())
            }
            Event::Start(index, message) => self.start(scope, index, message),
            Event::Finish(index, message) => self.finish(scope, index, message),
            Event::Fail(index, message) => {
                self.left.failures -= 1;
                self.die(scope, index, message)
            }
            Event::Copy(index, message) => self.copy(scope, index, message),
            Event::Store(at, again) => self.store(scope, at, again),
            Event::Acknowledge(at) => {
                let (body, positions) = self.acks.swap_remove(at);
                self.acknowledge(scope, body, positions)
            }
            Event::Move(index) => self.move_body(scope, index),
            Event::Cut(at) => {
                let below = self.cuts.swap_remove(at);
                self.cut(below);
                self.check_rebuilt(scope)
            }
            Event::CutHold(at) => {
                let below = self.hold_cuts.swap_remove(at);
                self.hold_start = self.hold_start.max(below);
                self.check_settled(scope)
            }
            Event::Commit(at) => {
                self.committed = self.commits.swap_remove(at);
                Ok(())
            }
            Event::Assign => {
                self.left.moves -= 1;
                self.assigned = 1 - self.assigned;
                Ok(())
            }
            Event::Command(kind, message) => {
                self.ask(kind, message);
                Ok(())
            }
            Event::Call(index, kind, message) => {
                let record = self.ask(kind, message);
                self.obey(scope, index, &record)
            }
            Event::Time => {
                self.left.times -= 1;
                self.wall_ms += 1;
                for index in 0..PROCESSES {
                    if self.processes[index].value.active {
                        self.feed(scope, index, Input::Tick(0))?;
                    }
                }
                Ok(())
            }
            Event::Upgrade => {
                self.left.upgrades -= 1;
                let id = u128::from(self.left.upgrades);
                let upgrade = Command { format: Some(FORMAT + 1), ..command(id, CommandKind::Upgrade) };
                self.send(Record::Command(upgrade));
                Ok(())
            }
            Event::Revoke(index) => {
                self.change(index, |process| process.revoked = true);
                self.feed(scope, index, Input::Revoked)
            }
            Event::Confirm(index) => {
                self.left.confirms -= u8::from(scope.believers);
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

    fn send(&mut self, record: Record) {
        self.flights.push(Flight { record: Shared::new(record), life: NOBODY, expect: None, answer: false });
    }

    /// Sends an operator's command. The body of an edit is stored first.
    fn ask(&mut self, kind: CommandKind, message: u8) -> Record {
        self.left.commands -= 1;
        let mut asked = command(100 + u128::from(self.left.commands), kind);
        asked.positions = only(message);
        if kind == CommandKind::Edit {
            self.edits += 1;
            asked.body = Some(self.hold.len() as u64);
            self.hold.push(Item::Body { message, version: self.edits, copy: false });
        }
        let record = Record::Command(asked);
        self.send(record.clone());
        record
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
            snapshot_bytes_max: if scope.chunks { 0 } else { usize::MAX },
            chunk_bytes_max: 1,
            low_step: if scope.low { 1 } else { u64::MAX },
            move_slack: u64::MAX,
            look_ms: 0,
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
        // Steps the owner directly: `feed` would turn the clock back between the two inputs.
        let mut process = Process::clone(&self.processes[index].value);
        if let Some(owner) = &mut process.owner {
            owner.step(Input::Tick(LATE_MS));
        }
        self.processes[index] = Shared::new(process);
        self.caught_up(scope, index, LATE_MS)
    }

    /// Gives `input` to a process, and carries out its actions until it wants to wait or read.
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
        owner.tell_wall(self.wall_ms);
        let mut action = owner.step(input);
        let mut chunks: Option<Vec<Bytes>>;
        loop {
            let mut next = Input::Tick(0);
            match action {
                Action::Append { record, expect } => {
                    let record = Shared { hash: FixedState::with_seed(7).hash_one(&*record), value: record };
                    self.flights.push(Flight { record, life: process.life, expect, answer: true });
                }
                Action::ReadCommit => next = Input::Committed(self.committed(&owner)),
                Action::Start { epoch } => {
                    if let Some(flawed) = process.starts(scope, self, &owner) {
                        action = owner.step(Input::Finished { epoch, done: &flawed, dead: &[] });
                        continue;
                    }
                }
                Action::Counted { epoch, done, held, dead, low } => {
                    self.check_commit(scope, low)?;
                    self.mirrored = Some(epoch);
                    if !scope.rules.journal_is_truth {
                        self.commits.push(low);
                    }
                    let done = bits_of(done.iter().flatten());
                    let (held, dead) =
                        (bits_of(held.into_iter()), bits_of(dead.iter().map(|dead| dead.position)));
                    process.done &= !done;
                    process.dying &= !dead;
                    process.copying &= !held;
                    process.told(&owner, done | held | dead);
                }
                Action::Changed { .. } => process.told(&owner, 0),
                Action::Due { .. } => process.told(&owner, 0),
                Action::StoreAgain { position } => {
                    let message = position as u8;
                    let what = if process.copying & bit(message) != 0 { What::Copy } else { What::Death };
                    if let Some(storing) = owner.storing() {
                        self.bodies.push(process.body(&owner, storing, what, message));
                    }
                }
                Action::Move { position, from, storing } => {
                    let message = position as u8;
                    let mut body = process.body(&owner, storing, What::Move { from }, message);
                    if let Some(Item::Body { version, .. }) = self.hold.get(from as usize) {
                        body.version = *version;
                    }
                    self.bodies.push(body);
                }
                Action::StoreChunks { storing, chunks } => {
                    let what = What::Chunks(chunks.collect());
                    self.bodies.push(process.body(&owner, storing, what, 0));
                }
                Action::ReadChunks { position, chunks: wanted } => {
                    chunks = self.chunks(&wanted);
                    action = owner.step(Input::Chunks { position, chunks: chunks.as_deref() });
                    continue;
                }
                Action::Cut { below } => self.cuts.push(below),
                Action::CutHold { below } => {
                    if below > self.hold_start && !self.hold_cuts.contains(&below) {
                        self.hold_cuts.push(below);
                    }
                }
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
                // The process owns nothing, so the partition goes to the process that can read the newer format.
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
