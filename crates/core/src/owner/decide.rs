//! The second half of [`Owner::step`]: what an owner does next.
//!
//! The owner comes in as the first half (`input.rs`) left it; out comes one [`Action`]. Reading comes before writing,
//! so that every decision rests on all records that were asked for.

use super::holds::Holds;
use super::setup::Committed;
use super::stop::{StepBack, Stop};
use super::{Action, Flight, Owner, Patience, Phase};
use crate::journal::{FORMAT_NEW, Facts, Fence, Record};

impl Owner {
    pub(super) fn decide(&mut self) -> Action {
        // First of all: the read or append that would otherwise be waited for may never end.
        if self.now_ms >= self.drained_by_ms() {
            self.step_back(StepBack::DrainTimedOut);
        }
        if let Some(action) = self.said.pop_front() {
            return action;
        }
        if self.must_read() {
            return Action::Read { from: self.replay.next() };
        }
        let until_ms = self.advance();
        if let Some(action) = self.said.pop_front() {
            return action;
        }
        if self.must_read() {
            return Action::Read { from: self.replay.next() };
        }
        match &mut self.flight {
            Some(Flight { record, sent, .. }) if !*sent && !self.appending => {
                (*sent, self.appending, self.written_ms) = (true, true, self.now_ms);
                let fact = matches!(**record, Record::Facts(_) | Record::Snapshot(_));
                let expect = (fact && self.setup.conditional).then_some(self.replay.next());
                Action::Append { record: record.clone(), expect }
            }
            _ => Action::Wait { until_ms: until_ms.min(self.drained_by_ms()) },
        }
    }

    fn must_read(&self) -> bool {
        self.phase != Phase::Stopped
            && self.replay.wanted().is_none()
            && (self.read_end || self.read_past.is_some_and(|past| self.next() <= past))
    }

    /// Moves on as far as possible without new input, and returns the time at which time alone would change something.
    fn advance(&mut self) -> u64 {
        match self.phase {
            Phase::Claiming | Phase::Fencing | Phase::Stopped => u64::MAX,
            Phase::Waiting { position, .. } => self.advance_waiting(position),
            Phase::Opening { epoch, recorded } => self.advance_opening(epoch, recorded),
            Phase::Owning { epoch, .. } => self.advance_owning(epoch),
            Phase::Draining { epoch, quiet, parted, .. } => self.advance_draining(epoch, quiet, parted),
            Phase::SteppedBack { until_ms, confirmed } => {
                if confirmed && self.now_ms >= until_ms {
                    self.claim_anew();
                }
                if confirmed { until_ms } else { u64::MAX }
            }
        }
    }

    /// The claim was read, and is the newest: waits for the running epoch's `released`.
    pub(super) fn wait_for_release(&mut self) {
        let Some(position) = self.state().and_then(|state| state.claim.as_ref()).map(|claim| claim.position)
        else {
            return;
        };
        self.flight = None;
        self.phase = Phase::Waiting {
            position,
            since_ms: self.now_ms,
            heard_ms: self.now_ms,
            heard: false,
            patience: Patience::Left,
        };
    }

    pub(super) fn patience_until_ms(&self) -> u64 {
        let (setup, bounds) = (&self.setup, &self.setup.bounds);
        match self.phase {
            Phase::Waiting { since_ms, heard_ms, .. } => (heard_ms + bounds.silence_ms)
                .min(since_ms.saturating_add(setup.handler_timeout_ms).saturating_add(bounds.grace_ms)),
            _ => u64::MAX,
        }
    }

    pub(super) fn set_patience(&mut self, left: Patience) {
        if let Phase::Waiting { patience, .. } = &mut self.phase {
            *patience = left;
        }
    }

    fn advance_waiting(&mut self, position: u64) -> u64 {
        if self.flight.is_some() {
            return u64::MAX;
        }
        if self.committed.is_none() {
            self.said.push_back(Action::ReadCommit);
            return u64::MAX;
        }
        let Some(state) = self.replay.state() else {
            return u64::MAX;
        };
        let found = self.setup.source;
        if self.outgrown() {
            let widened = state.widened;
            self.stop(Stop::OtherPartitions { recorded: found.partitions, found: widened });
            return u64::MAX;
        }
        if let Some(recorded) = &state.source {
            if recorded.incarnation != found.incarnation {
                self.stop(Stop::OtherSource { recorded: recorded.incarnation, found: found.incarnation });
                return u64::MAX;
            }
            // An accepted number of partitions is known from the journal of partition 0 (`former`) or from this
            // journal.
            let accepted = self.setup.former.contains(&recorded.partitions)
                || state.accepted.iter().any(|one| one.from == recorded.partitions);
            if recorded.partitions != found.partitions && !accepted {
                self.stop(Stop::OtherPartitions { recorded: recorded.partitions, found: found.partitions });
                return u64::MAX;
            }
        }
        let free = state.epoch.as_ref().is_none_or(|epoch| {
            epoch.released || self.proven_dead == Some(epoch.instance) || !self.rules.wait_for_released()
        });
        let patience = match self.phase {
            Phase::Waiting { patience, .. } => patience,
            _ => Patience::Left,
        };
        if !free && patience != Patience::Gone {
            let until_ms = self.patience_until_ms();
            if self.now_ms >= until_ms {
                self.set_patience(Patience::LastLook);
                self.ask_for_end();
            }
            return until_ms;
        }
        match state.journal {
            None => {
                let journal = self.random_id(u64::MAX >> 2);
                self.fly(Record::Identity { journal });
            }
            Some(journal) => {
                let fence = Fence {
                    claim: self.claim,
                    claim_position: position,
                    journal,
                    source: self.setup.source,
                    format: Some(state.format.unwrap_or(FORMAT_NEW.min(self.setup.format))),
                    order: Some(self.setup.order),
                };
                self.phase = Phase::Fencing;
                self.fly(Record::Fence(fence));
            }
        }
        u64::MAX
    }

    /// The fence was read and counts: the epoch begins.
    pub(super) fn open(&mut self, epoch: u64) {
        self.flight = None;
        // The commit is read again behind the fence: an owner in between may have carried out an operator's reset,
        // which must not be carried out twice.
        self.committed = None;
        self.holds = Holds::new(self.state().map_or(0, |state| state.low));
        self.phase = Phase::Opening { epoch, recorded: false };
    }

    fn advance_opening(&mut self, epoch: u64, recorded: bool) -> u64 {
        if self.flight.is_some() {
            return u64::MAX;
        }
        let Some(committed) = self.committed else {
            self.said.push_back(Action::ReadCommit);
            return u64::MAX;
        };
        let started = self.state().is_some_and(|state| state.started);
        let position = match committed {
            Committed::Operator(position) => Some(position),
            _ if !started => Some(self.setup.start),
            _ => None,
        };
        if let (Some(position), false) = (position, recorded) {
            let mut facts = self.facts(epoch);
            if started {
                facts.reset = Some(position);
            } else {
                facts.start = Some(position);
            }
            self.fly(Record::Facts(facts));
        } else if self.revoked || !self.newest_is_mine() || self.outgrown() {
            // No handler was started, so the drain is over as soon as it begins.
            self.phase = Phase::Draining { epoch, since_ms: self.now_ms, quiet: true, parted: false };
            return self.advance();
        } else {
            self.phase = Phase::Owning { epoch, since_ms: self.now_ms };
            self.said.push_back(Action::Start { epoch });
        }
        u64::MAX
    }

    fn advance_owning(&mut self, epoch: u64) -> u64 {
        if self.flight.is_some() {
            return u64::MAX;
        }
        let due_ms = self.ready.due_ms(&self.setup.bounds).unwrap_or(u64::MAX);
        if due_ms <= self.now_ms {
            let facts = self.next_facts(epoch);
            self.fly(Record::Facts(facts));
            return due_ms;
        }
        let look_ms = self.look(epoch);
        let snapshot_after = self.setup.bounds.snapshot_after_bytes;
        if self.flight.is_none()
            && !self.fly_stored_snapshot(epoch)
            && !self.makes_snapshot()
            && self.replay.snapshot_due(snapshot_after)
        {
            self.fly_snapshot(epoch);
        }
        due_ms.min(look_ms)
    }

    /// Begins a drain: nothing more is started.
    pub(super) fn drain(&mut self, epoch: u64) {
        self.note_calm();
        self.phase = Phase::Draining { epoch, since_ms: self.now_ms, quiet: false, parted: false };
        self.said.push_back(Action::Drain);
    }

    /// When a drain is given up. `released` must not claim that nothing runs while a handler does, and a journal that
    /// takes no more records must not keep the partition for ever. Handlers have ended by their time-out; hearing of
    /// that and recording it takes a while too. The next owner waits for as long.
    pub(super) fn drained_by_ms(&self) -> u64 {
        match self.phase {
            Phase::Draining { since_ms, quiet, .. } => {
                let grace_ms = self.setup.bounds.grace_ms / if quiet { 1 } else { 2 };
                since_ms.saturating_add(self.setup.handler_timeout_ms).saturating_add(grace_ms)
            }
            _ => u64::MAX,
        }
    }

    fn advance_draining(&mut self, epoch: u64, quiet: bool, parted: bool) -> u64 {
        if self.flight.is_some() {
            return u64::MAX;
        }
        let parts = !parted && self.setup.bounds.snapshot_after_bytes != u64::MAX;
        let write_ms = self.written_ms + self.setup.bounds.drain_write_ms;
        if !self.ready.is_empty() {
            let mut facts = self.next_facts(epoch);
            facts.released = quiet && self.ready.is_empty() && !parts;
            self.fly(Record::Facts(facts));
        } else if quiet && parts {
            // With a snapshot here, the next owner reads that, and none of the records that led to it.
            if let Phase::Draining { parted, .. } = &mut self.phase {
                *parted = true;
            }
            // A snapshot whose chunks are not stored yet would keep the next owner waiting, and is left out.
            if !self.fly_stored_snapshot(epoch) && self.replay.grown() && self.fits_record() {
                self.fly_snapshot(epoch);
            }
            return self.advance();
        } else if quiet {
            let facts = Facts { released: true, ..self.facts(epoch) };
            self.fly(Record::Facts(facts));
        } else if self.now_ms >= write_ms {
            // Without this empty record, the process that waits for `released` would take the silence for death.
            let facts = self.facts(epoch);
            self.fly(Record::Facts(facts));
        }
        write_ms
    }

    /// True if the state is small enough for a snapshot in one record.
    fn fits_record(&self) -> bool {
        let entries = self.state().map_or(0, |state| state.entries.encoded_bytes());
        entries <= self.setup.bounds.snapshot_bytes_max && self.setup.bounds.snapshot_bytes_max > 0
    }

    pub(super) fn facts(&self, epoch: u64) -> Facts {
        Facts { epoch, seq: self.next_seq(), ..Facts::default() }
    }

    pub(super) fn next_seq(&self) -> u64 {
        let epoch = self.replay.state().and_then(|state| state.epoch.as_ref());
        epoch.map_or(1, |epoch| epoch.seq.saturating_add(1))
    }

    /// Sets all clocks to zero, so that an explorer sees states that differ in time alone as one.
    #[cfg(feature = "flaws")]
    pub fn rewind(&mut self) {
        (self.now_ms, self.written_ms, self.step_backs, self.asked) = (0, 0, 0, 0);
        self.wall_ms = 0;
        self.holds.rewind();
        self.ready.rewind();
        match &mut self.phase {
            Phase::Waiting { since_ms, heard_ms, heard, .. } => {
                (*since_ms, *heard_ms, *heard) = (0, 0, false)
            }
            Phase::Owning { since_ms, .. } | Phase::Draining { since_ms, .. } => *since_ms = 0,
            Phase::SteppedBack { until_ms, .. } => *until_ms = 0,
            _ => {}
        }
    }
}
