//! Which old segments may go.
//!
//! Pure. In: what each segment holds, oldest first, the topic's bounds, and how far every group that holds back has
//! settled. Out: how many of the oldest are freed. Whole segments only, from the oldest on, and never one that holds a
//! message which such a group has not settled (BRK-1): if that is what stands in the way of the size bound, the topic
//! is full, and says so to its producers.

use super::index::SegmentIndex;
use crate::contract::TopicSpec;

/// What may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// How many of the oldest segments.
    pub free: usize,
    /// The size bound is passed, and what stands in the way is not settled.
    pub full: bool,
}

/// A topic that is within this part of its size bound counts as full when it is asked what holds it back: its producers
/// are refused before the last byte is taken.
const NEARLY_FULL: u64 = 20;

/// The oldest segment, if it is old enough to go, or the topic is so large that it should.
pub(crate) fn overdue<'a>(
    oldest: Option<&'a SegmentIndex>,
    total_bytes: u64,
    spec: &TopicSpec,
    now_ms: u64,
) -> Option<&'a SegmentIndex> {
    oldest.filter(|oldest| {
        let over = spec.retention_bytes.is_some_and(|max| total_bytes + max / NEARLY_FULL >= max);
        let old = spec.retention_ms.is_some_and(|age| oldest.newest_ms.saturating_add(age) < now_ms);
        oldest.bytes > 0 && (over || old)
    })
}

/// What may go now, if `incoming` bytes are to be added. `settled`: for each partition the lowest commit of all groups
/// that hold back; `None` where none does. `now_ms`: `None` while the clock is not to be believed (`age`). The newest
/// segment may be among those that go: roll first.
pub(crate) fn plan<'a>(
    segments: impl DoubleEndedIterator<Item = &'a SegmentIndex> + Clone,
    total_bytes: u64,
    incoming: u64,
    spec: &TopicSpec,
    now_ms: Option<u64>,
    settled: Option<&[u64]>,
) -> Plan {
    let mut plan = Plan::default();
    let mut bytes = total_bytes;
    let newest = newest_ms(segments.clone(), now_ms.unwrap_or(0));
    let mut segments = segments.zip(newest).peekable();
    while let Some((segment, newest_ms)) = segments.next() {
        let over = spec.retention_bytes.is_some_and(|bytes_max| bytes + incoming > bytes_max);
        let passed = |age_max: u64| now_ms.is_some_and(|now_ms| newest_ms.saturating_add(age_max) < now_ms);
        let old = spec.retention_ms.is_some_and(passed);
        let nothing_to_free = segment.bytes == 0 && segments.peek().is_none();
        if nothing_to_free || !(over || old) {
            break;
        }
        if !is_settled(segment, settled) {
            plan.full = over;
            break;
        }
        bytes -= segment.bytes;
        plan.free += 1;
    }
    plan
}

/// For each segment when its newest message was appended, as far as that can be right: one that comes from the future
/// was appended before the next segment was begun, whatever the clock said then.
fn newest_ms<'a>(segments: impl DoubleEndedIterator<Item = &'a SegmentIndex>, now_ms: u64) -> Vec<u64> {
    let mut later = u64::MAX;
    let mut newest: Vec<u64> = segments
        .rev()
        .map(|segment| {
            let newest = match segment.newest_ms > now_ms {
                true => segment.newest_ms.min(later),
                false => segment.newest_ms,
            };
            later = later.min(segment.oldest_ms);
            newest
        })
        .collect();
    newest.reverse();
    newest
}

fn is_settled(segment: &SegmentIndex, settled: Option<&[u64]>) -> bool {
    let Some(settled) = settled else { return true };
    let partitions = segment.first.iter().zip(&segment.next);
    partitions.zip(settled).all(|((first, next), settled)| first == next || settled >= next)
}
