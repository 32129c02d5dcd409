//! The errors of the embedded broker's files, and what each means for the log in which it happened.
//!
//! A [`Failure`] comes from the disk. It becomes an [`OpenError`] when a folder is opened, and a [`BrokerError`]
//! later. A log goes on only after a failure that leaves the contents of the disk certain, such as a full disk or a
//! lack of descriptors or threads; after any other it stops, because what the disk contains is then unknown (P10).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::contract::{BrokerError, ProduceError};

/// Why a folder cannot be opened as a broker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process uses the folder.
    #[error(
        "the folder {} is in use by another process; stop that one, or set another data folder",
        .0.display()
    )]
    Locked(PathBuf),
    /// A restore is writing to the folder, or was interrupted.
    #[error(
        "a restore into the folder {} is not finished; wait for it, or run the same `keylane data restore` again, which begins anew",
        .0.display()
    )]
    Restoring(PathBuf),
    /// The file system returned an error.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was attempted.
        action: String,
        /// The file or folder concerned.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
    /// Stored bytes are damaged, at a place that is not a torn tail.
    #[error("damaged: {0}")]
    Damaged(String),
    /// A newer version of Keylane wrote the folder, in a format that this version does not know.
    #[error("{0}")]
    Newer(String),
    /// The folder has no damage of this name.
    #[error("there is no damage called {0}; `keylane data check` says what there is")]
    Unknown(String),
}

/// What was attempted on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Open,
    Read,
    Write,
    Sync,
    /// Making a file that is not part of a log yet.
    Make,
    /// Renaming `end.new` to `end` after the new segment got its name. From there the log can neither go on nor go
    /// back.
    Record,
    Rename,
    Remove,
    List,
    Lock,
    CreateFolder,
    StartThread,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Open => "open",
            Action::Read => "read",
            Action::Write => "write",
            Action::Sync => "sync",
            Action::Make => "make",
            Action::Record => "record the end of the log in",
            Action::Rename => "rename",
            Action::Remove => "remove",
            Action::List => "list",
            Action::Lock => "lock",
            Action::CreateFolder => "create the folder",
            Action::StartThread => "start a thread for",
        })
    }
}

/// An error of a file, or of its contents.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot {action} {}: {error}", path.display())]
    Io { action: Action, path: PathBuf, kind: io::ErrorKind, error: String },
    #[error(
        "{}, byte {offset}: {what}; stop the server and run `keylane data check`, which says what is gone; then restore a backup, or skip the damage with `keylane data repair`",
        file.display()
    )]
    Damaged { file: PathBuf, offset: u64, what: String },
    #[error(
        "{}: {what}; a newer version of Keylane wrote it: start that version again, or restore a backup that this version made",
        file.display()
    )]
    Newer { file: PathBuf, what: String },
}

impl Failure {
    pub fn io(action: Action, path: &Path) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure::Io {
            action,
            path: path.to_owned(),
            kind: error.kind(),
            error: error.to_string(),
        }
    }

    pub fn damaged(file: &Path, offset: u64, what: impl Into<String>) -> Failure {
        Failure::Damaged { file: file.to_owned(), offset, what: what.into() }
    }

    pub fn newer(file: &Path, what: impl Into<String>) -> Failure {
        Failure::Newer { file: file.to_owned(), what: what.into() }
    }

    /// True if the disk or the quota is full.
    pub fn is_full(&self) -> bool {
        let Failure::Io { kind, .. } = self else {
            return false;
        };
        matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// True if the disk was full, and everything written before is still there. False after a failed sync, whatever
    /// its error says: nothing is known about the written pages then.
    pub fn is_only_full(&self) -> bool {
        self.is_full() && !matches!(self, Failure::Io { action: Action::Sync, .. })
    }

    /// True if the contents of the disk are not in doubt, and the operation may succeed later: a file that could not
    /// be made holds nothing yet, a read changes nothing, a thread may start another time, and a full disk may have
    /// room again. Never true for a failed sync, because the kernel may have dropped the pages, and reports that only
    /// once.
    pub fn is_harmless(&self) -> bool {
        let Failure::Io { action, .. } = self else {
            return false;
        };
        match action {
            Action::Sync | Action::Record => false,
            Action::Make | Action::Open | Action::Read | Action::StartThread => true,
            _ => self.is_full(),
        }
    }

    pub fn to_open_error(&self) -> OpenError {
        match self {
            Failure::Io { action, path, kind, error } => OpenError::Io {
                action: action.to_string(),
                path: path.clone(),
                error: io::Error::new(*kind, error.clone()),
            },
            Failure::Damaged { .. } => OpenError::Damaged(self.to_string()),
            Failure::Newer { .. } => OpenError::Newer(self.to_string()),
        }
    }

    pub fn to_broker_error(&self) -> BrokerError {
        match self {
            Failure::Damaged { .. } => BrokerError::Damaged(self.to_string()),
            Failure::Newer { .. } => BrokerError::Newer(self.to_string()),
            Failure::Io { .. } if self.is_full() && self.is_harmless() => {
                BrokerError::DiskFull(self.to_string())
            }
            Failure::Io { .. } if self.is_harmless() => BrokerError::Unavailable(self.to_string()),
            Failure::Io { .. } => BrokerError::Stopped(self.to_string()),
        }
    }

    pub fn to_produce_error(&self) -> ProduceError {
        ProduceError::Unavailable(self.to_string())
    }
}

impl From<Failure> for OpenError {
    fn from(failure: Failure) -> OpenError {
        failure.to_open_error()
    }
}

impl From<Failure> for BrokerError {
    fn from(failure: Failure) -> BrokerError {
        failure.to_broker_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harmless(action: Action, kind: io::ErrorKind) -> bool {
        Failure::io(action, Path::new("log"))(kind.into()).is_harmless()
    }

    /// P10: a process that reaches its limit of threads refuses nothing and stops no log: the next segment is then
    /// made when it is needed.
    #[test]
    fn a_thread_that_cannot_be_started_stops_no_log_and_a_failed_sync_does() {
        assert!(harmless(Action::StartThread, io::ErrorKind::WouldBlock));
        assert!(harmless(Action::Write, io::ErrorKind::StorageFull));
        for action in [Action::Sync, Action::Record] {
            assert!(!harmless(action, io::ErrorKind::StorageFull));
        }
        assert!(!harmless(Action::Write, io::ErrorKind::Other));
    }
}
