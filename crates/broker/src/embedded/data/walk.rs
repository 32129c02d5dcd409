//! Reads a whole log although parts of it are damaged, and finds out which positions the damaged parts held.
//!
//! In: the folder of a log to which no process writes. Out: its segments, and [`Region`]s: stretches of bytes that
//! are not as they were written, each with the positions it held. If only the payload of a batch is damaged, its
//! header says which. Otherwise the batches behind the region tell, because positions of a stream follow each other
//! without gaps, and the table at the beginning of the next segment. Only a damaged end of the log leaves doubt: then
//! every stream without a batch behind the region may have lost as many positions as had room there. The file `end`
//! does not remove the doubt: unless the log was closed, it gives a lower bound, and a newest segment that is
//! missing, cut, or without a header may have been full.
//!
//! Damage is told from a torn tail by the rules of `scan`. The rules must be the same, or a repair would overwrite
//! batches that the server would have read at its start.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::super::failure::{Action, Failure};
use super::super::options::Host;
use super::gaps::attribute;
use super::report::SegmentReport;
use super::segments::{Head, NoHead, good_at, header_at, highest_group, no_newer, proven};
use crate::embedded::journals::Streams;
use crate::embedded::segment::end::End;
use crate::embedded::segment::{
    ALIGN, BATCH_HEADER, BatchHeader, Kind, Segment, SegmentHeader, StreamEnds, Table, Visitor, apply, end,
    segment_number,
};

/// What was found in a log.
pub(super) struct Walked {
    pub segments: Vec<SegmentReport>,
    pub regions: Vec<Region>,
    /// Where each stream begins and ends.
    pub table: Table,
    pub starts: Table,
    /// Where the newest segment ends, and the highest sync group in the log.
    pub end: u64,
    pub group: u64,
    pub newest: Option<Arc<Segment>>,
    /// What is wrong with the file `end`.
    pub no_end: Option<String>,
    /// Where the records of journals lie.
    pub streams: Streams,
    /// Regions of which nothing tells what they held.
    pub unknown: Vec<usize>,
    /// Missing records of journals that no region explains: stream, first position, and the position behind the last.
    pub missing: Vec<(u32, u64, u64)>,
}

/// Bytes that are not as they were written.
#[derive(Debug, Clone)]
pub(super) struct Region {
    pub segment: u64,
    pub from: u64,
    pub to: u64,
    pub what: String,
    /// The sync group of the last good batch before the region.
    pub group: u64,
    pub generation: u64,
    pub lost: Vec<LostRange>,
    /// Streams that were named in the region, and streams that were forgotten in it.
    pub named: Vec<(u32, Vec<u8>)>,
    pub gone: Vec<u32>,
    /// The region held a copy of these records. They are lost only if they lie nowhere else.
    pub copied: Option<LostRange>,
    /// Further records of journals that are lost with this region (`gaps`). Their `Lost` batches are written at the
    /// end of the log, because the region may lack the room.
    pub gaps: Vec<LostRange>,
    /// Bytes behind the region that may have been written, but are no longer there.
    pub behind: u64,
    /// The file is too short: it was made with this many bytes.
    pub made: Option<u64>,
    pub mend: Mend,
}

/// How a region can be repaired.
#[derive(Debug, Clone)]
pub(super) enum Mend {
    /// Overwrite the region with batches that say what is lost.
    Fill,
    /// Extend the file to the length with which it was made.
    Extend,
    /// Make the segment anew, because it is missing or its header is damaged.
    Anew(Anew),
    /// Remove the file: the log begins behind it.
    MoveAway,
    /// No repair is known.
    Nothing,
}

/// What a segment that is made anew contains.
#[derive(Debug, Clone)]
pub(super) struct Anew {
    pub previous_end: u64,
    pub capacity: u64,
    pub table: Table,
}

/// A range of positions of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostRange {
    pub stream: u32,
    pub from: u64,
    pub to: u64,
    /// It is not known how many of these positions are lost, if any.
    pub at_most: bool,
}

/// Reads the log in `dir`. An error if the files cannot be read at all, or if a newer version wrote them.
pub(super) fn walk(host: &Host, dir: &Path, log: u128, holes: bool) -> Result<Walked, Failure> {
    let names = host.disk.list(dir).map_err(Failure::io(Action::List, dir))?;
    let mut numbers: BTreeSet<u64> = names.iter().filter_map(|name| segment_number(name)).collect();
    let (known, no_end) = match End::read(host, dir, log) {
        Ok(known) => (known, None),
        Err(failure @ Failure::Damaged { .. }) => (None, Some(failure.to_string())),
        Err(failure) => return Err(failure),
    };
    numbers.extend(known.map(|known| known.segment));
    let mut found = Vec::new();
    for number in numbers {
        found.push((number, Head::read(host, dir, number, log)?));
    }
    let Some(at) = found.iter().position(|(_, head)| head.is_ok()) else {
        return Err(Failure::damaged(dir, 0, "no segment with a good header is left"));
    };
    let has_capacity = found.iter().flat_map(|(_, head)| head).any(|head| head.header.capacity > 0);
    let mut walker = Walker::new(known, found.last().map_or(0, |(number, _)| *number));
    walker.walked.no_end = no_end.or_else(|| {
        let missing = known.is_none() && has_capacity;
        missing.then(|| format!("{} is missing", dir.join(end::NAME).display()))
    });
    for (number, head) in &found[..at] {
        let first = found[at].1.as_ref().ok().filter(|_| !holes);
        walker.lost_before(
            *number,
            head.as_ref().err().map(|head| &head.what),
            first.map(|first| &first.header.table),
        );
    }
    let mut heads = found.into_iter().skip(at).peekable();
    while let Some((number, head)) = heads.next() {
        let next = heads.peek().and_then(|(_, next)| next.as_ref().ok()).map(|next| &next.header);
        walker.missing_before(number, holes, head.as_ref().ok().map(|head| &head.header));
        let next = next.filter(|next| next.number == number + 1);
        match head {
            Ok(head) => walker.segment(&head, &head.bytes(host)?, next)?,
            Err(head) => walker.anew(number, head, next),
        }
    }
    if holes {
        attribute(&mut walker.walked);
    }
    Ok(walker.walked)
}

/// The state of a walk through a log.
pub(super) struct Walker {
    known: Option<End>,
    /// The number of the last segment.
    newest: u64,
    pub walked: Walked,
    /// In the present segment: the regions of unknown content, and for each stream how many of them lie before the
    /// stream's last batch.
    pub unknown: Vec<usize>,
    pub seen: BTreeMap<u32, usize>,
    /// Bytes of the segments before this one of which no later header says where they ended.
    unsealed: u64,
    /// The number of the last segment that was read; 0 if there is none.
    before: u64,
}

impl Walker {
    fn new(known: Option<End>, newest: u64) -> Walker {
        let walked = Walked {
            segments: Vec::new(),
            regions: Vec::new(),
            table: Table::new(),
            starts: Table::new(),
            end: 0,
            group: known.map_or(0, |known| known.group),
            newest: None,
            no_end: None,
            streams: Streams::default(),
            unknown: Vec::new(),
            missing: Vec::new(),
        };
        let (unknown, seen) = (Vec::new(), BTreeMap::new());
        Walker { known, newest, walked, unknown, seen, unsealed: 0, before: 0 }
    }

    /// Handles an unreadable segment before the first readable one. Nothing tells what lay in it. In a topic, at most
    /// the positions below those at which the first readable segment begins are lost; in journals, the records that
    /// turn out to be missing (`gaps`).
    fn lost_before(&mut self, number: u64, what: Option<&String>, next: Option<&Table>) {
        let mut region = Region::new(number, 0, 0, what.cloned().unwrap_or_default(), 0, 0);
        region.mend = Mend::MoveAway;
        let before = next.into_iter().flatten().filter(|(_, ends)| ends.start < ends.next);
        region.lost.extend(before.map(|(stream, ends)| LostRange {
            stream: *stream,
            from: ends.start,
            to: ends.next,
            at_most: true,
        }));
        self.walked.unknown.push(self.walked.regions.len());
        self.walked.regions.push(region);
    }

    /// Handles segments that are missing before `number`. In journals' logs such holes are intended.
    fn missing_before(&mut self, number: u64, holes: bool, next: Option<&SegmentHeader>) {
        if self.before == 0 || holes {
            return;
        }
        for missing in self.before + 1..number {
            let next = next.filter(|_| missing + 1 == number);
            self.anew(missing, NoHead::missing(), next);
        }
    }

    /// Notes a segment that must be made anew, because everything in it is lost.
    fn anew(&mut self, number: u64, head: NoHead, next: Option<&SegmentHeader>) {
        let table = self.walked.table.clone();
        let first = SegmentHeader::encoded_bytes(&table) as u64;
        let known = self.known.filter(|known| known.segment == number);
        let written = known.map_or(first, |known| known.end.max(first));
        let to = next.map_or(written, |next| next.previous_end.max(first));
        let capacity = known.map_or(0, |known| known.capacity).max(head.file_bytes).max(to);
        let mut region = Region::new(number, first, to, head.what, self.walked.group, 0);
        region.mend = Mend::Anew(Anew { previous_end: self.walked.end, capacity, table });
        if next.is_none() {
            // Segments of journals in between may have been emptied, but their records had positions, too.
            let between = (number - self.before).saturating_sub(1) * capacity;
            let open = if known.is_some_and(|known| known.closed) { 0 } else { capacity - to };
            region.behind = open + between + self.unsealed;
        }
        self.walked.segments.push(SegmentReport { number, ..SegmentReport::default() });
        self.open_region(region);
        self.walked.end = to;
        self.close_segment(number, capacity, next);
    }

    /// Reads one segment.
    fn segment(&mut self, head: &Head, bytes: &[u8], next: Option<&SegmentHeader>) -> Result<(), Failure> {
        let Head { header, segment, .. } = head;
        if self.walked.starts.is_empty() && self.before == 0 {
            self.walked.starts = header.table.clone();
        }
        if self.before == 0 || self.before + 1 != header.number {
            self.walked.table = header.table.clone();
        }
        self.unsealed = 0;
        Visitor::segment(&mut self.walked.streams, segment, &header.table);
        let known = self.known.filter(|known| known.segment == header.number);
        let sealed = next.map(|next| next.previous_end);
        let report = SegmentReport {
            number: header.number,
            file_bytes: bytes.len() as u64,
            ..SegmentReport::default()
        };
        self.walked.segments.push(report);
        let end = self.scan(segment, bytes, sealed, known.map(|known| known.end))?;
        let made = match header.capacity {
            // An older version made the segment; the file `end` may know its length.
            0 => known.map_or(0, |known| known.capacity),
            capacity => capacity,
        };
        if sealed.is_none() && (bytes.len() as u64) < made {
            let is_all = known.is_some_and(|known| known.closed);
            self.was_cut(segment, made, if is_all { 0 } else { made.saturating_sub(end) });
        }
        self.walked.newest = Some(Arc::clone(segment));
        self.walked.end = end;
        if let Some(report) = self.walked.segments.last_mut() {
            report.used_bytes = end;
        }
        self.close_segment(header.number, segment.capacity, next);
        Ok(())
    }

    /// Notes that the last segment's file is shorter than it was made. `behind` bytes that may have been written are
    /// gone.
    fn was_cut(&mut self, segment: &Segment, made: u64, behind: u64) {
        let what = format!("the file was cut, and was made with {made} bytes");
        let last = self.walked.regions.len().wrapping_sub(1);
        let last = match self.walked.regions.get_mut(last).filter(|last| last.segment == segment.number) {
            Some(region) => {
                region.what = format!("{}; {what}", region.what);
                last
            }
            None => {
                // The region is named by the first batch's offset, which stays the same whatever a repair writes at
                // the end.
                let at = segment.first;
                let mut region =
                    Region::new(segment.number, at, at, what, self.walked.group, segment.generation);
                region.mend = Mend::Extend;
                self.walked.regions.push(region);
                self.walked.regions.len() - 1
            }
        };
        let region = &mut self.walked.regions[last];
        (region.made, region.behind) = (Some(made), behind);
        if behind > 0 {
            self.unknown.push(last);
            self.walked.unknown.push(last);
        }
    }

    fn scan(
        &mut self,
        segment: &Arc<Segment>,
        bytes: &[u8],
        sealed: Option<u64>,
        known: Option<u64>,
    ) -> Result<u64, Failure> {
        let limit = sealed.unwrap_or(segment.capacity);
        let (mut at, mut group) = (segment.first, 0);
        let mut is_ours = false;
        while at < limit {
            if let Some((header, payload)) = good_at(bytes, at, segment, group, limit)
                && self.fits(&header, payload)
            {
                self.walked.streams.note(segment, &header, at, payload);
                self.seen.insert(header.stream, self.unknown.len());
                self.walked.segments.last_mut().expect("this one's").batches += 1;
                group = header.group;
                at += header.stored_bytes() as u64;
                continue;
            }
            if !std::mem::replace(&mut is_ours, true) {
                no_newer(bytes, at, segment, group, limit)?;
            }
            let must = sealed.or(known).unwrap_or(segment.first);
            if at >= must && !proven(bytes, at, segment, group) {
                break;
            }
            // A server's start demands that a batch ends exactly where the file `end` says, so no region may cross
            // that place.
            let limit = known.filter(|known| at < *known).map_or(limit, |known| known.min(limit));
            let to = self.region(segment, bytes, at, group, limit, must);
            at = to;
        }
        self.walked.group = self.walked.group.max(group).max(highest_group(bytes, at, segment));
        Ok(at)
    }

    /// Notes a region that begins at `at`, and returns where it ends.
    fn region(&mut self, segment: &Segment, bytes: &[u8], at: u64, group: u64, limit: u64, must: u64) -> u64 {
        let what =
            |what: &str| Region::new(segment.number, at, at, what.to_owned(), group, segment.generation);
        let header = header_at(bytes, at, segment)
            .filter(|header| at + header.stored_bytes() as u64 <= limit && header.group >= group);
        let next =
            header.and_then(|header| self.walked.table.get_mut(&header.stream)).map(|ends| &mut ends.next);
        if let Some((header, next)) = header.zip(next) {
            let (stream, from, to) = (header.stream, header.base, header.next());
            let range = LostRange { stream, from, to, at_most: false };
            let counts = matches!(header.kind, Kind::Messages | Kind::Records | Kind::Latest | Kind::Lost);
            let copies = matches!(header.kind, Kind::Copies | Kind::Lost);
            let mut region = what("a batch is damaged");
            region.to = at + header.stored_bytes() as u64;
            let behind = region.to;
            if counts && *next == from {
                *next = to;
                region.lost.push(range);
                self.seen.insert(stream, self.unknown.len());
                self.walked.regions.push(region);
                return behind;
            }
            if copies && to <= *next {
                region.copied = Some(range);
                self.walked.regions.push(region);
                return behind;
            }
        }
        let mut region = what("the header of a batch is damaged");
        let later = (at + ALIGN as u64..limit).step_by(ALIGN);
        let next = later.into_iter().find(|at| {
            good_at(bytes, *at, segment, group, limit).is_some_and(|(header, _)| self.may_follow(&header))
        });
        // If no good batch follows, and the log need not reach further, the region ends at the header that proved
        // that these bytes are damage.
        let shows = |at: &u64| header_at(bytes, *at, segment).is_some_and(|header| header.group > group);
        let later = (at + ALIGN as u64..limit).step_by(ALIGN);
        let next = next.or_else(|| later.filter(|later| *later >= must).find(shows));
        region.to = next.unwrap_or(must.max(at + ALIGN as u64)).min(limit);
        let to = region.to;
        self.open_region(region);
        to
    }

    fn open_region(&mut self, region: Region) {
        self.unknown.push(self.walked.regions.len());
        self.walked.unknown.push(self.walked.regions.len());
        self.walked.regions.push(region);
    }

    fn may_follow(&self, header: &BatchHeader) -> bool {
        match header.kind {
            Kind::Closed => true,
            Kind::Name => !self.walked.table.contains_key(&header.stream),
            _ => self.walked.table.get(&header.stream).is_some_and(|ends| ends.next <= header.next()),
        }
    }

    /// Takes in a good batch, even behind a gap, if a region before it explains the gap.
    fn fits(&mut self, header: &BatchHeader, payload: &[u8]) -> bool {
        let counts = matches!(header.kind, Kind::Messages | Kind::Records | Kind::Latest | Kind::Lost);
        let ends = self.walked.table.get(&header.stream).map(|ends| ends.next);
        if let (true, Some(next)) = (counts, ends)
            && next < header.base
            && let Some(region) = self.explaining(header.stream, BATCH_HEADER)
        {
            let lost = LostRange { stream: header.stream, from: next, to: header.base, at_most: false };
            self.walked.regions[region].lost.push(lost);
            self.walked.table.get_mut(&header.stream).expect("just found").next = header.base;
        }
        apply(&mut self.walked.table, header, payload).is_ok()
    }

    /// Uses the next segment's header, or its absence, to tell what the regions of this segment held.
    fn close_segment(&mut self, number: u64, capacity: u64, next: Option<&SegmentHeader>) {
        match next {
            Some(next) => {
                self.compare(number, &next.table);
                self.walked.table = next.table.clone();
            }
            None if number == self.newest => self.doubt(),
            None => self.unsealed += capacity,
        }
        self.unknown.clear();
        self.seen.clear();
        self.before = number;
    }
}

impl Region {
    pub fn new(segment: u64, from: u64, to: u64, what: String, group: u64, generation: u64) -> Region {
        let (lost, named, gone, gaps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (copied, mend, behind, made) = (None, Mend::Fill, 0, None);
        Region {
            segment,
            from,
            to,
            what,
            group,
            generation,
            lost,
            named,
            gone,
            copied,
            gaps,
            behind,
            made,
            mend,
        }
    }
}

/// For each partition of a topic, the first position that is kept, and the next to be given out.
pub(super) fn ends_of(table: &Table, starts: &Table) -> Vec<(u64, u64)> {
    let start = |(stream, ends): (&u32, &StreamEnds)| {
        (starts.get(stream).map_or(ends.start, |first| first.next), ends.next)
    };
    table.iter().map(start).collect()
}
