//! Reads a log from its first byte to its last though parts of it are damaged, and finds out what lay there.
//!
//! In: the folder of a log that nobody writes to. Out: its segments, and [`Region`]s: stretches of bytes that are not as
//! they were written, each with the positions that lay there. What a region held is told by its own header where only
//! the payload is damaged; else by the batches behind it, since positions of a stream follow each other without a gap,
//! and by the table at the beginning of the next segment. Only where the end of the log itself is damaged nobody can
//! say; then every stream that has no batch behind the region is in doubt, up to as many positions as had room. The file
//! `end` does not help there: unless the log was closed, what it says is a lower bound, and a newest segment that is
//! missing, cut, or without its header may have been full.
//!
//! The same rules as in `scan` tell damage from a torn tail; they must be the same, or a repair would cut what a
//! start would have read.

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

/// What a log holds.
pub(super) struct Walked {
    pub segments: Vec<SegmentReport>,
    pub regions: Vec<Region>,
    /// Where each stream begins and ends.
    pub table: Table,
    pub starts: Table,
    /// Where the newest segment ends, and the last group in it.
    pub end: u64,
    pub group: u64,
    pub newest: Option<Arc<Segment>>,
    /// What is wrong with the file `end`.
    pub no_end: Option<String>,
    /// Where the records of journals lie.
    pub streams: Streams,
    /// Regions of which nothing says what lay in them.
    pub unknown: Vec<usize>,
    /// Records of journals that are missing and that no region explains: stream, first, and the one behind the last.
    pub missing: Vec<(u32, u64, u64)>,
}

/// Bytes that are not as they were written.
#[derive(Debug, Clone)]
pub(super) struct Region {
    pub segment: u64,
    pub from: u64,
    pub to: u64,
    pub what: String,
    /// The group of the last good batch before it.
    pub group: u64,
    pub generation: u64,
    pub lost: Vec<LostRange>,
    /// Streams that were named in it, and those that were forgotten.
    pub named: Vec<(u32, Vec<u8>)>,
    pub gone: Vec<u32>,
    /// In it was a copy of these: lost only if they lie nowhere else.
    pub copied: Option<LostRange>,
    /// What else was lost with it, of journals (`gaps`): said at the end of the log, since there may be no room here.
    pub gaps: Vec<LostRange>,
    /// Bytes behind it that may have been written as well, and that are not there any more.
    pub behind: u64,
    /// The file ends too early: it was made with so many bytes.
    pub made: Option<u64>,
    pub mend: Mend,
}

/// What makes a log usable again.
#[derive(Debug, Clone)]
pub(super) enum Mend {
    /// Batches over the damaged bytes that say what is lost.
    Fill,
    /// The file is made as long as it was.
    Extend,
    /// The segment is made anew: it is missing, or its header is damaged.
    Anew(Anew),
    /// The file is moved away: the log begins behind it.
    MoveAway,
    /// Nothing that is known here.
    Nothing,
}

/// How a segment is made anew.
#[derive(Debug, Clone)]
pub(super) struct Anew {
    pub previous_end: u64,
    pub capacity: u64,
    pub table: Table,
}

/// Positions of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostRange {
    pub stream: u32,
    pub from: u64,
    pub to: u64,
    /// In doubt: at most these.
    pub at_most: bool,
}

/// Reads the log in `dir`. An error if the files cannot be read at all, or are a newer version's.
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

/// Under way through a log.
pub(super) struct Walker {
    known: Option<End>,
    /// The last segment's number.
    newest: u64,
    pub walked: Walked,
    /// Of the segment being read: regions whose content is not known yet, and for each stream how many of them lie before
    /// its last batch.
    pub unknown: Vec<usize>,
    pub seen: BTreeMap<u32, usize>,
    /// Bytes of the segments before this one of which no next one says where they ended.
    unsealed: u64,
    /// The last segment that was read; 0: none.
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

    /// A segment that cannot be read, before the first that can. What lay in it is told by nobody: of a topic, at most
    /// what lies before the positions with which the next one begins; of journals, what is missing in the end (`gaps`).
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

    /// Segments between the last one read and `number` that are not there. Journals' logs have such holes by design.
    fn missing_before(&mut self, number: u64, holes: bool, next: Option<&SegmentHeader>) {
        if self.before == 0 || holes {
            return;
        }
        for missing in self.before + 1..number {
            let next = next.filter(|_| missing + 1 == number);
            self.anew(missing, NoHead::missing(), next);
        }
    }

    /// A segment that has to be made anew: all that lay in it is lost.
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
            // Segments between, of journals, were emptied; their records were given positions all the same.
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
            // An older version made it, and the file `end` may know.
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

    /// The file of the segment at the end is shorter than it was made: it cannot be written further, and `behind` bytes
    /// that may have been written are not there.
    fn was_cut(&mut self, segment: &Segment, made: u64, behind: u64) {
        let what = format!("the file was cut, and was made with {made} bytes");
        let last = self.walked.regions.len().wrapping_sub(1);
        let last = match self.walked.regions.get_mut(last).filter(|last| last.segment == segment.number) {
            Some(region) => {
                region.what = format!("{}; {what}", region.what);
                last
            }
            None => {
                // Named by a place that stays the same whatever is said at the end of the log.
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
            // A start wants to find a batch that ends where the log is known to have ended once.
            let limit = known.filter(|known| at < *known).map_or(limit, |known| known.min(limit));
            let to = self.region(segment, bytes, at, group, limit, must);
            at = to;
        }
        self.walked.group = self.walked.group.max(group).max(highest_group(bytes, at, segment));
        Ok(at)
    }

    /// Notes a region that begins at `at`, and says where it ends.
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
        // Where none is good, and the log need not have reached further, one whose payload is bad showed that this is damage.
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

    /// Takes a good batch in, also behind a gap that a region before it explains.
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

    /// What the next segment, or its absence, says about what lay in regions of this one.
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

/// First position kept and next to be given out, for each partition of a topic.
pub(super) fn ends_of(table: &Table, starts: &Table) -> Vec<(u64, u64)> {
    let start = |(stream, ends): (&u32, &StreamEnds)| {
        (starts.get(stream).map_or(ends.start, |first| first.next), ends.next)
    };
    table.iter().map(start).collect()
}
