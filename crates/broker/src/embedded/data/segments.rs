//! Reads the segments of a log that may be damaged, for `walk`: first all headers, then the bytes of one segment at a
//! time, because a log may be larger than the machine's memory.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::super::disk::DiskFile;
use super::super::failure::{Action, Failure};
use super::super::options::Host;
use crate::embedded::disk::Piecewise;
use crate::embedded::segment::{
    ALIGN, BATCH_HEADER, BatchHeader, ReadHeader, Segment, SegmentHeader, known_kind, segment_path,
};

/// A segment whose header is good.
pub(super) struct Head {
    pub header: SegmentHeader,
    pub segment: Arc<Segment>,
    pub file_bytes: u64,
}

/// A segment without a good header, or without a file.
pub(super) struct NoHead {
    pub what: String,
    /// 0 if there is no file.
    pub file_bytes: u64,
}

impl Head {
    /// Reads a segment's header. The inner error says what is wrong with the segment.
    pub fn read(host: &Host, dir: &Path, number: u64, log: u128) -> Result<Result<Head, NoHead>, Failure> {
        let path = segment_path(dir, number);
        let file = match host.disk.open_to_read(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Err(NoHead::missing()));
            }
            Err(error) => return Err(Failure::io(Action::Open, &path)(error)),
        };
        let failed = || Failure::io(Action::Read, &path);
        let file_bytes = file.len().map_err(failed())?;
        let none = |what: &str| Ok(Err(NoHead { what: what.to_owned(), file_bytes }));
        let (header, first) = match SegmentHeader::read(&Piecewise(&*file)).map_err(failed())? {
            ReadHeader::Good(header, first) => (header, first as u64),
            ReadHeader::Newer => return Err(Failure::newer(&path, "the segment's format is not known here")),
            ReadHeader::Bad => return none("the segment's header is damaged"),
        };
        if header.number != number || header.log != log {
            return none("the segment belongs to another log, or to another place in this one");
        }
        let segment = Segment {
            number,
            generation: header.generation,
            path,
            capacity: header.capacity.max(file_bytes),
            first,
            disk: Arc::clone(&host.disk),
            newest: Mutex::new(None),
        };
        Ok(Ok(Head { header, segment: Arc::new(segment), file_bytes }))
    }

    /// All bytes of the segment's file; unreadable pieces are zeros.
    pub fn bytes(&self, host: &Host) -> Result<Vec<u8>, Failure> {
        let path = &self.segment.path;
        let file = host.disk.open_to_read(path).map_err(Failure::io(Action::Open, path))?;
        let mut bytes = vec![0; self.file_bytes as usize];
        Piecewise(&*file).read_at(&mut bytes, 0).map_err(Failure::io(Action::Read, path))?;
        Ok(bytes)
    }
}

impl NoHead {
    pub fn missing() -> NoHead {
        NoHead { what: "the segment is missing".to_owned(), file_bytes: 0 }
    }
}

/// The header at `at`, if its checksum and generation are good.
pub(super) fn header_at(bytes: &[u8], at: u64, segment: &Segment) -> Option<BatchHeader> {
    BatchHeader::decode(bytes.get(at as usize..at as usize + BATCH_HEADER)?, segment.generation)
}

/// The batch at `at`, if its checksums are good and it may follow sync group `group`.
pub(super) fn good_at<'b>(
    bytes: &'b [u8],
    at: u64,
    segment: &Segment,
    group: u64,
    limit: u64,
) -> Option<(BatchHeader, &'b [u8])> {
    let header = header_at(bytes, at, segment)?;
    let behind = at + header.stored_bytes() as u64;
    let first = at as usize + BATCH_HEADER;
    let payload = bytes.get(first..first + header.payload_bytes as usize)?;
    let good = behind <= limit && header.group >= group && crc32c::crc32c(payload) == header.payload_crc;
    good.then_some((header, payload))
}

/// True if a batch behind `bad` proves that the bytes at `bad` had been synced.
pub(super) fn proven(bytes: &[u8], bad: u64, segment: &Segment, group: u64) -> bool {
    (bad..bytes.len() as u64).step_by(ALIGN).any(|at| {
        header_at(bytes, at, segment)
            .is_some_and(|header| header.group > group && u64::from(header.group_start) > bad)
    })
}

/// The highest sync group from `from` on, including batches behind the end of the log: it must not be given out
/// again.
pub(super) fn highest_group(bytes: &[u8], from: u64, segment: &Segment) -> u64 {
    let batches = (from..bytes.len() as u64).step_by(ALIGN).filter_map(|at| header_at(bytes, at, segment));
    batches.map(|header| header.group).max().unwrap_or(0)
}

/// An error if a newer version wrote a batch at the bad place or behind it. Such a batch is neither damage nor a torn
/// tail, and overwriting it would lose it.
pub(super) fn no_newer(
    bytes: &[u8],
    bad: u64,
    segment: &Segment,
    group: u64,
    limit: u64,
) -> Result<(), Failure> {
    (bad..limit.min(bytes.len() as u64))
        .step_by(ALIGN)
        .try_for_each(|at| known_kind(segment, at, &bytes[at as usize..], group))
}
