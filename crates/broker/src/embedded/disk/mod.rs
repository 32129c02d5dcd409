//! The only way to the disk.
//!
//! Everything the embedded broker does to files goes through [`Disk`] and [`DiskFile`], so that a simulated disk can
//! cut the power between any two calls. What is written is not durable before `sync_data`; a name that was made,
//! changed or removed is not durable before its folder is synced ([`DiskDir::sync`]).

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

/// Payloads are nobody else's: only the owner reads and writes files and folders.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// What anybody else may do.
const OTHERS: u32 = 0o077;

/// A file system, as far as the broker needs one.
pub trait Disk: Send + Sync + fmt::Debug + 'static {
    /// Makes a folder; one that is there is fine.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Names of the files and folders in `dir`, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens a file that is there, to read and write.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file that is there, to read it: also where nobody can write.
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open(path)
    }
    /// Makes a file that is not there yet.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name, replacing what has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Opens a folder, to make its names durable. Whoever does that again and again keeps it open: a process that has
    /// run out of descriptors could not tell "cannot be opened" from "was not synced".
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn DiskDir>>;
    /// Bytes that may still be written to the file system of `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// Takes a lock that no other process can have, held until the answer is dropped. `WouldBlock`: somebody has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>>;
    /// The same for whoever only reads: nothing is made, and nothing need be writable.
    fn lock_to_read(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.lock(path)
    }
    /// Lets only the owner of a file or folder read and write it.
    fn make_private(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
    /// How many names a file has.
    fn links(&self, _path: &Path) -> io::Result<u64> {
        Ok(1)
    }
}

/// An open folder.
pub trait DiskDir: Send + Sync + fmt::Debug {
    /// Makes the names in it durable.
    fn sync(&self) -> io::Result<()>;
}

/// An open file. Reads and writes name their offset, so that it can be shared.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Fills `out` from `offset` on; a file that ends before is an error.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`, or fails with any part of them written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes everything written so far durable, the length included.
    fn sync_data(&self) -> io::Result<()>;
    /// The file's length.
    fn len(&self) -> io::Result<u64>;
    /// True for an empty file.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// The machine's own file system.
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
        // What is kept for the superuser is not ours to use.
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
        // One that cannot be opened is missing, or somebody else's: the folder is what counts.
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

/// Locks the folder of a lock file, too: whoever removes the file and makes another has not unlocked the folder.
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
