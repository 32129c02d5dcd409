//! A process's part of the world as an owner: which message of a key runs, and what becomes of it.

use keylane_core::HoldState;
use keylane_core::journal::DeadReason;
use keylane_core::lanes::Turn;

use super::*;

impl World {
    pub(super) fn events_of(&self, scope: &Scope, index: usize, out: &mut Vec<(Event, bool)>) {
        let process = &*self.processes[index].value;
        let Some(owner) = &process.owner else {
            if self.is_assigned(scope, index) {
                out.push((Event::Begin(index), true));
            }
            return;
        };
        if owner.next() < self.end() {
            out.push((Event::Read(index), true));
        } else if process.must_read {
            out.push((Event::CaughtUp(index), true));
        }
        if !self.is_assigned(scope, index) && !process.revoked {
            out.push((Event::Revoke(index), true));
        }
        if !scope.believers && self.assigned == index && process.stepped_back {
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
            if self.left.failures > 0 {
                out.push((Event::Fail(index, message), false));
            }
        }
        if process.active && !process.draining {
            self.events_of_owner(scope, index, process, out);
        }
        if self.left.crashes > 0 {
            out.push((Event::Crash(index, false), false));
            out.push((Event::Crash(index, true), false));
        }
    }

    fn events_of_owner(&self, scope: &Scope, index: usize, process: &Process, out: &mut Vec<(Event, bool)>) {
        if process.reader < scope.messages() {
            out.push((Event::Source(index), true));
        }
        for key in 0..KEYS as u8 {
            let memory = process.memory(scope, key).next();
            let reader = if process.reader < scope.messages() { u64::from(process.reader) } else { u64::MAX };
            let lane = &process.lanes[usize::from(key)];
            if let Turn::Run(position) =
                lane.next_with(scope.rules, memory.map(u64::from), reader, self.wall_ms)
            {
                // A message that is retried by itself is forced to run only the first time that it is due.
                out.push((Event::Start(index, position as u8), true));
            }
            for message in process.memory(scope, key) {
                let held = lane.state(self.wall_ms) == HoldState::Held;
                if held || self.left.overflows > 0 {
                    out.push((Event::Copy(index, message), held));
                }
            }
        }
        for message in process.unsettled(scope).filter(|message| scope.scheduled & bit(*message) != 0) {
            out.push((Event::Copy(index, message), true));
        }
        if self.left.moved > 0 && !self.truth.value.entries.is_empty() {
            out.push((Event::Move(index), false));
        }
    }

    pub(super) fn start(&mut self, scope: &Scope, index: usize, message: u8) -> Result<(), Violation> {
        let owner = self.processes[index].value.owner.as_ref().expect("it owns");
        if owner.is_to_skip(u64::from(message)) {
            return self.die(scope, index, message);
        }
        self.check_start(scope, index, message)?;
        self.begun |= bit(message);
        let key = usize::from(scope.keys[usize::from(message)]);
        let shown = self.processes[index].value.lanes[key].entry(u64::from(message)).copied();
        let seen = shown.and_then(|entry| entry.command());
        let newest = self.truth.value.entries.get(u64::from(message)).and_then(|entry| entry.command());
        if newest.is_some() && seen == newest {
            self.tried |= bit(message);
        }
        self.change(index, |process| {
            process.running |= bit(message);
            process.strays &= !bit(message);
            process.seen[usize::from(message)] = seen;
            process.lanes[key].begins(u64::from(message));
        });
        Ok(())
    }

    pub(super) fn finish(&mut self, scope: &Scope, index: usize, message: u8) -> Result<(), Violation> {
        self.check_finish(scope, message)?;
        self.handled |= bit(message);
        let key = usize::from(scope.keys[usize::from(message)]);
        let position = u64::from(message);
        let kept = self.processes[index].value.lanes[key].entry(position).is_some();
        self.change(index, |process| {
            process.running &= !bit(message);
            process.seen[usize::from(message)] = None;
            process.lanes[key].is_done(position);
            if !kept {
                process.done |= bit(message);
            }
        });
        let epoch = self.processes[index].value.epoch();
        if kept {
            self.feed(scope, index, Input::Replayed { epoch, done: &[position] })?;
            self.change(index, |process| {
                if let Some(owner) = process.owner.take() {
                    process.show(&owner, key, 0);
                    process.owner = Some(owner);
                }
            });
            return Ok(());
        }
        self.feed(scope, index, Input::Finished { epoch, done: &only(message), dead: &[] })
    }

    /// The message failed for good, or is to be buried without an attempt.
    pub(super) fn die(&mut self, scope: &Scope, index: usize, message: u8) -> Result<(), Violation> {
        let key = usize::from(scope.keys[usize::from(message)]);
        let position = u64::from(message);
        let mut process = Process::clone(&self.processes[index].value);
        let mut owner = process.owner.take().expect("it runs");
        process.running &= !bit(message);
        process.dying |= bit(message);
        process.lanes[key].dies(position);
        // A body that a record names already is not stored again.
        let named = owner.state().is_some_and(|state| state.entries.get(position).is_some());
        let mut storing = None;
        if !named {
            storing = owner.storing();
            process.storing |= bit(message);
        }
        let lost = !named && storing.is_none();
        if let Some(storing) = storing {
            self.bodies.push(process.body(&owner, storing, What::Death, message));
        }
        process.owner = Some(owner);
        let death = process.death(scope, self, message, None);
        let epoch = process.epoch();
        self.processes[index] = Shared::new(process);
        if named || lost {
            let done = Ranges::new();
            return self.feed(scope, index, Input::Finished { epoch, done: &done, dead: &[death] });
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, scope: &Scope, index: usize, message: u8) -> Result<(), Violation> {
        let key = usize::from(scope.keys[usize::from(message)]);
        let scheduled = scope.scheduled & bit(message) != 0;
        let held = self.processes[index].value.lanes[key].state(self.wall_ms) == HoldState::Held;
        if !scheduled && !held {
            self.left.overflows -= 1;
        }
        let mut process = Process::clone(&self.processes[index].value);
        let mut owner = process.owner.take().expect("it owns");
        let storing = owner.storing().expect("it owns");
        process.copying |= bit(message);
        process.lanes[key].copies(u64::from(message), scheduled);
        let body = process.body(&owner, storing.clone(), What::Copy, message);
        process.owner = Some(owner);
        let epoch = process.epoch();
        self.processes[index] = Shared::new(process);
        if !scope.rules.name_after_acknowledgement {
            // The flaw: the copy is named where it is believed to land, before its acknowledgement.
            self.bodies.push(Body { answer: false, ..body });
            let copied = copied(scope, message, storing.acknowledged(self.hold.len() as u64));
            return self.feed(scope, index, Input::Copied { epoch, copies: &[copied] });
        }
        self.bodies.push(body);
        Ok(())
    }

    pub(super) fn move_body(&mut self, scope: &Scope, index: usize) -> Result<(), Violation> {
        self.left.moved -= 1;
        self.change(index, |process| {
            if let Some(owner) = &mut process.owner {
                owner.moves_lowest();
            }
        });
        self.feed(scope, index, Input::Tick(0))
    }

    /// The flaw: a process obeys a command before the command is in the journal.
    pub(super) fn obey(&mut self, scope: &Scope, index: usize, record: &Record) -> Result<(), Violation> {
        self.change(index, |process| {
            if let Some(mut owner) = process.owner.take() {
                owner.obey(record);
                process.told(&owner, 0);
                process.owner = Some(owner);
            }
        });
        self.feed(scope, index, Input::Tick(0))
    }
}

pub(super) fn copied(scope: &Scope, message: u8, body: Stored) -> Copied {
    let scheduled = scope.scheduled & bit(message) != 0;
    Copied {
        position: u64::from(message),
        key_hash: scope.hash(message),
        body,
        due_ms: scheduled.then_some(1),
        passes: scheduled,
        judged: false,
        priority: 5,
        tries: 0,
    }
}

impl Process {
    /// The epoch under which the process acts; 0, which no epoch has, if it owns nothing.
    pub(super) fn epoch(&self) -> u64 {
        self.owner.as_ref().and_then(Owner::epoch).unwrap_or(0)
    }

    pub(super) fn body(&self, owner: &Owner, storing: Storing, what: What, message: u8) -> Body {
        let epoch = owner.epoch().unwrap_or(0);
        Body { life: self.life, epoch, storing, what, message, version: 0, answer: true }
    }

    pub(super) fn death(&self, scope: &Scope, world: &World, message: u8, body: Option<Stored>) -> Death {
        let position = u64::from(message);
        let skipped = self.owner.as_ref().is_some_and(|owner| owner.is_to_skip(position));
        let passed = skipped || scope.passed & bit(message) != 0;
        Death {
            position,
            key_hash: scope.hash(message),
            effect: if passed { DeadEffect::Passed } else { DeadEffect::Holding },
            reason: if skipped { DeadReason::Skipped } else { DeadReason::Rejected },
            body,
            report: None,
            tries: 1,
            due_ms: (scope.times > 0 && !skipped).then_some(world.wall_ms + 1),
            expires_ms: None,
            priority: 5,
            command: self.seen[usize::from(message)],
        }
    }

    /// The process owns from here on. With the rule `one_by_one` left out, returns what it also takes for done.
    pub(super) fn starts(&mut self, scope: &Scope, world: &World, owner: &Owner) -> Option<Ranges> {
        let state = owner.state().expect("an owner has a state");
        self.active = true;
        self.reader = if scope.reader {
            state.settled.low().min(u64::from(scope.messages())) as u8
        } else {
            scope.messages()
        };
        if !scope.rules.journal_is_truth {
            self.resumes = Some(world.committed);
        }
        if !scope.rules.named_by_journal {
            for item in &world.hold[world.hold_start as usize..] {
                if let Item::Body { message, copy: true, .. } = item
                    && state.entries.get(u64::from(*message)).is_none()
                {
                    self.strays |= bit(*message);
                }
            }
        }
        self.told(owner, 0);
        if scope.rules.one_by_one {
            return None;
        }
        let mut below = Ranges::new();
        for entry in state.entries.iter() {
            let earlier =
                (0..entry.position as u8).filter(|other| scope.same_key(*other, entry.position as u8));
            earlier.filter(|other| !state.settled.contains(u64::from(*other))).for_each(|other| {
                self.done |= bit(other);
                below.insert(u64::from(other)..u64::from(other) + 1);
            });
        }
        Some(below)
    }

    /// Shows all lanes what their owner knows, after a record by which the messages in `counted` are on record.
    pub(super) fn told(&mut self, owner: &Owner, counted: u8) {
        if self.active {
            (0..KEYS).for_each(|key| self.show(owner, key, counted));
        }
    }

    pub(super) fn show(&mut self, owner: &Owner, key: usize, counted: u8) {
        let view = owner.view(Some(key as u64 + 1), SHOWN);
        self.lanes[key].told(view, |position| counted & bit(position as u8) != 0);
    }

    /// Messages that were read, are not settled, and have nothing under way here, whatever the lane may do with them.
    pub(super) fn unsettled(&self, scope: &Scope) -> impl Iterator<Item = u8> + '_ {
        let state = self.owner.as_ref().and_then(Owner::state);
        let here = self.running | self.done | self.dying | self.copying;
        let (strays, resumes) = (self.strays, self.resumes);
        (0..scope.messages().min(self.reader)).filter(move |message| {
            let settled = match resumes {
                Some(below) => u64::from(*message) < below,
                None => state.is_some_and(|state| state.settled.contains(u64::from(*message))),
            };
            here & bit(*message) == 0 && (!settled || strays & bit(*message) != 0)
        })
    }

    /// Messages of a key that wait in memory.
    pub(super) fn memory<'a>(&'a self, scope: &'a Scope, key: u8) -> impl Iterator<Item = u8> + 'a {
        self.unsettled(scope).filter(move |message| {
            scope.keys[usize::from(*message)] == key && scope.scheduled & bit(*message) == 0
        })
    }
}
