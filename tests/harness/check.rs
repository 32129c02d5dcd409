//! Compares the messages that were acknowledged with the calls that the sink saw, and classifies the faults: lost,
//! skipped, reordered, overlapping, duplicated; and commits that are too high, or forgotten.
//!
//! Duplicates are of two kinds. Messages that a new owner runs again because the old one had not put them on record are
//! counted for each take-over, and may be bounded ([`Report::assert_repeats`]). A message that one owner runs again by
//! itself is a fault.
//!
//! A message is a position: a producer that sent a batch twice made two messages.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use crate::load::Acked;
use crate::sink::Call;
use crate::status::Committed;

/// How many examples of each kind a report shows.
const SHOWN_MAX: usize = 5;

type Position = (u32, u64);

/// The faults, with examples of each; and how much was repeated, which is no fault by itself.
#[derive(Debug, Default)]
pub struct Report {
    /// Acknowledged, and never settled by a call.
    pub lost: Vec<String>,
    /// Called and never settled, though a later message of its key was.
    pub skipped: Vec<String>,
    /// Settled after a later message of its key, or started after one under the same epoch.
    pub reordered: Vec<String>,
    /// Two calls of one key and epoch at the same time.
    pub overlapping: Vec<String>,
    /// Settled once more under the same epoch, by the same attempt.
    pub again: Vec<String>,
    /// Calls that settled a message that an earlier call had settled.
    pub duplicated: u64,
    /// The duplicated calls that a new owner made, by partition and epoch.
    pub repeats: BTreeMap<(u32, u64), u64>,
    /// Messages that were acknowledged.
    pub acknowledged: usize,
    /// Messages that a call settled.
    pub settled: usize,
}

impl Report {
    /// Fails the test unless nothing was lost, skipped, reordered or overlapping.
    pub fn assert_kept(&self) {
        let wrong = [&self.lost, &self.skipped, &self.reordered, &self.overlapping, &self.again];
        assert!(wrong.iter().all(|kind| kind.is_empty()), "{self}");
    }

    /// As [`Report::assert_kept`], and fails if a take-over repeated more than `max` messages: those in flight, and
    /// those finished since the last record (COM-2).
    pub fn assert_repeats(&self, max: u64) {
        self.assert_kept();
        for ((partition, epoch), repeats) in &self.repeats {
            assert!(
                *repeats <= max,
                "{repeats} messages of partition {partition} ran again under epoch {epoch}, more than {max}\n{self}"
            );
        }
    }

    /// As [`Report::assert_kept`], and fails if anything was settled twice.
    pub fn assert_once(&self) {
        self.assert_kept();
        assert_eq!(self.duplicated, 0, "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} acknowledged, {} settled", self.acknowledged, self.settled)?;
        for (name, kind) in [
            ("lost", &self.lost),
            ("skipped", &self.skipped),
            ("reordered", &self.reordered),
            ("overlapping", &self.overlapping),
            ("settled again by their owner", &self.again),
        ] {
            let shown = &kind[..kind.len().min(SHOWN_MAX)];
            writeln!(f, "{} {name}: {}", kind.len(), shown.join("; "))?;
        }
        let (takeovers, most) = (self.repeats.len(), self.repeats.values().max().copied().unwrap_or(0));
        write!(f, "{} duplicated, in {takeovers} take-overs, {most} at most in one", self.duplicated)
    }
}

/// Classifies everything that happened.
pub fn check(acked: &[Acked], calls: &[Call]) -> Report {
    let mut report = Report { acknowledged: acked.len(), ..Report::default() };
    let settled = check_repeats(calls, &mut report);
    report.settled = settled.len();
    let ids: HashSet<&str> =
        calls.iter().filter(|call| call.is_settled()).map(|call| call.id.as_str()).collect();
    let lost = acked.iter().filter(|acked| match acked.offset {
        Some(offset) => !settled.contains(&(acked.partition, offset)),
        None => !ids.contains(acked.id.as_str()),
    });
    report.lost = lost.map(Acked::told).collect();
    for of_key in by_key(calls).values() {
        check_key(of_key, &settled, &mut report);
    }
    report
}

/// The settled positions; notes in the report which were settled more than once.
fn check_repeats(calls: &[Call], report: &mut Report) -> HashSet<Position> {
    let mut settled: HashMap<Position, Vec<(u64, u32)>> = HashMap::new();
    for call in calls.iter().filter(|call| call.is_settled()) {
        let before = settled.entry((call.partition, call.offset)).or_default();
        let this = (call.epoch, call.attempt);
        if before.contains(&this) {
            report.again.push(told(call));
        } else if before.iter().any(|(epoch, _)| *epoch != call.epoch) {
            *report.repeats.entry((call.partition, call.epoch)).or_default() += 1;
        }
        report.duplicated += u64::from(!before.is_empty());
        before.push(this);
    }
    settled.into_keys().collect()
}

/// Calls of each key in the order in which they came. Messages without a key have no order.
fn by_key(calls: &[Call]) -> BTreeMap<(u32, &str), Vec<&Call>> {
    let mut keys: BTreeMap<(u32, &str), Vec<&Call>> = BTreeMap::new();
    for call in calls {
        if let Some(key) = &call.key {
            keys.entry((call.partition, key)).or_default().push(call);
        }
    }
    for calls in keys.values_mut() {
        calls.sort_by_key(|call| call.started);
    }
    keys
}

fn check_key(calls: &[&Call], settled: &HashSet<Position>, report: &mut Report) {
    let (mut first, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    let mut newest: HashMap<u64, &Call> = HashMap::new();
    for call in calls {
        if call.is_settled()
            && first.insert(call.offset)
            && first.last().is_some_and(|highest| *highest > call.offset)
        {
            report.reordered.push(format!("{} was settled behind a later one", told(call)));
        }
        // Positions give the order of the log, numbers the order of the producer.
        if let Some(n) = call.n
            && call.is_settled()
            && numbers.insert(n)
            && numbers.last().is_some_and(|highest| *highest > n)
        {
            report
                .reordered
                .push(format!("{} is number {n}, and a later one was settled before", told(call)));
        }
        if let Some(before) = newest.insert(call.epoch, call) {
            if before.offset > call.offset {
                let what = format!("{} was started after {}", told(call), told(before));
                report.reordered.push(what);
            }
            if before.ended.is_some_and(|ended| ended > call.started) {
                let what = format!("{} was started during {}", told(call), told(before));
                report.overlapping.push(what);
            }
        }
    }
    let highest = first.last().copied().unwrap_or(0);
    let called: BTreeSet<u64> = calls.iter().map(|call| call.offset).collect();
    for call in calls {
        let position = (call.partition, call.offset);
        if call.offset < highest && !settled.contains(&position) && called.contains(&call.offset) {
            report.skipped.push(told(call));
        }
    }
}

/// The faults of the commits that were seen: a commit above a message that was not settled then, or one that was
/// forgotten later, so that a message below it ran again.
pub fn check_committed(seen: &[Committed], acked: &[Acked], calls: &[Call]) -> Vec<String> {
    let mut settled_at: HashMap<Position, u64> = HashMap::new();
    for call in calls.iter().filter(|call| call.is_settled()) {
        let ended = call.ended.expect("it was answered");
        let at = settled_at.entry((call.partition, call.offset)).or_insert(ended);
        *at = (*at).min(ended);
    }
    let mut wrong = Vec::new();
    let seen_by_partition = by_partition(seen);
    for (message, offset) in acked.iter().filter_map(|message| Some((message, message.offset?))) {
        let settled = settled_at.get(&(message.partition, offset)).copied().unwrap_or(u64::MAX);
        let commits = seen_by_partition.get(&message.partition).map_or(&[][..], Vec::as_slice);
        // Commits only rise, so only the first one above the message could be too early.
        let above = commits.partition_point(|(committed, _)| *committed <= offset);
        if let Some((committed, at)) = commits.get(above)
            && *at < settled
        {
            wrong.push(format!("{} was not settled when {committed} was committed", message.told()));
        }
    }
    for call in calls {
        let commits = seen_by_partition.get(&call.partition).map_or(&[][..], Vec::as_slice);
        let above = commits.partition_point(|(committed, _)| *committed <= call.offset);
        if let Some((committed, at)) = commits.get(above)
            && call.started > *at
        {
            wrong.push(format!("{} was run again though {committed} was committed", told(call)));
        }
    }
    wrong
}

/// Commits of each partition as (committed, when seen), rising; a commit that goes back fails the test.
fn by_partition(seen: &[Committed]) -> BTreeMap<u32, Vec<(u64, u64)>> {
    let mut partitions: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for sample in seen {
        for (partition, committed) in &sample.partitions {
            let commits = partitions.entry(*partition).or_default();
            let last = commits.last().map_or(0, |(last, _)| *last);
            assert!(*committed >= last, "the commit of {partition} went back from {last} to {committed}");
            if commits.is_empty() || *committed > last {
                commits.push((*committed, sample.at));
            }
        }
    }
    partitions
}

fn told(call: &Call) -> String {
    format!(
        "{} at {}/{} (attempt {}, epoch {})",
        call.id, call.partition, call.offset, call.attempt, call.epoch
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(offset: u64) -> Acked {
        Acked {
            key: Some("k".into()),
            id: format!("k-{offset}"),
            n: offset,
            partition: 0,
            offset: Some(offset),
        }
    }

    /// A call of one key that starts at `started` and ends right after, unless `status` is none.
    fn call(offset: u64, started: u64, status: Option<u16>) -> Call {
        Call {
            key: Some("k".into()),
            id: format!("k-{offset}"),
            n: Some(offset),
            partition: 0,
            offset,
            attempt: 1,
            epoch: 1,
            path: String::new(),
            started,
            ended: status.map(|_| started + 1),
            status,
        }
    }

    /// COM-2: messages that a new owner repeats are counted for it, and bounded; a message that an owner repeats by
    /// itself is a fault.
    #[test]
    fn repeats_are_counted_for_each_take_over() {
        let messages: Vec<Acked> = (0..4).map(acked).collect();
        let under = |epoch: u64, call: Call| Call { epoch, ..call };
        let mut history: Vec<Call> = (0..3).map(|offset| call(offset, offset * 10, Some(200))).collect();
        history.extend((1..4).map(|offset| under(2, call(offset, 40 + offset * 10, Some(200)))));
        let report = check(&messages, &history);
        assert_eq!((report.duplicated, report.repeats.get(&(0, 2))), (2, Some(&2)));
        report.assert_repeats(2);
        assert!(std::panic::catch_unwind(|| report.assert_repeats(1)).is_err(), "2 is more than 1");
        // A message whose answer did not arrive is tried again: another attempt, and no fault.
        let retried = Call { attempt: 2, ..under(2, call(3, 90, Some(200))) };
        history.push(retried.clone());
        check(&messages, &history).assert_repeats(2);
        history.push(Call { started: 100, ended: Some(101), ..retried });
        let report = check(&messages, &history);
        assert_eq!(report.again.len(), 1);
        assert!(std::panic::catch_unwind(|| report.assert_kept()).is_err(), "one owner, twice");
    }

    fn counts(report: &Report) -> [usize; 5] {
        [
            report.lost.len(),
            report.skipped.len(),
            report.reordered.len(),
            report.overlapping.len(),
            report.duplicated as usize,
        ]
    }

    /// P1, P2: a correct history has no faults, with failures, rejections and repeats under a later epoch included.
    #[test]
    fn a_good_history_is_found_good() {
        let mut again = call(0, 40, Some(200));
        again.epoch = 2;
        let history =
            [call(0, 1, Some(500)), call(0, 10, Some(200)), call(1, 20, Some(422)), call(2, 30, Some(200))];
        assert_eq!(counts(&check(&[acked(0), acked(1), acked(2)], &history)), [0; 5]);
        let repeated = [history.as_slice(), &[again]].concat();
        assert_eq!(counts(&check(&[acked(0)], &repeated)), [0, 0, 0, 0, 1]);
    }

    /// P1.
    #[test]
    fn a_message_that_was_never_settled_is_lost_and_skipped_if_a_later_one_was() {
        let history = [call(0, 1, Some(500)), call(1, 10, Some(200))];
        assert_eq!(counts(&check(&[acked(0), acked(1)], &history)), [1, 1, 0, 0, 0]);
        assert_eq!(counts(&check(&[acked(0)], &[call(0, 1, None)])), [1, 0, 0, 0, 0]);
    }

    /// P2.
    #[test]
    fn a_message_settled_behind_a_later_one_is_reordered() {
        let mut late = call(0, 10, Some(200));
        late.epoch = 2;
        let report = check(&[acked(0), acked(1)], &[call(1, 1, Some(200)), late]);
        assert_eq!(counts(&report), [0, 0, 2, 0, 0], "by its position and by its number: {report}");
    }

    /// P2.
    #[test]
    fn an_attempt_started_after_a_later_one_of_its_epoch_is_reordered_even_if_it_fails() {
        let history = [call(0, 1, Some(200)), call(1, 10, Some(500)), call(0, 20, Some(500))];
        assert_eq!(counts(&check(&[acked(0)], &history)), [0, 0, 1, 0, 0]);
    }

    /// P2.
    #[test]
    fn two_calls_of_a_key_at_once_overlap() {
        let mut long = call(0, 1, Some(200));
        long.ended = Some(50);
        assert_eq!(counts(&check(&[acked(0), acked(1)], &[long, call(1, 10, Some(200))])), [0, 0, 0, 1, 0]);
    }

    fn committed(at: u64, position: u64) -> Committed {
        Committed { at, partitions: vec![(0, position)] }
    }

    /// P4, COM-1.
    #[test]
    fn a_commit_above_an_unsettled_message_is_found() {
        let history = [call(0, 10, Some(200)), call(1, 30, Some(200))];
        let messages = [acked(0), acked(1)];
        assert!(check_committed(&[committed(20, 1), committed(40, 2)], &messages, &history).is_empty());
        assert_eq!(
            check_committed(&[committed(5, 1)], &messages, &history).len(),
            2,
            "too early, and run later"
        );
        assert_eq!(check_committed(&[committed(25, 2)], &messages, &history).len(), 2);
    }

    /// P4.
    #[test]
    fn a_message_that_runs_again_below_a_commit_is_found() {
        let history = [call(0, 10, Some(200)), call(0, 50, Some(200))];
        assert_eq!(check_committed(&[committed(20, 1)], &[acked(0)], &history).len(), 1);
    }

    /// P4.
    #[test]
    #[should_panic(expected = "went back")]
    fn a_commit_that_goes_back_is_found() {
        check_committed(&[committed(1, 5), committed(2, 4)], &[], &[]);
    }
}
