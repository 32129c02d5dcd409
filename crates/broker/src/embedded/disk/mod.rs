//! The file system as the embedded broker sees it: everything that the broker does to files goes through these
//! traits.
//!
//! So a simulated disk (`SimDisk`) can cut the power between any two calls. Written bytes are durable only after
//! [`DiskFile::sync_data`]. A name that was made, changed or removed is durable only after its folder was synced
//! ([`DiskDir::sync`]).

mod piecewise;
#[cfg(feature = "testing")]
mod sim;

use std::any::Any;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

pub(super) use piecewise::Piecewise;
#[cfg(feature = "testing")]
pub use sim::{Fault, SimDisk};

/// Files and folders are readable and writable for their owner only, because they contain the payloads of messages.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// The permissions of all other users.
const OTHERS: u32 = 0o077;

/// A file system, as far as the broker needs one.
pub trait Disk: Send + Sync + fmt::Debug + 'static {
    /// Makes a folder; does nothing if the folder exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Names of the files and folders in `dir`, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file for reading, which must also work where writing is forbidden.
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open(path)
    }
    /// Makes a file. An error if the name exists.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file, and replaces a file that has the name `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Opens a folder, to make its names durable. A caller that syncs a folder repeatedly keeps it open: without a
    /// free descriptor it could not tell a folder that cannot be opened from one whose sync failed.
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn DiskDir>>;
    /// Bytes that may still be written to the file system that contains `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// Takes a lock that excludes all other processes until the answer is dropped. `WouldBlock`: another process has
    /// it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>>;
    /// Like [`Disk::lock`], for a caller that only reads: makes no file, and works on a read-only file system.
    fn lock_to_read(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.lock(path)
    }
    /// Forbids all other users to read and write a file or folder.
    fn make_private(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
    /// The number of names (hard links) of a file.
    fn links(&self, _path: &Path) -> io::Result<u64> {
        Ok(1)
    }
}

/// An open folder.
pub trait DiskDir: Send + Sync + fmt::Debug {
    /// Makes the names in the folder durable.
    fn sync(&self) -> io::Result<()>;
}

/// An open file. Each call states its offset, so several threads can share the file.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Fills `out` from `offset` on. An error if the file ends before.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`. After an error any part of them may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes everything written so far durable, including the length of the file.
    fn sync_data(&self) -> io::Result<()>;
    /// The file's length.
    fn len(&self) -> io::Result<u64>;
    /// True for an empty file.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The file system of the operating system.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OpenOptions::new().read(true).write(true).open(path)?))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(File::open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        Ok(Arc::new(options.read(true).write(true).create_new(true).mode(FILE_MODE).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn DiskDir>> {
        Ok(Arc::new(File::open(dir)?))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let space = rustix::fs::statvfs(dir)?;
        // `f_bavail` leaves out the blocks that are reserved for the superuser.
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let folder = lock_folder(path)?;
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new((file, folder))),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn lock_to_read(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let folder = lock_folder(path)?;
        // If the file is missing or belongs to another user, the lock of the folder is enough.
        let file = File::open(path).ok();
        match file.as_ref().map(File::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(Box::new((file, folder))),
        }
    }

    fn make_private(&self, path: &Path) -> io::Result<()> {
        let there = std::fs::metadata(path)?;
        let mode = if there.is_dir() { FOLDER_MODE } else { FILE_MODE };
        match there.permissions().mode() & OTHERS == 0 {
            true => Ok(()),
            false => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        }
    }

    fn links(&self, path: &Path) -> io::Result<u64> {
        Ok(std::fs::metadata(path)?.nlink())
    }
}

/// Locks the folder of the lock file as well: removing the file and making a new one does not unlock the folder.
fn lock_folder(path: &Path) -> io::Result<Option<File>> {
    let folder = path.parent().map(File::open).transpose()?;
    match folder.as_ref().and_then(|folder| folder.try_lock().err()) {
        Some(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(folder),
    }
}

impl DiskDir for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

impl DiskFile for File {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}
