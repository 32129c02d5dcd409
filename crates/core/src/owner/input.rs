//! The first half of [`Owner::step`]: what happened is taken in.
//!
//! One [`Input`] comes in; out comes the owner in the phase that follows from it. Only records that were read decide
//! anything; an acknowledgement alone decides nothing.

use super::setup::Committed;
use super::stop::{StepBack, Stop};
use super::{Action, Appended, Copied, Death, Flight, Input, Owner, Patience, Phase};
use crate::journal::{Applied, DeadEntry, Effect, Held, Record, Replayed};
use crate::ledger::Ranges;

impl Owner {
    pub(super) fn take(&mut self, input: Input<'_>) {
        match input {
            Input::Tick(now_ms) => self.now_ms = self.now_ms.max(now_ms),
            Input::Read { position, record, bytes } => self.read(position, record, bytes),
            Input::Unreadable { position, error } => {
                self.stop(Stop::unreadable(position, error, self.setup.format));
            }
            Input::CaughtUp { start, end, now_ms } => self.caught_up(start, end, now_ms),
            Input::Appended(appended) => self.appended(appended),
            Input::Committed(committed) => self.learn_commit(committed),
            Input::Revoked => self.revoke(),
            Input::Lost => self.stop(Stop::Lost),
            Input::Confirmed => {
                if let Phase::SteppedBack { confirmed, .. } = &mut self.phase {
                    *confirmed = true;
                }
            }
            Input::Finished { epoch, done, dead } => {
                // Results of attempts that began under another epoch say nothing about this one.
                if self.epoch() == Some(epoch) {
                    self.finished(epoch, done, dead);
                }
            }
            Input::Replayed { epoch, done } => {
                if self.epoch() == Some(epoch) {
                    let done = done.iter().map(|position| *position..*position + 1).collect();
                    self.ready.add(self.now_ms, &done);
                }
            }
            Input::Copied { epoch, copies } => {
                if self.epoch() == Some(epoch) {
                    copies.iter().for_each(|copied| self.copied(epoch, copied));
                }
            }
            Input::Moved { position, from, to } => {
                if self.epoch() == Some(to.storing.epoch) {
                    self.moved(position, from, &to);
                }
            }
            Input::ChunksStored(stored) => {
                if self.epoch() == Some(stored.storing.epoch) {
                    self.chunks_stored(stored);
                }
            }
            Input::GivenUp(storing) => self.given_up(&storing),
            Input::Chunks { position, chunks } => {
                let replayed = self.replay.provide_under(self.rules, position, chunks);
                if let Replayed::Applied(Applied::Stop(what)) = replayed {
                    self.stop(Stop::NotCarriedOut { position, what });
                } else if let Some(in_use) = self.newer_format() {
                    self.stop(Stop::NewerFormat { in_use, reads: self.setup.format });
                }
            }
            Input::Quiet => {
                if let Phase::Draining { quiet, .. } = &mut self.phase {
                    *quiet = true;
                }
            }
            Input::Paused => {
                self.paused = true;
                self.ask_for_end();
            }
            Input::PredecessorDead(instance) => self.proven_dead = Some(instance),
        }
    }

    pub(super) fn read(&mut self, position: u64, record: &Record, bytes: usize) {
        if position > self.replay.next() && self.running().is_none() {
            // The journal was cut over records that were not read here. Only reading to the end shows what that leaves.
            self.ask_for_end();
        }
        let mut effects = Vec::new();
        let mut tell = |effect| effects.push(effect);
        let applied = match self.replay.read_under(self.rules, position, record, bytes, &mut tell) {
            Replayed::Before => return,
            Replayed::Applied(Applied::Stop(what)) => {
                return self.stop(Stop::NotCarriedOut { position, what });
            }
            Replayed::Applied(applied) => Some(applied),
            Replayed::Unplaced => {
                if let Some(wanted) = self.replay.wanted().filter(|wanted| wanted.position == position) {
                    let chunks = wanted.chunks.clone();
                    self.said.push_back(Action::ReadChunks { position, chunks });
                }
                None
            }
        };
        if let Some(in_use) = self.newer_format() {
            return self.stop(Stop::NewerFormat { in_use, reads: self.setup.format });
        }
        let mine = self.flight.as_ref().is_some_and(|flight| *flight.record == *record);
        let counts = applied == Some(Applied::Counted);
        let newest = self.newest_is_mine();
        match &mut self.phase {
            // Whether the claim counts or is a repeat: it stands in the journal, and the journal must now be read to
            // its end.
            Phase::Claiming if mine => {
                self.flight = None;
                self.ask_for_end();
            }
            Phase::Waiting { .. } if applied.is_some() && !newest => self.step_back(StepBack::NewerClaim),
            Phase::Waiting { heard, .. } => {
                *heard |= counts && matches!(record, Record::Facts(_) | Record::Snapshot(_));
                if mine {
                    self.flight = None;
                }
            }
            Phase::Fencing if mine && counts => self.open(position),
            Phase::Fencing if mine => self.step_back(StepBack::NewerClaim),
            Phase::Opening { epoch, .. } | Phase::Owning { epoch, .. } | Phase::Draining { epoch, .. } => {
                let epoch = *epoch;
                self.read_as_owner(epoch, record, mine, counts, effects);
            }
            _ => {}
        }
    }

    fn read_as_owner(&mut self, epoch: u64, record: &Record, mine: bool, counts: bool, effects: Vec<Effect>) {
        let current = self.state().and_then(|state| state.epoch.as_ref()).map(|current| current.position);
        if current != Some(epoch) {
            // Another process's fence counts. Or the journal was cut beyond what was read, which only a later owner
            // does.
            return self.step_back(StepBack::Fenced);
        }
        self.follow(&effects);
        if !effects.is_empty() && self.epoch().is_some() {
            self.said.push_back(Action::Changed { effects });
        }
        if mine && (counts || matches!(record, Record::Command(_))) {
            self.counted(epoch, record);
        }
        if matches!(self.phase, Phase::Owning { .. }) && (!self.newest_is_mine() || self.outgrown()) {
            self.drain(epoch);
        }
    }

    /// The record that this owner sent was read back and counts.
    pub(super) fn counted(&mut self, epoch: u64, record: &Record) {
        self.flight = None;
        match record {
            Record::Facts(facts) => {
                let low = self.state().map_or(0, |state| state.settled.low());
                let moved = facts.start.is_some() || facts.reset.is_some();
                if moved || !(facts.done.is_empty() && facts.dead.is_empty() && facts.held.is_empty()) {
                    let (done, dead) = (facts.done.clone(), facts.dead.clone());
                    let held = facts.held.iter().map(|held| held.position).collect();
                    self.said.push_back(Action::Counted { epoch, done, held, dead, low });
                }
                if facts.low.is_some() && self.rules.cut_by_counted_low() {
                    let below = self.state().map_or(0, |state| state.low);
                    self.said.push_back(Action::CutHold { below });
                }
                if let Phase::Opening { recorded, .. } = &mut self.phase {
                    *recorded = true;
                }
                if facts.released {
                    self.step_back(StepBack::Released);
                }
            }
            // Not before: a cut while the snapshot does not count yet could leave a journal from which no state can be
            // built.
            Record::Snapshot(snapshot) => self.said.push_back(Action::Cut { below: snapshot.as_of }),
            _ => {}
        }
    }

    /// Takes in what handlers finished. The ledger's ranges may span held and dead positions; those are left out, since
    /// only an attempt at the entry itself makes it done.
    fn finished(&mut self, epoch: u64, done: &Ranges, dead: &[Death]) {
        match self.replay.state().filter(|state| !state.entries.is_empty()) {
            None if done.is_empty() => {}
            None => self.ready.add(self.now_ms, done),
            Some(state) => {
                let mut left = done.clone();
                for entry in done.iter().flat_map(|range| state.entries.range(range)) {
                    left.remove(entry.position..entry.position + 1);
                }
                if !left.is_empty() {
                    self.ready.add(self.now_ms, &left);
                }
            }
        }
        dead.iter().for_each(|death| self.died(epoch, death));
    }

    fn died(&mut self, epoch: u64, death: &Death) {
        let mut usable = true;
        // Both have landed: each must be noted, even if the other cannot be used.
        for stored in [&death.body, &death.report].into_iter().flatten() {
            usable &= self.landed(&stored.storing, stored.position) && stored.storing.epoch == epoch;
        }
        if !usable {
            return self.said.push_back(Action::StoreAgain { position: death.position });
        }
        let named = self.state().and_then(|state| state.entries.get(death.position)).map(|entry| entry.body);
        let dead = DeadEntry {
            position: death.position,
            key_hash: death.key_hash,
            effect: death.effect,
            reason: death.reason,
            // If the body is neither given nor named, the message was done or discarded meanwhile, and `apply` will
            // ignore this entry.
            body: death.body.as_ref().map(|body| body.position).or(named).unwrap_or(0),
            report: death.report.as_ref().map(|report| report.position),
            tries: death.tries,
            due_ms: death.due_ms,
            expires_ms: death.expires_ms,
            priority: death.priority,
            command: death.command,
        };
        self.ready.add_dead(self.now_ms, dead);
    }

    fn copied(&mut self, epoch: u64, copied: &Copied) {
        if !self.landed(&copied.body.storing, copied.body.position) || copied.body.storing.epoch != epoch {
            return self.said.push_back(Action::StoreAgain { position: copied.position });
        }
        let held = Held {
            position: copied.position,
            key_hash: copied.key_hash,
            body: copied.body.position,
            due_ms: copied.due_ms,
            passes: copied.passes,
            judged: copied.judged,
            priority: copied.priority,
            tries: copied.tries,
        };
        self.ready.add_held(self.now_ms, held);
    }

    pub(super) fn caught_up(&mut self, start: u64, end: u64, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        if self.replay.wanted().is_some() {
            // The chunks that were asked for may still give a state.
            return;
        }
        if self.replay.next() < start && start == end || self.state().is_none() {
            return self.stop(Stop::StateLost { start });
        }
        match self.replay.next() {
            next if next < end => return,
            // Records that were read are not in the journal any more. Readers count positions on from there, so nothing
            // that is appended now would count for them.
            read if read > end => return self.stop(Stop::WentBack { read, end }),
            _ => {}
        }
        self.read_end = false;
        if let Some(why) = self.mirror_is_wrong() {
            return self.stop(why);
        }
        if std::mem::take(&mut self.paused) && matches!(self.phase, Phase::Owning { .. }) {
            self.said.push_back(Action::Resume);
        }
        // The record landed below what was read, and was not met: the journal was cut over it, by an owner in between.
        let next = self.replay.next();
        let skipped = self.flight.as_ref().is_some_and(|flight| flight.landed.is_some_and(|at| at < next));
        if skipped && self.running().is_none() {
            self.flight = None;
        }
        let mine = self.newest_is_mine();
        match &mut self.phase {
            Phase::Fencing if skipped => self.step_back(StepBack::NewerClaim),
            Phase::Claiming if mine => self.wait_for_release(),
            // The claim was read, and a newer claim stands behind it.
            Phase::Claiming if self.flight.is_none() => self.step_back(StepBack::NewerClaim),
            Phase::Waiting { .. } if !mine => self.step_back(StepBack::NewerClaim),
            Phase::Waiting { heard, heard_ms, patience, .. } => {
                if std::mem::take(heard) {
                    *heard_ms = self.now_ms;
                }
                if *patience == Patience::LastLook {
                    *patience = Patience::Gone;
                    if self.now_ms < self.patience_until_ms() {
                        self.set_patience(Patience::Left);
                    }
                }
            }
            Phase::Fencing if !mine && self.flight.as_ref().is_some_and(|flight| !flight.sent) => {
                self.step_back(StepBack::NewerClaim);
            }
            _ => {}
        }
    }

    pub(super) fn appended(&mut self, appended: Appended) {
        self.appending = false;
        // A step back has made the record void to which this result belongs.
        let Some(Flight { record, sent: true, .. }) = &self.flight else {
            return;
        };
        let fact = matches!(**record, Record::Facts(_) | Record::Snapshot(_));
        match appended {
            Appended::At(position) if fact && self.setup.conditional && position == self.replay.next() => {
                // The journal ended where this owner had read to, so no other record stands before this one: the append
                // is its own read-back.
                let record = record.clone();
                let bytes = self.encode(&record).len();
                self.read(position, &record, bytes);
            }
            Appended::At(position) => {
                self.read_past = Some(position);
                if self.phase == Phase::Claiming || position < self.replay.next() {
                    self.ask_for_end();
                }
                if let Some(flight) = &mut self.flight {
                    flight.landed = Some(position);
                }
                if fact {
                    self.trust();
                }
            }
            Appended::Moved | Appended::Unknown => {
                self.ask_for_end();
                if let Some(flight) = &mut self.flight {
                    flight.sent = false;
                }
            }
        }
    }

    /// Acts on an acknowledgement alone. Does nothing while the rules hold; for tests that leave them out.
    pub(super) fn trust(&mut self) {
        let (Some(epoch), Some(Flight { record, .. })) = (self.running(), &self.flight) else {
            return;
        };
        let record = record.clone();
        if !self.rules.read_back() {
            self.replay.trust(self.rules, &record);
            self.counted(epoch, &record);
        } else if let (false, Record::Snapshot(snapshot)) = (self.rules.cut_after_read_back(), &*record) {
            self.said.push_back(Action::Cut { below: snapshot.as_of });
        }
    }

    /// The broker's commit was read: the first time before waiting, the second time behind the fence.
    pub(super) fn learn_commit(&mut self, committed: Committed) {
        self.committed = Some(committed);
        // The journal may only seem too short: a later owner may have committed since it was read. So it is read to the
        // end before the owner stops.
        if self.mirror_is_wrong().is_some() {
            self.ask_for_end();
        }
    }

    /// Why the broker's commit cannot mirror this journal; `None` if it can.
    fn mirror_is_wrong(&self) -> Option<Stop> {
        let (Some(Committed::Mirror(mirror)), Some(state)) = (self.committed, self.state()) else {
            return None;
        };
        let newest = state.epoch.as_ref().map(|epoch| epoch.position);
        let lost = match self.phase {
            Phase::Waiting { .. } => newest < Some(mirror.epoch),
            Phase::Opening { epoch, .. } => epoch <= mirror.epoch,
            _ => return None,
        };
        if state.journal != Some(mirror.journal) {
            Some(Stop::OtherJournal { mirrored: mirror.journal, found: state.journal })
        } else {
            lost.then_some(Stop::Shorter { epoch: mirror.epoch, end: self.replay.next() })
        }
    }

    pub(super) fn revoke(&mut self) {
        self.revoked = true;
        match self.phase {
            Phase::Claiming | Phase::Waiting { .. } | Phase::SteppedBack { .. } => self.stop(Stop::Revoked),
            Phase::Owning { epoch, .. } => self.drain(epoch),
            // A fence that may yet count is followed up: an epoch that nobody releases would make the next owner wait.
            _ => {}
        }
    }
}
