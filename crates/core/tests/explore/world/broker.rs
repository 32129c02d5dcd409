//! The broker's part: what lands, late, twice or on condition; what is stored, cut and forgotten.

use keylane_core::journal::apply_with;
use keylane_core::{Appended, Applied, Committed, Input, Mirror, Owner, Ranges, Record, Replay, State};

use super::{PROCESSES, Shared, Violation, World, bit, entry, replay_under};
use crate::scope::Scope;

impl World {
    pub(super) fn committed(&self, owner: &Owner) -> Committed {
        match (self.mirrored, owner.state().and_then(|state| state.journal)) {
            (Some(epoch), Some(journal)) => Committed::Mirror(Mirror { journal, epoch }),
            _ => Committed::Unknown,
        }
    }

    pub(super) fn answer(&mut self, scope: &Scope, life: u8, input: Input<'_>) -> Result<(), Violation> {
        match (0..PROCESSES).find(|index| self.processes[*index].value.life == life) {
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
            let mut truth = State::clone(&self.truth.value);
            let applied = apply_with(scope.rules, &mut truth, position, &flight.record.value);
            if let Applied::Stop(why) = applied {
                return Err(format!("an owner wrote what is not carried out: {why}"));
            }
            self.journal.push((flight.record, applied == Applied::Counted));
            self.truth = Shared::new(truth);
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

    pub(super) fn store(&mut self, scope: &Scope, at: usize) -> Result<(), Violation> {
        let (life, epoch, message) = self.bodies.swap_remove(at);
        let dead = entry(message, self.hold.len() as u64);
        self.hold.push(message);
        let Some(index) = (0..PROCESSES).find(|index| self.processes[*index].value.life == life) else {
            return Ok(());
        };
        if self.processes[index].value.epoch() == epoch {
            self.change(index, |process| process.storing &= !bit(message));
        }
        let (done, dead) = (Ranges::new(), [dead]);
        self.feed(scope, index, Input::Finished { epoch, done: &done, dead: &dead })
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
