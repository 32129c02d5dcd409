//! The two logs that all journals, holds and commits share: many small streams, one group commit.
//!
//! [`JournalLog`] is such a log; `group` lays out what its callers want, [`Streams`] knows where each stream's records
//! lie. [`JournalHandle`] is one stream as the contract has it, and this room alone knows how streams are named.

mod group;
mod handle;
mod log;
mod streams;

pub(super) use handle::{
    JournalHandle, Role, commit_record, latest, parse_commit, parse_name, stream_name, streams_of,
};
pub(super) use log::JournalLog;
pub(super) use streams::Streams;
