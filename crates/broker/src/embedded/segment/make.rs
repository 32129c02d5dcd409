//! Makes the files of a log: its folder, its first segment, and the zeroed files that later become segments.
//!
//! Making a log never touches files that are not Keylane's, and never replaces a segment that holds a batch. A
//! segment with batches shows that the log was in use and that only the file naming its owner is missing; a new log
//! would delete messages.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::appender::{Appender, Sizes};
use super::bytes::{ALIGN, ReadHeader, Segment, SegmentHeader, Table, segment_number, segment_path};
use super::end::{self, End};
use super::scan::{Extent, scan};
use crate::embedded::disk::{DiskDir, DiskFile};
use crate::embedded::failure::{Action, Failure};
use crate::embedded::lock;
use crate::embedded::options::Host;

/// Zeros are written and synced in pieces of this size. With larger pieces, the syncs for which producers wait would
/// queue behind many dirty pages.
const ZEROS: usize = 1 << 20;
/// Prefix of the names of files that wait to become segments.
pub(in crate::embedded) const SPARE: &str = "spare-";
/// Name of the file that becomes a log's first segment. No other spare can exist then.
pub(super) const SPARE_NEW: &str = "spare-new";
/// The file that the last step of making a topic writes, and its name until it is complete.
const TOPIC: &str = "topic";
const TOPIC_NEW: &str = "topic.new";

/// Makes a new log with one empty segment. Removes what an earlier, interrupted try left in the folder.
pub(crate) fn create(
    host: &Host,
    dir: &Path,
    log: u128,
    sizes: Sizes,
    table: Table,
) -> Result<Appender, Failure> {
    make_dir(host, dir)?;
    clear(host, dir)?;
    let handle = host.disk.open_dir(dir).map_err(Failure::io(Action::Open, dir))?;
    handle.sync().map_err(Failure::io(Action::Sync, dir))?;
    let spare = make_zeroed(host, dir.join(SPARE_NEW), planned(sizes, 1), sizes.reserve)?;
    let place = Place { host, dir, handle: &*handle, log };
    let active = place.name(&spare, &table, NewSegment { number: 1, previous_end: 0, group: 0 })?;
    Ok(Appender {
        host: host.clone(),
        dir: dir.to_owned(),
        handle,
        log,
        sizes,
        table,
        end: active.first,
        active,
        file: spare.file,
        group: 0,
        retired: VecDeque::new(),
        spares: Vec::new(),
        spare_number: 0,
        preparing: None,
        full: None,
        recorded: true,
    })
}

/// Removes the files of an interrupted try. An error if the folder holds messages or a topic.
fn clear(host: &Host, dir: &Path) -> Result<(), Failure> {
    let names = host.disk.list(dir).map_err(Failure::io(Action::List, dir))?;
    let is_ours = |name: &str| {
        segment_number(name).is_some()
            || name.starts_with(SPARE)
            || [end::NAME, end::NEW_NAME, TOPIC_NEW].contains(&name)
    };
    let all = host.flaw(|flaws| flaws.clear_the_folder);
    check_names(host, dir, &names)?;
    for name in names.iter().filter(|name| all || is_ours(name)) {
        let path = dir.join(name);
        host.disk.remove(&path).map_err(Failure::io(Action::Remove, &path))?;
    }
    Ok(())
}

/// An error if the folder holds a log that was in use. A caller that makes several logs checks all folders first,
/// because otherwise the first log would already be replaced when the second one refuses.
pub(crate) fn check_unused(host: &Host, dir: &Path) -> Result<(), Failure> {
    match host.disk.list(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        names => check_names(host, dir, &names.map_err(Failure::io(Action::List, dir))?),
    }
}

fn check_names(host: &Host, dir: &Path, names: &[String]) -> Result<(), Failure> {
    if host.flaw(|flaws| flaws.clear_the_folder) {
        return Ok(());
    }
    // On a file system that ignores case, the folder of the new topic `Orders` is the folder of the topic `orders`.
    if names.iter().any(|name| name == TOPIC) {
        let what =
            "a topic is here already, perhaps under a name with other capitals; no new one is made over it";
        return Err(Failure::damaged(&dir.join(TOPIC), 0, what));
    }
    names.iter().filter_map(|name| segment_number(name)).try_for_each(|number| is_unused(host, dir, number))
}

/// An error if the segment may hold data. An interrupted try leaves only a first segment without a batch.
fn is_unused(host: &Host, dir: &Path, number: u64) -> Result<(), Failure> {
    let path = segment_path(dir, number);
    let used = |what: &str| {
        let what = format!(
            "{what}, but the file that says whose it is (`topic` beside it, or `broker` in the data folder) is missing"
        );
        Err(Failure::damaged(&path, 0, what))
    };
    if number != 1 {
        return used("this is a segment of a log that was in use");
    }
    let file = host.disk.open(&path).map_err(Failure::io(Action::Open, &path))?;
    let header = SegmentHeader::read(&*file).map_err(Failure::io(Action::Read, &path))?;
    let ReadHeader::Good(header, first) = header else {
        return used("this segment cannot be read");
    };
    let segment = Segment {
        number,
        generation: header.generation,
        path: path.clone(),
        capacity: file.len().map_err(Failure::io(Action::Read, &path))?,
        first: first as u64,
        disk: Arc::clone(&host.disk),
        newest: Mutex::new(None),
    };
    let scanned = scan(&segment, &*file, Extent::Open, None, |_, _, _| Ok(()))?;
    match scanned.end == segment.first && scanned.cut.batches == 0 {
        true => Ok(()),
        false => used("this segment holds messages or records"),
    }
}

/// A zeroed file that waits to become a segment.
pub(super) struct Spare {
    pub path: PathBuf,
    pub file: Arc<dyn DiskFile>,
    pub capacity: u64,
}

/// Number and predecessor of the segment that is about to be made.
pub(super) struct NewSegment {
    pub number: u64,
    pub previous_end: u64,
    /// The last sync group that was given out.
    pub group: u64,
}

/// The log in whose folder a segment is made.
pub(super) struct Place<'a> {
    pub host: &'a Host,
    pub dir: &'a Path,
    pub handle: &'a dyn DiskDir,
    pub log: u128,
}

impl Place<'_> {
    /// Turns a spare file into the next segment and records it in the file `end`. The order keeps the rules of `end`:
    /// steps that can fail on a full disk come before the segment gets its name, and the record becomes durable last.
    pub fn name(&self, spare: &Spare, table: &Table, new: NewSegment) -> Result<Arc<Segment>, Failure> {
        let Place { host, dir, handle, log } = *self;
        let NewSegment { number, previous_end, group } = new;
        let (generation, capacity) = (host.entropy.u64()?, spare.capacity);
        let header = SegmentHeader { generation, number, previous_end, log, capacity, table: table.clone() };
        let bytes = header.encode();
        let first = bytes.len() as u64;
        spare.file.write_at(&bytes, 0).map_err(Failure::io(Action::Write, &spare.path))?;
        // Writes the last bytes too, to make the length durable: a failed sync while the file was zeroed, in this
        // process or an earlier one, may have left that length in the page cache alone. The bytes in between need not
        // be zero.
        let last = capacity.saturating_sub(ALIGN as u64).max(first);
        let zeros = [0; ALIGN];
        let behind = &zeros[..capacity.saturating_sub(last).min(ALIGN as u64) as usize];
        spare.file.write_at(behind, last).map_err(Failure::io(Action::Write, &spare.path))?;
        spare.file.sync_data().map_err(Failure::io(Action::Sync, &spare.path))?;
        End { log, segment: number, capacity, end: first, group, closed: false }.prepare(host, dir)?;
        let path = segment_path(dir, number);
        host.disk.rename(&spare.path, &path).map_err(Failure::io(Action::Rename, &spare.path))?;
        handle.sync().map_err(Failure::io(Action::Sync, dir))?;
        end::publish(host, dir, handle)?;
        let newest = Mutex::new(Some(Arc::clone(&spare.file)));
        let disk = Arc::clone(&host.disk);
        Ok(Arc::new(Segment { number, generation, path, capacity, first, disk, newest }))
    }
}

/// Makes a file of zeros. The zeros are really written: the first write to a reserved block doubles the cost of its
/// sync.
pub(super) fn make_zeroed(host: &Host, path: PathBuf, capacity: u64, reserve: u64) -> Result<Spare, Failure> {
    let mut room = Room::take(host, &path, capacity, reserve)?;
    let failed = || Failure::io(Action::Make, &path);
    // A file of that name, left by a power cut, may be short.
    match host.disk.remove(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed()(error)),
        _ => {}
    }
    let file = host.disk.create(&path).map_err(failed())?;
    let filled = fill(&*file, capacity, &mut room);
    if let Err(error) = filled {
        let failure = failed()(error);
        // Removes the partial file to free its space: the disk may just have become full.
        host.disk.remove(&path).map_err(failed())?;
        return Err(failure);
    }
    Ok(Spare { path, file, capacity })
}

/// An error if the disk has no room for the file beside `reserve`. Asked before the first byte is written: filling
/// the disk and removing the file again would starve every other program on the disk at each try.
pub(super) fn check_space(host: &Host, path: &Path, capacity: u64, reserve: u64) -> Result<(), Failure> {
    has_room(host, path, capacity, reserve, *lock(&host.promised))
}

fn has_room(host: &Host, path: &Path, capacity: u64, reserve: u64, promised: u64) -> Result<(), Failure> {
    // If the file system does not report its free space, the file is tried.
    let free = host.disk.free_bytes(path.parent().unwrap_or(path)).unwrap_or(u64::MAX);
    let free = free.saturating_sub(promised);
    if free >= capacity.saturating_add(reserve) {
        return Ok(());
    }
    let kept = match reserve {
        0 => String::new(),
        _ => format!(", and {reserve} are kept free for the journals"),
    };
    let error = format!("the disk has {free} bytes left; {capacity} are needed{kept}");
    Err(Failure::Io { action: Action::Make, path: path.to_owned(), kind: ErrorKind::StorageFull, error })
}

/// Space claimed on the disk for a file that is being made. Bytes not yet written count as taken, because otherwise
/// several logs that make files at once would all claim the same space, and use up the reserve together.
struct Room<'h> {
    host: &'h Host,
    left: u64,
}

impl<'h> Room<'h> {
    fn take(host: &'h Host, path: &Path, capacity: u64, reserve: u64) -> Result<Room<'h>, Failure> {
        let mut promised = lock(&host.promised);
        has_room(host, path, capacity, reserve, *promised)?;
        *promised += capacity;
        Ok(Room { host, left: capacity })
    }

    /// These bytes are written, and the file system now counts them as used.
    fn written(&mut self, bytes: u64) {
        *lock(&self.host.promised) -= bytes;
        self.left -= bytes;
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        *lock(&self.host.promised) -= self.left;
    }
}

fn fill(file: &dyn DiskFile, capacity: u64, room: &mut Room<'_>) -> std::io::Result<()> {
    let zeros = vec![0; ZEROS.min(capacity as usize)];
    let mut at = 0;
    while at < capacity {
        let piece = zeros.len().min((capacity - at) as usize);
        file.write_at(&zeros[..piece], at)?;
        file.sync_data()?;
        room.written(piece as u64);
        at += piece as u64;
    }
    Ok(())
}

pub(super) fn planned(sizes: Sizes, number: u64) -> u64 {
    let doublings = (number - 1).min(16) as u32;
    (sizes.first << doublings).min(sizes.max)
}

/// Makes the names in a folder durable, for a caller that does so only once.
pub(in crate::embedded) fn sync_dir(host: &Host, dir: &Path) -> Result<(), Failure> {
    let handle = host.disk.open_dir(dir).map_err(Failure::io(Action::Open, dir))?;
    handle.sync().map_err(Failure::io(Action::Sync, dir))
}

/// Makes a folder and its missing parents durably: a power cut that removes a folder's name loses all files in it.
pub(in crate::embedded) fn make_dir(host: &Host, dir: &Path) -> Result<(), Failure> {
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty());
    if host.disk.list(dir).is_err() {
        if let Some(above) = above.filter(|above| host.disk.list(above).is_err()) {
            make_dir(host, above)?;
        }
        host.disk.create_dir(dir).map_err(Failure::io(Action::CreateFolder, dir))?;
    }
    // Syncs the parent even if the folder existed: the process that made it may have died before its sync.
    let above = above.unwrap_or(Path::new("."));
    match host.disk.open_dir(above).and_then(|handle| handle.sync()) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        synced => synced.map_err(Failure::io(Action::Sync, dir)),
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::io;

    use super::*;
    use crate::embedded::disk::{Disk, RealDisk};
    use crate::embedded::options::Options;

    type Meanwhile = Box<dyn FnOnce() + Send>;

    /// A disk with a fixed number of free bytes. `meanwhile` runs while the first file is made.
    struct Small {
        free: u64,
        meanwhile: Mutex<Option<Meanwhile>>,
    }

    impl std::fmt::Debug for Small {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Small")
        }
    }

    impl Disk for Small {
        fn create_dir(&self, dir: &Path) -> io::Result<()> {
            RealDisk.create_dir(dir)
        }
        fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
            RealDisk.list(dir)
        }
        fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
            RealDisk.open(path)
        }
        fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
            let meanwhile = lock(&self.meanwhile).take();
            meanwhile.into_iter().for_each(|meanwhile| meanwhile());
            RealDisk.create(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            RealDisk.rename(from, to)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            RealDisk.remove(path)
        }
        fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn DiskDir>> {
            RealDisk.open_dir(dir)
        }
        fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
            Ok(self.free)
        }
        fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
            RealDisk.lock(path)
        }
    }

    /// BRK-1, P10: the reserve for the journals stays free even if several topics make their next segments at once.
    #[test]
    fn files_that_are_made_at_once_leave_together_what_is_kept_free() {
        const CAPACITY: u64 = 64 << 10;
        let dir = tempfile::tempdir().expect("a folder");
        let (first, second) = (dir.path().join("spare-1"), dir.path().join("spare-2"));
        let mut host = Options::default().host;
        // Room for one file and the reserve, but not for two files.
        let disk = Arc::new(Small { free: 2 * CAPACITY + 1000, meanwhile: Mutex::default() });
        host.disk = Arc::clone(&disk) as Arc<dyn Disk>;
        let other = Arc::new(Mutex::new(None));
        let (theirs, result, path) = (host.clone(), Arc::clone(&other), second.clone());
        *lock(&disk.meanwhile) = Some(Box::new(move || {
            *lock(&result) = Some(make_zeroed(&theirs, path, CAPACITY, CAPACITY).map(drop));
        }));
        make_zeroed(&host, first, CAPACITY, CAPACITY).map(drop).expect("room for one");
        let refused = lock(&other).take().expect("another was asked for meanwhile");
        assert!(refused.is_err_and(|failure| failure.is_full() && failure.is_harmless()));
        assert!(!second.exists());
        // The first file is written, and its claim was given back. This disk does not count the written bytes as
        // used.
        make_zeroed(&host, second, CAPACITY, CAPACITY).map(drop).expect("nothing is promised any more");
        assert_eq!(*lock(&host.promised), 0);
    }
}
