//! The byte format of a segment: the header of the file, and the header of each batch in it.
//!
//! Little endian. A segment's file is named `<number, 16 hex digits>.seg`; files named `spare-…` wait to become
//! segments.
//!
//! ```text
//! segment header                          batch header, 64 bytes, at a multiple of 8
//!  0  u32  CRC32C of all behind it         0  u32  CRC32C of the 60 bytes behind it
//!  4  u32  magic KLS1                      4  u32  magic KLB1
//!  8  u64  generation, random              8  u64  generation of the segment
//! 16  u64  number                         16  u64  sync group, rising
//! 24  u64  where the segment before ends  24  u32  where the sync group begins in this file
//! 32  u128 identity of the log            28  u32  payload bytes
//! 48  u32  streams in the table           32  u32  CRC32C of the payload
//! 52  u32  header bytes, table included   36  u32  stream: the partition, or a journal's number
//! 56  u64  capacity: bytes of the file    40  u64  base position
//! 64  table: u32 stream, u16 name bytes,  48  u64  append time, ms since 1970
//!     u16 zero, u64 start, u64 next,      56  u32  count of positions
//!     name, for each stream               60  u16  kind    62  u16  zero
//!     zeros up to a multiple of 64        64  payload, then zeros up to a multiple of 8
//! ```
//!
//! A recycled segment still holds old batches with good checksums; their generation differs from the segment's. The
//! generation is random and never leaves the broker, so no producer can send a payload that contains a valid batch
//! header. All bytes before the place where a batch's sync group begins were synced before the batch was written:
//! this tells damage from a torn tail. A file gets its name only once its full length is durable, so a file shorter
//! than its header's capacity was cut later. Segments made before the field `capacity` existed have 0 there, and are
//! not checked for their length.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::embedded::disk::{Disk, DiskFile};
use crate::embedded::failure::{Action, Failure};
use crate::embedded::lock;

/// Bytes of a batch header.
pub(crate) const BATCH_HEADER: usize = 64;
/// Batches begin at multiples of this.
pub(crate) const ALIGN: usize = 8;

const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"KLS1");
const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"KLB1");
/// Masks out the digit of the version in a magic number.
const MAGIC_MASK: u32 = 0x00ff_ffff;
const SEGMENT_FIXED: usize = 64;
const ENTRY_FIXED: usize = 24;

/// The kind of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    /// Frames of a partition.
    Messages = 1,
    /// Records of a journal: (u32 bytes, bytes)*.
    Records = 2,
    /// Records that were copied, at their positions, out of a segment that is mostly dead, before that segment is
    /// freed.
    Copies = 3,
    /// The stream begins at the batch's base from now on.
    Cut = 4,
    /// Begins a stream; the payload is its name.
    Name = 5,
    /// One record that replaces all earlier records of its stream.
    Latest = 6,
    /// The log was closed and no write was under way. Only older versions write this kind; now the file `end` records
    /// it.
    Closed = 7,
    /// These positions were damaged, and an operator chose to skip them. The payload has no meaning.
    Lost = 8,
    /// The stream was forgotten, and its name with it.
    Gone = 9,
}

impl Kind {
    fn from_code(code: u16) -> Option<Kind> {
        Some(match code {
            1 => Kind::Messages,
            2 => Kind::Records,
            3 => Kind::Copies,
            4 => Kind::Cut,
            5 => Kind::Name,
            6 => Kind::Latest,
            7 => Kind::Closed,
            8 => Kind::Lost,
            9 => Kind::Gone,
            _ => return None,
        })
    }
}

/// The header of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub generation: u64,
    pub group: u64,
    pub group_start: u32,
    pub payload_bytes: u32,
    pub payload_crc: u32,
    pub stream: u32,
    pub base: u64,
    pub appended_ms: u64,
    pub count: u32,
    pub kind: Kind,
}

impl BatchHeader {
    /// Writes the header over the first bytes of `out`.
    pub fn encode(&self, out: &mut [u8]) {
        out[4..8].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..24].copy_from_slice(&self.group.to_le_bytes());
        out[24..28].copy_from_slice(&self.group_start.to_le_bytes());
        out[28..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        out[36..40].copy_from_slice(&self.stream.to_le_bytes());
        out[40..48].copy_from_slice(&self.base.to_le_bytes());
        out[48..56].copy_from_slice(&self.appended_ms.to_le_bytes());
        out[56..60].copy_from_slice(&self.count.to_le_bytes());
        out[60..62].copy_from_slice(&(self.kind as u16).to_le_bytes());
        out[62..64].fill(0);
        let crc = crc32c::crc32c(&out[4..BATCH_HEADER]);
        out[0..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a header of this generation. `None`: the bytes are no header, or belong to an earlier use of the file.
    pub fn decode(bytes: &[u8], generation: u64) -> Option<BatchHeader> {
        let bytes = bytes.first_chunk::<BATCH_HEADER>()?;
        // The cheap comparisons come first, because the search behind a bad batch calls this for every eighth byte.
        if u64_at(bytes, 8) != generation || u32_at(bytes, 4) != BATCH_MAGIC {
            return None;
        }
        if crc32c::crc32c(&bytes[4..]) != u32_at(bytes, 0) {
            return None;
        }
        Some(BatchHeader {
            generation,
            group: u64_at(bytes, 16),
            group_start: u32_at(bytes, 24),
            payload_bytes: u32_at(bytes, 28),
            payload_crc: u32_at(bytes, 32),
            stream: u32_at(bytes, 36),
            base: u64_at(bytes, 40),
            appended_ms: u64_at(bytes, 48),
            count: u32_at(bytes, 56),
            kind: Kind::from_code(u16::from_le_bytes([bytes[60], bytes[61]]))?,
        })
    }

    /// The kind's code and the sync group, if the checksum and the generation are good but this version does not know
    /// the kind. Only a newer version writes such a batch: cutting it as a torn tail would lose acknowledged
    /// messages.
    pub fn unknown_kind(bytes: &[u8], generation: u64) -> Option<(u16, u64)> {
        let bytes = bytes.first_chunk::<BATCH_HEADER>()?;
        let code = u16::from_le_bytes([bytes[60], bytes[61]]);
        if u64_at(bytes, 8) != generation
            || u32_at(bytes, 4) != BATCH_MAGIC
            || Kind::from_code(code).is_some()
        {
            return None;
        }
        (crc32c::crc32c(&bytes[4..]) == u32_at(bytes, 0)).then(|| (code, u64_at(bytes, 16)))
    }

    /// Bytes that the batch takes in its file, padding included.
    pub fn stored_bytes(&self) -> usize {
        stored_bytes(self.payload_bytes as usize)
    }

    /// The first position behind the batch.
    pub fn next(&self) -> u64 {
        self.base + u64::from(self.count)
    }
}

/// Bytes that a batch with a payload of this length takes in its file.
pub(crate) fn stored_bytes(payload_bytes: usize) -> usize {
    (BATCH_HEADER + payload_bytes).next_multiple_of(ALIGN)
}

/// The first position of a stream, its next position, and its name (empty in topics).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct StreamEnds {
    pub start: u64,
    pub next: u64,
    pub name: Vec<u8>,
}

/// All streams of a log, as each segment's header lists them.
pub(crate) type Table = BTreeMap<u32, StreamEnds>;

/// Applies a batch to the table. An error says why the batch cannot follow what was read before.
pub(crate) fn apply(table: &mut Table, header: &BatchHeader, payload: &[u8]) -> Result<(), String> {
    let ends = match header.kind {
        Kind::Closed => return Ok(()),
        Kind::Gone => {
            table.remove(&header.stream);
            return Ok(());
        }
        Kind::Name => {
            let new = StreamEnds { name: payload.to_vec(), ..StreamEnds::default() };
            return match table.insert(header.stream, new) {
                None => Ok(()),
                Some(_) => Err(format!("stream {} is named twice", header.stream)),
            };
        }
        _ => table
            .get_mut(&header.stream)
            .ok_or_else(|| format!("a batch of stream {}, which is not known", header.stream))?,
    };
    match header.kind {
        Kind::Messages | Kind::Records | Kind::Latest if header.base != ends.next => Err(format!(
            "a batch of stream {} begins at position {}, and {} comes next",
            header.stream, header.base, ends.next
        )),
        // A `Lost` batch may also be a copy out of a mostly dead segment, and then begins below the stream's end.
        Kind::Lost if header.base > ends.next => Err(format!(
            "stream {} ends at position {}, and a batch speaks of {}",
            header.stream, ends.next, header.base
        )),
        Kind::Copies | Kind::Cut if header.next() > ends.next => Err(format!(
            "stream {} ends at position {}, and a batch speaks of {}",
            header.stream,
            ends.next,
            header.next()
        )),
        Kind::Latest => {
            (ends.start, ends.next) = (header.base, header.next());
            Ok(())
        }
        Kind::Cut => {
            ends.start = ends.start.max(header.base);
            Ok(())
        }
        Kind::Copies => Ok(()),
        _ => {
            ends.next = ends.next.max(header.next());
            Ok(())
        }
    }
}

/// The header of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub generation: u64,
    pub number: u64,
    pub previous_end: u64,
    pub log: u128,
    /// Bytes of the file; 0 in segments of older versions, which did not record it.
    pub capacity: u64,
    pub table: Table,
}

/// What the first bytes of a segment's file turned out to be.
#[derive(Debug)]
pub(crate) enum ReadHeader {
    /// A header, and its length in bytes.
    Good(SegmentHeader, usize),
    /// A header in a format that this version does not know.
    Newer,
    /// Not a header.
    Bad,
}

impl SegmentHeader {
    /// The bytes of the header; batches begin behind them.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; SEGMENT_FIXED];
        out[4..8].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..32].copy_from_slice(&self.previous_end.to_le_bytes());
        out[32..48].copy_from_slice(&self.log.to_le_bytes());
        out[48..52].copy_from_slice(&(self.table.len() as u32).to_le_bytes());
        out[56..64].copy_from_slice(&self.capacity.to_le_bytes());
        for (stream, ends) in &self.table {
            out.extend_from_slice(&stream.to_le_bytes());
            out.extend_from_slice(&(ends.name.len() as u16).to_le_bytes());
            out.extend_from_slice(&[0, 0]);
            out.extend_from_slice(&ends.start.to_le_bytes());
            out.extend_from_slice(&ends.next.to_le_bytes());
            out.extend_from_slice(&ends.name);
        }
        out.resize(out.len().next_multiple_of(64), 0);
        let bytes = out.len() as u32;
        out[52..56].copy_from_slice(&bytes.to_le_bytes());
        let crc = crc32c::crc32c(&out[4..]);
        out[0..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Length of a header with such a table.
    pub fn encoded_bytes(table: &Table) -> usize {
        let names: usize = table.values().map(|ends| ends.name.len()).sum();
        (SEGMENT_FIXED + table.len() * ENTRY_FIXED + names).next_multiple_of(64)
    }

    /// Reads the header from the beginning of a file.
    pub fn read(file: &dyn DiskFile) -> std::io::Result<ReadHeader> {
        let length = file.len()?;
        let mut fixed = [0; SEGMENT_FIXED];
        if length < SEGMENT_FIXED as u64 {
            return Ok(ReadHeader::Bad);
        }
        file.read_at(&mut fixed, 0)?;
        let bytes = u32_at(&fixed, 52) as usize;
        let magic = u32_at(&fixed, 4);
        // Later formats keep checksum, magic and length where they are, so that this version can recognise them.
        if magic & MAGIC_MASK != SEGMENT_MAGIC & MAGIC_MASK || bytes < SEGMENT_FIXED || bytes as u64 > length
        {
            return Ok(ReadHeader::Bad);
        }
        let mut all = vec![0; bytes];
        file.read_at(&mut all, 0)?;
        if crc32c::crc32c(&all[4..]) != u32_at(&all, 0) {
            return Ok(ReadHeader::Bad);
        }
        if magic != SEGMENT_MAGIC {
            return Ok(ReadHeader::Newer);
        }
        Ok(SegmentHeader::decode(&all).map_or(ReadHeader::Bad, |header| ReadHeader::Good(header, bytes)))
    }

    fn decode(bytes: &[u8]) -> Option<SegmentHeader> {
        if crc32c::crc32c(&bytes[4..]) != u32_at(bytes, 0) {
            return None;
        }
        let mut table = Table::new();
        let mut rest = &bytes[SEGMENT_FIXED..];
        for _ in 0..u32_at(bytes, 48) {
            let fixed = rest.first_chunk::<ENTRY_FIXED>()?;
            let name_bytes = usize::from(u16::from_le_bytes([fixed[4], fixed[5]]));
            let name = rest.get(ENTRY_FIXED..ENTRY_FIXED + name_bytes)?.to_vec();
            let (start, next) = (u64_at(fixed, 8), u64_at(fixed, 16));
            table.insert(u32_at(fixed, 0), StreamEnds { start, next, name });
            rest = &rest[ENTRY_FIXED + name_bytes..];
        }
        let mut log = [0; 16];
        log.copy_from_slice(&bytes[32..48]);
        Some(SegmentHeader {
            generation: u64_at(bytes, 8),
            number: u64_at(bytes, 16),
            previous_end: u64_at(bytes, 24),
            log: u128::from_le_bytes(log),
            capacity: u64_at(bytes, 56),
            table,
        })
    }
}

/// A segment of a log. While any `Arc` to it exists, its file is neither removed nor used again, so holders may read.
#[derive(Debug)]
pub(crate) struct Segment {
    pub number: u64,
    pub generation: u64,
    pub path: PathBuf,
    /// The length with which the file was made. The file is shorter if somebody cut it.
    pub capacity: u64,
    /// Offset of the first batch, behind the header.
    pub first: u64,
    pub disk: Arc<dyn Disk>,
    /// The open file of the newest segment. Older segments are opened for each read, because a log may have more
    /// segments than a process may have descriptors.
    pub newest: Mutex<Option<Arc<dyn DiskFile>>>,
}

impl Segment {
    /// The file, open for reading and writing. A missing file counts as damage, because waiting does not bring it
    /// back.
    pub fn file(&self) -> Result<Arc<dyn DiskFile>, Failure> {
        match &*lock(&self.newest) {
            Some(file) => Ok(Arc::clone(file)),
            None => self.disk.open(&self.path).map_err(|error| match error.kind() {
                // A segment in use is never freed, so somebody else removed the file, and it stays gone.
                ErrorKind::NotFound => Failure::damaged(&self.path, 0, "the file is missing"),
                _ => Failure::io(Action::Open, &self.path)(error),
            }),
        }
    }

    /// Keeps the file open, because this segment is now the newest.
    pub fn keep_open(&self, file: &Arc<dyn DiskFile>) {
        *lock(&self.newest) = Some(Arc::clone(file));
    }

    /// Closes the file, because this segment is no longer the newest.
    pub fn shut(&self) {
        lock(&self.newest).take();
    }
}

/// The path of a segment's file.
pub(crate) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.seg"))
}

/// The segment's number in a file name, if the name is a segment's.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}

/// Reads a u32. The caller guarantees that `bytes` is long enough.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Reads a u64. The caller guarantees that `bytes` is long enough.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> BatchHeader {
        BatchHeader {
            generation: 7,
            group: 3,
            group_start: 64,
            payload_bytes: 100,
            payload_crc: 9,
            stream: 2,
            base: 1 << 40,
            appended_ms: 1_700_000_000_000,
            count: 5,
            kind: Kind::Messages,
        }
    }

    #[test]
    fn a_batch_header_is_read_back_in_its_own_generation_only() {
        let mut bytes = [0; BATCH_HEADER];
        header().encode(&mut bytes);
        assert_eq!(BatchHeader::decode(&bytes, 7), Some(header()));
        assert_eq!(BatchHeader::decode(&bytes, 8), None);
    }

    /// BRK-1, P10.
    #[test]
    fn a_kind_that_is_not_known_is_told_from_bytes_that_are_no_batch() {
        let mut bytes = [0; BATCH_HEADER];
        header().encode(&mut bytes);
        assert_eq!(BatchHeader::unknown_kind(&bytes, 7), None, "a kind that is known");
        bytes[60..62].copy_from_slice(&99u16.to_le_bytes());
        assert_eq!(BatchHeader::unknown_kind(&bytes, 7), None, "a bad checksum");
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[0..4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(BatchHeader::decode(&bytes, 7), None);
        assert_eq!(BatchHeader::unknown_kind(&bytes, 7), Some((99, 3)));
        assert_eq!(BatchHeader::unknown_kind(&bytes, 8), None, "another life of the file");
    }

    /// BRK-1: no bit of a header can change unseen.
    #[test]
    fn every_flipped_bit_of_a_batch_header_is_seen() {
        let mut bytes = [0; BATCH_HEADER];
        header().encode(&mut bytes);
        for bit in 0..BATCH_HEADER * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BatchHeader::decode(&flipped, 7), None, "bit {bit}");
        }
    }

    #[test]
    fn a_segment_header_is_read_back_and_every_flipped_bit_is_seen() {
        let ends = |name: &str| StreamEnds { start: 3, next: 9, name: name.into() };
        let header = SegmentHeader {
            generation: 1,
            number: 2,
            previous_end: 3,
            log: 4,
            capacity: 4096,
            table: Table::from([(0, ends("")), (7, ends("orders"))]),
        };
        let bytes = header.encode();
        assert_eq!(bytes.len(), SegmentHeader::encoded_bytes(&header.table));
        assert_eq!(SegmentHeader::decode(&bytes), Some(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&flipped), None, "bit {bit}");
        }
    }
}
