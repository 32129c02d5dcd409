//! The embedded broker's data folder, for operators, while no server uses it: is it whole, what is gone, how to go on.

use std::path::{Path, PathBuf};

pub use keylane_broker::Backup;
pub use keylane_broker::embedded::data::{Damage, LogReport, Lost, Repaired, Report, SegmentReport};
use keylane_broker::embedded::{OpenError, Options, data};

/// Why a folder could not be looked at, mended or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A server uses it.
    #[error("the folder {} is in use by a server; stop it first (a backup can be made while it runs)", .0.display())]
    InUse(PathBuf),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

impl From<OpenError> for DataError {
    fn from(error: OpenError) -> DataError {
        match error {
            OpenError::Locked(folder) => DataError::InUse(folder),
            other => DataError::Other(other.to_string()),
        }
    }
}

/// Reads every byte of a data folder, and says what is not as it was written.
pub fn check(folder: &Path) -> Result<Report, DataError> {
    Ok(data::check(folder, &Options::default())?)
}

/// Skips damaged places, each by the name that [`check`] gives it. What lay there is lost; its bytes are kept in the
/// folder `repaired`.
pub fn repair(folder: &Path, words: &[String]) -> Result<Vec<Repaired>, DataError> {
    Ok(data::repair(folder, &Options::default(), words)?)
}

/// Makes a data folder of a backup, once every byte of the backup was verified.
pub fn restore(backup: &Path, folder: &Path) -> Result<Backup, DataError> {
    data::restore(backup, folder).map_err(|error| DataError::Other(error.to_string()))
}
