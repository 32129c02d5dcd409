//! Reads a segment from its first batch on, and finds out where it ends and whether it is damaged.
//!
//! In: a segment, and how far it is known to reach. Out: each good batch in order, the end, the highest sync group,
//! and what lies behind the end. Every checksum is verified. The last segment ends at its first bad batch, unless
//! some batch behind the bad one belongs to a sync group that begins behind it: then the bad bytes had been synced,
//! and they are damage and not the end (BRK-1).
//!
//! Sync groups only rise along a file. Batches that a power cut left behind a former end have a lower or equal group
//! than the batches written there later, and are not read.

use super::bytes::{ALIGN, BATCH_HEADER, BatchHeader, Segment};
use crate::embedded::disk::DiskFile;
use crate::embedded::failure::{Action, Failure};

/// Bytes read at once. Small enough to stay in a core's cache between the copying and the checksum.
const WINDOW: usize = 256 * 1024;

/// How far a segment reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Exactly up to this byte: the next segment's header says so, and was written after this segment was synced.
    Sealed(u64),
    /// Unknown: this is the last segment, or its successor is missing.
    Open,
}

/// The outcome of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScanEnd {
    /// The offset behind the last good batch.
    pub end: u64,
    /// The highest group of any batch in the file, including batches behind the end.
    pub group: u64,
    /// The offset at which the sync group of the last good batch begins; `end` if there is no batch.
    pub last_group: u64,
    /// Batches behind the end, which are not read.
    pub cut: Cut,
}

/// Batches behind the end of a log: the remains of a write that was never acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cut {
    pub batches: u64,
    /// Bytes from the end of the log to the end of the last of these batches.
    pub bytes: u64,
    /// The highest sync group of these batches.
    pub group: u64,
}

/// Reads all batches of a segment. `visit` receives each with its offset and payload, and may reject it as damaged.
/// `known` is an offset at which a batch is known to have ended; if the scan does not meet it, the segment is
/// damaged.
pub(crate) fn scan(
    segment: &Segment,
    file: &dyn DiskFile,
    extent: Extent,
    known: Option<u64>,
    mut visit: impl FnMut(&BatchHeader, u64, &[u8]) -> Result<(), String>,
) -> Result<ScanEnd, Failure> {
    let limit = limit(segment, file, extent, known)?;
    let mut window = Window::new(file, limit);
    let (mut at, mut group, mut last_group) = (segment.first, 0, None);
    let mut met = known.is_none();
    loop {
        met |= known == Some(at);
        if extent == Extent::Sealed(at) {
            break;
        }
        let read = next_batch(&mut window, at, segment, group)?;
        let Some((header, payload)) = read else { break };
        visit(&header, at, payload).map_err(|what| Failure::damaged(&segment.path, at, what))?;
        (group, last_group) = (header.group, Some(u64::from(header.group_start)));
        at += header.stored_bytes() as u64;
    }
    if !met {
        let known = known.unwrap_or(0);
        let what = format!(
            "the log was written and synced up to byte {known} of this file, and what is left ends here"
        );
        return Err(Failure::damaged(&segment.path, at, what));
    }
    let mut end = ScanEnd { end: at, group, last_group: last_group.unwrap_or(at), cut: Cut::default() };
    match extent {
        Extent::Sealed(sealed) if sealed == at => Ok(end),
        Extent::Sealed(_) => {
            let what = "a batch is damaged, and later ones were written after it was safe";
            Err(Failure::damaged(&segment.path, at, what))
        }
        Extent::Open => {
            end.cut = search_behind(segment, file, at, group)?;
            end.group = group.max(end.cut.group);
            Ok(end)
        }
    }
}

/// The offset up to which the file is read. A shortened file is damage: its length was durable before it got its
/// name.
fn limit(segment: &Segment, file: &dyn DiskFile, extent: Extent, known: Option<u64>) -> Result<u64, Failure> {
    let length = file.len().map_err(Failure::io(Action::Read, &segment.path))?;
    let damaged = |what: String| Err(Failure::damaged(&segment.path, length, what));
    match extent {
        Extent::Sealed(end) if end > length || end < segment.first => {
            damaged(format!("the file ends here, and the next segment says that this one ends at byte {end}"))
        }
        Extent::Sealed(end) if known.is_some_and(|known| known > end) => damaged(format!(
            "the log was written up to byte {} of this file, and the next segment says {end}",
            known.unwrap_or(0)
        )),
        Extent::Sealed(end) => Ok(end),
        Extent::Open if length < segment.capacity => {
            damaged(format!("the file ends here, and was made with {} bytes: it was cut", segment.capacity))
        }
        Extent::Open => Ok(segment.capacity),
    }
}

/// The good batch at `at`, if there is one.
fn next_batch<'w>(
    window: &'w mut Window<'_>,
    at: u64,
    segment: &Segment,
    group: u64,
) -> Result<Option<(BatchHeader, &'w [u8])>, Failure> {
    let failed = || Failure::io(Action::Read, &segment.path);
    let Some(bytes) = window.get(at, BATCH_HEADER).map_err(failed())? else {
        return Ok(None);
    };
    let Some(header) = BatchHeader::decode(bytes, segment.generation) else {
        known_kind(segment, at, bytes, group)?;
        return Ok(None);
    };
    if header.group < group {
        return Ok(None);
    }
    let Some(batch) = window.get(at, header.stored_bytes()).map_err(failed())? else {
        return Ok(None);
    };
    let payload = &batch[BATCH_HEADER..BATCH_HEADER + header.payload_bytes as usize];
    Ok((crc32c::crc32c(payload) == header.payload_crc).then_some((header, payload)))
}

/// An error if a newer version wrote this batch: treating it as a torn tail would overwrite acknowledged messages.
pub(crate) fn known_kind(segment: &Segment, at: u64, bytes: &[u8], group: u64) -> Result<(), Failure> {
    match BatchHeader::unknown_kind(bytes, segment.generation) {
        Some((code, later)) if later >= group => {
            let what = format!("at byte {at} is a batch of kind {code}, which this version does not know");
            Err(Failure::newer(&segment.path, what))
        }
        _ => Ok(()),
    }
}

/// Searches behind a bad batch for a batch that proves the bad one had been synced, and counts the other batches
/// there.
fn search_behind(segment: &Segment, file: &dyn DiskFile, bad: u64, group: u64) -> Result<Cut, Failure> {
    let mut window = Window::new(file, segment.capacity);
    let (mut at, mut cut) = (bad, Cut::default());
    while let Some(bytes) = window.get(at, BATCH_HEADER).map_err(Failure::io(Action::Read, &segment.path))? {
        match BatchHeader::decode(bytes, segment.generation) {
            Some(header) if header.group > group && u64::from(header.group_start) > bad => {
                let what = format!("a batch is damaged, and one at byte {at} was written after it was safe");
                return Err(Failure::damaged(&segment.path, bad, what));
            }
            Some(header) => {
                cut.batches += 1;
                cut.bytes = at + header.stored_bytes() as u64 - bad;
                cut.group = cut.group.max(header.group);
            }
            None => known_kind(segment, at, bytes, group)?,
        }
        at += ALIGN as u64;
    }
    Ok(cut)
}

/// A part of the file in memory.
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

    /// `length` bytes from `at` on, or `None` if the file ends before.
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
