//! What can fail on a simulated disk.

use std::io;

/// What can fail. An operation that fails has done nothing, but where it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Syncing a file: EIO, and what was to be made durable is gone with the next power cut.
    Sync,
    /// Syncing a folder: EIO.
    SyncFolder,
    /// Opening a file or a folder that is there: EMFILE.
    Open,
    /// Reading from a file: EIO.
    Read,
    /// Making a file: ENOSPC.
    Create,
    /// Changing a name: ENOSPC.
    Rename,
    /// Removing a file: ENOSPC, as copy-on-write file systems answer.
    Remove,
    /// A write of which all bytes land, and which answers ENOSPC all the same.
    RefusedWrite,
    /// A write of which a part lands: ENOSPC.
    ShortWrite,
}

impl Fault {
    /// All of them.
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
