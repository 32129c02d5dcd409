//! The end of a log: writes groups of batches, rolls to the next segment, uses files again.
//!
//! One owner, no lock. In: batches laid out by somebody else. Out: where they lie, once they are synced. A group is
//! written behind the last one, synced, and only then counts; a group that does not fit is split, and each part is a
//! sync group of its own. Invariants:
//!
//! - The next group is not written before the last one is synced, so at most one is ever in doubt.
//! - A group's number is used once, also if it failed: what a failed one left on the disk can never be taken for part
//!   of its successor.
//! - A segment's header is synced before the file gets its name, and a file loses its name, durably, before its
//!   bytes are used again.
//! - The file `end` says durably that a segment is there before anything in it is acknowledged (`end`).
//! - An old segment stays in the list of those to be freed until its file is gone: segments go oldest first, so that
//!   neither a power cut nor a step that fails can leave a hole in the log.

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

/// The thread that makes the next file.
const SPARE_THREAD: &str = "log-spare";
/// Spare files kept for use: one is all that is needed before the next is made.
const SPARES_MAX: usize = 2;
/// After a file could not be made for want of space it is not tried again for this long, …
const FULL_WAIT_MS: u64 = 1000;
/// … twice as long each time, up to this: each try may fill the disk for everybody else on it.
const FULL_WAIT_MAX_MS: u64 = 60_000;
/// Below this, batches are copied together and written at once: a copy is cheaper than a system call.
const TOGETHER_BYTES: usize = 128 * 1024;

/// A batch on its way to the disk: room for the header, then the payload.
#[derive(Debug)]
pub(crate) struct Laid {
    pub stream: u32,
    pub base: u64,
    pub count: u32,
    pub kind: Kind,
    pub bytes: Vec<u8>,
    /// Checksum of the payload, as far as it was summed.
    crc: u32,
    summed: usize,
}

impl Laid {
    /// A batch with nothing in it yet.
    pub fn new(stream: u32, base: u64, kind: Kind) -> Laid {
        Laid { stream, base, count: 0, kind, bytes: vec![0; BATCH_HEADER], crc: 0, summed: BATCH_HEADER }
    }

    /// The checksum of the payload so far. Who adds to the payload sums it at once, while it is in the cache; the
    /// writer, for whom everybody waits, then has nothing left to sum.
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

/// How sizes of segments grow: a topic with few messages should not take 64 MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub first: u64,
    pub max: u64,
    /// Bytes of the disk that must stay free when a segment is made: they are kept for other logs.
    pub reserve: u64,
}

/// The end of a log.
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
    /// No longer part of the log, oldest first; used again when nobody reads them any more.
    pub(super) retired: VecDeque<Arc<Segment>>,
    pub(super) spares: Vec<Spare>,
    pub(super) spare_number: u64,
    /// A thread that makes the next spare: zeros for a whole segment take longer than callers should wait.
    pub(super) preparing: Option<JoinHandle<Option<Result<Spare, Failure>>>>,
    pub(super) full: Option<Full>,
    /// False for a log of an earlier version, whose end could not be recorded when it was opened.
    pub(super) recorded: bool,
}

/// The disk was full while a file was made, though it had said there was room: a quota, or somebody else was quicker.
#[derive(Debug, Clone)]
pub(super) struct Full {
    failure: Failure,
    /// Nothing is tried before; by the process's own time.
    until_ms: u64,
    wait_ms: u64,
}

impl Appender {
    /// Writes and syncs the batches in order. Returns where they lie; with a failure, only those before it count.
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

    /// Syncs what a put-back flaw acknowledged unsynced.
    pub fn sync(&self) -> Result<(), Failure> {
        self.file.sync_data().map_err(Failure::io(Action::Sync, &self.active.path))
    }

    /// Begins the next segment, with room for a batch of `needed` bytes.
    pub fn roll(&mut self, needed: u64) -> Result<(), Failure> {
        self.roll_to(planned(self.sizes, self.active.number + 1), needed)
    }

    /// Begins the next segment though this one has room: a small one, if little came while this one was in use.
    pub fn roll_early(&mut self) -> Result<(), Failure> {
        let enough = (2 * self.end).clamp(self.sizes.first, self.sizes.max);
        self.roll_to(enough.min(planned(self.sizes, self.active.number + 1)), 0)
    }

    /// An error if the next segment could not be made now.
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
                // A name of its own: one that did not get the segment's may wait already, and making another under its
                // name would leave that one without any.
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
            // Before the first segment that says its capacity: beside such a one a missing record is damage.
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
                // One that did not get its name is used the next time.
                self.spares.push(spare);
                Err(failure)
            }
        }
    }

    /// Records that all is written and nothing under way.
    pub fn record_close(&self) -> Result<(), Failure> {
        self.reached().write(&self.host, &self.dir, &*self.handle)
    }

    /// How far the log reaches, if nothing is under way.
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

    /// Takes a segment out of the log, for ever. Its file is used again once nobody reads it.
    pub fn retire(&mut self, segment: Arc<Segment>) {
        self.retired.push_back(segment);
    }

    /// Frees retired files that nobody reads any more, oldest first: a power cut must not leave a hole in the log.
    pub fn recycle(&mut self) -> Result<(), Failure> {
        // A segment leaves the list when its file has gone, and not before: if a step fails it is tried again, and none
        // that is newer goes meanwhile.
        while let Some(oldest) = self.retired.front().filter(|oldest| Arc::strong_count(oldest) == 1) {
            let (capacity, path) = (oldest.capacity, oldest.path.clone());
            if self.host.flaw(|flaws| flaws.forget_before_freeing) {
                let forgotten = self.retired.pop_front();
                self.free(forgotten.as_ref().map(|oldest| oldest.file()), capacity, &path)?;
            } else {
                // A backup has it, too, if it has another name: it goes here, and is never written to again.
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

    /// Takes the name of an old segment away: its file becomes a spare if there is a handle to it, or goes.
    fn free(
        &mut self,
        file: Option<Result<Arc<dyn DiskFile>, Failure>>,
        capacity: u64,
        path: &Path,
    ) -> Result<(), Failure> {
        // One that somebody has cut behind its last batch has lost nothing, but is no file to begin a segment in.
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

    /// Makes the next segment's file beforehand, if it will be needed soon. Nothing is lost if it cannot.
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

    /// Nothing comes any more: waits for what is still being made.
    pub fn finish(&mut self) {
        self.collect_prepared(true);
    }

    /// Takes over the spare that was being made, if it is ready, or once it is.
    fn collect_prepared(&mut self, wait: bool) {
        if !wait && self.preparing.as_ref().is_some_and(|making| !making.is_finished()) {
            return;
        }
        // One that could not be made is not missed: the roll makes its own, and says why if it cannot.
        if let Some(Ok(Some(made))) = self.preparing.take().map(JoinHandle::join) {
            self.note_full(made.as_ref().err());
            self.spares.extend(made.ok());
        }
    }

    /// An error if there is no room for a file of this size, or if that was found out a short while ago.
    fn may_make(&self, capacity: u64) -> Result<(), Failure> {
        match &self.full {
            Some(full) if self.host.uptime_ms() < full.until_ms => Err(full.failure.clone()),
            _ => check_space(&self.host, &self.dir.join(SPARE_NEW), capacity, self.sizes.reserve),
        }
    }

    /// Notes whether the disk was full when a file was made.
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
        // Before anything is written: a number that failed must not come again.
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

/// A file that is gone needs not be removed. To try it again and again would keep all that come after it.
fn unless_gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
