//! What nobody can read any more in a segment, told by what is left: by the next segment's table exactly, and where there
//! is no next one by how much room there was.
//!
//! In: the regions that `walk` found, and where it saw each stream last. Out: the positions that each region held. They
//! are put where a repair has room to say them, since a region gets batches in its place that say what is lost.

use super::super::segment::{BATCH_HEADER, Table, stored_bytes};
use super::walk::{LostRange, Mend, Region, Walker};

/// No record is shorter: so many positions at most lay in damaged bytes.
const RECORD_BYTES_MIN: u64 = 4;

impl Walker {
    /// The region in which batches of this stream lay that are missing now: one behind its last batch. Of several it is
    /// the first that has room to say so with `bytes`: the later ones may be the only ones for others.
    pub(super) fn explaining(&self, stream: u32, bytes: usize) -> Option<usize> {
        let since = self.unknown.get(self.seen.get(&stream).copied().unwrap_or(0)..)?;
        let fits = |index: &&usize| room(&self.walked.regions[**index]) >= bytes as u64;
        since.iter().find(fits).or(since.last()).copied()
    }

    pub(super) fn compare(&mut self, number: u64, theirs: &Table) {
        let what = "the next segment begins with other positions than this one ends with".to_owned();
        let (end, group) = (self.walked.end, self.walked.group);
        let mut unexplained = Region::new(number, end, end, what, group, 0);
        unexplained.mend = Mend::Nothing;
        let mut is_odd = false;
        for (stream, ends) in theirs {
            let mine = self.walked.table.get(stream);
            let from = mine.map_or(0, |mine| mine.next);
            let name = mine.is_none().then(|| ends.name.clone());
            let lost = LostRange { stream: *stream, from, to: ends.next, at_most: false };
            let lost = (from != ends.next).then_some(lost);
            if name.is_none() && lost.is_none() {
                continue;
            }
            let said = lost.map_or(0, |_| BATCH_HEADER);
            let bytes = said + name.as_ref().map_or(0, |name| stored_bytes(name.len()));
            // A stream that goes back is no loss.
            let explaining = self.explaining(*stream, bytes).filter(|_| from <= ends.next);
            is_odd |= explaining.is_none();
            let region = explaining.map_or(&mut unexplained, |index| &mut self.walked.regions[index]);
            region.named.extend(name.map(|name| (*stream, name)));
            region.lost.extend(lost.filter(|lost| lost.from < lost.to));
        }
        let gone = self.walked.table.keys().filter(|stream| !theirs.contains_key(stream));
        for stream in gone.copied().collect::<Vec<_>>() {
            let explaining = self.explaining(stream, BATCH_HEADER);
            is_odd |= explaining.is_none();
            explaining.map_or(&mut unexplained, |index| &mut self.walked.regions[index]).gone.push(stream);
        }
        if is_odd {
            self.walked.regions.push(unexplained);
        }
    }

    /// The end of the log is damaged: whatever had room there, beside what is known, may have been any stream's.
    pub(super) fn doubt(&mut self) {
        let Some(index) = self.unknown.last().copied() else { return };
        let mut doubtful = Vec::new();
        for (stream, ends) in &mut self.walked.table {
            let since = &self.unknown[self.seen.get(stream).copied().unwrap_or(0)..];
            let regions = since.iter().map(|index| &self.walked.regions[*index]);
            let rooms = regions.map(|region| room(region) + region.behind);
            let most = rooms.filter(|room| *room >= BATCH_HEADER as u64).sum::<u64>() / RECORD_BYTES_MIN;
            if most > 0 {
                let (from, to) = (ends.next, ends.next + most);
                doubtful.push(LostRange { stream: *stream, from, to, at_most: true });
                ends.next = to;
            }
        }
        self.walked.regions[index].lost.extend(doubtful);
    }
}

/// Bytes of a region beside those that say what is lost.
fn room(region: &Region) -> u64 {
    let names = region.named.iter().map(|(_, name)| stored_bytes(name.len())).sum::<usize>();
    let said = names + (region.lost.len() + region.gone.len()) * BATCH_HEADER;
    (region.to - region.from).saturating_sub(said as u64)
}
