//! Finds the batches of a partition in the segments of a topic.
//!
//! A segment is divided into *spans*: runs of whole batches of about [`SPAN_BYTES`], whatever their partitions. For
//! each partition, the index holds the first position of the partition in each span. A span is read from the disk in
//! one piece, and the readers of all partitions share it. The index contains only synced batches, so readers cannot
//! read others.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::embedded::segment::{BatchHeader, Segment, Table, Visitor};

/// A span is complete once it has this many bytes: enough that the system call hardly counts, and few enough that a
/// reader that seeks one position reads little else.
pub(crate) const SPAN_BYTES: u64 = 512 * 1024;

/// A run of whole batches.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub segment: Arc<Segment>,
    pub offset: u64,
    pub bytes: u64,
}

/// The index of one segment.
#[derive(Debug)]
pub(crate) struct SegmentIndex {
    pub segment: Arc<Segment>,
    /// Bytes of all batches in the segment.
    pub bytes: u64,
    /// When the newest message in the segment was appended.
    pub newest_ms: u64,
    /// When the oldest message in the segment was appended; the largest number if there is none.
    pub oldest_ms: u64,
    /// For each partition, its next position at the beginning and at the end of the segment.
    pub first: Vec<u64>,
    pub next: Vec<u64>,
    spans: Vec<(u64, u64)>,
    entries: Vec<Vec<Entry>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    base: u64,
    span: u32,
}

impl SegmentIndex {
    pub fn new(segment: Arc<Segment>, first: Vec<u64>) -> SegmentIndex {
        SegmentIndex {
            segment,
            bytes: 0,
            newest_ms: 0,
            oldest_ms: u64::MAX,
            next: first.clone(),
            spans: Vec::new(),
            entries: vec![Vec::new(); first.len()],
            first,
        }
    }

    /// Adds the batch that follows the last one.
    pub fn add(&mut self, header: &BatchHeader, offset: u64) {
        let bytes = header.stored_bytes() as u64;
        match self.spans.last_mut() {
            Some((_, length)) if *length < SPAN_BYTES => *length += bytes,
            _ => self.spans.push((offset, bytes)),
        }
        self.bytes += bytes;
        // A batch without messages has no age. Otherwise the mark that older versions wrote at each close would keep
        // a segment young for ever.
        if header.count > 0 {
            self.newest_ms = self.newest_ms.max(header.appended_ms);
            self.oldest_ms = self.oldest_ms.min(header.appended_ms);
        }
        let span = self.spans.len() as u32 - 1;
        let partition = header.stream as usize;
        if let Some(entries) = self.entries.get_mut(partition)
            && header.count > 0
        {
            self.next[partition] = header.next();
            if entries.last().is_none_or(|entry| entry.span != span) {
                entries.push(Entry { base: header.base, span });
            }
        }
    }

    fn find(&self, partition: usize, position: u64) -> Option<Span> {
        if position < self.first[partition] || position >= self.next[partition] {
            return None;
        }
        let entries = &self.entries[partition];
        let behind = entries.partition_point(|entry| entry.base <= position);
        let (offset, bytes) = self.spans[entries[behind.checked_sub(1)?].span as usize];
        Some(Span { segment: Arc::clone(&self.segment), offset, bytes })
    }
}

/// All segments of a topic, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub segments: VecDeque<SegmentIndex>,
}

impl Index {
    /// The span that contains a position.
    pub fn find(&self, partition: u32, position: u64) -> Option<Span> {
        let partition = partition as usize;
        let at = self.segments.partition_point(|segment| segment.next[partition] <= position);
        self.segments.get(at)?.find(partition, position)
    }

    /// Bytes of all batches.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// The first position that is kept in each partition.
    pub fn starts(&self) -> Vec<u64> {
        self.segments.front().map(|oldest| oldest.first.clone()).unwrap_or_default()
    }

    /// Adds a batch to the newest segment; begins `segment` if it is new.
    pub fn add(&mut self, segment: &Arc<Segment>, header: &BatchHeader, offset: u64) {
        self.begin(segment);
        if let Some(newest) = self.segments.back_mut() {
            newest.add(header, offset);
        }
    }

    /// Makes `segment` the newest, unless it is the newest already.
    pub fn begin(&mut self, segment: &Arc<Segment>) {
        let newest = self.segments.back();
        if newest.is_some_and(|newest| newest.segment.number == segment.number) {
            return;
        }
        let first = newest.map(|newest| newest.next.clone()).unwrap_or_default();
        self.segments.push_back(SegmentIndex::new(Arc::clone(segment), first));
    }
}

impl Visitor for Index {
    fn allows_holes(&self) -> bool {
        false
    }

    fn segment(&mut self, segment: &Arc<Segment>, table: &Table) {
        let first = table.values().map(|ends| ends.next).collect();
        self.segments.push_back(SegmentIndex::new(Arc::clone(segment), first));
    }

    fn batch(
        &mut self,
        segment: &Arc<Segment>,
        header: &BatchHeader,
        offset: u64,
        _payload: &[u8],
    ) -> Result<(), String> {
        self.add(segment, header, offset);
        Ok(())
    }
}
