//! The bare disk: a pre-zeroed file that is written and synced, as the raw limit of the log.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 256 << 20;

/// A pre-zeroed file, written over and over again.
pub(crate) struct BareFile {
    file: File,
    at: u64,
}

impl BareFile {
    pub(crate) fn create(folder: &Path) -> std::io::Result<BareFile> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(folder.join("bare"))?;
        let zeros = vec![0; 1 << 20];
        for at in (0..FILE_BYTES).step_by(zeros.len()) {
            file.write_all_at(&zeros, at)?;
        }
        file.sync_all()?;
        Ok(BareFile { file, at: 0 })
    }

    /// Writes and syncs; returns how long the sync took.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<Duration> {
        if self.at + bytes.len() as u64 > FILE_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        let since = Instant::now();
        self.file.sync_data()?;
        Ok(since.elapsed())
    }
}
