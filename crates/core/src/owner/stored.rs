//! Types that make it impossible to name a body in `hold.p` before its append was acknowledged.
//!
//! The owner gives out a [`Storing`] for each body that is to be stored. Only an acknowledgement turns it into a
//! [`Stored`], and only a [`Stored`] can be handed over to be named in a record: a body that is named and missing would
//! be lost. While a [`Storing`] is out, the owner lets nothing of `hold.p` be cut where the body may land; so a
//! [`Storing`] that is given up must be given back.

use crate::journal::{DeadEffect, DeadReason, Facts, Record, SnapshotBody};

/// A body, a report or the chunks of a snapshot, on their way to `hold.p`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "what is not stored is to be given back to its owner"]
pub struct Storing {
    pub(super) epoch: u64,
    pub(super) number: u64,
}

/// A body or a report that was stored and acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "what is stored and not handed over keeps its hold from being cut"]
pub struct Stored {
    pub(super) storing: Storing,
    pub(super) position: u64,
}

/// All chunks of a snapshot, stored and acknowledged, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "what is stored and not handed over keeps its hold from being cut"]
pub struct StoredChunks {
    pub(super) storing: Storing,
    pub(super) positions: Vec<u64>,
}

impl Storing {
    /// The append was acknowledged at this position.
    pub fn acknowledged(self, position: u64) -> Stored {
        Stored { storing: self, position }
    }

    /// The appends of all chunks were acknowledged at these positions.
    pub fn chunks_acknowledged(self, positions: Vec<u64>) -> StoredChunks {
        StoredChunks { storing: self, positions }
    }
}

impl Stored {
    /// Where the body or report lies in `hold.p`.
    pub fn position(&self) -> u64 {
        self.position
    }
}

/// A message whose copy was stored in `hold.p`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Copied {
    /// The message's source position.
    pub position: u64,
    /// The key hash of the message's lane; `None` if nothing orders the message.
    pub key_hash: Option<u64>,
    /// The message's copy.
    pub body: Stored,
    /// When the message may run, ms since 1970.
    pub due_ms: Option<u64>,
    /// Successors of the same key need not wait for the message.
    pub passes: bool,
    /// The guards have already decided about the message.
    pub judged: bool,
    /// The message's priority.
    pub priority: u8,
    /// Attempts at the message so far.
    pub tries: u32,
}

/// A message that died, or a dead letter that failed again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Death {
    /// The message's source position.
    pub position: u64,
    /// The key hash of the message's lane; `None` if nothing orders the message.
    pub key_hash: Option<u64>,
    /// What the dead letter does to its key.
    pub effect: DeadEffect,
    /// Why the message died.
    pub reason: DeadReason,
    /// The message's body; `None` if a record names it already, because the message was held or dead before.
    pub body: Option<Stored>,
    /// The report of the last failure.
    pub report: Option<Stored>,
    /// Attempts at the message so far.
    pub tries: u32,
    /// When the dead letter is tried again by itself, ms since 1970.
    pub due_ms: Option<u64>,
    /// When the dead letter expires, ms since 1970, by the broker's append time.
    pub expires_ms: Option<u64>,
    /// The message's priority.
    pub priority: u8,
    /// The newest command that the attempt had seen: [`crate::journal::Entry::command`] as it was when the attempt
    /// began.
    pub command: Option<u64>,
}

/// The lowest position of `hold.p` that a record names.
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
