//! Copies a data folder to another folder while the server uses it.
//!
//! The order keeps the promise: journals, then holds, then topics. So no journal in the copy settles a message that
//! the copy's topics lack, or names a dead letter that the copy's holds lack. Meanwhile nothing is cut or deleted, so
//! that a body named by a copied journal still exists when its hold is copied. During this time a topic may exceed
//! its size bound.
//!
//! Full segments never change, so the copy shares them by a hard link, which takes neither time nor space; on another
//! file system they are copied. The newest segment of each log is copied up to its last synced byte. A backup works
//! only on the machine's own file system, since a simulated disk has no other disk to copy to.
//!
//! The manifest turns the copy into a backup. So it is written after everything that it names is durable, including
//! the names of files and folders; and never after the data folder was closed, because then another process may
//! change the files that are being copied.

use std::collections::BTreeSet;
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

/// A snapshot of a log.
pub(in crate::embedded) struct Captured {
    /// All segments; the last is the newest.
    pub segments: Vec<Arc<Segment>>,
    pub end: End,
}

/// Copies `folder` to `target`, which is empty or does not exist.
pub(in crate::embedded) fn back_up(folder: &Folder, target: &Path) -> Result<Backup, BrokerError> {
    let Ok(_one_at_a_time) = folder.backing_up.try_write() else {
        let what = "another backup of the data folder is being made, or a group is being forgotten; wait until that is done";
        return Err(BrokerError::Backup(what.to_owned()));
    };
    let made = prepare(folder.root(), target)?;
    copy_to(folder, target, made, &sync)
}

/// Makes the names in a folder durable.
type Sync<'a> = &'a dyn Fn(&Path) -> Result<(), Failure>;

/// Copies to a folder that was found empty. `made` are the folders that this backup made for it.
fn copy_to(
    folder: &Folder,
    target: &Path,
    made: Vec<PathBuf>,
    sync: Sync<'_>,
) -> Result<Backup, BrokerError> {
    let mut copy = Copy {
        folder,
        target,
        manifest: Manifest::default(),
        backup: Backup::default(),
        made: Vec::new(),
        unsynced: BTreeSet::new(),
        sync,
    };
    made.into_iter().for_each(|dir| copy.made(dir));
    let copied = copy.all();
    if copied.is_err() {
        copy.remove();
    }
    copied.map(|()| copy.backup).map_err(|failure| BrokerError::Backup(failure.to_string()))
}

/// Makes the folder `target` if it does not exist, and returns the folders that were made.
fn prepare(root: &Path, target: &Path) -> Result<Vec<PathBuf>, BrokerError> {
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
        Ok(true) => Ok(Vec::new()),
        Ok(false) => refused("the folder is not empty; name one that is, or that is not there yet"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut made = Vec::new();
            make_folder(target, &mut |dir| made.push(dir.to_owned()))
                .map_err(|failure| BrokerError::Backup(failure.to_string()))?;
            Ok(made)
        }
        Err(error) => refused(&error.to_string()),
    }
}

/// Makes a folder and its missing parents, and reports each.
fn make_folder(dir: &Path, made: &mut dyn FnMut(&Path)) -> Result<(), Failure> {
    if let Some(above) = dir.parent().filter(|above| !above.exists()) {
        make_folder(above, made)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Failure::io(Action::CreateFolder, dir)(error)),
        Ok(()) => {
            made(dir);
            Ok(())
        }
    }
}

struct Copy<'a> {
    folder: &'a Folder,
    target: &'a Path,
    manifest: Manifest,
    backup: Backup,
    /// Files and folders that this backup made. Others belong to another backup that also found the folder empty.
    made: Vec<PathBuf>,
    /// Folders with new names that a power cut could still remove.
    unsynced: BTreeSet<PathBuf>,
    sync: Sync<'a>,
}

impl Copy<'_> {
    fn all(&mut self) -> Result<(), Failure> {
        let folder = self.folder;
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

    /// Removes what this backup made: an unfinished backup is useless, and its size may be what fills the disk.
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

    /// Remembers a file or folder that this backup made.
    fn made(&mut self, path: PathBuf) {
        self.unsynced.extend(path.parent().map(Path::to_owned));
        self.made.push(path);
    }

    /// An error once the folder is closed: from then on another process may free and change the files being copied.
    fn check_open(&self) -> io::Result<()> {
        match *self.folder.closed.borrow() {
            true => Err(io::Error::other("the data folder was closed before the backup was done")),
            false => Ok(()),
        }
    }

    fn file(&mut self, path: &Path) -> io::Result<File> {
        self.check_open()?;
        let file = new_file(path)?;
        self.made(path.to_owned());
        Ok(file)
    }

    fn log(&mut self, name: &str, captured: &Captured) -> Result<(), Failure> {
        let dir = self.target.join(name);
        make_folder(&dir, &mut |dir| self.made(dir.to_owned()))?;
        let Some((newest, full)) = captured.segments.split_last() else {
            return Ok(());
        };
        for segment in full {
            let to = self.target_of(&segment.path);
            self.check_open().map_err(Failure::io(Action::Write, &to))?;
            let linked = fs::hard_link(&segment.path, &to).is_ok();
            if linked {
                self.made(to.clone());
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
        self.add(&to, false)
    }

    /// Copies a small file, which is always replaced as a whole.
    fn small(&mut self, name: &str) -> Result<(), Failure> {
        let from = self.folder.root().join(name);
        let bytes = fs::read(&from).map_err(Failure::io(Action::Read, &from))?;
        let to = self.target.join(name);
        self.write_new(&to, &bytes)?;
        self.add(&to, false)
    }

    fn target_of(&self, path: &Path) -> PathBuf {
        self.target.join(path.strip_prefix(self.folder.root()).unwrap_or(path))
    }

    /// Copies the first `bytes` bytes of a file, and gives the copy the length `length`.
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

    /// Writes the manifest, after everything that it names is durable.
    fn finish(&mut self) -> Result<(), Failure> {
        self.sync_names()?;
        let (new, path) = (self.target.join("manifest.new"), self.target.join(manifest::NAME));
        let text = self.manifest.encode();
        self.write_new(&new, text.as_bytes())?;
        let renamed = self.check_open().and_then(|()| fs::rename(&new, &path));
        renamed.map_err(Failure::io(Action::Rename, &new))?;
        self.made(path);
        self.sync_names()
    }

    /// Makes the names of everything that was made durable, including those of folders above the target.
    fn sync_names(&mut self) -> Result<(), Failure> {
        for dir in std::mem::take(&mut self.unsynced) {
            match (self.sync)(&dir) {
                // A folder above the target that may be written but not read cannot be synced here; its owner has to.
                Err(Failure::Io { kind: io::ErrorKind::PermissionDenied, .. })
                    if !dir.starts_with(self.target) => {}
                synced => synced?,
            }
        }
        Ok(())
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
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    use futures_util::FutureExt;

    use super::*;
    use crate::contract::{Broker, JournalName, LogKind, TopicSpec};
    use crate::embedded::Embedded;
    use crate::embedded::disk::RealDisk;
    use crate::embedded::options::Options;

    fn files(dir: &Path) -> u64 {
        let entries = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
    }

    /// Runs a call to its end without threads.
    fn run<T>(broker: &Embedded, mut call: impl Future<Output = T> + Unpin) -> T {
        loop {
            if let Some(done) = (&mut call).now_or_never() {
                return done;
            }
            broker.commit_once();
        }
    }

    fn names(dir: &Path) -> BTreeSet<OsString> {
        let entries = fs::read_dir(dir).expect("a folder");
        entries.map(|entry| entry.expect("an entry").file_name()).collect()
    }

    /// P1: a power cut removes no file of a finished backup, and no folder that the backup made.
    #[test]
    fn every_name_that_a_backup_made_is_durable_when_it_is_done() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&dir.path().join("data"), Options::default()).expect("a new folder");
        let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
        folder.create_topic("orders", &spec).expect("a new topic");
        let target = dir.path().join("a/backup");
        let made = prepare(folder.root(), &target).expect("it is not there yet");
        let synced = RefCell::new(BTreeMap::new());
        let record = |dir: &Path| {
            synced.borrow_mut().insert(dir.to_owned(), names(dir));
            sync(dir)
        };
        copy_to(&folder, &target, made, &record).expect("it is empty");
        let within = ["", "journals", "holds", "topics", "topics/orders"].map(|name| target.join(name));
        for dir in within.into_iter().chain([dir.path().to_owned(), dir.path().join("a")]) {
            assert_eq!(synced.borrow().get(&dir), Some(&names(&dir)), "{}", dir.display());
        }
    }

    /// P1: a folder that was closed may be in use by another process, which frees and changes the files being copied.
    #[test]
    fn a_folder_that_is_closed_before_its_backup_is_done_has_none() {
        let dir = tempfile::tempdir().expect("a folder");
        let open = || Folder::open(&dir.path().join("data"), Options::default()).expect("nobody has it");
        let target = dir.path().join("backup");
        let folder = open();
        let made = prepare(folder.root(), &target).expect("it is not there yet");
        let close = |dir: &Path| {
            folder.close();
            sync(dir)
        };
        let late = copy_to(&folder, &target, made, &close);
        assert!(matches!(&late, Err(BrokerError::Backup(said)) if said.contains("closed")), "{late:?}");
        assert!(!target.exists());
        let later = back_up(&folder, &target);
        assert!(matches!(&later, Err(BrokerError::Backup(said)) if said.contains("closed")), "{later:?}");
        assert!(!target.exists());
        back_up(&open(), &target).expect("it is open");
    }

    /// P1: of two backups that found the same folder empty, the later one removes only what it made itself.
    #[test]
    fn a_backup_that_fails_leaves_what_another_one_made() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&dir.path().join("data"), Options::default()).expect("a new folder");
        let target = dir.path().join("backup");
        let made = prepare(folder.root(), &target).expect("it is not there yet");
        assert_eq!(made, std::slice::from_ref(&target));
        let won = back_up(&folder, &target).expect("it is empty");
        let lost = copy_to(&folder, &target, made, &sync);
        assert!(matches!(lost, Err(BrokerError::Backup(_))), "{lost:?}");
        assert_eq!(files(&target), won.files + 1, "all that the manifest names, and the manifest");
    }

    /// Bad input: a failed backup removes what it made, including the folder.
    #[test]
    fn a_backup_that_fails_takes_back_what_it_made() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&dir.path().join("data"), Options::default()).expect("a new folder");
        let target = dir.path().join("a/backup");
        let made = prepare(folder.root(), &target).expect("it is not there yet");
        fs::create_dir_all(target.join("holds")).expect("a folder");
        fs::write(target.join("holds/end"), "in the way").expect("a file");
        assert!(copy_to(&folder, &target, made, &sync).is_err());
        assert_eq!(files(&target), 1, "what was in the way");
    }

    /// Bad input: the second of two backups is refused at once.
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

    /// BRK-6, P1: a group is forgotten as a whole or not at all, whatever backup begins meanwhile; and a backup
    /// contains the group as a whole or not at all.
    #[test]
    fn a_group_is_not_forgotten_while_a_backup_is_made_nor_the_other_way_round() {
        let dir = tempfile::tempdir().expect("a folder");
        // Without threads, a call that has begun stays under way until the test commits.
        let options = Options::simulated(Arc::new(RealDisk), Arc::new(|| 1), 1);
        let broker = Embedded::open(dir.path().join("data"), options).expect("a new folder");
        let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
        run(&broker, broker.create_topic("orders", &spec)).expect("a new topic");
        let record = |kind| {
            let name = JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind };
            let journal = run(&broker, broker.journal(&name)).expect("a journal");
            run(&broker, journal.append("record".into(), None))
        };
        for kind in [LogKind::Journal, LogKind::Hold] {
            assert_eq!(record(kind), Ok(0));
        }
        {
            let _backup = broker.folder.backing_up.try_write().expect("nobody has it");
            let refused = run(&broker, broker.forget_group("group", "orders"));
            assert!(
                matches!(&refused, Err(BrokerError::Unavailable(why)) if why.contains("backup")),
                "{refused:?}"
            );
        }
        for kind in [LogKind::Journal, LogKind::Hold] {
            assert_eq!(record(kind), Ok(1), "nothing of it was forgotten");
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
            assert_eq!(run(&broker, forgotten), Ok(true));
        }
        back_up(&broker.folder, &target).expect("it is done");
    }
}
