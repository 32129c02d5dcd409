//! A partition's journal: its records, their bytes, and what they mean.
//!
//! [`Record`] is what is written and read. [`apply`] alone decides which records count, and makes a [`State`] of them;
//! [`Replay`] reads a journal that was cut, and writes the snapshots that let it be cut. [`Growth`] says what may be
//! read of a topic that got more partitions.

mod apply;
mod bytes;
mod encoding;
mod growth;
mod record;
mod snapshot;

#[cfg(feature = "flaws")]
pub use apply::apply_with;
pub use apply::{Applied, Epoch, Ignored, NewestClaim, NotCarriedOut, State, TooOld, apply};
pub use encoding::{Malformed, SKIPPABLE};
pub(crate) use encoding::{put_varint, take_varint};
pub use growth::{Acceptance, Growth};
pub use record::{
    Claim, Command, CommandKind, DeadEffect, DeadEntry, DeadReason, FORMAT, FORMAT_FIRST, FORMAT_NEW, Facts,
    Fence, Held, Moved, Record, RecordError, Snapshot, SnapshotBody, Source, key_hash,
};
pub use snapshot::{Replay, Replayed};
