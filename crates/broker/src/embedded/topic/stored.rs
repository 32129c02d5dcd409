//! Batches of a topic in memory: single batches as they were stored, and spans of batches read from the disk.
//!
//! The first reader that asks for a span reads and checks it; a small cache then shares it with the readers of all
//! partitions. Batches are slices of the bytes that were read, so nothing is copied.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use keylane_core::Batch;

use super::index::{SPAN_BYTES, Span};
use crate::embedded::disk::{DiskFile, Piecewise};
use crate::embedded::failure::{Action, Failure};
use crate::embedded::lock;
use crate::embedded::segment::{ALIGN, BATCH_HEADER, BatchHeader, Kind, u32_at};

/// Spans kept after they were read: enough that readers of all partitions that follow the same stretch share them.
const SPANS_MAX: usize = 16;
/// Buffers kept for further reads: as many as a small machine reads at the same time, …
const BUFFERS_MAX: usize = 4;
/// … and none larger than a usual span. The span of a large batch may have as many bytes as a whole group commit.
const BUFFER_BYTES_MAX: usize = 2 * SPAN_BYTES as usize;

/// A batch as it was stored, or the part of it that was not handed out yet.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub partition: u32,
    pub base: u64,
    pub next: u64,
    pub appended_ms: u64,
    pub frames: Bytes,
}

impl Stored {
    pub fn new(header: &BatchHeader, frames: Bytes) -> Stored {
        Stored {
            partition: header.stream,
            base: header.base,
            next: header.next(),
            appended_ms: header.appended_ms,
            frames,
        }
    }

    /// Takes frames off the front, from position `from` on: about `bytes_max` bytes, at least one frame. The rest
    /// stays.
    pub fn take(&mut self, from: u64, bytes_max: usize) -> Batch {
        let mut at = 0;
        while let Some((length, delta)) = self.frame_at(at)
            && self.base + delta < from
        {
            at += length;
        }
        let first = at;
        let (mut count, mut next) = (0, self.next);
        while let Some((length, delta)) = self.frame_at(at) {
            if count > 0 && at + length - first > bytes_max {
                next = self.base + delta;
                break;
            }
            at += length;
            count += 1;
        }
        let frames = self.frames.slice(first..at);
        self.frames = match next == self.next {
            true => Bytes::new(),
            false => self.frames.slice(at..),
        };
        Batch {
            partition: self.partition,
            base: self.base,
            next,
            appended_ms: self.appended_ms,
            count,
            frames,
        }
    }

    /// The whole batch, if the caller wants all of it. Cheaper than `take`, because it does not look at each frame.
    pub fn whole(&self, from: u64, bytes_max: usize) -> Option<Batch> {
        let first = self.frame_at(0).map(|(_, delta)| self.base + delta)?;
        (first >= from && self.frames.len() <= bytes_max).then(|| Batch {
            partition: self.partition,
            base: self.base,
            next: self.next,
            appended_ms: self.appended_ms,
            count: (self.next - first) as u32,
            frames: self.frames.clone(),
        })
    }

    fn frame_at(&self, at: usize) -> Option<(usize, u64)> {
        let rest = &self.frames[at..];
        let length = 4 + u32_at(rest.get(..8)?, 0) as usize;
        (length <= rest.len()).then(|| (length, u64::from(u32_at(rest, 4))))
    }
}

/// The spans that were read last.
#[derive(Debug, Default)]
pub(crate) struct SpanCache {
    slots: Mutex<VecDeque<Arc<Slot>>>,
    /// Buffers of former spans. Allocating a fresh buffer costs as much as reading into it.
    buffers: Mutex<Vec<BytesMut>>,
}

#[derive(Debug)]
struct Slot {
    segment: u64,
    offset: u64,
    bytes: u64,
    /// Locked while the span is read. A second reader of the same span waits here and does not read it again.
    loaded: Mutex<Option<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    whole: Bytes,
    batches: Arc<SpanBatches>,
}

/// The intact batches of a span, and what is wrong with the first damaged one. The damaged batch's partition shows in
/// the gap between positions, because the batches of a partition follow each other without gaps.
#[derive(Debug)]
pub(crate) struct SpanBatches {
    pub whole: Vec<Stored>,
    pub damaged: Option<Failure>,
}

impl SpanCache {
    /// The batches of a span, if they are in memory.
    pub fn peek(&self, span: &Span) -> Option<Arc<SpanBatches>> {
        let slots = lock(&self.slots);
        let slot = slots.iter().find(|slot| slot.holds(span))?;
        let loaded = slot.loaded.try_lock().ok()?;
        loaded.as_ref().map(|loaded| Arc::clone(&loaded.batches))
    }

    /// The batches of a span, from memory or from the disk. Afterwards at most `bytes_max` bytes are kept, or one
    /// span.
    pub fn load(&self, span: &Span, bytes_max: usize) -> Result<Arc<SpanBatches>, Failure> {
        let slot = self.slot(span, bytes_max);
        let mut loaded = lock(&slot.loaded);
        if let Some(loaded) = &*loaded {
            return Ok(Arc::clone(&loaded.batches));
        }
        let buffer = lock(&self.buffers).pop().unwrap_or_default();
        let (whole, batches) = read_span(span, buffer)?;
        let batches = Arc::new(batches);
        // A damaged span is not kept: the disk may have returned wrong bytes only once, and the next reader tries
        // again.
        if batches.damaged.is_none() {
            *loaded = Some(Loaded { whole, batches: Arc::clone(&batches) });
        }
        Ok(batches)
    }

    /// Keeps at most `bytes_max` bytes, or one span.
    pub fn trim(&self, bytes_max: usize) {
        while let Some(oldest) = self.beyond(bytes_max) {
            drop(oldest);
        }
        let spans = (bytes_max / SPAN_BYTES as usize).clamp(1, SPANS_MAX);
        lock(&self.buffers).truncate(spans * BUFFERS_MAX / SPANS_MAX);
    }

    /// Takes out the oldest span if there are too many. They are counted in bytes, because a span ends with a whole
    /// batch and can be much larger than usual. The newest span stays, since its reader waits for it.
    fn beyond(&self, bytes_max: usize) -> Option<Arc<Slot>> {
        let mut slots = lock(&self.slots);
        let bytes: u64 = slots.iter().map(|slot| slot.bytes).sum();
        let too_many = slots.len() > SPANS_MAX || bytes > bytes_max as u64;
        (too_many && slots.len() > 1).then(|| slots.pop_front()).flatten()
    }

    fn slot(&self, span: &Span, bytes_max: usize) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.iter().find(|slot| slot.holds(span)) {
            return Arc::clone(slot);
        }
        let slot = Arc::new(Slot {
            segment: span.segment.number,
            offset: span.offset,
            bytes: span.bytes,
            loaded: Mutex::new(None),
        });
        slots.push_back(Arc::clone(&slot));
        drop(slots);
        while let Some(oldest) = self.beyond(bytes_max) {
            Arc::into_inner(oldest).into_iter().for_each(|oldest| self.use_again(oldest));
        }
        slot
    }

    /// Keeps the buffer of a span that no reader holds any more.
    fn use_again(&self, slot: Slot) {
        let loaded = slot.loaded.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some(Loaded { whole, batches }) = loaded else {
            return;
        };
        drop(batches);
        let mut buffers = lock(&self.buffers);
        if buffers.len() < BUFFERS_MAX
            && let Ok(buffer) = whole.try_into_mut()
            && buffer.capacity() <= BUFFER_BYTES_MAX
        {
            buffers.push(buffer);
        }
    }
}

impl Slot {
    fn holds(&self, span: &Span) -> bool {
        self.segment == span.segment.number && self.offset == span.offset && self.bytes == span.bytes
    }
}

/// Reads a span and skips what is damaged: a damaged batch must stop only the readers of its own partition.
fn read_span(span: &Span, mut bytes: BytesMut) -> Result<(Bytes, SpanBatches), Failure> {
    let segment = &span.segment;
    bytes.resize(span.bytes as usize, 0);
    let read = Piecewise(&*segment.file()?).read_at(&mut bytes, span.offset);
    read.map_err(Failure::io(Action::Read, &segment.path))?;
    let bytes = bytes.freeze();
    let (mut batches, mut at) = (SpanBatches { whole: Vec::new(), damaged: None }, 0);
    while at < bytes.len() {
        let damaged = |what: &str| Failure::damaged(&segment.path, span.offset + at as u64, what);
        let header = BatchHeader::decode(&bytes[at..], segment.generation)
            .filter(|header| at + header.stored_bytes() <= bytes.len());
        let Some(header) = header else {
            batches.damaged.get_or_insert_with(|| damaged("the header of a batch is damaged"));
            // Without a header the length of the batch is unknown, so the next good header is searched.
            at += ALIGN;
            while at < bytes.len() && BatchHeader::decode(&bytes[at..], segment.generation).is_none() {
                at += ALIGN;
            }
            continue;
        };
        let (first, behind) = (at + BATCH_HEADER, at + BATCH_HEADER + header.payload_bytes as usize);
        if crc32c::crc32c(&bytes[first..behind]) != header.payload_crc {
            batches.damaged.get_or_insert_with(|| damaged("a batch is damaged"));
        } else if header.kind == Kind::Lost {
            // A gap that an operator chose to skip: an empty batch, so that readers pass over these positions.
            batches.whole.push(Stored::new(&header, Bytes::new()));
        } else if header.count > 0 {
            batches.whole.push(Stored::new(&header, bytes.slice(first..behind)));
        }
        at += header.stored_bytes();
    }
    Ok((bytes, batches))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::embedded::disk::{Disk, RealDisk};
    use crate::embedded::segment::Segment;

    const BYTES: usize = 4 << 20;

    /// A segment that consists of `batches` batches of 4 MiB each.
    fn segment(path: &Path, batches: u64) -> Arc<Segment> {
        let file = RealDisk.create(path).expect("a new file");
        let mut bytes = vec![7; BYTES];
        let header = BatchHeader {
            generation: 1,
            group: 1,
            group_start: 0,
            payload_bytes: (BYTES - BATCH_HEADER) as u32,
            payload_crc: crc32c::crc32c(&bytes[BATCH_HEADER..]),
            stream: 0,
            base: 0,
            appended_ms: 0,
            count: 1,
            kind: Kind::Messages,
        };
        header.encode(&mut bytes);
        (0..batches).for_each(|at| file.write_at(&bytes, at * BYTES as u64).expect("room"));
        let segment = Segment {
            number: 1,
            generation: 1,
            path: path.to_owned(),
            capacity: batches * BYTES as u64,
            first: 0,
            disk: Arc::new(RealDisk),
            newest: Mutex::new(Some(file)),
        };
        Arc::new(segment)
    }

    /// P5: spans of large messages count with their real bytes, in the cache and as buffers kept for further reads.
    #[test]
    fn large_spans_take_no_more_memory_than_their_bound() {
        let dir = tempfile::tempdir().expect("a folder");
        let segment = segment(&dir.path().join("segment"), 8);
        let span =
            |at: u64| Span { segment: Arc::clone(&segment), offset: at * BYTES as u64, bytes: BYTES as u64 };
        let cache = SpanCache::default();
        for at in 0..8 {
            let read = cache.load(&span(at), 2 * BYTES).expect("no damage");
            assert_eq!((read.whole.len(), read.damaged.is_none()), (1, true));
            drop(read);
            let loaded =
                |slot: &Arc<Slot>| lock(&slot.loaded).as_ref().map_or(0, |loaded| loaded.whole.len());
            let held: usize = lock(&cache.slots).iter().map(loaded).sum();
            let kept: usize = lock(&cache.buffers).iter().map(BytesMut::capacity).sum();
            assert!(held <= 2 * BYTES, "{held} bytes are held");
            assert!(kept <= BUFFERS_MAX * BUFFER_BYTES_MAX, "{kept} bytes are kept to be read into");
        }
        assert!(cache.peek(&span(7)).is_some() && cache.peek(&span(6)).is_some(), "two of them fit");
        cache.load(&span(0), 1).expect("no damage");
        assert!(cache.peek(&span(0)).is_some(), "one is kept, however large it is");
        assert_eq!(lock(&cache.slots).len(), 1);
    }
}
