//! The handles that a simulated disk gives out: open files, open folders and the lock.

use std::io;
use std::path::{Path, PathBuf};

use super::{Fault, SimDisk, State, apply, put};
use crate::embedded::disk::{DiskDir, DiskFile};
use crate::embedded::lock;

impl SimDisk {
    /// Makes these bytes of a file unreadable (EIO) until a write covers them.
    pub fn spoil(&self, path: &Path, offset: u64, bytes: u64) {
        let mut state = lock(&self.state);
        let inode = state.names.get(path).copied().unwrap_or_default();
        if let Some(file) = state.files.get_mut(&inode) {
            file.spoiled.push((offset, offset + bytes));
        }
    }
}

pub(super) struct SimLock {
    pub disk: SimDisk,
    pub life: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = lock(&self.disk.state);
        if state.life == self.life {
            state.locked = false;
        }
    }
}

/// One open file or folder, which counts against the limit. After a restart the count begins at zero.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub disk: SimDisk,
    pub life: u64,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let mut state = lock(&self.disk.state);
        if state.life == self.life {
            state.descriptors -= 1;
        }
    }
}

#[derive(Debug)]
pub(super) struct SimDir {
    pub descriptor: Descriptor,
    pub dir: PathBuf,
}

impl DiskDir for SimDir {
    fn sync(&self) -> io::Result<()> {
        let mut state = lock(&self.descriptor.disk.state);
        if state.life != self.descriptor.life {
            return Err(io::Error::other("opened before the simulated machine went off"));
        }
        state.operate()?;
        state.meet(Fault::SyncFolder)?;
        let changes = std::mem::take(&mut state.unsynced_names);
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.dir == self.dir);
        state.unsynced_names = elsewhere;
        here.iter().for_each(|change| apply(&mut state.durable_names, change));
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct SimFile {
    pub descriptor: Descriptor,
    pub inode: u64,
}

impl SimFile {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = lock(&self.descriptor.disk.state);
        state.alive()?;
        if state.life != self.descriptor.life || !state.files.contains_key(&self.inode) {
            return Err(io::Error::other("opened before the simulated machine went off"));
        }
        work(&mut state)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|state| {
            state.meet(Fault::Read)?;
            let file = &state.files[&self.inode];
            let behind = offset + out.len() as u64;
            if file.spoiled.iter().any(|(first, end)| *first < behind && offset < *end) {
                return Err(Fault::Read.error());
            }
            let from = offset as usize;
            let bytes = file.current.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(|state| {
            state.writable()?;
            // The write during which the machine goes off may have stored its bytes, too.
            let alive = state.operate();
            let length = state.files[&self.inode].current.len() as u64;
            let growth = (offset + bytes.len() as u64).saturating_sub(length);
            let left = state.space.map_or(u64::MAX, |space| space.saturating_sub(state.used));
            let mut short = growth.saturating_sub(left) as usize;
            let met = state.meet(Fault::ShortWrite);
            if met.is_err() {
                short = short.max(1 + (state.random() % bytes.len().max(1) as u64) as usize);
            }
            let landed = &bytes[..bytes.len() - short.min(bytes.len())];
            if let Some(file) = state.files.get_mut(&self.inode) {
                put(&mut file.current, offset, landed);
                let behind = offset + landed.len() as u64;
                file.spoiled.retain(|(first, end)| *first < offset || *end > behind);
                file.unsynced.push((offset, landed.to_vec()));
                state.used += file.current.len() as u64 - length;
            }
            alive?;
            met?;
            state.meet(Fault::RefusedWrite)?;
            match short {
                0 => Ok(()),
                _ => Err(io::ErrorKind::StorageFull.into()),
            }
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|state| {
            state.operate()?;
            let met = state.meet(Fault::Sync);
            if let Some(file) = state.files.get_mut(&self.inode) {
                // Also if the sync fails: the kernel marks the pages as clean, a later sync succeeds without writing
                // them, and reads get them from the cache until the power goes.
                let unsynced = std::mem::take(&mut file.unsynced);
                met?;
                for (offset, bytes) in unsynced {
                    put(&mut file.durable, offset, &bytes);
                }
            }
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|state| Ok(state.files[&self.inode].current.len() as u64))
    }
}
