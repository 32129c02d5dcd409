//! Finds out what the unreadable regions of a segment held: exactly, if there is a next segment, from its table;
//! otherwise at most, from the room that there was.
//!
//! In: the regions that `walk` found, and where it saw each stream last. Out: the positions that each region held. A
//! position is assigned to a region that has room for the `Lost` batch with which a repair overwrites the region.

use super::super::segment::{BATCH_HEADER, Table, stored_bytes};
use super::walk::{LostRange, Mend, Region, Walker};

/// No record is shorter, so damaged bytes held at most one position for each 4 bytes.
const RECORD_BYTES_MIN: u64 = 4;

impl Walker {
    /// The region that held the missing batches of this stream: one behind the stream's last batch. Of several, the
    /// first that has room for `bytes` more, because a later region may be the only one for another stream.
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
            // A stream that ends earlier than before has lost nothing here.
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

    /// Handles a damaged end of the log: each stream may have lost as many positions as had room in the regions
    /// behind it.
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

/// Bytes that a region has left beside the batches that say what is lost.
fn room(region: &Region) -> u64 {
    let names = region.named.iter().map(|(_, name)| stored_bytes(name.len())).sum::<usize>();
    let said = names + (region.lost.len() + region.gone.len()) * BATCH_HEADER;
    (region.to - region.from).saturating_sub(said as u64)
}
