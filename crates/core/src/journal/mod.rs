//! A partition's journal: its records, their bytes, and what they mean.
//!
//! [`Record`] is what is written and read. [`apply`] alone decides which records count, and makes a [`State`] of them;
//! [`Entries`] are what of it is held or dead. [`Replay`] reads a journal that was cut, and writes the snapshots that let
//! it be cut. [`Growth`] says what may be read of a topic that got more partitions.

mod apply;
mod bytes;
mod change;
mod chunks;
mod commands;
mod encoding;
mod entries;
mod growth;
mod record;
mod settle;
mod snapshot;
mod state;

#[cfg(feature = "flaws")]
pub use apply::apply_with;
pub use apply::{Applied, Ignored, NotCarriedOut, apply, apply_telling};
pub use change::{Cause, Change, Effect, Refusal};
pub use chunks::Chunks;
pub use encoding::{Malformed, SKIPPABLE};
pub(crate) use encoding::{put_varint, take_varint};
pub use entries::{Entries, Entry, Fate, Tally};
pub use growth::{Acceptance, Growth};
pub use record::{
    Claim, Command, CommandKind, DeadEffect, DeadEntry, DeadReason, FORMAT, FORMAT_FIRST, FORMAT_HOLD,
    FORMAT_NEW, Facts, Fence, Held, Moved, Record, RecordError, Snapshot, SnapshotBody, Source, key_hash,
};
pub(crate) use snapshot::Made;
pub use snapshot::{Replay, Replayed, Wanted};
pub use state::{COMMANDS_MAX, Epoch, NewestClaim, State, TooOld};
