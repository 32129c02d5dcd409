//! Makes a damaged log usable again, one damaged place at a time; the operator names each place.
//!
//! A repair overwrites the place with batches that say what lay there: a `Lost` batch for each stream. So no position
//! is given out twice, readers of a topic skip the gap, and a reader of a journal gets an error for the missing
//! record. First the damaged bytes are copied to the folder `repaired`; the file `log` there gets a line for each
//! repair. A crash between any two steps leaves the place damaged, and the same command repairs it again.

use std::path::{Path, PathBuf};

use super::super::disk::DiskFile;
use super::super::failure::{Action, Failure, OpenError};
use super::super::options::{Host, Options};
use super::check::{END_WORD, REPAIR_LOG, REPAIRED, all_lost, lock, look};
use super::report::Lost;
use super::walk::{Anew, LostRange, Mend, Region, Walked};
use crate::embedded::disk::Piecewise;
use crate::embedded::segment::end::End;
use crate::embedded::segment::make::{make_dir, sync_dir};
use crate::embedded::segment::{
    BATCH_HEADER, BatchHeader, Kind, Segment, SegmentHeader, segment_path, stored_bytes,
};

/// A place that was repaired.
#[derive(Debug, Clone)]
pub struct Repaired {
    /// The name of the place, as `check` prints it.
    pub word: String,
    /// The positions that are lost for good.
    pub lost: Vec<Lost>,
    /// The file with the damaged bytes, if there were any.
    pub kept: Option<PathBuf>,
}

/// Repairs the places that `words` name, in this order. An error says which of them could not be repaired.
pub fn repair(root: &Path, options: &Options, words: &[String]) -> Result<Vec<Repaired>, OpenError> {
    let host = &options.host;
    let _locked = lock(host, root, true)?;
    let mut done = Vec::new();
    for word in words {
        done.push(repair_one(host, root, word)?);
    }
    Ok(done)
}

fn repair_one(host: &Host, root: &Path, word: &str) -> Result<Repaired, OpenError> {
    let looked = look(host, root)?;
    let unknown = || OpenError::Unknown(word.to_owned());
    let found = looked
        .logs
        .iter()
        .find_map(|(name, log)| Some((name, log, word.strip_prefix(name)?.strip_prefix(':')?)));
    let (name, (log, walked), place) = found.ok_or_else(unknown)?;
    let dir = root.join(name);
    let repair = Repair { host, root, dir: &dir, name, log: *log, walked };
    if place == END_WORD && walked.no_end.is_some() {
        return Ok(repair.write_end(word)?);
    }
    let is_it = |region: &&Region| place == format!("{}:{}", region.segment, region.from);
    let region = walked.regions.iter().find(is_it).ok_or_else(unknown)?;
    Ok(repair.skip(word, region)?)
}

/// The log that contains the place to be repaired.
struct Repair<'a> {
    host: &'a Host,
    root: &'a Path,
    dir: &'a Path,
    name: &'a str,
    log: u128,
    walked: &'a Walked,
}

impl Repair<'_> {
    fn skip(&self, word: &str, region: &Region) -> Result<Repaired, Failure> {
        let path = segment_path(self.dir, region.segment);
        let kept = self.keep(&path, region)?;
        // In the newest segment all doubtful positions are written at once. They are written behind the other damaged
        // places, and those places, checked again, would then seem to have held nothing unknown.
        let others = self.walked.regions.iter().filter(|other| {
            other.segment == region.segment
                && other.from != region.from
                && !matches!(other.mend, Mend::Nothing)
        });
        let doubtful = others.flat_map(|other| &other.lost).filter(|range| range.at_most);
        let told = Region { lost: region.lost.iter().chain(doubtful).copied().collect(), ..region.clone() };
        let doubtful = told.lost.iter().filter(|range| range.at_most).chain(&told.gaps);
        // The batches at the end of the log are written first: once the place itself is whole, a new check would not
        // find the damage any more. For the same reason a file that was cut gets its full length last.
        match &region.mend {
            Mend::Fill => {
                self.part_from_copies(&path)?;
                self.lengthen(&path, region.to)?;
                self.say_at_the_end(doubtful)?;
                let batches = Batch::of(region);
                let exactly = Some(region.to - region.from);
                let bytes = lay_out(batches, region.generation, region.group, region.from, exactly);
                if bytes.len() as u64 != region.to - region.from {
                    return Err(self.cannot(&path, region.from));
                }
                self.write(&path, &bytes, region.from)?;
                self.lengthen(&path, region.made.unwrap_or(0))?;
            }
            Mend::Extend => {
                self.part_from_copies(&path)?;
                self.say_at_the_end(doubtful)?;
                self.lengthen(&path, region.made.unwrap_or(0))?;
            }
            Mend::Anew(anew) => self.make_anew(&path, region, anew)?,
            Mend::MoveAway => {
                self.say_at_the_end(&region.gaps)?;
                let host = self.host;
                host.disk.remove(&path).map_err(Failure::io(Action::Remove, &path))?;
                sync_dir(host, self.dir)?;
            }
            Mend::Nothing => return Err(self.cannot(&path, region.from)),
        }
        let journals = !self.name.contains("topics/");
        let lost = all_lost(self.walked, self.name, &told, journals);
        self.note(Repaired { word: word.to_owned(), lost, kept })
    }

    fn cannot(&self, path: &Path, offset: u64) -> Failure {
        Failure::damaged(path, offset, "what is lost here cannot be told, so that it cannot be skipped")
    }

    /// Copies the bytes that are about to be overwritten to the folder `repaired`.
    fn keep(&self, path: &Path, region: &Region) -> Result<Option<PathBuf>, Failure> {
        let file = match self.host.disk.open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(Failure::io(Action::Open, path))?,
        };
        let failed = || Failure::io(Action::Read, path);
        let length = file.len().map_err(failed())?;
        let (from, to) = match region.mend {
            Mend::Fill => (region.from.min(length), region.to.min(length)),
            _ => (0, length),
        };
        let mut bytes = vec![0; (to - from) as usize];
        Piecewise(&*file).read_at(&mut bytes, from).map_err(failed())?;
        let dir = self.root.join(REPAIRED);
        make_dir(self.host, &dir)?;
        let name = format!(
            "{}-{:016x}-{from}-{}.bytes",
            self.name.replace('/', "-"),
            region.segment,
            self.host.now_ms()
        );
        let kept = dir.join(name);
        let failed = || Failure::io(Action::Write, &kept);
        let copy = self.host.disk.create(&kept).map_err(failed())?;
        copy.write_at(&bytes, 0).map_err(failed())?;
        copy.sync_data().map_err(failed())?;
        sync_dir(self.host, &dir)?;
        Ok(Some(kept))
    }

    /// Gives the segment a file of its own if a backup shares it by a hard link: the repair must not change the
    /// backup.
    fn part_from_copies(&self, path: &Path) -> Result<(), Failure> {
        let failed = || Failure::io(Action::Make, path);
        if self.host.disk.links(path).map_err(failed())? < 2 {
            return Ok(());
        }
        let there = self.host.disk.open(path).map_err(failed())?;
        let mut bytes = vec![0; there.len().map_err(failed())? as usize];
        Piecewise(&*there).read_at(&mut bytes, 0).map_err(failed())?;
        self.replace(path, &bytes, bytes.len() as u64)
    }

    /// Replaces a file by a new one, durably.
    fn replace(&self, path: &Path, bytes: &[u8], length: u64) -> Result<(), Failure> {
        let new = self.dir.join("spare-repair");
        let failed = || Failure::io(Action::Make, &new);
        match self.host.disk.remove(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
        let file = self.host.disk.create(&new).map_err(failed())?;
        file.write_at(bytes, 0).map_err(failed())?;
        if length > bytes.len() as u64 {
            file.write_at(&vec![0; (length - bytes.len() as u64) as usize], bytes.len() as u64)
                .map_err(failed())?;
        }
        file.sync_data().map_err(failed())?;
        self.host.disk.rename(&new, path).map_err(Failure::io(Action::Rename, &new))?;
        sync_dir(self.host, self.dir)
    }

    /// Appends zeros to a file that is shorter than `needed`.
    fn lengthen(&self, path: &Path, needed: u64) -> Result<(), Failure> {
        let failed = || Failure::io(Action::Write, path);
        let file = self.host.disk.open(path).map_err(failed())?;
        let length = file.len().map_err(failed())?;
        if length < needed {
            file.write_at(&vec![0; (needed - length) as usize], length).map_err(failed())?;
            file.sync_data().map_err(Failure::io(Action::Sync, path))?;
        }
        Ok(())
    }

    /// Writes `Lost` batches for these ranges behind the last batch of the log.
    fn say_at_the_end<'r>(&self, lost: impl IntoIterator<Item = &'r LostRange>) -> Result<(), Failure> {
        let batches: Vec<_> = lost.into_iter().map(Batch::lost).collect();
        let last = self.walked.segments.last().map(|last| last.number);
        let newest = self.walked.newest.as_ref();
        let Some(newest) = newest.filter(|newest| Some(newest.number) == last || batches.is_empty()) else {
            return Err(self.cannot(self.dir, 0));
        };
        if batches.is_empty() {
            return Ok(());
        }
        if self.walked.end + (batches.len() * BATCH_HEADER) as u64 > newest.capacity {
            return self.say_in_another(newest, batches);
        }
        self.part_from_copies(&newest.path)?;
        let behind = self.walked.end + (batches.len() * BATCH_HEADER) as u64;
        self.lengthen(&newest.path, behind)?;
        // A sync group of its own: the remains of a torn group may lie right behind, and must not seem to belong to
        // it.
        let group = self.walked.group + 1;
        let bytes = lay_out(batches, newest.generation, group, self.walked.end, None);
        self.write(&newest.path, &bytes, self.walked.end)
    }

    /// Makes another segment for the `Lost` batches, because the newest has no room for them.
    fn say_in_another(&self, newest: &Segment, batches: Vec<Batch>) -> Result<(), Failure> {
        let mut table = self.walked.table.clone();
        // Doubtful positions count only once their `Lost` batches are written.
        let regions = self.walked.regions.iter().filter(|region| region.segment == newest.number);
        for range in regions.flat_map(|region| &region.lost).filter(|range| range.at_most) {
            if let Some(ends) = table.get_mut(&range.stream) {
                ends.next = ends.next.min(range.from);
            }
        }
        let (generation, number) = (self.host.entropy.u64()?, newest.number + 1);
        let first = SegmentHeader::encoded_bytes(&table) as u64;
        let said = lay_out(batches, generation, self.walked.group, first, None);
        let capacity = newest.capacity.max(first + said.len() as u64);
        let previous_end = self.walked.end;
        let header = SegmentHeader { generation, number, previous_end, log: self.log, capacity, table };
        let mut bytes = header.encode();
        bytes.extend_from_slice(&said);
        self.replace(&segment_path(self.dir, number), &bytes, capacity)
    }

    fn write(&self, path: &Path, bytes: &[u8], at: u64) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        let failed = || Failure::io(Action::Write, path);
        let file = self.host.disk.open(path).map_err(failed())?;
        if at + bytes.len() as u64 > file.len().map_err(failed())? {
            let what = "the file has no room to say what is lost";
            return Err(Failure::damaged(path, at, what));
        }
        file.write_at(bytes, at).map_err(failed())?;
        file.sync_data().map_err(Failure::io(Action::Sync, path))
    }

    /// Makes a segment in which everything is lost: a new file that replaces the damaged or missing one.
    fn make_anew(&self, path: &Path, region: &Region, anew: &Anew) -> Result<(), Failure> {
        let generation = self.host.entropy.u64()?;
        let header = |capacity| SegmentHeader {
            generation,
            number: region.segment,
            previous_end: anew.previous_end,
            log: self.log,
            capacity,
            table: anew.table.clone(),
        };
        let filled =
            lay_out(Batch::of(region), generation, region.group, region.from, Some(region.to - region.from));
        if filled.len() as u64 != region.to - region.from {
            return Err(self.cannot(path, region.from));
        }
        let is_last = self.walked.segments.last().is_some_and(|last| last.number == region.segment);
        let mut doubtful: Vec<_> =
            region.lost.iter().filter(|range| range.at_most).map(Batch::lost).collect();
        match is_last {
            true => doubtful.extend(region.gaps.iter().map(Batch::lost)),
            false => self.say_at_the_end(&region.gaps)?,
        }
        let doubtful = lay_out(doubtful, generation, region.group, region.to, None);
        let capacity = anew.capacity.max(region.to + doubtful.len() as u64);
        let mut bytes = header(capacity).encode();
        bytes.extend_from_slice(&filled);
        bytes.extend_from_slice(&doubtful);
        self.replace(path, &bytes, capacity)
    }

    /// Makes the file `end` from what `walk` found.
    fn write_end(&self, word: &str) -> Result<Repaired, Failure> {
        let Some(newest) = &self.walked.newest else {
            return Err(self.cannot(self.dir, 0));
        };
        let end = End {
            log: self.log,
            segment: newest.number,
            capacity: newest.capacity,
            end: self.walked.end,
            group: self.walked.group,
            closed: false,
        };
        let handle = self.host.disk.open_dir(self.dir).map_err(Failure::io(Action::Open, self.dir))?;
        end.write(self.host, self.dir, &*handle)?;
        self.note(Repaired { word: word.to_owned(), lost: Vec::new(), kept: None })
    }

    /// Adds a line to the log of repairs.
    fn note(&self, repaired: Repaired) -> Result<Repaired, Failure> {
        let dir = self.root.join(REPAIRED);
        make_dir(self.host, &dir)?;
        let path = dir.join(REPAIR_LOG);
        let failed = || Failure::io(Action::Write, &path);
        let file = match self.host.disk.open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.host.disk.create(&path),
            file => file,
        };
        let file = file.map_err(failed())?;
        let lost: Vec<String> = repaired.lost.iter().map(ToString::to_string).collect();
        let lost = if lost.is_empty() { "nothing".to_owned() } else { lost.join("; ") };
        let kept = repaired.kept.as_ref().map_or(String::new(), |kept| format!(" kept {}", kept.display()));
        let line = format!("{} skipped {} lost {lost}{kept}\n", self.host.now_ms(), repaired.word);
        file.write_at(line.as_bytes(), file.len().map_err(failed())?).map_err(failed())?;
        file.sync_data().map_err(failed())?;
        sync_dir(self.host, &dir)?;
        Ok(repaired)
    }
}

/// A batch to be written.
struct Batch {
    stream: u32,
    base: u64,
    count: u32,
    kind: Kind,
    payload: Vec<u8>,
}

impl Batch {
    fn lost(range: &LostRange) -> Batch {
        let count = u32::try_from(range.to - range.from).unwrap_or(u32::MAX);
        Batch { stream: range.stream, base: range.from, count, kind: Kind::Lost, payload: Vec::new() }
    }

    /// The batches that replace a region: names of streams, lost positions, forgotten streams.
    fn of(region: &Region) -> Vec<Batch> {
        let mut batches = Vec::new();
        for (stream, name) in &region.named {
            batches.push(Batch {
                stream: *stream,
                base: 0,
                count: 0,
                kind: Kind::Name,
                payload: name.clone(),
            });
        }
        batches.extend(region.lost.iter().filter(|range| !range.at_most).map(Batch::lost));
        for stream in &region.gone {
            batches.push(Batch { stream: *stream, base: 0, count: 0, kind: Kind::Gone, payload: Vec::new() });
        }
        batches
    }
}

/// The bytes of the batches. With `exactly`, the last `Lost` batch, or an empty batch, is padded to that length.
fn lay_out(mut batches: Vec<Batch>, generation: u64, group: u64, at: u64, exactly: Option<u64>) -> Vec<u8> {
    let sum: usize = batches.iter().map(|batch| stored_bytes(batch.payload.len())).sum();
    if let Some(left) = exactly.map(|exactly| (exactly as usize).saturating_sub(sum)).filter(|left| *left > 0)
    {
        match batches.iter_mut().rfind(|batch| batch.kind == Kind::Lost) {
            Some(last) => last.payload.resize(last.payload.len() + left, 0),
            None if left >= BATCH_HEADER => {
                let payload = vec![0; left - BATCH_HEADER];
                batches.push(Batch { stream: 0, base: 0, count: 0, kind: Kind::Closed, payload });
            }
            None => {}
        }
    }
    let mut out = Vec::new();
    for Batch { stream, base, count, kind, payload } in batches {
        let header = BatchHeader {
            generation,
            group,
            group_start: at as u32,
            payload_bytes: payload.len() as u32,
            payload_crc: crc32c::crc32c(&payload),
            stream,
            base,
            appended_ms: 0,
            count,
            kind,
        };
        let start = out.len();
        out.resize(start + header.stored_bytes(), 0);
        out[start + BATCH_HEADER..][..payload.len()].copy_from_slice(&payload);
        header.encode(&mut out[start..start + BATCH_HEADER]);
    }
    out
}
