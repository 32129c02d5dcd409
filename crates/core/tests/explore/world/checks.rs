//! What always holds: the checks L, O, C, D, W, T, R, K of docs/protocol.md; and descriptions of events for people.

use keylane_core::Entry;
use keylane_core::journal::{Cause, Effect, Fate};
use keylane_core::lanes::Place;

use super::*;

impl World {
    fn settled(&self, message: u8) -> bool {
        self.truth.value.settled.contains(u64::from(message))
    }

    fn entry(&self, message: u8) -> Option<Entry> {
        self.truth.value.entries.get(u64::from(message))
    }

    /// True if the message is on record as done.
    fn recorded_done(&self, message: u8) -> bool {
        self.settled(message) && self.entry(message).is_none() && self.discarded & bit(message) == 0
    }

    /// True if a decision on record lets successors pass the message.
    fn decided(&self, scope: &Scope, message: u8) -> bool {
        self.discarded & bit(message) != 0
            || scope.scheduled & bit(message) != 0
            || matches!(
                self.entry(message).map(|entry| entry.fate),
                Some(Fate::Dead { effect: DeadEffect::Passed, .. } | Fate::Held { passes: true, .. })
            )
    }

    pub(super) fn check_start(&self, scope: &Scope, index: usize, message: u8) -> Result<(), Violation> {
        let process = &self.processes[index].value;
        let same_key = |other: &u8| scope.same_key(*other, message);
        let undecided = |other: &u8| self.handled & bit(*other) == 0 && !self.decided(scope, *other);
        if scope.checks('O')
            && let Some(earlier) = (0..message).filter(same_key).find(undecided)
        {
            return Err(format!(
                "O: {message} starts, and {earlier} of its key is neither handled nor decided"
            ));
        }
        let epoch = process.owner.as_ref().and_then(Owner::epoch);
        let current = self.truth.value.epoch.as_ref().map(|epoch| epoch.position);
        if epoch == current && scope.checks('D') {
            if self.recorded_done(message) {
                return Err(format!("D: the owner starts {message}, which is done on record"));
            }
            let done = |later: &u8| self.recorded_done(*later);
            if !self.decided(scope, message)
                && let Some(later) = (message + 1..scope.messages()).filter(same_key).find(done)
            {
                return Err(format!(
                    "D: the owner starts {message}, and {later} of its key is on record as done"
                ));
            }
        }
        if !self.fault && scope.checks('W') {
            let elsewhere = &self.processes[1 - index].value;
            if let Some(other) = bits(elsewhere.running).find(same_key) {
                return Err(format!(
                    "W: in a planned hand-over {message} starts while {other} of its key runs elsewhere"
                ));
            }
            let state = process.owner.as_ref().and_then(Owner::state);
            let dead = state.and_then(|state| state.entries.get(u64::from(message)));
            if self.begun & bit(message) != 0 && !dead.is_some_and(|entry| entry.is_dead()) {
                return Err(format!("W: in a planned hand-over {message} is begun twice"));
            }
        }
        Ok(())
    }

    pub(super) fn check_finish(&self, scope: &Scope, message: u8) -> Result<(), Violation> {
        if self.handled & bit(message) != 0 || self.decided(scope, message) || !scope.checks('O') {
            return Ok(());
        }
        let handled = |later: &u8| {
            scope.same_key(*later, message)
                && self.handled & bit(*later) != 0
                && self.discarded & bit(*later) == 0
        };
        match (message + 1..scope.messages()).find(handled) {
            Some(later) => Err(format!("O: {message} is first handled behind {later} of its key")),
            None => Ok(()),
        }
    }

    pub(super) fn check_settled(&self, scope: &Scope) -> Result<(), Violation> {
        for message in (0..scope.messages()).filter(|message| self.settled(*message)) {
            let kept = match self.entry(message) {
                Some(entry) => self.body_of(&entry).is_some(),
                None => (self.handled | self.discarded) & bit(message) != 0,
            };
            if !kept && scope.checks('L') {
                return Err(format!("L: {message} is settled, and neither handled nor is its body kept"));
            }
        }
        Ok(())
    }

    /// The number of the edit that made an entry's body, if that body is still there.
    fn body_of(&self, entry: &Entry) -> Option<u8> {
        match self.hold.get(entry.body as usize) {
            Some(Item::Body { message, version, .. })
                if u64::from(*message) == entry.position && entry.body >= self.hold_start =>
            {
                Some(*version)
            }
            _ => None,
        }
    }

    /// K: a discarded message stays discarded, a retry that was asked for is tried before it ends, and no body gives
    /// way to an older one.
    pub(super) fn check_commands(
        &self,
        scope: &Scope,
        before: &State,
        effects: &[Effect],
    ) -> Result<(), Violation> {
        // Of two edits the one that stands later in the journal is the newer one, whichever body was stored first.
        let edited =
            |effect: &Effect| matches!(effect, Effect::Changed(change) if change.cause == Cause::Edited);
        let edited = effects.iter().any(edited);
        for entry in self.truth.value.entries.iter().filter(|_| scope.checks('K')) {
            let message = entry.position as u8;
            if self.discarded & bit(message) != 0 {
                return Err(format!("K: {message} was discarded on record, and is back"));
            }
            let Some(before) = before.entries.get(entry.position) else { continue };
            if before.is_asked() && !entry.is_asked() && self.tried & bit(message) == 0 {
                return Err(format!("K: the retry of {message} is undone, and nothing was tried since"));
            }
            let versions = (self.body_of(&before), self.body_of(&entry));
            if let (Some(old), Some(new)) = versions
                && new < old
                && !edited
            {
                return Err(format!("K: the edited body of {message} gives way to an older one"));
            }
        }
        Ok(())
    }

    pub(super) fn check_commit(&self, scope: &Scope, low: u64) -> Result<(), Violation> {
        match (0..scope.messages()).find(|message| u64::from(*message) < low && !self.settled(*message)) {
            Some(message) if scope.checks('C') => {
                Err(format!("C: the commit goes to {low}, and {message} is not settled"))
            }
            _ => Ok(()),
        }
    }

    /// R: from every snapshot that counts, and from the journal's start, the same state is rebuilt.
    pub(super) fn check_rebuilt(&self, scope: &Scope) -> Result<(), Violation> {
        if scope.snapshot_after.is_none() || !scope.checks('R') {
            return Ok(());
        }
        let mut starts = vec![(self.start, true)];
        for (record, counted) in &self.journal {
            if let Record::Snapshot(snapshot) = &*record.value
                && snapshot.as_of >= self.start
            {
                // The chunks of any snapshot but the newest may have been cut away.
                starts.iter_mut().skip(1).for_each(|(_, must)| *must &= !(*counted && scope.chunks));
                starts.push((snapshot.as_of, *counted));
            }
        }
        for (start, must) in starts {
            let mut replay = Replay::default();
            for position in start..self.end() {
                let record = &self.journal[(position - self.kept) as usize].0.value;
                replay_under(scope, &mut replay, position, record);
                if let Some(wanted) = replay.wanted().cloned() {
                    replay.provide(position, self.chunks(&wanted.chunks).as_deref());
                }
            }
            match replay.state() {
                Some(state) if *state == *self.truth.value => {}
                None if !must => {}
                Some(_) => return Err(format!("R: a reader from {start} on rebuilds a wrong state")),
                None => return Err(format!("R: a reader from {start} on finds no state: it is lost")),
            }
        }
        Ok(())
    }

    /// T: nothing must happen any more, so everything must be settled and no entry may wait without a cause.
    pub fn check_quiet(&self, scope: &Scope) -> Result<(), Violation> {
        if !scope.checks('T') {
            return Ok(());
        }
        let stops = |entry: &Entry| match entry.place() {
            Place::Stopped => true,
            Place::Turn { at_ms } => at_ms > self.wall_ms,
            _ => false,
        };
        for message in 0..scope.messages() {
            if !self.settled(message) {
                return Err(format!("T: all is quiet, and {message} is not settled"));
            }
            let Some(entry) = self.entry(message) else { continue };
            let runs = matches!(entry.place(), Place::Turn { at_ms } | Place::Aside { at_ms } if at_ms <= self.wall_ms);
            let mut earlier = (0..message).filter(|other| scope.same_key(*other, message));
            if runs && !earlier.any(|other| self.entry(other).is_some_and(|entry| stops(&entry))) {
                return Err(format!(
                    "T: all is quiet, and {message} is held or to be tried, without a cause to wait"
                ));
            }
        }
        Ok(())
    }

    /// A description of an event, for people.
    pub fn describe(&self, event: Event) -> String {
        match event {
            Event::Land(at, again) => {
                let flight = &self.flights[at];
                let again = if again { ", and will land again" } else { "" };
                format!("lands at {}{again}: {}", self.end(), describe(flight.life, &flight.record.value))
            }
            Event::Forget(at) => {
                format!("unknown fate: {}", describe(self.flights[at].life, &self.flights[at].record.value))
            }
            Event::Read(index) => {
                let owner = self.processes[index].value.owner.as_ref();
                format!("process {index} reads {}", owner.map_or(0, Owner::next).max(self.start))
            }
            Event::Store(at, again) => {
                let again = if again { ", and will land again" } else { "" };
                format!("lands in hold at {}{again}: {}", self.hold.len(), self.bodies[at].describe())
            }
            Event::Acknowledge(at) => format!("is acknowledged: {}", self.acks[at].0.describe()),
            Event::CutHold(at) => format!("hold is cut below {}", self.hold_cuts[at]),
            Event::Cut(at) => format!("the journal is cut below {}", self.cuts[at]),
            event => format!("{event:?}"),
        }
    }
}

impl Body {
    fn describe(&self) -> String {
        match &self.what {
            What::Chunks(_) => format!("life {}'s snapshot in chunks", self.life),
            what => format!("life {}'s body of {} ({what:?})", self.life, self.message),
        }
    }
}

fn describe(life: u8, record: &Record) -> String {
    let what = match record {
        Record::Identity { .. } => "identity".to_owned(),
        Record::Claim(_) => "claim".to_owned(),
        Record::Fence(fence) => format!("fence for the claim at {}", fence.claim_position),
        Record::Facts(facts) => {
            let mut text = format!("facts {}/{}", facts.epoch, facts.seq);
            facts.start.iter().for_each(|start| text += &format!(" start {start}"));
            facts.done.iter().for_each(|range| text += &format!(" done {range:?}"));
            facts.held.iter().for_each(|held| text += &format!(" held {} at {}", held.position, held.body));
            facts
                .moved
                .iter()
                .for_each(|one| text += &format!(" moved {} from {} to {}", one.position, one.from, one.to));
            facts.dead.iter().for_each(|dead| {
                text += &format!(" dead {} {:?} {:?}", dead.position, dead.effect, dead.command)
            });
            facts.low.iter().for_each(|low| text += &format!(" low {low}"));
            if facts.released {
                text += " released";
            }
            text
        }
        Record::Snapshot(snapshot) => {
            format!("snapshot {}/{} as of {}", snapshot.epoch, snapshot.seq, snapshot.as_of)
        }
        Record::Command(command) => {
            let positions: Vec<u64> = command.positions.iter().flatten().collect();
            return format!("the operator's {:?} {positions:?}, body {:?}", command.kind, command.body);
        }
    };
    format!("life {life}'s {what}")
}
