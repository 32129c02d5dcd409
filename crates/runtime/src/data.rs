//! Checks, repairs and restores the embedded broker's data folder, for operators, while no server uses it.

use std::path::{Path, PathBuf};

pub use keylane_broker::Backup;
pub use keylane_broker::embedded::data::{Damage, LogReport, Lost, Repaired, Report, SegmentReport};
use keylane_broker::embedded::{OpenError, Options, data};

/// Why a folder could not be checked, repaired or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A server uses the folder.
    #[error("the folder {} is in use by a server; stop it first (a backup can be made while it runs)", .0.display())]
    InUse(PathBuf),
    /// Anything else.
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

/// Reads every byte of a data folder, and reports everything that is not as it was written.
pub fn check(folder: &Path) -> Result<Report, DataError> {
    Ok(data::check(folder, &Options::default())?)
}

/// Skips damaged places, each by the name that [`check`] gives it. The messages there are lost; their bytes are kept in
/// the folder `repaired`.
pub fn repair(folder: &Path, words: &[String]) -> Result<Vec<Repaired>, DataError> {
    Ok(data::repair(folder, &Options::default(), words)?)
}

/// Makes a data folder of a backup, after every byte of the backup was verified.
pub fn restore(backup: &Path, folder: &Path) -> Result<Backup, DataError> {
    data::restore(backup, folder).map_err(|error| DataError::Other(error.to_string()))
}
