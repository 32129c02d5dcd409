//! A partition's journal: the records that nodes append, their bytes, and the state that they add up to.
//!
//! [`Record`] is what is written and read. [`apply`] alone decides which records count, and folds them into a
//! [`State`]; the state's [`Entries`] are the messages that are held or dead. [`Replay`] reads a journal whose
//! beginning may have been cut, and writes the snapshots that allow the cut. [`Growth`] says how far a topic that got
//! more partitions may be read.

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
