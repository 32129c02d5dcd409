//! Segments, of which every log is made: their bytes, how they are made, written, read back and opened again.
//!
//! [`Appender`] writes the end of a log, [`recover`] opens one that is there, [`make`] makes its files, and [`end`] is
//! the small file that says how far it reaches. What lies in batches is for topics and journals to say.

mod appender;
mod bytes;
pub(super) mod end;
pub(super) mod make;
mod recover;
mod scan;

pub(super) use appender::{Appender, Laid, Placed, Sizes};
pub(super) use bytes::{
    ALIGN, BATCH_HEADER, BatchHeader, Kind, ReadHeader, Segment, SegmentHeader, StreamEnds, Table, apply,
    segment_number, segment_path, stored_bytes, u32_at, u64_at,
};
pub(super) use recover::{Visitor, recover};
pub(super) use scan::{Extent, known_kind, scan};
