//! Writes the end of a log: appends groups of batches, rolls to the next segment, and recycles old files.
//!
//! An `Appender` has one owner and needs no lock. In: batches that the caller has laid out. Out: where they lie, once
//! they are synced. A group that does not fit into the segment is split, and each part is a sync group of its own.
//! Invariants:
//!
//! - A group is written only after the previous group is synced. So at most one group is ever in doubt.
//! - The number of a group is used once, even if the group failed. So bytes that a failed group left on the disk
//!   never count as part of a later group.
//! - The header of a segment is synced before the file gets its name, and a file loses its name, durably, before its
//!   bytes are used again.
//! - The file `end` names a segment durably before anything in the segment is acknowledged (`end`).
//! - A retired segment stays in the list until its file is gone, and the oldest goes first. So neither a power cut
//!   nor a failed step leaves a hole in the log.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::bytes::{BATCH_HEADER, BatchHeader, Kind, Segment, SegmentHeader, Table, apply, stored_bytes};
use super::end::End;
use super::make::{NewSegment, Place, SPARE_NEW, Spare, check_space, make_zeroed, planned};
use crate::embedded::disk::{DiskDir, DiskFile};
use crate::embedded::failure::{Action, Failure};
use crate::embedded::options::Host;
use crate::threads;

/// The name of the thread that makes the next spare.
const SPARE_THREAD: &str = "log-spare";
/// At most this many spare files wait for use; the files of further old segments are removed.
const SPARES_MAX: usize = 2;
/// After a full disk prevented a new file, none is tried again for this long, …
const FULL_WAIT_MS: u64 = 1000;
/// … twice as long after each further failure, up to this bound. Each try may fill the disk for other programs on it.
const FULL_WAIT_MAX_MS: u64 = 60_000;
/// Up to this size the batches of a group are copied together and written by one call: copying costs less than a
/// system call for each batch.
const TOGETHER_BYTES: usize = 128 * 1024;

/// A batch on its way to the disk: room for the header, then the payload.
#[derive(Debug)]
pub(crate) struct Laid {
    pub stream: u32,
    pub base: u64,
    pub count: u32,
    pub kind: Kind,
    pub bytes: Vec<u8>,
    /// Checksum of the first `summed` bytes of the payload.
    crc: u32,
    summed: usize,
}

impl Laid {
    /// A batch with nothing in it yet.
    pub fn new(stream: u32, base: u64, kind: Kind) -> Laid {
        Laid { stream, base, count: 0, kind, bytes: vec![0; BATCH_HEADER], crc: 0, summed: BATCH_HEADER }
    }

    /// The checksum of the payload so far. A producing caller sums what it added at once, while the bytes are in the
    /// cache; then the writer thread, for which all callers wait, has nothing left to sum.
    #[inline]
    pub fn sum(&mut self) -> u32 {
        if self.summed < self.bytes.len() {
            self.crc = crc32c::crc32c_append(self.crc, &self.bytes[self.summed..]);
            self.summed = self.bytes.len();
        }
        self.crc
    }

    /// Bytes of its payload.
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len() - BATCH_HEADER
    }
}

/// Where a batch lies.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub segment: Arc<Segment>,
    pub offset: u64,
    pub header: BatchHeader,
}

/// How the sizes of segments grow. The first is small, so that a topic with few messages does not take 64 MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub first: u64,
    pub max: u64,
    /// Bytes of the disk that must stay free when a segment is made, because other logs need them.
    pub reserve: u64,
}

/// Writes at the end of one log.
pub(crate) struct Appender {
    pub(super) host: Host,
    pub(super) dir: PathBuf,
    /// The folder, open: see [`crate::embedded::disk::Disk::open_dir`].
    pub(super) handle: Arc<dyn DiskDir>,
    pub(super) log: u128,
    pub(super) sizes: Sizes,
    /// Where each stream begins and ends.
    pub(in crate::embedded) table: Table,
    pub(super) active: Arc<Segment>,
    /// The active segment's file.
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) end: u64,
    pub(super) group: u64,
    /// Segments that left the log, oldest first. Their files are used again once no reader holds them.
    pub(super) retired: VecDeque<Arc<Segment>>,
    pub(super) spares: Vec<Spare>,
    pub(super) spare_number: u64,
    /// The thread `log-spare`, which makes the next spare: zeroing a whole segment takes longer than callers should
    /// wait.
    pub(super) preparing: Option<JoinHandle<Option<Result<Spare, Failure>>>>,
    pub(super) full: Option<Full>,
    /// False for a log of an older version if the file `end` could not be written when the log was opened.
    pub(super) recorded: bool,
}

/// Remembers that a file could not be made for want of space, although the disk had reported enough: a quota, or
/// another program was faster.
#[derive(Debug, Clone)]
pub(super) struct Full {
    failure: Failure,
    /// No file is tried before this time, in terms of the process's uptime.
    until_ms: u64,
    wait_ms: u64,
}

impl Appender {
    /// Writes and syncs the batches in order. Returns where they lie; after a failure only the returned batches
    /// count.
    pub fn write(&mut self, batches: &mut [Laid], now_ms: u64) -> (Vec<Placed>, Option<Failure>) {
        let mut placed = Vec::with_capacity(batches.len());
        while placed.len() < batches.len() {
            let rest = &mut batches[placed.len()..];
            let fitting = self.fitting(rest);
            let step = match fitting {
                0 => self.roll(stored_bytes(rest[0].payload_bytes()) as u64),
                _ => self.write_group(&mut rest[..fitting], now_ms, &mut placed),
            };
            if let Err(failure) = step {
                return (placed, Some(failure));
            }
        }
        (placed, None)
    }

    /// Syncs the active segment. Called after the answers only where the flaw `acknowledge_before_sync` is put back.
    pub fn sync(&self) -> Result<(), Failure> {
        self.file.sync_data().map_err(Failure::io(Action::Sync, &self.active.path))
    }

    /// Begins the next segment, with room for a batch of `needed` bytes.
    pub fn roll(&mut self, needed: u64) -> Result<(), Failure> {
        self.roll_to(planned(self.sizes, self.active.number + 1), needed)
    }

    /// Begins the next segment although this one has room. If this one holds little, the next one is small too.
    pub fn roll_early(&mut self) -> Result<(), Failure> {
        let enough = (2 * self.end).clamp(self.sizes.first, self.sizes.max);
        self.roll_to(enough.min(planned(self.sizes, self.active.number + 1)), 0)
    }

    /// An error if the next segment could not be made at this moment.
    pub fn can_roll(&self) -> Result<(), Failure> {
        let capacity = planned(self.sizes, self.active.number + 1);
        match self.spares.iter().any(|spare| spare.capacity >= capacity) {
            true => Ok(()),
            false => self.may_make(capacity),
        }
    }

    fn roll_to(&mut self, capacity: u64, needed: u64) -> Result<(), Failure> {
        let number = self.active.number + 1;
        let least = SegmentHeader::encoded_bytes(&self.table) as u64 + needed;
        let capacity = capacity.max(least);
        self.collect_prepared(true);
        let spare = match self.spares.iter().position(|spare| spare.capacity >= capacity) {
            Some(at) => self.spares.swap_remove(at),
            None => {
                self.may_make(capacity)?;
                // The file gets a name of its own. A spare whose renaming failed may still wait under another name,
                // and reusing that name would take its file away.
                let path = match self.host.flaw(|flaws| flaws.one_name_for_spares) {
                    true => self.dir.join(SPARE_NEW),
                    false => self.spare_path(),
                };
                let made = make_zeroed(&self.host, path, capacity, self.sizes.reserve);
                self.note_full(made.as_ref().err());
                made?
            }
        };
        if !self.recorded {
            // Written before the first segment that states a capacity: beside such a segment a missing file `end` is
            // damage.
            let end = End { closed: false, ..self.reached() };
            if let Err(failure) = end.write(&self.host, &self.dir, &*self.handle) {
                self.spares.push(spare);
                return Err(failure);
            }
            self.recorded = true;
        }
        let new = NewSegment { number, previous_end: self.end, group: self.group };
        match self.place().name(&spare, &self.table, new) {
            Ok(segment) => {
                self.active.shut();
                self.end = segment.first;
                self.active = segment;
                self.file = spare.file;
                Ok(())
            }
            Err(failure) => {
                // The spare whose renaming failed is kept for the next try.
                self.spares.push(spare);
                Err(failure)
            }
        }
    }

    /// Records in the file `end` that everything is written and no write is under way.
    pub fn record_close(&self) -> Result<(), Failure> {
        self.reached().write(&self.host, &self.dir, &*self.handle)
    }

    /// How far the log reaches. Exact only while no write is under way.
    pub fn reached(&self) -> End {
        End {
            log: self.log,
            segment: self.active.number,
            capacity: self.active.capacity,
            end: self.end,
            group: self.group,
            closed: true,
        }
    }

    fn place(&self) -> Place<'_> {
        Place { host: &self.host, dir: &self.dir, handle: &*self.handle, log: self.log }
    }

    /// The segment at the end of the log.
    pub fn active(&self) -> &Arc<Segment> {
        &self.active
    }

    /// Takes a segment out of the log for good. Its file is used again once no reader holds the segment.
    pub fn retire(&mut self, segment: Arc<Segment>) {
        self.retired.push_back(segment);
    }

    /// Frees the files of retired segments without readers, oldest first: freeing a newer one first could leave a
    /// hole.
    pub fn recycle(&mut self) -> Result<(), Failure> {
        // A segment leaves the list only after its file is gone. So a failed step is tried again, and no newer
        // segment goes before it.
        while let Some(oldest) = self.retired.front().filter(|oldest| Arc::strong_count(oldest) == 1) {
            let (capacity, path) = (oldest.capacity, oldest.path.clone());
            if self.host.flaw(|flaws| flaws.forget_before_freeing) {
                let forgotten = self.retired.pop_front();
                self.free(forgotten.as_ref().map(|oldest| oldest.file()), capacity, &path)?;
            } else {
                // A file with a second name is shared with a backup by a hard link. Only its name here is removed,
                // and the file is never written again, because writing would change the backup.
                let alone = || self.host.disk.links(&path).is_ok_and(|links| links < 2);
                let file = (capacity == self.sizes.max && self.spares.len() < SPARES_MAX && alone())
                    .then(|| oldest.file());
                self.free(file, capacity, &path)?;
                self.retired.pop_front();
            }
            self.sync_dir()?;
        }
        Ok(())
    }

    /// Takes away the name of an old segment. With an open `file`, the file becomes a spare; without one, it is
    /// removed.
    fn free(
        &mut self,
        file: Option<Result<Arc<dyn DiskFile>, Failure>>,
        capacity: u64,
        path: &Path,
    ) -> Result<(), Failure> {
        // A file that somebody cut behind its last batch has lost no batch, but cannot hold a new segment.
        let is_whole = |file: &Arc<dyn DiskFile>| file.len().is_ok_and(|length| length >= capacity);
        let file = match file {
            Some(Err(Failure::Damaged { .. })) | None => None,
            Some(opened) => Some(opened?).filter(is_whole),
        };
        let Some(file) = file else {
            return unless_gone(self.host.disk.remove(path)).map_err(Failure::io(Action::Remove, path));
        };
        let spare = self.spare_path();
        match self.host.disk.rename(path, &spare) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(Failure::io(Action::Rename, path))?,
        }
        self.spares.push(Spare { path: spare, file, capacity });
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), Failure> {
        self.handle.sync().map_err(Failure::io(Action::Sync, &self.dir))
    }

    /// Makes the file of the next segment in advance, if it will be needed soon. If that fails, the roll makes the
    /// file.
    pub fn prepare(&mut self) -> Result<(), Failure> {
        let capacity = planned(self.sizes, self.active.number + 1);
        let soon = self.end > self.active.capacity / 2;
        if !soon || self.spares.iter().any(|spare| spare.capacity >= capacity) {
            return Ok(());
        }
        if self.preparing.is_some() {
            self.collect_prepared(false);
            return Ok(());
        }
        self.may_make(capacity)?;
        let (host, path, reserve) = (self.host.clone(), self.spare_path(), self.sizes.reserve);
        if !self.host.threads {
            let made = make_zeroed(&host, path, capacity, reserve);
            self.note_full(made.as_ref().err());
            self.spares.push(made?);
            return Ok(());
        }
        let make = move || {
            let panics = host.panics.clone();
            let made = panics.watch(SPARE_THREAD, "the log makes its next file itself", || {
                panics.may_be_struck(SPARE_THREAD);
                make_zeroed(&host, path, capacity, reserve)
            });
            made.ok()
        };
        let making = threads::thread(SPARE_THREAD, make);
        self.preparing = Some(making.map_err(Failure::io(Action::StartThread, &self.dir))?);
        Ok(())
    }

    /// Waits for the thread that makes a spare. Called when the log is closed.
    pub fn finish(&mut self) {
        self.collect_prepared(true);
    }

    /// Takes over the spare that was being made: if it is ready, or with `wait` as soon as it is.
    fn collect_prepared(&mut self, wait: bool) {
        if !wait && self.preparing.as_ref().is_some_and(|making| !making.is_finished()) {
            return;
        }
        // A spare that could not be made is not missed: the roll makes its own file, and reports why if it cannot.
        if let Some(Ok(Some(made))) = self.preparing.take().map(JoinHandle::join) {
            self.note_full(made.as_ref().err());
            self.spares.extend(made.ok());
        }
    }

    /// An error if the disk has no room for a file of this size, or was full a short while ago.
    fn may_make(&self, capacity: u64) -> Result<(), Failure> {
        match &self.full {
            Some(full) if self.host.uptime_ms() < full.until_ms => Err(full.failure.clone()),
            _ => check_space(&self.host, &self.dir.join(SPARE_NEW), capacity, self.sizes.reserve),
        }
    }

    /// Remembers a full disk, or with any other outcome forgets it.
    fn note_full(&mut self, failure: Option<&Failure>) {
        self.full = failure.filter(|failure| failure.is_full()).map(|failure| {
            let doubled = self.full.as_ref().map_or(FULL_WAIT_MS, |full| 2 * full.wait_ms);
            let wait_ms = doubled.min(FULL_WAIT_MAX_MS);
            Full { failure: failure.clone(), until_ms: self.host.uptime_ms() + wait_ms, wait_ms }
        });
    }

    fn fitting(&self, batches: &[Laid]) -> usize {
        let mut end = self.end;
        batches
            .iter()
            .take_while(|batch| {
                end += stored_bytes(batch.payload_bytes()) as u64;
                end <= self.active.capacity
            })
            .count()
    }

    fn write_group(
        &mut self,
        batches: &mut [Laid],
        now_ms: u64,
        placed: &mut Vec<Placed>,
    ) -> Result<(), Failure> {
        // Counted before the write: if the write fails, its number must not be given out again.
        self.group += 1;
        let first = placed.len();
        let mut at = self.end;
        for batch in batches.iter_mut() {
            let payload_crc = batch.sum();
            let header = BatchHeader {
                generation: self.active.generation,
                group: self.group,
                group_start: self.end as u32,
                payload_bytes: batch.payload_bytes() as u32,
                payload_crc,
                stream: batch.stream,
                base: batch.base,
                appended_ms: now_ms,
                count: batch.count,
                kind: batch.kind,
            };
            header.encode(&mut batch.bytes);
            batch.bytes.resize(header.stored_bytes(), 0);
            placed.push(Placed { segment: Arc::clone(&self.active), offset: at, header });
            at += batch.bytes.len() as u64;
        }
        self.put(batches, at)
            .and_then(|()| match self.host.flaw(|flaws| flaws.acknowledge_before_sync) {
                true => Ok(()),
                false => self.sync(),
            })
            .inspect_err(|_| placed.truncate(first))?;
        self.end = at;
        for (batch, placed) in batches.iter().zip(&placed[first..]) {
            let payload = &batch.bytes[BATCH_HEADER..][..placed.header.payload_bytes as usize];
            apply(&mut self.table, &placed.header, payload)
                .map_err(|what| Failure::damaged(&self.active.path, placed.offset, what))?;
        }
        Ok(())
    }

    fn put(&self, batches: &[Laid], end: u64) -> Result<(), Failure> {
        let failed = || Failure::io(Action::Write, &self.active.path);
        let file = &self.file;
        if let [only] = batches {
            return file.write_at(&only.bytes, self.end).map_err(failed());
        }
        if end - self.end <= TOGETHER_BYTES as u64 {
            let mut together = Vec::with_capacity((end - self.end) as usize);
            batches.iter().for_each(|batch| together.extend_from_slice(&batch.bytes));
            return file.write_at(&together, self.end).map_err(failed());
        }
        let mut at = self.end;
        for batch in batches {
            file.write_at(&batch.bytes, at).map_err(failed())?;
            at += batch.bytes.len() as u64;
        }
        Ok(())
    }

    fn spare_path(&mut self) -> PathBuf {
        self.spare_number += 1;
        self.dir.join(format!("spare-{:016x}", self.spare_number))
    }
}

/// A file that is missing need not be removed. Trying again and again would block all segments that are freed after
/// it.
fn unless_gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
