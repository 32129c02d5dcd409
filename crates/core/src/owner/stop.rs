//! Why a partition is not, or no longer, owned by this process, and what an operator can do about it.

use crate::ErrorCode;
use crate::journal::{NotCarriedOut, RecordError};

/// Why this process gives a partition up for good. The reasons with an error code need an operator; none of them loses
/// anything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Stop {
    /// The broker's commit mirrors another journal.
    #[error(
        "the broker's commit was made from journal {mirrored:032x}, and the journal that is there is {}; the journal was deleted or replaced: bring it back, or, to start over from the commit, write the commit anew without metadata",
        found.map_or("empty".to_owned(), |id| format!("{id:032x}"))
    )]
    OtherJournal {
        /// The id of the journal that the commit mirrors.
        mirrored: u128,
        /// The journal that was found; `None` if it is empty.
        found: Option<u128>,
    },
    /// The broker's commit names a later epoch than the journal has: the journal's tail is lost.
    #[error(
        "the broker's commit was made in epoch {epoch}, and the journal ends at {end}; its tail was lost: bring it back, or, to start over from the commit, write the commit anew without metadata"
    )]
    Shorter {
        /// The epoch that the commit names.
        epoch: u64,
        /// Where the journal ends.
        end: u64,
    },
    /// The journal now ends before records that this process has read.
    #[error(
        "the journal was read up to {read} and now ends at {end}; its tail was lost, and nothing that is appended to it counts: bring it back, or delete this group's journal and commits to start over"
    )]
    WentBack {
        /// The position behind the last record that was read.
        read: u64,
        /// Where the journal ends now.
        end: u64,
    },
    /// The source topic was deleted and made anew.
    #[error(
        "the source topic was made anew: on record is incarnation {recorded:032x}, there is {found:032x}, and positions on record mean other messages; use another group, or delete this group's journal and commits to start over"
    )]
    OtherSource {
        /// The incarnation on record.
        recorded: u128,
        /// The incarnation that the topic has now.
        found: u128,
    },
    /// The source topic has another number of partitions.
    #[error(
        "the source topic has {found} partitions, on record are {recorded}, and keys have moved between them; `keylane topics accept TOPIC` goes on, once all that stood before is settled"
    )]
    OtherPartitions {
        /// The number on record.
        recorded: u32,
        /// The number of partitions that the topic has now.
        found: u32,
    },
    /// The journal's format in use is newer than this process reads.
    #[error(
        "the journal is written in format {in_use}, and this version of Keylane reads formats up to {reads}; an operator has raised the format for a newer version (keylane topics upgrade): run that version on this node too"
    )]
    NewerFormat {
        /// The format in use.
        in_use: u8,
        /// The newest format that this process reads.
        reads: u8,
    },
    /// A record that this version cannot read.
    #[error(
        "the journal's record at {position} is not known to this version ({error}); a newer version wrote it: run that version"
    )]
    UnknownRecord {
        /// The record's position.
        position: u64,
        /// Why the record cannot be read.
        error: RecordError,
    },
    /// A record that this version can read but not carry out.
    #[error(
        "the journal's record at {position} says something that this version does not carry out ({what}); a newer version wrote it: run that version"
    )]
    NotCarriedOut {
        /// The record's position.
        position: u64,
        /// What the record says.
        what: NotCarriedOut,
    },
    /// The journal's beginning was cut, and no snapshot in the journal counts.
    #[error(
        "the journal starts at {start}, and no snapshot in it counts; its beginning was lost: bring it back from a backup, or delete this group's journal and commits to start over"
    )]
    StateLost {
        /// The first position that the journal keeps.
        start: u64,
    },
    /// The broker gave the partition to another process, and this one handed it over.
    #[error("the partition was revoked")]
    Revoked,
    /// The broker took the partition away from this process.
    #[error("the partition was lost")]
    Lost,
    /// The partition was revoked, and a handler did not end in time. The next owner waits for `released` in vain, and
    /// then goes on.
    #[error("the partition was revoked, and a handler did not end in time")]
    DrainTimedOut,
}

impl Stop {
    /// The reason to stop because of an unreadable record at `position`, for a process that reads formats up to
    /// `reads`.
    pub fn unreadable(position: u64, error: RecordError, reads: u8) -> Stop {
        match error {
            RecordError::Version(in_use) if in_use > reads => Stop::NewerFormat { in_use, reads },
            error => Stop::UnknownRecord { position, error },
        }
    }

    /// The error code that an operator can look up; `None` for a reason that is not an error.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Stop::OtherJournal { .. } => Some(ErrorCode::OtherJournal),
            Stop::Shorter { .. } | Stop::WentBack { .. } => Some(ErrorCode::ShorterJournal),
            Stop::OtherSource { .. } => Some(ErrorCode::TopicMadeAnew),
            Stop::OtherPartitions { .. } => Some(ErrorCode::OtherPartitionCount),
            Stop::UnknownRecord { .. } => Some(ErrorCode::UnknownRecord),
            Stop::NotCarriedOut { .. } => Some(ErrorCode::RecordNotCarriedOut),
            Stop::StateLost { .. } => Some(ErrorCode::JournalBeginningLost),
            Stop::NewerFormat { .. } => Some(ErrorCode::NewerJournal),
            Stop::Revoked | Stop::Lost | Stop::DrainTimedOut => None,
        }
    }
}

/// Why a process steps back from owning or claiming. It may claim again once its assignment is confirmed anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepBack {
    /// Another process made a newer claim.
    NewerClaim,
    /// Another process's fence counts: whatever this one had still to write is void.
    Fenced,
    /// Another process's claim was read, everything was handed over, and `released` is on record.
    Released,
    /// Another process's claim was read, and a handler did not end in time.
    DrainTimedOut,
}
