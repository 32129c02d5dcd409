//! Opens a log that is there: reads its segments in order, checks that each follows from the one before, and hands
//! every batch to whoever builds an index of it.
//!
//! Out: an [`Appender`] that goes on behind the last good batch. What lies there unsynced (the process was killed
//! between write and sync) is synced first: a reader must never see what a power cut could still take away.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::appender::{Appender, Sizes, Spare, sync_dir};
use super::failure::{Action, Failure};
use super::options::Host;
use super::scan::{Extent, ScanEnd, scan};
use super::segment::{
    BatchHeader, Segment, SegmentHeader, StreamEnds, Table, apply, segment_number, segment_path,
};

/// Who wants to know what a log holds.
pub(crate) trait Visitor {
    /// True if segments may be missing in the middle: they were emptied, and what lived was copied to the end.
    fn allows_holes(&self) -> bool;
    /// A segment begins; the streams are as the table says.
    fn segment(&mut self, segment: &Arc<Segment>, table: &Table);
    /// A good batch.
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
    let names = host.disk.list(dir).map_err(Failure::io(Action::List, dir))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    let mut opened = Vec::with_capacity(numbers.len());
    for number in numbers {
        opened.push(open_segment(host, dir, number, log)?);
    }
    let mut table = match opened.first() {
        Some((_, header)) => header.table.clone(),
        None => return Err(Failure::damaged(dir, 0, "no segment is left")),
    };
    let mut last = ScanEnd { end: 0, group: 0 };
    let mut group = 0;
    for (index, (segment, header)) in opened.iter().enumerate() {
        if let Some((before, _)) = index.checked_sub(1).map(|before| &opened[before]) {
            follow(before, last.end, segment, header, &mut table, visitor.allows_holes())?;
        }
        visitor.segment(segment, &table);
        let extent = match opened.get(index + 1) {
            Some((_, next)) if next.number == header.number + 1 => Extent::Sealed(next.previous_end),
            _ => Extent::Open,
        };
        last = scan(segment, extent, |batch, offset, payload| {
            apply(&mut table, batch, payload)?;
            visitor.batch(segment, batch, offset, payload)
        })?;
        group = group.max(last.group);
        if index + 1 < opened.len() {
            segment.shut();
        }
    }
    let active = match opened.pop() {
        Some((active, _)) => active,
        None => return Err(Failure::damaged(dir, 0, "no segment is left")),
    };
    let file = active.file()?;
    file.sync_data().map_err(Failure::io(Action::Sync, &active.path))?;
    sync_dir(host, dir)?;
    let (spares, spare_number) = open_spares(host, dir, sizes, &names)?;
    Ok(Appender {
        host: host.clone(),
        dir: dir.to_owned(),
        log,
        sizes,
        table,
        active,
        file,
        end: last.end,
        group,
        retired: VecDeque::new(),
        spares,
        spare_number,
        preparing: None,
    })
}

fn open_segment(
    host: &Host,
    dir: &Path,
    number: u64,
    log: u128,
) -> Result<(Arc<Segment>, SegmentHeader), Failure> {
    let path = segment_path(dir, number);
    let file = host.disk.open(&path).map_err(Failure::io(Action::Open, &path))?;
    let read = SegmentHeader::read(&*file).map_err(Failure::io(Action::Read, &path))?;
    // The header was synced before the file got its name, so that it can be bad only by damage.
    let Some((header, first)) = read else {
        return Err(Failure::damaged(&path, 0, "the segment's header is damaged"));
    };
    if header.number != number || header.log != log {
        let what = "the segment belongs to another log, or to another place in this one";
        return Err(Failure::damaged(&path, 0, what));
    }
    let capacity = file.len().map_err(Failure::io(Action::Read, &path))?;
    let segment = Segment {
        number,
        generation: header.generation,
        path,
        capacity,
        first: first as u64,
        disk: Arc::clone(&host.disk),
        newest: Mutex::new(Some(file)),
    };
    Ok((Arc::new(segment), header))
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
        // Where streams start may have moved up without a batch that says so: retention writes none.
        *table = header.table.clone();
        return Ok(());
    }
    if !holes {
        let what = format!("the segments between {} and {} are missing", before.number, header.number);
        return Err(Failure::damaged(&segment.path, 0, what));
    }
    let went_back = table.iter().any(|(stream, ends)| {
        header.table.get(stream).is_none_or(|later| later.next < ends.next || later.start < ends.start)
    });
    if went_back {
        let what = "a journal is shorter here than in an earlier segment";
        return Err(Failure::damaged(&segment.path, 0, what));
    }
    *table = header.table.clone();
    Ok(())
}

/// Spare files that are whole are kept, others removed.
fn open_spares(
    host: &Host,
    dir: &Path,
    sizes: Sizes,
    names: &[String],
) -> Result<(Vec<Spare>, u64), Failure> {
    let (mut spares, mut highest) = (Vec::new(), 0);
    for name in names {
        let Some(digits) = name.strip_prefix("spare-") else {
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
