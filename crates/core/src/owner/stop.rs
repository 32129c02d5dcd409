//! Why a partition is not, or no longer, owned here, and what an operator can do about it.

use crate::ErrorCode;
use crate::journal::{NotCarriedOut, RecordError};

/// Why this process gives up being the owner. Those that have a code are for an operator; nothing was lost by any.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Stop {
    /// The broker's commit mirrors another journal.
    #[error(
        "the broker's commit was made from journal {mirrored:032x}, and the journal that is there is {}; the journal was deleted or replaced: bring it back, or, to start over from the commit, write the commit anew without metadata",
        found.map_or("empty".to_owned(), |id| format!("{id:032x}"))
    )]
    OtherJournal {
        /// The journal that was mirrored.
        mirrored: u128,
        /// The one that is there.
        found: Option<u128>,
    },
    /// The journal is shorter than the broker's commit says.
    #[error(
        "the broker's commit was made in epoch {epoch}, and the journal ends at {end}; its tail was lost: bring it back, or, to start over from the commit, write the commit anew without metadata"
    )]
    Shorter {
        /// The epoch that was mirrored.
        epoch: u64,
        /// Where the journal ends.
        end: u64,
    },
    /// The journal ends before what was read of it.
    #[error(
        "the journal was read up to {read} and now ends at {end}; its tail was lost, and nothing that is appended to it counts: bring it back, or delete this group's journal and commits to start over"
    )]
    WentBack {
        /// Behind the last record that was read.
        read: u64,
        /// Where the journal ends now.
        end: u64,
    },
    /// The topic was deleted and made again.
    #[error(
        "the source topic was made anew: on record is incarnation {recorded:032x}, there is {found:032x}, and positions on record mean other messages; use another group, or delete this group's journal and commits to start over"
    )]
    OtherSource {
        /// The incarnation on record.
        recorded: u128,
        /// The one that is there.
        found: u128,
    },
    /// The topic has another number of partitions.
    #[error(
        "the source topic has {found} partitions, on record are {recorded}, and keys have moved between them; `keylane topics accept TOPIC` goes on, once all that stood before is settled"
    )]
    OtherPartitions {
        /// The number on record.
        recorded: u32,
        /// The number there is.
        found: u32,
    },
    /// The journal is written in a format that this process does not read.
    #[error(
        "the journal is written in format {in_use}, and this version of Keylane reads formats up to {reads}; an operator has raised the format for a newer version (keylane topics upgrade): run that version on this node too"
    )]
    NewerFormat {
        /// The format in use.
        in_use: u8,
        /// The newest format that this process reads.
        reads: u8,
    },
    /// A record that cannot be read.
    #[error(
        "the journal's record at {position} is not known to this version ({error}); a newer version wrote it: run that version"
    )]
    UnknownRecord {
        /// Where it stands.
        position: u64,
        /// What is unknown.
        error: RecordError,
    },
    /// A record that can be read, but not carried out.
    #[error(
        "the journal's record at {position} says something that this version does not carry out ({what}); a newer version wrote it: run that version"
    )]
    NotCarriedOut {
        /// Where it stands.
        position: u64,
        /// What it says.
        what: NotCarriedOut,
    },
    /// The journal was cut and no snapshot in it counts.
    #[error(
        "the journal starts at {start}, and no snapshot in it counts; its beginning was lost: bring it back from a backup, or delete this group's journal and commits to start over"
    )]
    StateLost {
        /// Where it starts.
        start: u64,
    },
    /// The broker gave the partition to another, and it was handed over.
    #[error("the partition was revoked")]
    Revoked,
    /// The broker took the partition away.
    #[error("the partition was lost")]
    Lost,
    /// Revoked, and a handler did not end in time: the next owner waits for `released` in vain, and then goes on.
    #[error("the partition was revoked, and a handler did not end in time")]
    DrainTimedOut,
}

impl Stop {
    /// What it means that the record at `position` cannot be read by somebody who reads formats up to `reads`.
    pub fn unreadable(position: u64, error: RecordError, reads: u8) -> Stop {
        match error {
            RecordError::Version(in_use) if in_use > reads => Stop::NewerFormat { in_use, reads },
            error => Stop::UnknownRecord { position, error },
        }
    }

    /// The code that an operator can look up; `None` for what is no error.
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

/// Why an owner or claimant steps back. It may claim again once its assignment is confirmed anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepBack {
    /// Another claim is newer.
    NewerClaim,
    /// Another's fence counts: what was still to be written is void.
    Fenced,
    /// Another's claim was read, everything was handed over, and `released` is on record.
    Released,
    /// Another's claim was read, and a handler did not end in time.
    DrainTimedOut,
}
