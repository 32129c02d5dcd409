//! Reads a journal from wherever it starts, and writes the snapshots that allow it to be cut.
//!
//! Records come in as they are read; out comes the state, as [`apply`](super::apply()) folds it. A journal whose
//! beginning was cut is read from a snapshot: [`Replay`] takes the snapshot's state, applies every record from its `as
//! of` position on, and uses the result only if the snapshot then counts at its own place. A snapshot from a process
//! that slept and wrote late therefore does no harm.
//!
//! A state that is too large for one record lies in chunks in `hold.p`, and the snapshot record names them. A reader
//! that needs such a snapshot asks for the chunks ([`Replay::wanted`]).
//!
//! Invariant: the state is the same as if all records were folded from the beginning (invariant R), or there is no
//! state.

use bytes::Bytes;

use super::apply::{Applied, apply_under};
use super::change::{Effect, Tell};
use super::chunks::Chunks;
use super::record::{Record, Snapshot, SnapshotBody};
use super::state::State;
use crate::owner::Rules;

/// Follows a journal and keeps its state up to the last record read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replay {
    next: u64,
    state: Option<State>,
    /// Where the unbroken run of records began that ends just before `next`.
    begin: u64,
    /// The records read since `begin` while there is no state: a later snapshot may have an `as of` among them.
    backlog: Vec<(u64, Record)>,
    grown_bytes: u64,
    snapshot_bytes: u64,
    /// The snapshot that was made here last: its `as of`, and how much the journal had grown by then.
    made: Option<(u64, u64)>,
    wanted: Option<Wanted>,
}

/// The chunks of a snapshot without which there is no state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Where the snapshot record stands in the journal.
    pub position: u64,
    /// Where the snapshot's chunks lie in `hold.p`.
    pub chunks: Vec<u64>,
    as_of: u64,
}

/// What an owner is to write as its next snapshot.
#[derive(Debug)]
pub(crate) enum Made {
    Record(Box<Record>),
    /// The state does not fit into one record, and goes into `hold.p` in chunks.
    Chunks(Box<Chunks>),
    /// The state does not fit into one record, and the format in use has no chunks.
    TooLarge,
}

/// What happened to a record that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Replayed {
    /// The record was applied to the state, with this result.
    Applied(Applied),
    /// The record was read before, and nothing changed.
    Before,
    /// There is no state yet: the journal's beginning was cut, and no snapshot that counts was read so far.
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
    /// The next journal position to read.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The state of every record read; `None` if the journal's beginning was cut and no snapshot read so far counts.
    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// The chunks that the reader needs to get a state, if a snapshot that names chunks was read. Ask after every
    /// record, and answer with [`Replay::provide`] before the next record.
    pub fn wanted(&self) -> Option<&Wanted> {
        self.wanted.as_ref()
    }

    /// Takes in the record at `position`, which is `bytes` bytes long.
    pub fn read(&mut self, position: u64, record: &Record, bytes: usize) -> Replayed {
        self.read_under(Rules::ALL, position, record, bytes, &mut |_| {})
    }

    /// [`Replay::read`], also calling `tell` with each change to held messages and dead letters.
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
            // The journal was cut beyond what was read here. The missing records may have decided anything, so the
            // state is void.
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

    /// Takes the chunks that were wanted for the snapshot at `position`; `None` says that they are gone. Counted if
    /// they give a state.
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
        // Chunks that are gone or carry other bytes than this snapshot's are treated as missing: another snapshot may
        // still count.
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

    /// Rebuilds the state from `record`, if it is a snapshot that counts at its place.
    fn rebuild(&mut self, rules: Rules, position: u64, record: &Record) -> Option<Applied> {
        let Record::Snapshot(Snapshot { as_of, body, .. }) = record else {
            return None;
        };
        // Records between `as of` and the first one read are missing here, and may have decided anything.
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

    /// Applies the owner's own record without having read it back: the flaw that the rule `read_back` forbids.
    pub(crate) fn trust(&mut self, rules: Rules, record: &Record) {
        if let Some(state) = &mut self.state {
            apply_under(rules, state, self.next, record, &mut |_| {});
        }
    }

    /// True if a snapshot is worth writing: the journal grew by more than `after_bytes`, than the last snapshot and
    /// than the state.
    pub(crate) fn snapshot_due(&self, after_bytes: u64) -> bool {
        let state = self.state.as_ref().map_or(0, |state| state.entries.encoded_bytes() as u64);
        self.grown_bytes > after_bytes.max(self.snapshot_bytes).max(state)
    }

    /// The chunks of the snapshot could not be stored. The next one is tried once the journal has grown by as much
    /// again.
    pub(crate) fn snapshot_given_up(&mut self) {
        (self.made, self.grown_bytes) = (None, 0);
    }

    /// True if records were read since the last snapshot.
    pub(crate) fn grown(&self) -> bool {
        self.grown_bytes > 0
    }

    /// The snapshot of everything read, for its writer's `epoch` and `seq`. If it would take more than `bytes_max`, it
    /// comes in chunks of at most `chunk_bytes`. In a format without chunks no snapshot is made and the journal is not
    /// cut, which costs room and reading time but loses nothing; the next one is tried once the journal has grown by as
    /// much again.
    pub(crate) fn snapshot(
        &mut self,
        epoch: u64,
        seq: u64,
        bytes_max: usize,
        chunk_bytes: usize,
    ) -> Option<Made> {
        let state = self.state.as_ref()?;
        self.made = Some((self.next, self.grown_bytes));
        // A state that is clearly too large is not encoded only to learn that it is.
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
