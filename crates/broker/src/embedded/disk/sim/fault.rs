//! The faults that a test can inject into a simulated disk.

use std::io;

/// An operation that can fail. A failed operation has changed nothing, unless its description says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Syncing a file: EIO. The bytes to be synced are lost with the next power cut, and no later sync writes them.
    Sync,
    /// Syncing a folder: EIO.
    SyncFolder,
    /// Opening an existing file or folder: EMFILE.
    Open,
    /// Reading from a file: EIO.
    Read,
    /// Making a file: ENOSPC.
    Create,
    /// Renaming a file: ENOSPC.
    Rename,
    /// Removing a file: ENOSPC, which copy-on-write file systems may return.
    Remove,
    /// A write that stores all its bytes, but returns ENOSPC.
    RefusedWrite,
    /// A write that stores only a part of its bytes: ENOSPC.
    ShortWrite,
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 9] = [
        Fault::Sync,
        Fault::SyncFolder,
        Fault::Open,
        Fault::Read,
        Fault::Create,
        Fault::Rename,
        Fault::Remove,
        Fault::RefusedWrite,
        Fault::ShortWrite,
    ];

    pub(super) fn error(self) -> io::Error {
        const EIO: i32 = 5;
        const EMFILE: i32 = 24;
        const ENOSPC: i32 = 28;
        io::Error::from_raw_os_error(match self {
            Fault::Sync | Fault::SyncFolder | Fault::Read => EIO,
            Fault::Open => EMFILE,
            _ => ENOSPC,
        })
    }
}
