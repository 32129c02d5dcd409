//! The files of a log: how a segment's bytes are laid out, made, written, scanned, and opened again after a crash.
//!
//! [`Appender`] writes at the end of a log, [`recover`] opens an existing log, [`make`] makes the files, and [`end`]
//! is the small file that records how far the log reaches. What a batch's payload means is decided by topics and
//! journals.

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
