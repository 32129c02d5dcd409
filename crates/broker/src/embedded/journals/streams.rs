//! The index of a journals' log, in memory: where the records of each stream lie, and how much of each segment is
//! live.
//!
//! In: batches in the order of the log, while the log is opened and after each group was synced. Invariants:
//!
//! - Each position of a stream lies at one place. A copy replaces the record that it is a copy of.
//! - Records below the start of their stream are dead, and a segment without live records may be freed. Batches that
//!   cut or name a stream count as dead, because the table at the beginning of the next segment repeats what they
//!   say.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use crate::contract::BrokerError;
use crate::embedded::disk::{DiskFile, Piecewise};
use crate::embedded::failure::{Action, Failure};
use crate::embedded::segment::{BATCH_HEADER, BatchHeader, Kind, Segment, Table, Visitor, u32_at};

/// Where a stream ends, or why it will never grow, for readers that wait.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail {
    pub end: u64,
    pub stopped: Option<BrokerError>,
}

/// All streams of a log.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    by_name: HashMap<Vec<u8>, u32>,
    streams: BTreeMap<u32, Stream>,
    segments: BTreeMap<u64, SegmentUse>,
    /// The number of the next new stream. Never reused, because an older segment may still contain a former stream.
    next: u32,
    /// Why the log has stopped. Streams that are added later must report it, too.
    stopped: Option<BrokerError>,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub name: Vec<u8>,
    /// False until the log contains the stream's name, that is, until the first record is appended.
    pub named: bool,
    pub start: u64,
    pub next: u64,
    pub tail: watch::Sender<Tail>,
    runs: BTreeMap<u64, Run>,
}

/// A batch of a stream's records. If some of its records were copied elsewhere, only the remaining ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub base: u64,
    pub count: u32,
    pub segment: u64,
    pub offset: u64,
    /// Bytes of the batch in its file, header included.
    pub bytes: u32,
    /// An operator skipped these damaged positions: there is nothing to read.
    pub lost: bool,
}

impl Run {
    pub fn next(&self) -> u64 {
        self.base + u64::from(self.count)
    }
}

/// How many bytes of a segment are still needed.
#[derive(Debug)]
struct SegmentUse {
    segment: Arc<Segment>,
    bytes: u64,
    live: u64,
    /// A live record cannot be read, so that the segment cannot be emptied. It stays until all its records are dead.
    stays: bool,
}

impl Streams {
    /// The number of the stream with this name. A new stream exists only in memory until its first record is
    /// appended.
    pub fn number(&mut self, name: &[u8]) -> u32 {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        let number = self.next;
        self.add(number, name.to_vec(), false);
        number
    }

    pub fn get(&self, number: u32) -> Option<&Stream> {
        self.streams.get(&number)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Stream)> {
        self.streams.iter().map(|(number, stream)| (*number, stream))
    }

    /// The runs that hold positions from `from` on, up to about `bytes_max` bytes.
    pub fn runs(&self, number: u32, from: u64, bytes_max: usize) -> Vec<(Run, Arc<Segment>)> {
        let mut found = Vec::new();
        let Some(stream) = self.streams.get(&number) else {
            return found;
        };
        let before = stream.runs.range(..=from).next_back().map(|(_, run)| *run);
        let first = before.filter(|run| run.next() > from);
        let mut bytes = 0;
        for run in first.into_iter().chain(stream.runs.range(from + 1..).map(|(_, run)| *run)) {
            if bytes > bytes_max {
                break;
            }
            bytes += run.bytes as usize;
            if let Some(held) = self.segments.get(&run.segment) {
                found.push((run, Arc::clone(&held.segment)));
            }
        }
        found
    }

    /// Enters a batch that is durable.
    pub fn note(&mut self, segment: &Arc<Segment>, header: &BatchHeader, offset: u64, payload: &[u8]) {
        let bytes = header.stored_bytes() as u64;
        self.begin(segment);
        if let Some(used) = self.segments.get_mut(&segment.number) {
            used.bytes += bytes;
        }
        if header.kind == Kind::Name {
            self.add(header.stream, payload.to_vec(), true);
            return;
        }
        let run = Run {
            base: header.base,
            count: header.count,
            segment: segment.number,
            offset,
            bytes: bytes as u32,
            lost: header.kind == Kind::Lost,
        };
        match header.kind {
            Kind::Records => self.place(header.stream, run),
            Kind::Copies | Kind::Lost => self.place(header.stream, run),
            Kind::Latest => {
                self.place(header.stream, run);
                self.cut(header.stream, header.base);
            }
            Kind::Cut => self.cut(header.stream, header.base),
            Kind::Gone => self.forget(header.stream),
            Kind::Messages | Kind::Name | Kind::Closed => {}
        }
    }

    /// Enters a segment, which may still be empty.
    pub fn begin(&mut self, segment: &Arc<Segment>) {
        self.segments.entry(segment.number).or_insert_with(|| SegmentUse {
            segment: Arc::clone(segment),
            bytes: 0,
            live: 0,
            stays: false,
        });
    }

    /// The number of a full segment that is mostly dead, the emptiest first. `active` is the segment that is written
    /// now.
    pub fn mostly_dead(&self, active: u64) -> Option<u64> {
        let closed = self.segments.iter().filter(|(number, _)| **number != active);
        closed
            .filter(|(_, used)| used.live == 0 || used.live * 2 <= used.bytes && !used.stays)
            .min_by_key(|(_, used)| used.live)
            .map(|(number, _)| *number)
    }

    /// The live runs of a segment, each with its stream and the stream's start; up to about `bytes_max` bytes.
    pub fn living(&self, segment: u64, bytes_max: usize) -> Vec<(u32, u64, Run, Arc<Segment>)> {
        let mut living = Vec::new();
        let Some(used) = self.segments.get(&segment) else {
            return living;
        };
        let mut bytes = 0;
        for (number, stream) in &self.streams {
            for run in stream.runs.values().filter(|run| run.segment == segment) {
                if bytes > bytes_max {
                    return living;
                }
                bytes += run.bytes as usize;
                living.push((*number, stream.start, *run, Arc::clone(&used.segment)));
            }
        }
        living
    }

    /// Excludes a segment from being emptied.
    pub fn let_stay(&mut self, segment: u64) {
        if let Some(used) = self.segments.get_mut(&segment) {
            used.stays = true;
        }
    }

    /// Takes a segment out of the index.
    pub fn remove(&mut self, segment: u64) -> Option<Arc<Segment>> {
        self.segments.remove(&segment).map(|used| used.segment)
    }

    /// Tells all readers that wait that the streams will not grow any more.
    pub fn stop(&mut self, why: &BrokerError) {
        self.stopped.get_or_insert_with(|| why.clone());
        for stream in self.streams.values() {
            stream.tail.send_modify(|tail| {
                tail.stopped.get_or_insert_with(|| why.clone());
            });
        }
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.values().map(|used| Arc::clone(&used.segment)).collect()
    }

    /// Positions that should be kept but lie nowhere: stream, first position, and the position behind the last.
    pub fn gaps(&self) -> Vec<(u32, u64, u64)> {
        let mut gaps = Vec::new();
        for (number, stream) in &self.streams {
            let mut covered = stream.start;
            for run in stream.runs.values().filter(|run| run.next() > stream.start) {
                if run.base > covered {
                    gaps.push((*number, covered, run.base));
                }
                covered = covered.max(run.next());
            }
            if covered < stream.next {
                gaps.push((*number, covered, stream.next));
            }
        }
        gaps
    }

    /// Checks, after the log was opened, that every position that should be kept was found.
    pub fn check(&self) -> Result<(), String> {
        for (number, stream) in &self.streams {
            let mut covered = stream.start;
            for run in stream.runs.values().filter(|run| run.next() > stream.start) {
                if run.base > covered {
                    break;
                }
                covered = run.next();
            }
            if covered != stream.next {
                return Err(format!(
                    "record {covered} of stream {number} ({}) is missing",
                    String::from_utf8_lossy(&stream.name)
                ));
            }
        }
        Ok(())
    }

    /// Removes a stream and all its runs.
    fn forget(&mut self, number: u32) {
        let Some(stream) = self.streams.remove(&number) else {
            return;
        };
        self.by_name.remove(&stream.name);
        stream.runs.values().for_each(|run| give_back(&mut self.segments, run));
    }

    fn add(&mut self, number: u32, name: Vec<u8>, named: bool) {
        self.next = self.next.max(number + 1);
        self.by_name.insert(name.clone(), number);
        let tail = Tail { end: 0, stopped: self.stopped.clone() };
        let stream = self.streams.entry(number).or_insert_with(|| Stream {
            name,
            named,
            start: 0,
            next: 0,
            tail: watch::Sender::new(tail),
            runs: BTreeMap::new(),
        });
        stream.named = named;
    }

    fn place(&mut self, number: u32, run: Run) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        // Takes away what the new run replaces: a run that begins before it and reaches into it, and runs that begin
        // in it.
        let before = stream.runs.range(..run.base).next_back().map(|(_, run)| *run);
        if let Some(before) = before.filter(|before| before.next() > run.base) {
            if run.base <= stream.start {
                stream.runs.remove(&before.base);
                give_back(&mut self.segments, &before);
            } else if let Some(before) = stream.runs.get_mut(&before.base) {
                before.count = (run.base - before.base) as u32;
            }
        }
        let within: Vec<u64> = stream.runs.range(run.base..run.next()).map(|(base, _)| *base).collect();
        for base in within {
            if let Some(replaced) = stream.runs.remove(&base) {
                give_back(&mut self.segments, &replaced);
            }
        }
        if run.next() > stream.start {
            if let Some(used) = self.segments.get_mut(&run.segment) {
                used.live += u64::from(run.bytes);
            }
            stream.runs.insert(run.base, run);
        }
        if run.next() > stream.next {
            stream.next = run.next();
            stream.tail.send_modify(|tail| tail.end = run.next());
        }
    }

    fn cut(&mut self, number: u32, below: u64) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        stream.start = stream.start.max(below);
        while let Some(oldest) = stream.runs.first_entry()
            && oldest.get().next() <= stream.start
        {
            give_back(&mut self.segments, &oldest.remove());
        }
    }
}

impl Visitor for Streams {
    fn allows_holes(&self) -> bool {
        true
    }

    fn segment(&mut self, segment: &Arc<Segment>, table: &Table) {
        self.begin(segment);
        // A stream missing in the table was forgotten in a segment that is already freed.
        let gone: Vec<u32> =
            self.streams.keys().filter(|number| !table.contains_key(number)).copied().collect();
        gone.into_iter().for_each(|number| self.forget(number));
        for (number, ends) in table {
            self.add(*number, ends.name.clone(), true);
            if let Some(stream) = self.streams.get_mut(number)
                && ends.next > stream.next
            {
                stream.next = ends.next;
                stream.tail.send_modify(|tail| tail.end = ends.next);
            }
            self.cut(*number, ends.start);
        }
    }

    fn batch(
        &mut self,
        segment: &Arc<Segment>,
        header: &BatchHeader,
        offset: u64,
        payload: &[u8],
    ) -> Result<(), String> {
        self.note(segment, header, offset, payload);
        Ok(())
    }
}

fn give_back(segments: &mut BTreeMap<u64, SegmentUse>, run: &Run) {
    if let Some(used) = segments.get_mut(&run.segment) {
        used.live -= u64::from(run.bytes);
    }
}

/// Adds a record to the payload of a batch: its length as u32, then its bytes.
pub(crate) fn put_record(out: &mut Vec<u8>, record: &[u8]) {
    out.extend_from_slice(&(record.len() as u32).to_le_bytes());
    out.extend_from_slice(record);
}

/// Reads a run from the disk, checks it, and returns its records with their positions.
pub(crate) fn read_run(run: &Run, segment: &Segment) -> Result<Vec<(u64, Bytes)>, Failure> {
    if run.lost {
        let (first, last) = (run.base, run.next() - 1);
        let what = format!(
            "records {first} to {last} were damaged, and a repair has skipped them; to begin anew without them, forget the group (`keylane topics forget-group`)"
        );
        return Err(Failure::damaged(&segment.path, run.offset, what));
    }
    let mut bytes = vec![0; run.bytes as usize];
    let read = Piecewise(&*segment.file()?).read_at(&mut bytes, run.offset);
    read.map_err(Failure::io(Action::Read, &segment.path))?;
    let bytes = Bytes::from(bytes);
    let damaged = |what| Failure::damaged(&segment.path, run.offset, what);
    let header = BatchHeader::decode(&bytes, segment.generation)
        .filter(|header| header.base == run.base && header.stored_bytes() == bytes.len())
        .ok_or_else(|| damaged("the header of a batch is damaged"))?;
    let mut rest = bytes.slice(BATCH_HEADER..BATCH_HEADER + header.payload_bytes as usize);
    if crc32c::crc32c(&rest) != header.payload_crc {
        return Err(damaged("a batch is damaged"));
    }
    let mut records = Vec::with_capacity(run.count as usize);
    for position in run.base..run.next() {
        let length = rest
            .get(..4)
            .map(|length| u32_at(length, 0) as usize)
            .filter(|length| 4 + length <= rest.len())
            .ok_or_else(|| damaged("a record does not fit into its batch"))?;
        records.push((position, rest.slice(4..4 + length)));
        rest = rest.slice(4 + length..);
    }
    Ok(records)
}
