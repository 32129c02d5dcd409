//! What is stored in `hold.p`: nothing can be named there before its acknowledgement.
//!
//! A body is stored under a [`Storing`], which an owner gives out. Only the acknowledgement makes a [`Stored`] of it, and
//! only a [`Stored`] can be handed over to be named. An owner lets `hold.p` be cut nowhere above where a body that is
//! under way may land; a [`Storing`] that is given up is to be given back.

use crate::journal::{DeadEffect, DeadReason, Facts, Record, SnapshotBody};

/// A body, a report or the pieces of a snapshot, on their way to `hold.p`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "what is not stored is to be given back to its owner"]
pub struct Storing {
    pub(super) epoch: u64,
    pub(super) number: u64,
}

/// A body or a report that was stored, and acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "what is stored and not handed over keeps its hold from being cut"]
pub struct Stored {
    pub(super) storing: Storing,
    pub(super) position: u64,
}

/// All pieces of a snapshot, stored and acknowledged, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "what is stored and not handed over keeps its hold from being cut"]
pub struct StoredChunks {
    pub(super) storing: Storing,
    pub(super) positions: Vec<u64>,
}

impl Storing {
    /// It was acknowledged, at this position.
    pub fn acknowledged(self, position: u64) -> Stored {
        Stored { storing: self, position }
    }

    /// All its pieces were acknowledged, at these positions.
    pub fn chunks_acknowledged(self, positions: Vec<u64>) -> StoredChunks {
        StoredChunks { storing: self, positions }
    }
}

impl Stored {
    /// Where it lies in `hold.p`.
    pub fn position(&self) -> u64 {
        self.position
    }
}

/// A message that was copied to hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Copied {
    /// Its source position.
    pub position: u64,
    /// Its lane's key hash; `None` if nothing orders it.
    pub key_hash: Option<u64>,
    /// Its copy.
    pub body: Stored,
    /// When it may run, ms since 1970.
    pub due_ms: Option<u64>,
    /// Its successors need not wait for it.
    pub passes: bool,
    /// The guards have decided about it already.
    pub judged: bool,
    /// Its priority.
    pub priority: u8,
    /// Attempts so far.
    pub tries: u32,
}

/// A message that died, or a dead letter that failed again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Death {
    /// Its source position.
    pub position: u64,
    /// Its lane's key hash; `None` if nothing orders it.
    pub key_hash: Option<u64>,
    /// What it does to its key.
    pub effect: DeadEffect,
    /// Why it died.
    pub reason: DeadReason,
    /// Its body; `None` if it is named already, since it was held or dead before.
    pub body: Option<Stored>,
    /// The report of its failure.
    pub report: Option<Stored>,
    /// Attempts so far.
    pub tries: u32,
    /// When it is tried again by itself, ms since 1970.
    pub due_ms: Option<u64>,
    /// When it expires, ms since 1970, by the broker's append time.
    pub expires_ms: Option<u64>,
    /// Its priority.
    pub priority: u8,
    /// The newest command that its attempt had seen: [`crate::journal::Entry::command`] as it was when that began.
    pub command: Option<u64>,
}

/// Positions of `hold.p` that a record names.
pub(super) fn named_by(record: &Record) -> Option<u64> {
    match record {
        Record::Facts(Facts { held, moved, dead, .. }) => super::unrecorded::named(held, moved, dead).min(),
        Record::Snapshot(snapshot) => match &snapshot.body {
            SnapshotBody::Chunks(chunks) => chunks.iter().copied().min(),
            SnapshotBody::State(_) => None,
        },
        _ => None,
    }
}
