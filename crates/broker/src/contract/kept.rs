//! What a broker that keeps its own files reports about them: scrubbing, backups, and groups that hold messages back.

/// What scrubbing has read again so far to find damage early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// Bytes whose checksums were right.
    pub bytes: u64,
    /// Files in which damage was found.
    pub damaged: u64,
}

/// The contents of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backup {
    /// Files, without the manifest.
    pub files: u64,
    /// Bytes of those files.
    pub bytes: u64,
    /// Of those bytes, the ones that take no room of their own because the backup shares them with the data folder.
    pub shared_bytes: u64,
    /// Topics that were left out because they cannot be read.
    pub left_out: Vec<String>,
}

/// A group that keeps messages of a topic from being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBack {
    /// The group's name.
    pub group: String,
    /// When the group will no longer hold messages back, ms since 1970, if no pipeline is configured for it; `None` if
    /// one is.
    pub until_ms: Option<u64>,
}
