//! Reading a journal from wherever it starts, and writing the snapshots that let it be cut.
//!
//! In come records as they are read; out comes the state, as [`apply`](super::apply()) makes it. A journal that was cut
//! is read from a snapshot: its state, then everything from its `as of` on, and only if it then counts at its place. A
//! sleeper's snapshot, landing late, so harms nobody.
//!
//! A state that is too large for a record lies in chunks in `hold.p`, which the record names; whoever meets such a record
//! where the journal was cut asks for them.
//!
//! Kept: the state is the same as if folded from the beginning (R), or there is none.

use bytes::Bytes;

use super::apply::{Applied, apply_under};
use super::change::{Effect, Tell};
use super::chunks::Chunks;
use super::record::{Record, Snapshot, SnapshotBody};
use super::state::State;
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
    /// As of where the last snapshot was made here, and how much the journal had grown by then.
    made: Option<(u64, u64)>,
    wanted: Option<Wanted>,
}

/// Chunks of a snapshot that would give a state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Where the snapshot stands in the journal.
    pub position: u64,
    /// Where its chunks lie in `hold.p`.
    pub chunks: Vec<u64>,
    as_of: u64,
}

/// What an owner puts into a snapshot.
#[derive(Debug)]
pub(crate) enum Made {
    Record(Box<Record>),
    /// It does not fit into a record.
    Chunks(Box<Chunks>),
    /// It does not fit, and the format in use has no chunks.
    TooLarge,
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
            made: None,
            wanted: None,
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

    /// The chunks without which there is no state, if a snapshot that names them was read. To be asked after every
    /// record: answer with [`Replay::provide`], before the next.
    pub fn wanted(&self) -> Option<&Wanted> {
        self.wanted.as_ref()
    }

    /// Takes in the record at `position`, of `bytes` bytes.
    pub fn read(&mut self, position: u64, record: &Record, bytes: usize) -> Replayed {
        self.read_under(Rules::ALL, position, record, bytes, &mut |_| {})
    }

    /// [`Replay::read`], telling what changed of what is held or dead.
    pub fn read_telling(
        &mut self,
        position: u64,
        record: &Record,
        bytes: usize,
        tell: &mut dyn FnMut(Effect),
    ) -> Replayed {
        self.read_under(Rules::ALL, position, record, bytes, tell)
    }

    /// [`Replay::read`], with rules left out. For tests.
    #[cfg(feature = "flaws")]
    pub fn read_with(&mut self, rules: Rules, position: u64, record: &Record, bytes: usize) -> Replayed {
        self.read_under(rules, position, record, bytes, &mut |_| {})
    }

    pub(crate) fn read_under(
        &mut self,
        rules: Rules,
        position: u64,
        record: &Record,
        bytes: usize,
        tell: Tell<'_>,
    ) -> Replayed {
        if position < self.next {
            return Replayed::Before;
        }
        if position > self.next {
            // The journal was cut beyond what was read here: what is missing may have decided anything.
            self.state = None;
            self.backlog.clear();
            self.begin = position;
            self.wanted = None;
        }
        self.next = position + 1;
        let applied = match &mut self.state {
            Some(state) => apply_under(rules, state, position, record, tell),
            None => match self.rebuild(rules, position, record) {
                Some(applied) => applied,
                None => {
                    self.backlog.push((position, record.clone()));
                    return Replayed::Unplaced;
                }
            },
        };
        match record {
            Record::Snapshot(snapshot) if applied == Applied::Counted => {
                let made = self.made.take().filter(|(as_of, _)| *as_of == snapshot.as_of);
                self.grown_bytes -= made.map_or(self.grown_bytes, |(_, grown)| grown);
                self.snapshot_bytes = bytes as u64;
            }
            _ => self.grown_bytes += bytes as u64,
        }
        Replayed::Applied(applied)
    }

    /// The chunks that were wanted for the snapshot at `position`, or that they are gone. The state they give, if they do.
    pub fn provide(&mut self, position: u64, chunks: Option<&[Bytes]>) -> Replayed {
        self.provide_under(Rules::ALL, position, chunks)
    }

    pub(crate) fn provide_under(
        &mut self,
        rules: Rules,
        position: u64,
        chunks: Option<&[Bytes]>,
    ) -> Replayed {
        let Some(wanted) = self.wanted.take_if(|wanted| wanted.position == position) else {
            return Replayed::Unplaced;
        };
        // Chunks that are gone, or that somebody else's bytes stand in place of, are as none: another snapshot may count.
        let Some(mut state) = chunks.and_then(|chunks| Chunks::read(wanted.as_of, chunks).ok()) else {
            return Replayed::Unplaced;
        };
        for (at, record) in self.backlog.iter().filter(|(at, _)| *at >= wanted.as_of) {
            let applied = apply_under(rules, &mut state, *at, record, &mut |_| {});
            if matches!(applied, Applied::Stop(_)) {
                return Replayed::Applied(applied);
            }
            if *at == position && applied != Applied::Counted {
                return Replayed::Unplaced;
            }
        }
        self.state = Some(state);
        self.backlog.clear();
        Replayed::Applied(Applied::Counted)
    }

    /// The state at a snapshot, if `record` is one that counts at its place.
    fn rebuild(&mut self, rules: Rules, position: u64, record: &Record) -> Option<Applied> {
        let Record::Snapshot(Snapshot { as_of, body, .. }) = record else {
            return None;
        };
        // What was not read of the journal may have decided anything.
        if rules.not_below_start() && *as_of < self.begin || *as_of > position {
            return None;
        }
        let mut state = match body {
            SnapshotBody::State(state) => State::clone(state),
            SnapshotBody::Chunks(chunks) => {
                self.wanted = Some(Wanted { position, chunks: chunks.clone(), as_of: *as_of });
                return None;
            }
        };
        if rules.as_of() {
            for (position, record) in self.backlog.iter().filter(|(position, _)| position >= as_of) {
                if let Applied::Stop(why) = apply_under(rules, &mut state, *position, record, &mut |_| {}) {
                    return Some(Applied::Stop(why));
                }
            }
        }
        let applied = apply_under(rules, &mut state, position, record, &mut |_| {});
        if applied == Applied::Counted {
            self.state = Some(state);
            self.backlog.clear();
        }
        (applied == Applied::Counted).then_some(applied)
    }

    /// Applies the owner's own record without reading it: what the rule of reading back forbids.
    pub(crate) fn trust(&mut self, rules: Rules, record: &Record) {
        if let Some(state) = &mut self.state {
            apply_under(rules, state, self.next, record, &mut |_| {});
        }
    }

    /// True if a snapshot is worth its size: the journal grew by more than `after_bytes`, and than the state takes.
    pub(crate) fn snapshot_due(&self, after_bytes: u64) -> bool {
        let state = self.state.as_ref().map_or(0, |state| state.entries.encoded_bytes() as u64);
        self.grown_bytes > after_bytes.max(self.snapshot_bytes).max(state)
    }

    /// Its pieces are not to be had: the next one is tried when the journal has grown by as much again.
    pub(crate) fn snapshot_given_up(&mut self) {
        (self.made, self.grown_bytes) = (None, 0);
    }

    /// True if anything was read since the last snapshot.
    pub(crate) fn grown(&self) -> bool {
        self.grown_bytes > 0
    }

    /// The snapshot of all that was read, for its writer's `epoch` and `seq`; in chunks of at most `chunk_bytes` if it
    /// would take more than `bytes_max`. In a format without chunks the journal is then not cut, which costs room and the
    /// time to read it, and loses nothing; the next one is tried when the journal has grown by as much again.
    pub(crate) fn snapshot(
        &mut self,
        epoch: u64,
        seq: u64,
        bytes_max: usize,
        chunk_bytes: usize,
    ) -> Option<Made> {
        let state = self.state.as_ref()?;
        self.made = Some((self.next, self.grown_bytes));
        // Not to be encoded to learn that it is too large.
        let bytes = match state.entries.encoded_bytes() {
            entries if entries > bytes_max => entries,
            _ => {
                let mut encoded = Vec::new();
                state.encode(state.format(), &mut encoded);
                encoded.len()
            }
        };
        if bytes <= bytes_max {
            let body = SnapshotBody::State(Box::new(state.clone()));
            let snapshot = Snapshot { epoch, seq, as_of: self.next, body };
            return Some(Made::Record(Box::new(Record::Snapshot(snapshot))));
        }
        if state.can_hold() {
            return Some(Made::Chunks(Box::new(Chunks::of(state.clone(), self.next, chunk_bytes))));
        }
        (self.grown_bytes, self.snapshot_bytes) = (0, bytes as u64);
        Some(Made::TooLarge)
    }
}
