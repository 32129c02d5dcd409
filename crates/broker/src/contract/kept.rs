//! What a broker that keeps its own files says of them: what was read again, what a backup holds, and which groups keep
//! messages from being deleted.

/// What was read again to find damage early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// Bytes whose checksums were good.
    pub bytes: u64,
    /// Files in which damage was found.
    pub damaged: u64,
}

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backup {
    /// Files, the manifest not counted.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that take no room of their own, because they are shared with the data folder.
    pub shared_bytes: u64,
    /// Topics that are not in it, because they cannot be read.
    pub left_out: Vec<String>,
}

/// A group that keeps messages of a topic from being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBack {
    /// The group.
    pub group: String,
    /// Until when, ms since 1970, if no pipeline is configured for it; `None`: one is.
    pub until_ms: Option<u64>,
}
