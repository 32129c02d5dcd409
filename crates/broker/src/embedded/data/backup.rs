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

use super::super::failure::{Action, Failure};
use super::super::folder::Folder;
use super::super::meta::checksummed;
use super::manifest::{self, Entry, Manifest};
use crate::contract::{Backup, BrokerError};
use crate::embedded::segment::Segment;
use crate::embedded::segment::end::{End, NAME as END};

/// A log at one moment.
pub(in crate::embedded) struct Captured {
    /// All segments; the last is the newest.
    pub segments: Vec<Arc<Segment>>,
    pub end: End,
}

/// Copies `folder` to `target`, which is not there yet or empty.
pub(in crate::embedded) fn back_up(folder: &Folder, target: &Path) -> Result<Backup, BrokerError> {
    let Ok(_one_at_a_time) = folder.backing_up.try_write() else {
        let what = "another backup of the data folder is being made, or a group is being forgotten; wait until that is done";
        return Err(BrokerError::Backup(what.to_owned()));
    };
    let made = prepare(folder.root(), target)?;
    copy_to(folder, target, made)
}

/// Copies to a folder that was found empty; `made`: this backup made it.
fn copy_to(folder: &Folder, target: &Path, made: bool) -> Result<Backup, BrokerError> {
    let mut copy = Copy {
        root: folder.root(),
        target,
        manifest: Manifest::default(),
        backup: Backup::default(),
        made: Vec::new(),
    };
    if made {
        copy.made.push(target.to_owned());
    }
    let copied = copy.all(folder);
    if copied.is_err() {
        copy.remove();
    }
    copied.map(|()| copy.backup).map_err(|failure| BrokerError::Backup(failure.to_string()))
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

struct Copy<'a> {
    root: &'a Path,
    target: &'a Path,
    manifest: Manifest,
    backup: Backup,
    /// Files and folders that this backup made: what else is there is another's, that found the folder empty as well.
    made: Vec<PathBuf>,
}

impl Copy<'_> {
    fn all(&mut self, folder: &Folder) -> Result<(), Failure> {
        let _still = folder.stand_still();
        self.manifest.made_ms = folder.options.host.now_ms();
        self.small("broker")?;
        for (name, log) in [("journals", folder.journals()), ("holds", folder.holds())] {
            let log =
                log.map_err(|error| Failure::damaged(&folder.root().join(name), 0, error.to_string()))?;
            self.log(name, &log.capture())?;
        }
        for topic in folder.open_topics() {
            let name = format!("topics/{}", topic.topic.name);
            self.log(&name, &topic.capture())?;
            self.small(&format!("{name}/topic"))?;
        }
        self.backup.left_out = folder.closed_topics();
        self.finish()
    }

    /// Takes back what was made: half a backup is of no use, and may be what fills the disk.
    fn remove(&self) {
        for path in self.made.iter().rev() {
            let removed = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
            if let Err(error) = removed
                && path.exists()
            {
                tracing::warn!(%error, path = %path.display(), "this was copied for a backup that failed, and could not be removed");
            }
        }
    }

    fn folder(&mut self, dir: &Path) -> Result<(), Failure> {
        if let Some(above) = dir.parent().filter(|above| !above.exists()) {
            self.folder(above)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.map_err(Failure::io(Action::CreateFolder, dir))?;
                self.made.push(dir.to_owned());
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> io::Result<File> {
        let file = new_file(path)?;
        self.made.push(path.to_owned());
        Ok(file)
    }

    fn log(&mut self, name: &str, captured: &Captured) -> Result<(), Failure> {
        let dir = self.target.join(name);
        self.folder(&dir)?;
        let Some((newest, full)) = captured.segments.split_last() else {
            return Ok(());
        };
        for segment in full {
            let to = self.target_of(&segment.path);
            let linked = fs::hard_link(&segment.path, &to).is_ok();
            if linked {
                self.made.push(to.clone());
            } else {
                self.copy(&segment.path, &to, u64::MAX, segment.capacity)?;
            }
            self.add(&to, linked)?;
        }
        let to = self.target_of(&newest.path);
        self.copy(&newest.path, &to, captured.end.end, newest.capacity)?;
        self.add(&to, false)?;
        let to = dir.join(END);
        self.write_new(&to, checksummed(&captured.end.text()).as_bytes())?;
        self.add(&to, false)?;
        sync(&dir)
    }

    /// A small file that is replaced as a whole whenever it changes.
    fn small(&mut self, name: &str) -> Result<(), Failure> {
        let from = self.root.join(name);
        let bytes = fs::read(&from).map_err(Failure::io(Action::Read, &from))?;
        let to = self.target.join(name);
        self.write_new(&to, &bytes)?;
        self.add(&to, false)
    }

    fn target_of(&self, path: &Path) -> PathBuf {
        self.target.join(path.strip_prefix(self.root).unwrap_or(path))
    }

    /// Copies the first `bytes` of a file, and makes the copy `length` long.
    fn copy(&mut self, from: &Path, to: &Path, bytes: u64, length: u64) -> Result<(), Failure> {
        let mut copied = || {
            let mut source = File::open(from)?.take(bytes);
            let mut copy = self.file(to)?;
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
    fn finish(&mut self) -> Result<(), Failure> {
        for dir in [self.target.join("topics"), self.target.to_owned()] {
            if dir.exists() {
                sync(&dir)?;
            }
        }
        let (new, path) = (self.target.join("manifest.new"), self.target.join(manifest::NAME));
        let text = self.manifest.encode();
        self.write_new(&new, text.as_bytes())?;
        fs::rename(&new, &path).map_err(Failure::io(Action::Rename, &new))?;
        self.made.push(path);
        sync(self.target)
    }

    fn write_new(&mut self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let mut written = || {
            let mut file = self.file(path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        written().map_err(Failure::io(Action::Write, path))
    }
}

pub(super) fn new_file(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

pub(super) fn sync(dir: &Path) -> Result<(), Failure> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Failure::io(Action::Sync, dir))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::contract::{Broker, JournalName, LogKind, TopicSpec};
    use crate::embedded::Embedded;
    use crate::embedded::options::Options;

    fn files(dir: &Path) -> u64 {
        let entries = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
    }

    /// P1: two that found the same folder empty: the one that comes too late takes back what it made, and no more.
    #[test]
    fn a_backup_that_fails_leaves_what_another_one_made() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&dir.path().join("data"), Options::default()).expect("a new folder");
        let target = dir.path().join("backup");
        let made = prepare(folder.root(), &target).expect("it is not there yet");
        assert!(made);
        let won = back_up(&folder, &target).expect("it is empty");
        let lost = copy_to(&folder, &target, made);
        assert!(matches!(lost, Err(BrokerError::Backup(_))), "{lost:?}");
        assert_eq!(files(&target), won.files + 1, "all that the manifest names, and the manifest");
    }

    /// Bad input: what a backup made that failed is gone, and the folder with it.
    #[test]
    fn a_backup_that_fails_takes_back_what_it_made() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&dir.path().join("data"), Options::default()).expect("a new folder");
        let target = dir.path().join("a/backup");
        let made = prepare(folder.root(), &target).expect("it is not there yet");
        fs::create_dir_all(target.join("holds")).expect("a folder");
        fs::write(target.join("holds/end"), "in the way").expect("a file");
        assert!(copy_to(&folder, &target, made).is_err());
        assert_eq!(files(&target), 1, "what was in the way");
    }

    /// Bad input: the second of two is told so at once.
    #[test]
    fn one_backup_is_made_at_a_time() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&dir.path().join("data"), Options::default()).expect("a new folder");
        let first = folder.backing_up.try_write().expect("nobody has it");
        let second = back_up(&folder, &dir.path().join("backup"));
        assert!(matches!(&second, Err(BrokerError::Backup(said)) if said.contains("another")), "{second:?}");
        assert!(!dir.path().join("backup").exists());
        drop(first);
        back_up(&folder, &dir.path().join("backup")).expect("the first is done");
    }

    /// BRK-6, P1: a group is forgotten as a whole or not at all, whatever backup is asked for meanwhile; and a backup has it
    /// as a whole or not at all.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_group_is_not_forgotten_while_a_backup_is_made_nor_the_other_way_round() {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path().join("data");
        let broker = Embedded::open(&data, Options::default()).expect("a new folder");
        let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
        broker.create_topic("orders", &spec).await.expect("a new topic");
        let record = |kind| {
            let name = JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind };
            let broker = &broker;
            async move { broker.journal(&name).await.expect("a journal").append("record".into(), None).await }
        };
        for kind in [LogKind::Journal, LogKind::Hold] {
            assert_eq!(record(kind).await, Ok(0));
        }
        {
            let _backup = broker.folder.backing_up.try_write().expect("nobody has it");
            let refused = broker.forget_group("group", "orders").await;
            assert!(
                matches!(&refused, Err(BrokerError::Unavailable(why)) if why.contains("backup")),
                "{refused:?}"
            );
        }
        for kind in [LogKind::Journal, LogKind::Hold] {
            assert_eq!(record(kind).await, Ok(1), "nothing of it was forgotten");
        }
        let target = dir.path().join("backup");
        {
            let mut forgotten = broker.forget_group("group", "orders");
            assert!((&mut forgotten).now_or_never().is_none(), "the holds are being forgotten");
            let refused = back_up(&broker.folder, &target);
            assert!(
                matches!(&refused, Err(BrokerError::Backup(why)) if why.contains("group")),
                "{refused:?}"
            );
            assert_eq!(forgotten.await, Ok(true));
        }
        back_up(&broker.folder, &target).expect("it is done");
    }
}
