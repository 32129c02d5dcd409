//! Finds records of journals that are still needed but lie nowhere, and puts them down to damaged places.
//!
//! A record of a journal may have been copied, and its original freed. So what a damaged place held is known only
//! after the whole log was read: the records that should be kept but were not found.

use super::walk::{LostRange, Mend, Walked};

/// Assigns every gap to a damaged place. A gap that no place explains goes to `missing`: a whole segment is missing.
pub(super) fn attribute(walked: &mut Walked) {
    for (stream, from, to) in walked.streams.gaps() {
        let mut rest = vec![(from, to)];
        for region in &walked.regions {
            let known = region.lost.iter().filter(|range| range.stream == stream && !range.at_most);
            known.for_each(|range| rest = without(&rest, range.from, range.to));
        }
        for region in &mut walked.regions {
            let Some(copied) = region.copied.filter(|copied| copied.stream == stream) else { continue };
            let inside = rest.iter().map(|(from, to)| (*from.max(&copied.from), *to.min(&copied.to)));
            let inside = inside.filter(|(from, to)| from < to);
            region.gaps.extend(inside.map(|(from, to)| LostRange { stream, from, to, at_most: false }));
            rest = without(&rest, copied.from, copied.to);
        }
        // A place of unknown content explains the rest; else a place with the same stream, whose last batch may have
        // been damaged; else any place that can be repaired.
        let can = |index: &usize| {
            matches!(walked.regions[*index].mend, Mend::Fill | Mend::Anew(_) | Mend::MoveAway)
        };
        let same = |index: &usize| walked.regions[*index].lost.iter().any(|range| range.stream == stream);
        let mut all = 0..walked.regions.len();
        let explains = walked
            .unknown
            .last()
            .copied()
            .or_else(|| all.clone().rfind(|index| can(index) && same(index)).or_else(|| all.rfind(can)));
        match explains {
            Some(index) => {
                let ranges =
                    rest.iter().map(|(from, to)| LostRange { stream, from: *from, to: *to, at_most: false });
                walked.regions[index].gaps.extend(ranges);
            }
            None => walked.missing.extend(rest.iter().map(|(from, to)| (stream, *from, *to))),
        }
    }
}

/// Removes `from..to` from the ranges.
fn without(ranges: &[(u64, u64)], from: u64, to: u64) -> Vec<(u64, u64)> {
    let parts =
        ranges.iter().flat_map(|(first, behind)| [(*first, *behind.min(&from)), (*first.max(&to), *behind)]);
    parts.filter(|(first, behind)| first < behind).collect()
}
