//! Copies a folder while it is used.
//!
//! The order is the promise: journals, then holds, then topics. So a journal of the copy never says that something is
//! settled, or kept as a dead letter, that the topics or the holds of the copy do not have. Meanwhile nothing is cut or
//! deleted: a body that a journal of the copy names is still there when its hold is copied. A topic may pass its size
//! bound for as long as that takes.
//!
//! Segments that are full never change, so that the copy gets them by a hard link, which takes neither time nor room;
//! on another file system they are copied. The newest segment of a log is copied up to where it was synced.
//! On the machine's own files only: a simulated disk has no other to copy to.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::end::{End, NAME as END};
use super::super::failure::{Action, Failure};
use super::super::folder::Folder;
use super::super::meta::checksummed;
use super::super::segment::Segment;
use super::manifest::{self, Entry, Manifest};
use crate::contract::{Backup, BrokerError};

/// A log at one moment.
pub(in crate::embedded) struct Captured {
    /// All segments; the last is the newest.
    pub segments: Vec<Arc<Segment>>,
    pub end: End,
}

/// Copies `folder` to `target`, which is not there yet or empty.
pub(in crate::embedded) fn back_up(folder: &Folder, target: &Path) -> Result<Backup, BrokerError> {
    let made = prepare(folder.root(), target)?;
    let copied = copy_all(folder, target);
    if copied.is_err() {
        // Half a backup is of no use, and may be what fills the disk.
        let removed = if made { fs::remove_dir_all(target) } else { empty(target) };
        if let Err(error) = removed {
            tracing::warn!(%error, folder = %target.display(), "what was copied of a failed backup could not be removed");
        }
    }
    copied.map_err(|failure| BrokerError::Backup(failure.to_string()))
}

/// Makes the folder; true if it was not there.
fn prepare(root: &Path, target: &Path) -> Result<bool, BrokerError> {
    let refused = |what: &str| Err(BrokerError::Backup(format!("{}: {what}", target.display())));
    if !target.is_absolute() {
        return refused(
            "the folder must be named from the root on (/…), since the server has a working folder of its own",
        );
    }
    let above = target.ancestors().skip(1).find_map(|above| fs::canonicalize(above).ok());
    let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let itself = fs::canonicalize(target).ok();
    if itself.iter().chain(&above).any(|folder| folder.starts_with(&root)) {
        return refused("the folder lies in the data folder itself; name one outside of it");
    }
    match fs::read_dir(target).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(false),
        Ok(false) => refused("the folder is not empty; name one that is, or that is not there yet"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(target);
            made.map(|()| true).map_err(|error| BrokerError::Backup(format!("{}: {error}", target.display())))
        }
        Err(error) => refused(&error.to_string()),
    }
}

fn empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

fn copy_all(folder: &Folder, target: &Path) -> Result<Backup, Failure> {
    let _still = folder.stand_still();
    let mut copy =
        Copy { root: folder.root(), target, manifest: Manifest::default(), backup: Backup::default() };
    copy.manifest.made_ms = folder.options.host.now_ms();
    copy.small("broker")?;
    for (name, log) in [("journals", folder.journals()), ("holds", folder.holds())] {
        let log = log.map_err(|error| Failure::damaged(&folder.root().join(name), 0, error.to_string()))?;
        copy.log(name, &log.capture())?;
    }
    for topic in folder.open_topics() {
        let name = format!("topics/{}", topic.topic.name);
        copy.log(&name, &topic.capture())?;
        copy.small(&format!("{name}/topic"))?;
    }
    copy.backup.left_out = folder.closed_topics();
    copy.finish()
}

struct Copy<'a> {
    root: &'a Path,
    target: &'a Path,
    manifest: Manifest,
    backup: Backup,
}

impl Copy<'_> {
    fn log(&mut self, name: &str, captured: &Captured) -> Result<(), Failure> {
        let dir = self.target.join(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(Failure::io(Action::CreateFolder, &dir))?;
        let Some((newest, full)) = captured.segments.split_last() else {
            return Ok(());
        };
        for segment in full {
            let to = self.target_of(&segment.path);
            let linked = fs::hard_link(&segment.path, &to).is_ok();
            if !linked {
                self.copy(&segment.path, &to, u64::MAX, segment.capacity)?;
            }
            self.add(&to, linked)?;
        }
        let to = self.target_of(&newest.path);
        self.copy(&newest.path, &to, captured.end.end, newest.capacity)?;
        self.add(&to, false)?;
        let to = dir.join(END);
        write_new(&to, checksummed(&captured.end.text()).as_bytes())?;
        self.add(&to, false)?;
        sync(&dir)
    }

    /// A small file that is replaced as a whole whenever it changes.
    fn small(&mut self, name: &str) -> Result<(), Failure> {
        let from = self.root.join(name);
        let bytes = fs::read(&from).map_err(Failure::io(Action::Read, &from))?;
        let to = self.target.join(name);
        write_new(&to, &bytes)?;
        self.add(&to, false)
    }

    fn target_of(&self, path: &Path) -> PathBuf {
        self.target.join(path.strip_prefix(self.root).unwrap_or(path))
    }

    /// Copies the first `bytes` of a file, and makes the copy `length` long.
    fn copy(&self, from: &Path, to: &Path, bytes: u64, length: u64) -> Result<(), Failure> {
        let copied = || {
            let mut source = File::open(from)?.take(bytes);
            let mut copy = new_file(to)?;
            io::copy(&mut source, &mut copy)?;
            if copy.metadata()?.len() < length {
                copy.set_len(length)?;
            }
            copy.sync_all()
        };
        copied().map_err(Failure::io(Action::Write, to))
    }

    fn add(&mut self, path: &Path, shared: bool) -> Result<(), Failure> {
        let (bytes, crc) = manifest::sum(path).map_err(Failure::io(Action::Read, path))?;
        let name = path.strip_prefix(self.target).unwrap_or(path).to_string_lossy().into_owned();
        self.manifest.files.push(Entry { path: name, bytes, crc });
        self.backup.files += 1;
        self.backup.bytes += bytes;
        self.backup.shared_bytes += if shared { bytes } else { 0 };
        Ok(())
    }

    /// The manifest comes last: what it names is durable by then.
    fn finish(self) -> Result<Backup, Failure> {
        for dir in [self.target.join("topics"), self.target.to_owned()] {
            if dir.exists() {
                sync(&dir)?;
            }
        }
        let (new, path) = (self.target.join("manifest.new"), self.target.join(manifest::NAME));
        write_new(&new, self.manifest.encode().as_bytes())?;
        fs::rename(&new, &path).map_err(Failure::io(Action::Rename, &new))?;
        sync(self.target)?;
        Ok(self.backup)
    }
}

pub(super) fn new_file(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let written = || {
        let mut file = new_file(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    written().map_err(Failure::io(Action::Write, path))
}

pub(super) fn sync(dir: &Path) -> Result<(), Failure> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Failure::io(Action::Sync, dir))
}
