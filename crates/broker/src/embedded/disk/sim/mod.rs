//! A simulated disk in memory, which can lose what was not synced, and fail in the ways in which disks fail.
//!
//! Synced bytes are kept apart from written bytes. A power cut keeps any subset of the unsynced 512-byte sectors, in
//! any order, may tear some of them at any byte, and keeps any subset of the unsynced changes of names. Every kind of
//! operation can fail ([`Fault`]). After a failed sync the bytes are in the cache alone, as on Linux, and no later
//! sync reports it. Space and descriptors can run out. Between two runs a test can change, cut and remove files. All
//! chance comes from a seed, so a run can be repeated.

mod fault;
mod files;

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use keylane_core::random;

pub use self::fault::Fault;
use self::files::{Descriptor, SimDir, SimFile, SimLock};
use super::{Disk, DiskDir, DiskFile};
use crate::embedded::lock;

/// Disks write a sector as a whole or not at all, except for a sector that is being written when the power goes.
const SECTOR: u64 = 512;

/// A disk in memory. All clones share the same state.
#[derive(Debug, Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    random: u64,
    /// Rises with each restart. Handles from an earlier life fail.
    life: u64,
    running: bool,
    operations: u64,
    stop_at: Option<u64>,
    /// For each fault, how many operations still succeed, and how many then fail.
    faults: BTreeMap<Fault, (u32, u32)>,
    /// How many operations have failed because of a fault or a limit.
    met: u64,
    descriptors: u64,
    descriptors_max: Option<u64>,
    read_only: bool,
    space: Option<u64>,
    used: u64,
    locked: bool,
    next_inode: u64,
    files: BTreeMap<u64, Contents>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    unsynced_names: Vec<NameChange>,
}

#[derive(Debug, Default)]
struct Contents {
    durable: Vec<u8>,
    current: Vec<u8>,
    unsynced: Vec<(u64, Vec<u8>)>,
    /// Ranges of bytes (first, behind the last) that cannot be read.
    spoiled: Vec<(u64, u64)>,
}

/// A change of names in `dir`: the name `from` disappears, the name `to` appears.
#[derive(Debug, Clone)]
struct NameChange {
    dir: PathBuf,
    from: Option<PathBuf>,
    to: Option<(PathBuf, u64)>,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> SimDisk {
        let state = State {
            random: seed,
            life: 0,
            running: true,
            operations: 0,
            stop_at: None,
            faults: BTreeMap::new(),
            met: 0,
            descriptors: 0,
            descriptors_max: None,
            read_only: false,
            space: None,
            used: 0,
            locked: false,
            next_inode: 1,
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
        };
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Makes all further operations fail, as for a process that has ended.
    pub fn stop(&self) {
        lock(&self.state).running = false;
    }

    /// Makes everything fail after this many more writes, syncs and changes of names.
    pub fn stop_after(&self, operations: u64) {
        let mut state = lock(&self.state);
        state.stop_at = Some(state.operations + operations);
    }

    /// Works again, with everything that was written: only the process had ended.
    pub fn restart_after_kill(&self) {
        lock(&self.state).restart();
    }

    /// Works again, with everything that was synced and a random part of the rest.
    pub fn restart_after_power_cut(&self) {
        let mut state = lock(&self.state);
        state.lose_unsynced();
        state.restart();
    }

    /// Makes the next `count` operations of this kind fail.
    pub fn fail(&self, fault: Fault, count: u32) {
        self.fail_after(fault, 0, count);
    }

    /// Lets `skipped` more operations of this kind succeed, and then makes `count` of them fail.
    pub fn fail_after(&self, fault: Fault, skipped: u32, count: u32) {
        lock(&self.state).faults.insert(fault, (skipped, count));
    }

    /// Removes all faults and limits that are still pending.
    pub fn heal(&self) {
        let mut state = lock(&self.state);
        state.faults.clear();
        (state.space, state.descriptors_max) = (None, None);
    }

    /// How many operations have failed because the test asked for it.
    pub fn faults_met(&self) -> u64 {
        lock(&self.state).met
    }

    /// Limits how many files and folders may be open at a time; `None`: no limit.
    pub fn set_descriptors(&self, most: Option<u64>) {
        lock(&self.state).descriptors_max = most;
    }

    /// Makes the disk read-only, or writable again.
    pub fn set_read_only(&self, read_only: bool) {
        lock(&self.state).read_only = read_only;
    }

    /// How many files and folders are open.
    pub fn descriptors(&self) -> u64 {
        lock(&self.state).descriptors
    }

    /// Limits the bytes of all files together; `None`: no limit.
    pub fn set_space(&self, space: Option<u64>) {
        lock(&self.state).space = space;
    }

    /// The bytes of all files together.
    pub fn used(&self) -> u64 {
        lock(&self.state).used
    }

    /// Writes, syncs and changes of names so far.
    pub fn operations(&self) -> u64 {
        lock(&self.state).operations
    }

    /// The paths of all files, sorted.
    pub fn paths(&self) -> Vec<PathBuf> {
        let state = lock(&self.state);
        let files = state.names.iter().filter(|(_, inode)| **inode != 0);
        files.map(|(path, _)| path.clone()).collect()
    }

    /// The contents of a file, if it exists.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        let state = lock(&self.state);
        let inode = state.names.get(path)?;
        state.files.get(inode).map(|file| file.current.clone())
    }

    /// Removes a file durably, without the broker's knowledge.
    pub fn lose(&self, path: &Path) {
        let mut state = lock(&self.state);
        state.settle_names();
        state.names.remove(path);
        state.durable_names.remove(path);
    }

    /// Puts a file there durably, without the broker's knowledge.
    pub fn put_file(&self, path: &Path, bytes: Vec<u8>) {
        let mut state = lock(&self.state);
        state.settle_names();
        let inode = state.next_inode;
        state.next_inode += 1;
        state.used += bytes.len() as u64;
        let file = Contents { durable: bytes.clone(), current: bytes, ..Contents::default() };
        state.files.insert(inode, file);
        state.names.insert(path.to_owned(), inode);
        state.durable_names.insert(path.to_owned(), inode);
    }

    /// Replaces the contents of a file durably, without the broker's knowledge.
    pub fn set_contents(&self, path: &Path, bytes: Vec<u8>) {
        let mut state = lock(&self.state);
        let inode = state.names.get(path).copied().unwrap_or_default();
        if let Some(file) = state.files.get_mut(&inode) {
            file.durable.clone_from(&bytes);
            file.current = bytes;
            file.unsynced.clear();
        }
    }
}

impl State {
    fn restart(&mut self) {
        self.life += 1;
        self.running = true;
        self.stop_at = None;
        self.faults.clear();
        self.descriptors = 0;
        self.locked = false;
    }

    /// Counts a write, sync or change of names; an error once the process or the power is gone.
    fn operate(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.stop_at.is_some_and(|at| self.operations > at) {
            self.running = false;
        }
        self.alive()?;
        self.writable()
    }

    fn writable(&self) -> io::Result<()> {
        match self.read_only {
            false => Ok(()),
            true => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        }
    }

    /// An error if the test wants an operation of this kind to fail now.
    fn meet(&mut self, fault: Fault) -> io::Result<()> {
        let Some((skipped, count)) = self.faults.get_mut(&fault) else {
            return Ok(());
        };
        if *skipped > 0 {
            *skipped -= 1;
            return Ok(());
        }
        if *count == 0 {
            return Ok(());
        }
        *count -= 1;
        self.met += 1;
        Err(fault.error())
    }

    /// Counts one more open file or folder; an error if the limit is reached.
    fn descriptor(&mut self) -> io::Result<()> {
        if self.descriptors_max.is_some_and(|most| self.descriptors >= most) {
            self.met += 1;
            return Err(Fault::Open.error());
        }
        self.descriptors += 1;
        Ok(())
    }

    fn alive(&self) -> io::Result<()> {
        match self.running {
            true => Ok(()),
            false => Err(io::Error::other("the simulated machine is off")),
        }
    }

    fn random(&mut self) -> u64 {
        random::next(&mut self.random)
    }

    fn lose_unsynced(&mut self) {
        // Some power cuts lose everything unsynced, some nothing, most of them a part.
        let kept_percent = [0, 20, 50, 80, 100][(self.random() % 5) as usize];
        let inodes: Vec<u64> = self.files.keys().copied().collect();
        for inode in inodes {
            let Some(mut file) = self.files.remove(&inode) else {
                continue;
            };
            for (offset, bytes) in std::mem::take(&mut file.unsynced) {
                self.lose_sectors(&mut file.durable, offset, &bytes, kept_percent);
            }
            file.current.clone_from(&file.durable);
            self.files.insert(inode, file);
        }
        for change in std::mem::take(&mut self.unsynced_names) {
            if self.random() % 100 < kept_percent {
                apply(&mut self.durable_names, &change);
            }
        }
        // A file is lost if its folder is. The names are sorted, so a folder comes before its contents.
        self.names.clear();
        for (path, inode) in &self.durable_names {
            let above = parent(path);
            if above == Path::new(".") || above == Path::new("/") || self.names.contains_key(&above) {
                self.names.insert(path.clone(), *inode);
            }
        }
        self.durable_names.clone_from(&self.names);
        let named: std::collections::BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|inode, _| named.contains(inode));
        self.used = self.files.values().map(|file| file.current.len() as u64).sum();
    }

    fn lose_sectors(&mut self, durable: &mut Vec<u8>, offset: u64, bytes: &[u8], kept_percent: u64) {
        let mut at = 0;
        while at < bytes.len() {
            let room = (SECTOR - (offset + at as u64) % SECTOR) as usize;
            let length = room.min(bytes.len() - at);
            let kept = match self.random() % 100 {
                roll if roll >= kept_percent => 0,
                // One in eight of the kept sectors is torn.
                _ if kept_percent < 100 && self.random().is_multiple_of(8) => {
                    (self.random() % (length as u64 + 1)) as usize
                }
                _ => length,
            };
            put(durable, offset + at as u64, &bytes[at..at + kept]);
            at += length;
        }
    }

    /// Makes all names durable, so that a later power cut does not undo a change made without the broker's knowledge.
    fn settle_names(&mut self) {
        for change in std::mem::take(&mut self.unsynced_names) {
            apply(&mut self.durable_names, &change);
        }
    }

    fn change_name(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.unsynced_names.push(change);
    }
}

fn apply(names: &mut BTreeMap<PathBuf, u64>, change: &NameChange) {
    if let Some(from) = &change.from {
        names.remove(from);
    }
    if let Some((to, inode)) = &change.to {
        names.insert(to.clone(), *inode);
    }
}

fn put(out: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let behind = offset as usize + bytes.len();
    if bytes.is_empty() {
        return;
    }
    if out.len() < behind {
        out.resize(behind, 0);
    }
    out[offset as usize..behind].copy_from_slice(bytes);
}

fn parent(path: &Path) -> PathBuf {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    above.unwrap_or(Path::new(".")).to_owned()
}

impl Disk for SimDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.operate()?;
        if state.names.contains_key(dir) {
            return Ok(());
        }
        state.change_name(NameChange { dir: parent(dir), from: None, to: Some((dir.to_owned(), 0)) });
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = lock(&self.state);
        state.alive()?;
        if !state.names.contains_key(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let within = state.names.keys().filter(|path| path.parent() == Some(dir));
        let names = within.filter_map(|path| path.file_name());
        Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = lock(&self.state);
        state.alive()?;
        state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        state.writable()?;
        drop(state);
        self.open_to_read(path)
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = lock(&self.state);
        state.alive()?;
        let inode = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        state.meet(Fault::Open)?;
        state.descriptor()?;
        let descriptor = Descriptor { disk: self.clone(), life: state.life };
        Ok(Arc::new(SimFile { descriptor, inode }))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = lock(&self.state);
        state.operate()?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.meet(Fault::Create)?;
        state.descriptor()?;
        let inode = state.next_inode;
        state.next_inode += 1;
        state.files.insert(inode, Contents::default());
        state.change_name(NameChange { dir: parent(path), from: None, to: Some((path.to_owned(), inode)) });
        let descriptor = Descriptor { disk: self.clone(), life: state.life };
        Ok(Arc::new(SimFile { descriptor, inode }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.operate()?;
        let inode = *state.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        state.meet(Fault::Rename)?;
        if let Some(replaced) = state.names.get(to).copied() {
            state.used -= state.files.get(&replaced).map_or(0, |file| file.current.len() as u64);
        }
        state.change_name(NameChange {
            dir: parent(to),
            from: Some(from.to_owned()),
            to: Some((to.to_owned(), inode)),
        });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.alive()?;
        let inode = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        state.operate()?;
        state.meet(Fault::Remove)?;
        state.used -= state.files.get(&inode).map_or(0, |file| file.current.len() as u64);
        state.change_name(NameChange { dir: parent(path), from: Some(path.to_owned()), to: None });
        Ok(())
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn DiskDir>> {
        let mut state = lock(&self.state);
        state.alive()?;
        if dir != Path::new(".") && !state.names.contains_key(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.meet(Fault::Open)?;
        state.descriptor()?;
        let descriptor = Descriptor { disk: self.clone(), life: state.life };
        Ok(Arc::new(SimDir { descriptor, dir: dir.to_owned() }))
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let state = lock(&self.state);
        state.alive()?;
        Ok(state.space.map_or(u64::MAX, |space| space.saturating_sub(state.used)))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        lock(&self.state).writable()?;
        self.lock_to_read(path)
    }

    fn lock_to_read(&self, _path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let mut state = lock(&self.state);
        state.alive()?;
        if std::mem::replace(&mut state.locked, true) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock { disk: self.clone(), life: state.life }))
    }
}
