//! The broker's part of the world: appends land late, twice or on condition; bodies are stored, logs are cut.

use keylane_core::journal::{Cause, Effect, apply_with};
use keylane_core::{Applied, Committed, Mirror};

use super::process::copied;
use super::*;

impl World {
    pub(super) fn committed(&self, owner: &Owner) -> Committed {
        match (self.mirrored, owner.state().and_then(|state| state.journal)) {
            (Some(epoch), Some(journal)) => Committed::Mirror(Mirror { journal, epoch }),
            _ => Committed::Unknown,
        }
    }

    fn process_of(&self, life: u8) -> Option<usize> {
        (0..PROCESSES).find(|index| self.processes[*index].value.life == life)
    }

    pub(super) fn answer(&mut self, scope: &Scope, life: u8, input: Input<'_>) -> Result<(), Violation> {
        match self.process_of(life) {
            Some(index) => self.feed(scope, index, input),
            None => Ok(()),
        }
    }

    pub(super) fn land(&mut self, scope: &Scope, at: usize, again: bool) -> Result<(), Violation> {
        let flight = self.flights[at].clone();
        if again {
            self.left.repeats -= 1;
            self.flights[at].answer = false;
        } else {
            self.flights.swap_remove(at);
        }
        let position = self.end();
        let landed = flight.expect.is_none_or(|expect| expect == position);
        if landed {
            let before = self.truth.clone();
            let mut truth = State::clone(&before.value);
            let mut effects = Vec::new();
            let tell = &mut |effect| effects.push(effect);
            let applied = apply_with(scope.rules, &mut truth, position, &flight.record.value, tell);
            if let Applied::Stop(why) = applied {
                return Err(format!("an owner wrote what is not carried out: {why}"));
            }
            self.claims += u8::from(matches!(&*flight.record.value, Record::Claim(_)));
            if self.claims >= CLAIMS_MAX && truth.epoch.is_none() && scope.believers {
                return Err(format!("T: {} claims, and nobody owns", self.claims));
            }
            self.journal.push((flight.record, applied == Applied::Counted));
            self.truth = Shared::new(truth);
            self.note(scope, &before.value, &effects)?;
            self.check_settled(scope)?;
            self.check_rebuilt(scope)?;
        }
        let answer = if landed { Appended::At(position) } else { Appended::Moved };
        if flight.answer {
            self.answer(scope, flight.life, Input::Appended(answer))?;
        }
        self.trim(scope);
        Ok(())
    }

    /// Notes what a counting record changed, and checks that no command was lost by it.
    fn note(&mut self, scope: &Scope, before: &State, effects: &[Effect]) -> Result<(), Violation> {
        for effect in effects {
            let Effect::Changed(change) = effect else { continue };
            let Some(entry) = change.before.or(change.after) else { continue };
            let message = entry.position as u8;
            match change.cause {
                Cause::Discarded | Cause::Expired => self.discarded |= bit(message),
                Cause::Asked | Cause::Edited => self.tried &= !bit(message),
                _ => {}
            }
        }
        self.check_commands(scope, before, effects)
    }

    pub(super) fn store(&mut self, scope: &Scope, at: usize, again: bool) -> Result<(), Violation> {
        let body = self.bodies[at].clone();
        if again {
            self.left.repeats -= 1;
            self.bodies[at].answer = false;
        } else {
            self.bodies.swap_remove(at);
        }
        let first = self.hold.len() as u64;
        match &body.what {
            What::Chunks(chunks) => self.hold.extend(chunks.iter().cloned().map(Item::Chunk)),
            what => {
                let (message, version, copy) = (body.message, body.version, *what == What::Copy);
                self.hold.push(Item::Body { message, version, copy });
            }
        }
        let positions = (first..self.hold.len() as u64).collect();
        if !body.answer {
            return Ok(());
        }
        if scope.late_acks {
            self.acks.push((body, positions));
            return Ok(());
        }
        self.acknowledge(scope, body, positions)
    }

    pub(super) fn acknowledge(
        &mut self,
        scope: &Scope,
        body: Body,
        positions: Vec<u64>,
    ) -> Result<(), Violation> {
        let Some(index) = self.process_of(body.life) else {
            return Ok(());
        };
        let epoch = body.epoch;
        let here = self.processes[index].value.epoch() == epoch;
        let storing = body.storing;
        if let What::Chunks(_) = body.what {
            let stored: StoredChunks = storing.chunks_acknowledged(positions);
            return self.feed(scope, index, Input::ChunksStored(stored));
        }
        let stored = storing.acknowledged(positions[0]);
        match body.what {
            What::Move { from } => {
                let position = u64::from(body.message);
                self.feed(scope, index, Input::Moved { position, from, to: stored })
            }
            What::Copy => {
                let copied = copied(scope, body.message, stored);
                self.feed(scope, index, Input::Copied { epoch, copies: &[copied] })
            }
            _ if here => {
                self.change(index, |process| process.storing &= !bit(body.message));
                let process = Process::clone(&self.processes[index].value);
                let death = process.death(scope, self, body.message, Some(stored));
                let done = Ranges::new();
                self.feed(scope, index, Input::Finished { epoch, done: &done, dead: &[death] })
            }
            _ => Ok(()),
        }
    }

    /// The wanted chunks of a snapshot; `None` if one was cut away.
    pub(super) fn chunks(&self, wanted: &[u64]) -> Option<Vec<Bytes>> {
        let chunk = |position: &u64| match self.hold.get(*position as usize) {
            Some(Item::Chunk(chunk)) if *position >= self.hold_start => Some(chunk.clone()),
            _ => None,
        };
        wanted.iter().map(chunk).collect()
    }

    pub(super) fn cut(&mut self, below: u64) {
        if below > self.start {
            self.journal.drain(..(below - self.kept) as usize);
            (self.start, self.kept) = (below, below);
        }
    }

    /// Forgets what no later step can see.
    pub(super) fn trim(&mut self, scope: &Scope) {
        if !scope.full && scope.snapshot_after.is_none() {
            let epoch = self.truth.value.epoch.as_ref().map(|epoch| epoch.position);
            self.flights.retain(|flight| match &*flight.record.value {
                Record::Facts(facts) => {
                    epoch == Some(facts.epoch)
                        || (flight.answer
                            && self.processes.iter().any(|other| other.value.life == flight.life))
                }
                _ => true,
            });
        }
        if !scope.full && !scope.low && scope.snapshot_after.is_none() && scope.rules.named_by_journal {
            // No record will ever name these bodies, and where other bodies land does not depend on them.
            let lives = [&self.processes[0], &self.processes[1]].map(|process| process.value.life);
            self.bodies.retain(|body| {
                body.answer && lives.contains(&body.life) || !scope.rules.name_after_acknowledgement
            });
        }
        if scope.snapshot_after.is_some() {
            return;
        }
        let owners = self.processes.iter().filter_map(|process| process.value.owner.as_ref());
        let read = owners.map(Owner::next).min().unwrap_or(self.end());
        if read > self.kept {
            let mut base = Replay::clone(&self.base.value);
            for (record, _) in self.journal.drain(..(read - self.kept) as usize) {
                replay_under(scope, &mut base, self.kept, &record.value);
                self.kept += 1;
            }
            self.base = Shared::new(base);
        }
    }
}
