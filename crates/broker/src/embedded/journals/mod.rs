//! The log of all journals and commits and the log of all holds: each has many small streams and one group commit.
//!
//! [`JournalLog`] is one such log. `group` lays out what its callers want as batches, and [`Streams`] knows where the
//! records of each stream lie. [`JournalHandle`] gives the contract one stream. Only this room knows how streams are
//! named.

mod group;
mod handle;
mod log;
mod streams;

pub(super) use handle::{
    JournalHandle, Role, commit_record, latest, parse_commit, parse_name, stream_name, streams_of,
};
pub(super) use log::JournalLog;
pub(super) use streams::Streams;
