//! Makes a data folder from a backup. Verifies every file of the backup against the manifest before it writes
//! anything, and verifies each copy again.
//!
//! A folder that does not exist yet gets its name last, so it is either complete or absent. A folder that exists, and
//! may be a mount point or a link to another disk, gets its files one by one; the file that makes it a broker's
//! folder comes last. In both cases a file, the mark, says meanwhile that a restore is under way, so that only a
//! restore's own files are ever removed. The folder's lock is held from before the mark is made until after it is
//! removed: so no server starts on half a restore, and no other restore removes files that a server uses.

use std::any::Any;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::super::disk::{Disk, RealDisk};
use super::super::failure::{Action, Failure, OpenError};
use super::super::options::Host;
use super::backup::{new_file, sync};
use super::manifest::{self, Entry, Manifest};
use crate::contract::Backup;

/// The mark: the file that says that a restore is under way.
pub(super) const MARK: &str = "restoring";
/// The file that every process that uses a data folder locks.
const LOCK: &str = "lock";
/// A folder that file systems make at their root.
const LOST_AND_FOUND: &str = "lost+found";

/// Why a backup was not restored. Files that the restore had already copied are removed again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The folder is not empty.
    #[error("{} exists and is not empty; name a folder that is, or that is not there yet", .0.display())]
    NotEmpty(PathBuf),
    /// A server uses the folder, or another restore writes to it.
    #[error("{} is in use by another process: a server, a repair or a restore; wait for it, or stop it", .0.display())]
    InUse(PathBuf),
    /// The backup is incomplete or was changed.
    #[error("{}: {what}; the backup is not what was made, and nothing was restored", path.display())]
    Tampered {
        /// The file concerned.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file system returned an error.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder concerned.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        error: io::Error,
    },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> RestoreError {
    move |error| RestoreError::Io { path: path.to_owned(), error }
}

/// An error if a restore into the folder is not finished.
pub(in crate::embedded) fn refuse_restoring(host: &Host, root: &Path) -> Result<(), OpenError> {
    let names = host.disk.list(root).map_err(Failure::io(Action::List, root))?;
    match is_ours(&names) {
        true => Err(OpenError::Restoring(root.to_owned())),
        false => Ok(()),
    }
}

/// Verifies the backup and copies it to `folder`.
pub fn restore(backup: &Path, folder: &Path) -> Result<Backup, RestoreError> {
    let is_there = is_free(folder)?;
    let path = backup.join(manifest::NAME);
    let tampered =
        |path: &Path, what: &str| RestoreError::Tampered { path: path.to_owned(), what: what.to_owned() };
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(tampered(&path, "the file is missing: the backup was not finished, or this is none"));
        }
        text => text.map_err(io_at(&path))?,
    };
    let manifest = Manifest::parse(&text).map_err(|what| tampered(&path, &what))?;
    for entry in &manifest.files {
        verify(&backup.join(&entry.path), entry)?;
    }
    if is_there {
        let locked = lock(folder)?;
        // Checked once more under the lock: a server may have begun to use the folder before.
        is_free(folder)?;
        let copied = copy(backup, folder, &manifest);
        return end(folder, locked, copied);
    }
    // The folder is made beside its place, so that one rename gives it its name.
    let name = folder.file_name().map_or_else(|| "data".into(), |name| name.to_string_lossy().into_owned());
    let making = folder.with_file_name(format!("{name}.restoring"));
    let in_the_way = |error| match error {
        RestoreError::NotEmpty(making) => {
            let what = "this is in the way, and no restore made it; move it away";
            io_at(&making)(io::Error::new(io::ErrorKind::AlreadyExists, what))
        }
        other => other,
    };
    if !is_free(&making).map_err(in_the_way)? {
        make_dir(&making)?;
    }
    let locked = lock(&making)?;
    is_free(&making).map_err(in_the_way)?;
    let made = copy(backup, &making, &manifest).and_then(|done| {
        // If the name is taken by now, for example by a server's new folder, the rename fails, and the copy is
        // removed.
        let named = fs::rename(&making, folder).map_err(io_at(folder));
        named.inspect_err(|_| drop(fs::remove_dir_all(&making))).map(|()| done)
    });
    let is_made = made.is_ok();
    let made = end(if is_made { folder } else { &making }, locked, made);
    if !is_made {
        let _has_something_else_in_it = fs::remove_dir(&making);
    }
    let done = made?;
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        synced(above)?;
    }
    Ok(done)
}

/// True if the folder exists and is empty, except for what an earlier restore left; false if it does not exist.
fn is_free(folder: &Path) -> Result<bool, RestoreError> {
    let is_nothing = |name: &String| name == LOST_AND_FOUND || name == LOCK;
    match names(folder) {
        Ok(names) if names.iter().all(is_nothing) || is_ours(&names) => Ok(true),
        Ok(_) => Err(RestoreError::NotEmpty(folder.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_at(folder)(error)),
    }
}

/// Locks a folder against servers and other restores.
fn lock(folder: &Path) -> Result<Box<dyn Any + Send + Sync>, RestoreError> {
    RealDisk.lock(&folder.join(LOCK)).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => RestoreError::InUse(folder.to_owned()),
        _ => io_at(folder)(error),
    })
}

/// Unlocks a folder. If nothing was restored into it and it has no mark, the lock's file is removed, too.
fn end<T>(
    folder: &Path,
    locked: Box<dyn Any + Send + Sync>,
    done: Result<T, RestoreError>,
) -> Result<T, RestoreError> {
    if done.is_err() && !folder.join(MARK).exists() {
        // The file goes while the folder is still locked: the folder itself has a lock as well.
        let _stays = fs::remove_file(folder.join(LOCK));
    }
    drop(locked);
    done
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// True if the folder has the mark, so that its contents are those of an earlier restore.
fn is_ours(names: &[String]) -> bool {
    names.iter().any(|name| name == MARK)
}

fn make_dir(dir: &Path) -> Result<(), RestoreError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_at(dir))
}

fn synced(dir: &Path) -> Result<(), RestoreError> {
    sync(dir).map_err(|failure| io_at(dir)(io::Error::other(failure)))
}

/// Removes everything from a folder that has the mark, except the lock, which is held. The mark goes last.
fn clear(dir: &Path) -> io::Result<()> {
    let mut names = names(dir)?;
    names.retain(|name| ![LOST_AND_FOUND, LOCK, MARK].contains(&name.as_str()));
    for path in names.iter().map(|name| dir.join(name)) {
        match fs::symlink_metadata(&path)?.is_dir() {
            true => fs::remove_dir_all(&path)?,
            false => fs::remove_file(&path)?,
        }
    }
    fs::remove_file(dir.join(MARK))
}

fn verify(path: &Path, entry: &Entry) -> Result<(), RestoreError> {
    let tampered = |what: String| Err(RestoreError::Tampered { path: path.to_owned(), what });
    match manifest::sum(path) {
        Ok((bytes, _)) if bytes != entry.bytes => {
            tampered(format!("the file has {bytes} bytes, and the manifest says {}", entry.bytes))
        }
        Ok((_, crc)) if crc != entry.crc => tampered("the checksum is not the manifest's".to_owned()),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => tampered("the file is missing".to_owned()),
        Err(error) => Err(io_at(path)(error)),
    }
}

/// Copies all files into a folder that is empty or has the mark. After an error the folder is empty again.
fn copy(backup: &Path, folder: &Path, manifest: &Manifest) -> Result<Backup, RestoreError> {
    let mark = folder.join(MARK);
    if mark.exists() {
        clear(folder).map_err(io_at(folder))?;
    }
    new_file(&mark).and_then(|mark| mark.sync_all()).map_err(io_at(&mark))?;
    synced(folder)?;
    let copied = copy_all(backup, folder, manifest).and_then(|done| {
        fs::remove_file(&mark).map_err(io_at(&mark))?;
        synced(folder)?;
        Ok(done)
    });
    if copied.is_err() {
        // If some files cannot be removed, the mark stays with them, and the next restore removes them.
        let _stays = clear(folder);
    }
    copied
}

fn copy_all(backup: &Path, folder: &Path, manifest: &Manifest) -> Result<Backup, RestoreError> {
    // The file `broker` is copied last: before it exists, no server takes the unfinished folder for a whole one.
    let (last, first): (Vec<_>, Vec<_>) = manifest.files.iter().partition(|entry| entry.path == "broker");
    let mut done = Backup::default();
    for entries in [first, last] {
        for entry in &entries {
            let (from, to) = (backup.join(&entry.path), folder.join(&entry.path));
            if let Some(dir) = to.parent() {
                make_dir(dir)?;
            }
            let copied = || {
                let mut source = fs::File::open(&from)?;
                let mut copy = new_file(&to)?;
                io::copy(&mut source, &mut copy)?;
                copy.sync_all()
            };
            copied().map_err(io_at(&to))?;
            verify(&to, entry)?;
            done.files += 1;
            done.bytes += entry.bytes;
        }
        let above = |entry: &&Entry| {
            let dirs = Path::new(&entry.path).ancestors().skip(1);
            dirs.map(|dir| folder.join(dir)).collect::<Vec<_>>()
        };
        let dirs: BTreeSet<PathBuf> = entries.iter().flat_map(above).collect();
        dirs.iter().try_for_each(|dir| synced(dir))?;
    }
    Ok(done)
}
