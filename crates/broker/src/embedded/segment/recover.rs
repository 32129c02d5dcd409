//! Opens an existing log: reads its segments in order, checks that each follows its predecessor and that the log
//! reaches as far as its file `end` says, and hands every batch to a [`Visitor`], which builds the index.
//!
//! Out: an [`Appender`] that goes on behind the last good batch. Invariants:
//!
//! - Everything that readers are shown is on the disk. The last sync group is in doubt: the process may have been
//!   killed between write and sync; or its sync failed, and the kernel now keeps the bytes in its cache marked as
//!   clean, so that a further sync succeeds without writing them. So the bytes of the last group are written again
//!   and then synced. Earlier groups are safe, because a group is written only after the previous one was synced.
//! - At most two segments are open at a time, because a log may have more segments than a process may have
//!   descriptors.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::appender::{Appender, Sizes};
use super::bytes::{
    BatchHeader, ReadHeader, Segment, SegmentHeader, StreamEnds, Table, apply, segment_number, segment_path,
};
use super::end::{self, End};
use super::make::{SPARE, Spare};
use super::scan::{Extent, ScanEnd, scan};
use crate::embedded::disk::{DiskDir, DiskFile};
use crate::embedded::failure::{Action, Failure};
use crate::embedded::options::Host;

/// The last group is written again in pieces of this size.
const AGAIN_BYTES: u64 = 1 << 20;

/// Receives what a log holds while the log is opened.
pub(crate) trait Visitor {
    /// True if segments may be missing in the middle of the log: journals empty a segment by copying its live
    /// records.
    fn allows_holes(&self) -> bool;
    /// A segment begins. `table` is the state of all streams at its first batch.
    fn segment(&mut self, segment: &Arc<Segment>, table: &Table);
    /// A good batch. An error makes the log count as damaged here.
    fn batch(
        &mut self,
        segment: &Arc<Segment>,
        header: &BatchHeader,
        offset: u64,
        payload: &[u8],
    ) -> Result<(), String>;
}

/// Opens the log in `dir`.
pub(crate) fn recover(
    host: &Host,
    dir: &Path,
    log: u128,
    sizes: Sizes,
    visitor: &mut dyn Visitor,
) -> Result<Appender, Failure> {
    let handle = host.disk.open_dir(dir).map_err(Failure::io(Action::Open, dir))?;
    let names = host.disk.list(dir).map_err(Failure::io(Action::List, dir))?;
    let known = match host.flaw(|flaws| flaws.ignore_the_recorded_end) {
        true => None,
        false => End::read(host, dir, log)?,
    };
    let walked = walk(host, dir, log, &names, known.as_ref(), visitor)?;
    let Walked { table, last, scanned, group } = walked;
    write_again(host, &last, &scanned)?;
    last.file.sync_data().map_err(Failure::io(Action::Sync, &last.segment.path))?;
    handle.sync().map_err(Failure::io(Action::Sync, dir))?;
    let group = group.max(known.map_or(0, |known| known.group));
    tell_of_cut(&last.segment, &scanned, known.as_ref());
    let reached = End {
        log,
        segment: last.segment.number,
        capacity: last.segment.capacity,
        end: scanned.end,
        group,
        closed: false,
    };
    let recorded = record(host, dir, &*handle, &reached, known.as_ref())? || known.is_some();
    let (spares, spare_number) = open_spares(host, dir, sizes, &names)?;
    last.segment.keep_open(&last.file);
    Ok(Appender {
        host: host.clone(),
        dir: dir.to_owned(),
        handle,
        log,
        sizes,
        table,
        active: last.segment,
        file: last.file,
        end: scanned.end,
        group,
        retired: VecDeque::new(),
        spares,
        spare_number,
        preparing: None,
        full: None,
        recorded,
    })
}

/// A segment whose file is open and whose header was read.
struct Opened {
    segment: Arc<Segment>,
    header: SegmentHeader,
    file: Arc<dyn DiskFile>,
}

/// The outcome of reading all segments.
struct Walked {
    table: Table,
    last: Opened,
    scanned: ScanEnd,
    group: u64,
}

/// Reads all segments in order.
fn walk(
    host: &Host,
    dir: &Path,
    log: u128,
    names: &[String],
    known: Option<&End>,
    visitor: &mut dyn Visitor,
) -> Result<Walked, Failure> {
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    let (Some(first), Some(newest)) = (numbers.first(), numbers.last()) else {
        return Err(Failure::damaged(dir, 0, "no segment is left"));
    };
    if let Some(known) = known.filter(|known| *newest < known.segment) {
        let what = "the newest segment is missing, and with it the end of the log";
        return Err(Failure::damaged(&segment_path(dir, known.segment), 0, what));
    }
    let mut opened = open_segment(host, dir, *first, log, known)?;
    let mut table = opened.header.table.clone();
    let (mut group, mut at) = (0, 0);
    loop {
        let segment = Arc::clone(&opened.segment);
        if known.is_none() && opened.header.capacity > 0 && !host.flaw(|flaws| flaws.ignore_the_recorded_end)
        {
            let what =
                "the file is missing, without which nobody can say whether the end of the log is still there";
            return Err(Failure::damaged(&dir.join(end::NAME), 0, what));
        }
        visitor.segment(&segment, &table);
        let next = match numbers.get(at + 1) {
            Some(number) => Some(open_segment(host, dir, *number, log, known)?),
            None => None,
        };
        let extent = match &next {
            Some(next) if next.segment.number == segment.number + 1 => {
                Extent::Sealed(next.header.previous_end)
            }
            _ => Extent::Open,
        };
        let reached = known.filter(|known| known.segment == segment.number).map(|known| known.end);
        let scanned = scan(&segment, &*opened.file, extent, reached, |batch, offset, payload| {
            apply(&mut table, batch, payload)?;
            visitor.batch(&segment, batch, offset, payload)
        })?;
        group = group.max(scanned.group);
        let Some(next) = next else {
            return Ok(Walked { table, last: opened, scanned, group });
        };
        follow(&segment, scanned.end, &next.segment, &next.header, &mut table, visitor.allows_holes())?;
        (opened, at) = (next, at + 1);
    }
}

/// Writes the last group again. After a failed sync its bytes may be in the page cache alone, and nothing reports it.
fn write_again(host: &Host, last: &Opened, scanned: &ScanEnd) -> Result<(), Failure> {
    if host.flaw(|flaws| flaws.trust_the_cache) {
        return Ok(());
    }
    let mut at = scanned.last_group;
    while at < scanned.end {
        let mut bytes = vec![0; AGAIN_BYTES.min(scanned.end - at) as usize];
        let path = &last.segment.path;
        last.file.read_at(&mut bytes, at).map_err(Failure::io(Action::Read, path))?;
        last.file.write_at(&bytes, at).map_err(Failure::io(Action::Write, path))?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// Logs the batches behind the end, which were never acknowledged. Logged only once: the file `end`, written next,
/// covers the groups of these batches.
fn tell_of_cut(segment: &Segment, scanned: &ScanEnd, known: Option<&End>) {
    let cut = &scanned.cut;
    if cut.batches > 0 && known.is_none_or(|known| cut.group > known.group) {
        tracing::warn!(
            file = %segment.path.display(),
            byte = scanned.end,
            batches = cut.batches,
            bytes = cut.bytes,
            "the last write was not complete: it was never acknowledged, and is left out"
        );
    }
}

/// Writes the file `end`. Returns false if the disk was full. The log is opened all the same, because pipelines may
/// free space by settling messages, and the older bound still holds.
fn record(
    host: &Host,
    dir: &Path,
    handle: &dyn DiskDir,
    reached: &End,
    known: Option<&End>,
) -> Result<bool, Failure> {
    match reached.write(host, dir, handle) {
        Ok(()) if known.is_none() => tracing::info!(
            dir = %dir.display(),
            "the log is from a version that did not record where it ends; from now on it is recorded"
        ),
        Ok(()) => {}
        // Also if the rename failed: whichever of the two files is in force then, its bound is low enough.
        Err(failure) if failure.is_only_full() => {
            tracing::warn!(%failure, "the end of the log was not recorded; an older record stays");
            // An old file that says `closed yes` must be changed: from here on more may be written than it knows of.
            let reopened = known.filter(|known| known.closed).map_or(Ok(()), |_| End::reopen(host, dir));
            return match reopened {
                Err(failure) if !failure.is_only_full() => Err(failure),
                _ => Ok(false),
            };
        }
        Err(failure) => return Err(failure),
    }
    Ok(true)
}

fn open_segment(
    host: &Host,
    dir: &Path,
    number: u64,
    log: u128,
    known: Option<&End>,
) -> Result<Opened, Failure> {
    let path = segment_path(dir, number);
    let file = host.disk.open(&path).map_err(Failure::io(Action::Open, &path))?;
    let read = SegmentHeader::read(&*file).map_err(Failure::io(Action::Read, &path))?;
    // The header was synced before the file got its name, so a bad header is always damage.
    let (header, first) = match read {
        ReadHeader::Good(header, first) => (header, first),
        ReadHeader::Newer => return Err(Failure::newer(&path, "the segment's format is not known here")),
        ReadHeader::Bad => return Err(Failure::damaged(&path, 0, "the segment's header is damaged")),
    };
    if header.number != number || header.log != log {
        let what = "the segment belongs to another log, or to another place in this one";
        return Err(Failure::damaged(&path, 0, what));
    }
    let capacity = match (header.capacity, known) {
        _ if host.flaw(|flaws| flaws.ignore_the_recorded_end) => length(&*file, &path)?,
        (0, Some(known)) if known.segment == number => known.capacity,
        (0, _) => length(&*file, &path)?,
        (capacity, _) => capacity,
    };
    let segment = Segment {
        number,
        generation: header.generation,
        path,
        capacity,
        first: first as u64,
        disk: Arc::clone(&host.disk),
        newest: Mutex::new(None),
    };
    Ok(Opened { segment: Arc::new(segment), header, file })
}

fn length(file: &dyn DiskFile, path: &Path) -> Result<u64, Failure> {
    file.len().map_err(Failure::io(Action::Read, path))
}

/// Checks that a segment follows from the one before it.
fn follow(
    before: &Segment,
    before_end: u64,
    segment: &Segment,
    header: &SegmentHeader,
    table: &mut Table,
    holes: bool,
) -> Result<(), Failure> {
    if header.number == before.number + 1 {
        let same = |(mine, theirs): ((&u32, &StreamEnds), (&u32, &StreamEnds))| {
            mine.0 == theirs.0 && mine.1.next == theirs.1.next && mine.1.name == theirs.1.name
        };
        if table.len() != header.table.len() || !table.iter().zip(&header.table).all(same) {
            let what = "the next segment begins with other positions than this one ends with";
            return Err(Failure::damaged(&before.path, before_end, what));
        }
        // The starts are taken from the header: retention moves them without writing a batch.
        *table = header.table.clone();
        return Ok(());
    }
    if !holes {
        let what = format!("the segments between {} and {} are missing", before.number, header.number);
        return Err(Failure::damaged(&segment.path, 0, what));
    }
    let went_back = table.iter().any(|(stream, ends)| {
        // A stream that is missing in the later table was forgotten.
        header.table.get(stream).is_some_and(|later| later.next < ends.next || later.start < ends.start)
    });
    if went_back {
        let what = "a journal is shorter here than in an earlier segment";
        return Err(Failure::damaged(&segment.path, 0, what));
    }
    *table = header.table.clone();
    Ok(())
}

/// Keeps one spare file of full size, and removes the others.
fn open_spares(
    host: &Host,
    dir: &Path,
    sizes: Sizes,
    names: &[String],
) -> Result<(Vec<Spare>, u64), Failure> {
    let (mut spares, mut highest) = (Vec::new(), 0);
    for name in names {
        let Some(digits) = name.strip_prefix(SPARE) else {
            continue;
        };
        let path = dir.join(name);
        let number = u64::from_str_radix(digits, 16).ok();
        highest = highest.max(number.unwrap_or(0));
        let file = host.disk.open(&path).map_err(Failure::io(Action::Open, &path))?;
        let capacity = file.len().map_err(Failure::io(Action::Read, &path))?;
        if number.is_some() && capacity == sizes.max && spares.is_empty() {
            spares.push(Spare { path, file, capacity });
        } else {
            host.disk.remove(&path).map_err(Failure::io(Action::Remove, &path))?;
        }
    }
    Ok((spares, highest))
}
