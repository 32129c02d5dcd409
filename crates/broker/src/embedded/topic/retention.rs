//! Decides which old segments of a topic may be deleted.
//!
//! Pure. In: what each segment holds, oldest first, the topic's bounds, and how far each group that holds messages
//! back has settled. Out: how many of the oldest segments to free. Segments are freed as a whole, oldest first, and
//! never while they hold a message that such a group has not settled (BRK-1). If unsettled messages keep a topic
//! above its size bound, the topic is full and refuses its producers.

use super::index::SegmentIndex;
use crate::contract::TopicSpec;

/// The decision about a topic's old segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// How many of the oldest segments may be freed.
    pub free: usize,
    /// The topic is above its size bound, and unsettled messages are in the way.
    pub full: bool,
}

/// When asked which groups hold it back, a topic counts as full if less than one part in this many of its size bound
/// is left: producers are already refused before the last byte is used.
const NEARLY_FULL: u64 = 20;

/// The oldest segment, if its age or the topic's size calls for deleting it.
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

/// What may be freed if `incoming` bytes are to be added. `settled` has, for each partition, the lowest commit of all
/// groups that hold messages back; `None` if no group does. `now_ms` is `None` while the clock is not believed
/// (`age`). The newest segment may be among those to be freed: then the caller has to begin another one first.
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

/// When the newest message of each segment was appended. A time in the future cannot be right: then the message
/// counts as appended no later than the oldest message behind its segment.
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
