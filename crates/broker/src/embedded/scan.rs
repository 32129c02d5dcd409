//! Reads a segment from its first batch on, and finds where it ends.
//!
//! In: a segment, and how far it is known to reach. Out: each good batch in order, the end, and the highest sync
//! group met. Every checksum is verified. The end of the last segment is where the first bad batch is; but if any
//! batch behind it belongs to a sync group that begins behind the bad place, the bad bytes had been synced, and it is
//! damage, never the end (BRK-1).
//!
//! Groups only rise along a file: what a power cut left behind the place where it was cut has a lower or the same
//! group as what is written there later, and is not read.

use super::disk::DiskFile;
use super::failure::{Action, Failure};
use super::segment::{ALIGN, BATCH_HEADER, BatchHeader, Segment};

/// Bytes read at once: small enough to stay in the cache of a core between the copy and the checksum.
const WINDOW: usize = 256 * 1024;

/// How far a segment reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Up to exactly here: the next segment says so, and was made after this one was synced.
    Sealed(u64),
    /// Unknown: the last segment, or one whose successor is gone.
    Open,
}

/// Where a scan came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScanEnd {
    /// Behind the last good batch.
    pub end: u64,
    /// The highest group of any batch in the file, also of those behind the end.
    pub group: u64,
}

/// Walks all batches; `visit` gets each with its offset and payload, and may refuse it as damaged.
pub(crate) fn scan(
    segment: &Segment,
    extent: Extent,
    mut visit: impl FnMut(&BatchHeader, u64, &[u8]) -> Result<(), String>,
) -> Result<ScanEnd, Failure> {
    let limit = match extent {
        Extent::Sealed(end) if end > segment.capacity || end < segment.first => {
            let what = format!("the next segment says that this one ends at byte {end}");
            return Err(Failure::damaged(&segment.path, segment.capacity, what));
        }
        Extent::Sealed(end) => end,
        Extent::Open => segment.capacity,
    };
    let file = segment.file()?;
    let mut window = Window::new(&*file, limit);
    let (mut at, mut group) = (segment.first, 0);
    loop {
        if extent == Extent::Sealed(at) {
            return Ok(ScanEnd { end: at, group });
        }
        let read = next_batch(&mut window, at, segment.generation, group)
            .map_err(Failure::io(Action::Read, &segment.path))?;
        let Some((header, payload)) = read else { break };
        visit(&header, at, payload).map_err(|what| Failure::damaged(&segment.path, at, what))?;
        group = header.group;
        at += header.stored_bytes() as u64;
    }
    if extent != Extent::Open {
        let what = "a batch is damaged, and later ones were written after it was safe";
        return Err(Failure::damaged(&segment.path, at, what));
    }
    let group = search_behind(segment, at, group)?;
    Ok(ScanEnd { end: at, group })
}

/// The good batch at `at`, if there is one.
fn next_batch<'w>(
    window: &'w mut Window<'_>,
    at: u64,
    generation: u64,
    group: u64,
) -> std::io::Result<Option<(BatchHeader, &'w [u8])>> {
    let Some(bytes) = window.get(at, BATCH_HEADER)? else {
        return Ok(None);
    };
    let Some(header) = BatchHeader::decode(bytes, generation) else {
        return Ok(None);
    };
    if header.group < group {
        return Ok(None);
    }
    let Some(batch) = window.get(at, header.stored_bytes())? else {
        return Ok(None);
    };
    let payload = &batch[BATCH_HEADER..BATCH_HEADER + header.payload_bytes as usize];
    Ok((crc32c::crc32c(payload) == header.payload_crc).then_some((header, payload)))
}

/// Looks behind a bad place for a batch that proves it had been synced. Returns the highest group found.
fn search_behind(segment: &Segment, bad: u64, group: u64) -> Result<u64, Failure> {
    let file = segment.file()?;
    let mut window = Window::new(&*file, segment.capacity);
    let (mut at, mut highest) = (bad, group);
    while let Some(bytes) = window.get(at, BATCH_HEADER).map_err(Failure::io(Action::Read, &segment.path))? {
        if let Some(header) = BatchHeader::decode(bytes, segment.generation) {
            if header.group > group && u64::from(header.group_start) > bad {
                let what = format!("a batch is damaged, and one at byte {at} was written after it was safe");
                return Err(Failure::damaged(&segment.path, bad, what));
            }
            highest = highest.max(header.group);
        }
        at += ALIGN as u64;
    }
    Ok(highest)
}

/// A stretch of the file in memory.
struct Window<'a> {
    file: &'a dyn DiskFile,
    limit: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn DiskFile, limit: u64) -> Window<'a> {
        Window { file, limit, start: 0, bytes: Vec::new() }
    }

    /// `length` bytes from `at` on, or `None` where the file does not have as many.
    #[inline]
    fn get(&mut self, at: u64, length: usize) -> std::io::Result<Option<&[u8]>> {
        let behind = at + length as u64;
        if at < self.start || behind > self.start + self.bytes.len() as u64 {
            if behind > self.limit {
                return Ok(None);
            }
            let wanted = (length.max(WINDOW) as u64).min(self.limit - at) as usize;
            self.bytes.resize(wanted, 0);
            self.start = at;
            self.file.read_at(&mut self.bytes, at)?;
        }
        let from = (at - self.start) as usize;
        Ok(Some(&self.bytes[from..from + length]))
    }
}
