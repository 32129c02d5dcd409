//! Reading a journal from wherever it starts, and writing the snapshots that let it be cut.
//!
//! In come records as they are read; out comes the state, as [`apply`](super::apply()) makes it. A journal that was cut
//! is read from a snapshot: its state, then everything from its `as of` on, and only if it then counts at its place. A
//! sleeper's snapshot, landing late, so harms nobody.
//!
//! Kept: the state is the same as if folded from the beginning (R), or there is none.

use super::apply::{Applied, State, apply_under};
use super::record::{Record, Snapshot, SnapshotBody};
use crate::owner::Rules;

/// Follows a journal: its state up to a position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replay {
    next: u64,
    state: Option<State>,
    /// Where the unbroken run of records began that `next` ends.
    begin: u64,
    /// What was read since `begin` while there is no state: a snapshot may need it.
    backlog: Vec<(u64, Record)>,
    grown_bytes: u64,
    snapshot_bytes: u64,
}

/// What reading a record gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Replayed {
    /// The state decided about it.
    Applied(Applied),
    /// It was read before.
    Before,
    /// There is no state yet: the journal was cut, and no snapshot that counts was read so far.
    Unplaced,
}

impl Default for Replay {
    fn default() -> Replay {
        Replay {
            next: 0,
            state: Some(State::default()),
            begin: 0,
            backlog: Vec::new(),
            grown_bytes: 0,
            snapshot_bytes: 0,
        }
    }
}

impl Replay {
    /// The next position to read.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The state of everything read, unless the journal was cut and no snapshot in what was read counts.
    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// Takes in the record at `position`, of `bytes` bytes.
    pub fn read(&mut self, position: u64, record: &Record, bytes: usize) -> Replayed {
        self.read_under(Rules::ALL, position, record, bytes)
    }

    /// [`Replay::read`], with rules left out. For tests.
    #[cfg(feature = "flaws")]
    pub fn read_with(&mut self, rules: Rules, position: u64, record: &Record, bytes: usize) -> Replayed {
        self.read_under(rules, position, record, bytes)
    }

    pub(crate) fn read_under(
        &mut self,
        rules: Rules,
        position: u64,
        record: &Record,
        bytes: usize,
    ) -> Replayed {
        if position < self.next {
            return Replayed::Before;
        }
        if position > self.next {
            // The journal was cut beyond what was read here: what is missing may have decided anything.
            self.state = None;
            self.backlog.clear();
            self.begin = position;
        }
        self.next = position + 1;
        let applied = match &mut self.state {
            Some(state) => apply_under(rules, state, position, record),
            None => match self.rebuild(rules, position, record) {
                Some(applied) => applied,
                None => {
                    self.backlog.push((position, record.clone()));
                    return Replayed::Unplaced;
                }
            },
        };
        if applied == Applied::Counted && matches!(record, Record::Snapshot(_)) {
            (self.grown_bytes, self.snapshot_bytes) = (0, bytes as u64);
        } else {
            self.grown_bytes += bytes as u64;
        }
        Replayed::Applied(applied)
    }

    /// The state at a snapshot, if `record` is one that counts at its place.
    fn rebuild(&mut self, rules: Rules, position: u64, record: &Record) -> Option<Applied> {
        let Record::Snapshot(Snapshot { as_of, body: SnapshotBody::State(state), .. }) = record else {
            return None;
        };
        let mut state = State::clone(state);
        if rules.as_of() {
            if *as_of < self.begin || *as_of > position {
                return None;
            }
            for (position, record) in self.backlog.iter().filter(|(position, _)| position >= as_of) {
                if let Applied::Stop(why) = apply_under(rules, &mut state, *position, record) {
                    return Some(Applied::Stop(why));
                }
            }
        }
        let applied = apply_under(rules, &mut state, position, record);
        if applied == Applied::Counted {
            self.state = Some(state);
            self.backlog.clear();
        }
        (applied == Applied::Counted).then_some(applied)
    }

    /// Applies the owner's own record without reading it: what the rule of reading back forbids.
    pub(crate) fn trust(&mut self, rules: Rules, record: &Record) {
        if let Some(state) = &mut self.state {
            apply_under(rules, state, self.next, record);
        }
    }

    /// True if a snapshot is worth its size: the journal grew by more than `after_bytes`, and than the last one takes.
    pub(crate) fn snapshot_due(&self, after_bytes: u64) -> bool {
        self.grown_bytes > after_bytes.max(self.snapshot_bytes)
    }

    /// True if anything was read since the last snapshot.
    pub(crate) fn grown(&self) -> bool {
        self.grown_bytes > 0
    }

    /// The snapshot of all that was read, for its writer's `epoch` and `seq`; `None` if it would take more than
    /// `bytes_max`. Then the journal is not cut, which costs room and the time to read it, and loses nothing; the next
    /// one is tried when the journal has grown by as much again.
    pub(crate) fn snapshot(&mut self, epoch: u64, seq: u64, bytes_max: usize) -> Option<Record> {
        let state = self.state.as_ref()?;
        let mut encoded = Vec::new();
        state.encode(&mut encoded);
        if encoded.len() > bytes_max {
            (self.grown_bytes, self.snapshot_bytes) = (0, encoded.len() as u64);
            return None;
        }
        let body = SnapshotBody::State(Box::new(state.clone()));
        Some(Record::Snapshot(Snapshot { epoch, seq, as_of: self.next, body }))
    }
}
