//! What always holds: the checks L, O, C, D, W, T, R of the protocol; and what an event is, for people.

use keylane_core::journal::SnapshotBody;
use keylane_core::{DeadEntry, Owner, Record, Replay};

use super::{Violation, World, bit, bits, replay_under};
use crate::scope::{Event, Scope};

impl World {
    fn settled(&self, message: u8) -> bool {
        self.truth.value.settled.contains(u64::from(message))
    }

    fn dead(&self, message: u8) -> Option<&DeadEntry> {
        self.truth.value.dead.get(&u64::from(message))
    }

    pub(super) fn check_start(&self, scope: &Scope, index: usize, message: u8) -> Result<(), Violation> {
        let process = &self.processes[index].value;
        let same_key = |other: &u8| scope.same_key(*other, message);
        let undecided = |other: &u8| self.handled & bit(*other) == 0 && self.dead(*other).is_none();
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
            if self.settled(message) {
                return Err(format!("D: the owner starts {message}, which is settled on record"));
            }
            let done = |later: &u8| self.settled(*later) && self.dead(*later).is_none();
            if let Some(later) = (message + 1..scope.messages()).filter(same_key).find(done) {
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
            if self.begun & bit(message) != 0 {
                return Err(format!("W: in a planned hand-over {message} is begun twice"));
            }
        }
        Ok(())
    }

    pub(super) fn check_finish(&self, scope: &Scope, message: u8) -> Result<(), Violation> {
        if self.handled & bit(message) != 0 || self.dead(message).is_some() || !scope.checks('O') {
            return Ok(());
        }
        let handled = |later: &u8| scope.same_key(*later, message) && self.handled & bit(*later) != 0;
        match (message + 1..scope.messages()).find(handled) {
            Some(later) => Err(format!("O: {message} is first handled behind {later} of its key")),
            None => Ok(()),
        }
    }

    pub(super) fn check_settled(&self, scope: &Scope) -> Result<(), Violation> {
        for message in (0..scope.messages()).filter(|message| self.settled(*message)) {
            let kept = match self.dead(message) {
                Some(dead) => self.hold.get(dead.body as usize) == Some(&message),
                None => self.handled & bit(message) != 0,
            };
            if !kept && scope.checks('L') {
                return Err(format!("L: {message} is settled, and neither handled nor is its body kept"));
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

    /// From every snapshot that counts, and from where the journal starts, the same state is rebuilt.
    pub(super) fn check_rebuilt(&self, scope: &Scope) -> Result<(), Violation> {
        if scope.snapshot_after.is_none() || !scope.checks('R') {
            return Ok(());
        }
        let mut starts = vec![(self.start, true)];
        for (record, counted) in &self.journal {
            if let Record::Snapshot(snapshot) = &*record.value
                && matches!(snapshot.body, SnapshotBody::State(_))
                && snapshot.as_of >= self.start
            {
                starts.push((snapshot.as_of, *counted));
            }
        }
        for (start, must) in starts {
            let mut replay = Replay::default();
            for position in start..self.end() {
                let record = &self.journal[(position - self.kept) as usize].0.value;
                replay_under(scope, &mut replay, position, record);
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

    /// Nothing must happen any more.
    pub fn check_quiet(&self, scope: &Scope) -> Result<(), Violation> {
        match (0..scope.messages()).find(|message| !self.settled(*message)) {
            Some(message) if scope.checks('T') => {
                Err(format!("T: all is quiet, and {message} is not settled"))
            }
            _ => Ok(()),
        }
    }

    /// What an event is, for people.
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
            Event::Store(at) => format!("body of {} is stored", self.bodies[at].2),
            Event::Cut(at) => format!("the journal is cut below {}", self.cuts[at]),
            event => format!("{event:?}"),
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
            facts.dead.iter().for_each(|dead| text += &format!(" dead {}", dead.position));
            if facts.released {
                text += " released";
            }
            text
        }
        Record::Snapshot(snapshot) => {
            format!("snapshot {}/{} as of {}", snapshot.epoch, snapshot.seq, snapshot.as_of)
        }
        Record::Command(_) => return "the operator's upgrade".to_owned(),
    };
    format!("life {life}'s {what}")
}
