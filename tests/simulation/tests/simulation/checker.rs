//! Judges a simulated run from outside: by answers to producers, by what handlers did, and by what landed on the
//! broker.
//!
//! Acknowledgements, attempts as they begin and end, and everything that becomes durable come in; the first violation
//! goes out, with the property that it breaks. Keylane's own code (`Replay`) is used only to read journals, to know
//! which records count; the checker itself judges whether they are true.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Arguments};

use bytes::Bytes;
use keylane_broker::testing::memory::Landed;
use keylane_broker::{Commit, LogKind};
use keylane_core::journal::{Facts, Replayed, SnapshotBody};
use keylane_core::{Applied, Delivery, Order, Record, Replay, State, parse_commit_metadata};
use keylane_simulation::Trace;

/// A pause of a process longer than this must be noticed before anything starts (ORD-12).
const PAUSE_MS: u64 = 1_000;
/// This long after another process's fence an owner starts nothing: it reads the fence within a second, or knows by
/// then that it cannot read.
const HEARS_MS: u64 = 2_000;

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The property: `P1` no loss, `P2` order, `P4` safe commit, `P9` fenced, `W` planned hand-over, `ORD-12` pauses,
    /// `ends` everything is settled in the end, `tasks` no task ended unasked.
    pub property: &'static str,
    /// What happened.
    pub what: String,
    /// When, in simulated ms.
    pub at_ms: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ms: {}", self.property, self.at_ms, self.what)
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Done,
    Failed,
    Rejected,
    /// The attempt panicked, timed out, was dropped with its partition, or its process died.
    Abandoned,
}

/// The promises of a scenario beyond those that always hold.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Which messages keep their order.
    pub order: Order,
    /// The most attempts of one process at the same time.
    pub concurrency: usize,
    /// Only handlers fail in this scenario, so nothing may run twice (W). A drain is given up at its deadline, however
    /// much is on record by then; but it is written in as few records as possible, so that a planned drain always ends
    /// in time, whatever bound of a record a scenario draws.
    pub planned: bool,
}

/// Counts of what happened, to see that scenarios do something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub messages: u64,
    pub acknowledged: u64,
    pub attempts: u64,
    pub completions: u64,
    pub repeats: u64,
    /// Attempts that an owner started after another process's fence: few, since it hears of the fence within a second.
    pub stale_starts: u64,
    pub fences: u64,
    pub facts: u64,
    pub void: u64,
    pub snapshots: u64,
    /// Of the snapshots, those in pieces.
    pub pieces: u64,
    pub resets: u64,
    pub dead: u64,
}

impl Counts {
    /// The kinds of events that never happened.
    pub fn never(&self) -> Vec<&'static str> {
        let counted = [
            ("acknowledged", self.acknowledged),
            ("repeats", self.repeats),
            ("fences", self.fences),
            ("void", self.void),
            ("snapshots", self.snapshots),
            ("snapshots in pieces", self.pieces),
            ("resets", self.resets),
            ("dead", self.dead),
        ];
        counted.iter().filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect()
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Counts) {
        self.messages += other.messages;
        self.acknowledged += other.acknowledged;
        self.attempts += other.attempts;
        self.completions += other.completions;
        self.repeats += other.repeats;
        self.stale_starts += other.stale_starts;
        self.fences += other.fences;
        self.facts += other.facts;
        self.void += other.void;
        self.snapshots += other.snapshots;
        self.pieces += other.pieces;
        self.resets += other.resets;
        self.dead += other.dead;
    }
}

pub struct Checker {
    terms: Terms,
    parts: Vec<Part>,
    attempts: BTreeMap<u64, Attempt>,
    next_attempt: u64,
    pauses: BTreeMap<String, Vec<u64>>,
    pub trace: Trace,
    pub counts: Counts,
    pub violation: Option<Violation>,
}

#[derive(Default)]
struct Part {
    log: BTreeMap<u64, Entry>,
    by_key: BTreeMap<Bytes, BTreeSet<u64>>,
    journal: Replay,
    hold: BTreeMap<u64, Bytes>,
    /// When each epoch's fence landed.
    fences: BTreeMap<u64, u64>,
    /// The highest commit of an owner since the last reset.
    committed_max: u64,
    /// The highest value that the lowest unsettled position ever had.
    low_max: u64,
    was_reset: bool,
    /// The positions to which an operator ever reset the partition.
    asked: BTreeSet<u64>,
}

struct Entry {
    id: String,
    lane: Option<Bytes>,
    acknowledged: bool,
    /// An operator's reset passed over the message.
    skipped: bool,
    /// The epochs in which the message was handled, and in which it was rejected.
    done: BTreeSet<u64>,
    rejected: BTreeSet<u64>,
    attempts: u32,
}

#[derive(Debug, Clone)]
struct Attempt {
    process: String,
    partition: u32,
    position: u64,
    epoch: u64,
    lane: Option<Bytes>,
}

impl Checker {
    pub fn new(terms: Terms, partitions: u32, trace: Trace) -> Checker {
        Checker {
            terms,
            parts: (0..partitions).map(|_| Part::default()).collect(),
            attempts: BTreeMap::new(),
            next_attempt: 0,
            pauses: BTreeMap::new(),
            trace,
            counts: Counts::default(),
            violation: None,
        }
    }

    /// Something that the simulation did.
    pub fn note(&mut self, at_ms: u64, what: Arguments<'_>) {
        self.trace.add(at_ms, what);
    }

    pub fn violate(&mut self, at_ms: u64, property: &'static str, what: String) {
        self.trace.add(at_ms, format_args!("VIOLATION {property}: {what}"));
        self.violation.get_or_insert(Violation { property, what, at_ms });
    }

    /// A producer was told that its message is durable.
    pub fn acknowledged(&mut self, at_ms: u64, partition: u32, position: u64, id: &str) {
        self.counts.acknowledged += 1;
        self.trace.add(at_ms, format_args!("ack {partition}/{position} {id}"));
        match self.parts[partition as usize].log.get_mut(&position) {
            Some(entry) if entry.id == id => entry.acknowledged = true,
            _ => self.violate(
                at_ms,
                "P1",
                format!("{id} was acknowledged at {partition}/{position}, and is not there"),
            ),
        }
    }

    /// A process that was stopped for this long goes on now.
    pub fn thawed(&mut self, at_ms: u64, process: &str, paused_ms: u64) {
        if paused_ms > PAUSE_MS {
            self.pauses.entry(process.to_owned()).or_default().push(at_ms);
        }
    }

    /// An attempt begins. Returns its number, and which attempt on this message it is.
    pub fn began(&mut self, at_ms: u64, process: &str, delivery: &Delivery) -> (u64, u32) {
        let (partition, position, epoch) = (delivery.partition(), delivery.position(), delivery.epoch());
        self.counts.attempts += 1;
        self.next_attempt += 1;
        let number = self.next_attempt;
        self.trace
            .add(at_ms, format_args!("begin #{number} {partition}/{position} epoch {epoch} on {process}"));
        let part = &mut self.parts[partition as usize];
        let Some(entry) = part.log.get_mut(&position) else {
            self.violate(at_ms, "P1", format!("{partition}/{position} runs and was never sent"));
            return (number, 1);
        };
        entry.attempts += 1;
        let (nth, lane) = (entry.attempts, entry.lane.clone());
        let attempt = Attempt { process: process.to_owned(), partition, position, epoch, lane };
        for (property, what) in self.judge_start(at_ms, &attempt) {
            self.violate(at_ms, property, what);
        }
        self.attempts.insert(number, attempt);
        (number, nth)
    }

    fn judge_start(&mut self, at_ms: u64, attempt: &Attempt) -> Vec<(&'static str, String)> {
        let Attempt { process, partition, position, epoch, lane } = attempt;
        let part = &self.parts[*partition as usize];
        let entry = &part.log[position];
        let mut broken = Vec::new();
        let what = format!("{partition}/{position} starts in epoch {epoch} on {process}");
        let current = part.epoch();
        if current != Some(*epoch) {
            self.counts.stale_starts += 1;
            broken.extend(self.judge_stale(at_ms, attempt, &what));
        } else if part.state().settled.contains(*position) {
            broken.push(("P4", format!("{what}, and is on record as settled")));
        }
        if !part.fences.contains_key(epoch) {
            broken.push(("P9", format!("{what}, which no fence began")));
        }
        let beside = self.attempts.values().filter(|other| other.process == *process).count();
        if beside >= self.terms.concurrency {
            broken.push(("ORD-4", format!("{what}, where {beside} run already")));
        }
        if self.terms.planned && !entry.done.is_empty() {
            broken.push(("W", format!("{what}, and was done in epoch {:?}", entry.done)));
        }
        if let Some(lane) = lane {
            for other in self.attempts.values() {
                let same = other.partition == *partition && other.lane.as_ref() == Some(lane);
                let same_epoch = other.epoch == *epoch;
                if same && (same_epoch || self.terms.planned) {
                    let other =
                        format!("{} runs in epoch {} on {}", other.position, other.epoch, other.process);
                    let property = if same_epoch { "P2" } else { "W" };
                    broken.push((property, format!("{what}, and of its key {other}")));
                }
            }
            if current == Some(*epoch) || !part.was_reset {
                broken.extend(part.judge_order(*position, *epoch, lane, &what));
            }
        }
        broken
    }

    /// Judges an attempt of an owner that another process has fenced. The owner may not know yet; but not for long, and
    /// not after a pause.
    fn judge_stale(&self, at_ms: u64, attempt: &Attempt, what: &str) -> Option<(&'static str, String)> {
        let part = &self.parts[attempt.partition as usize];
        let (fence, fenced_ms) = part.fences.range(attempt.epoch + 1..).next()?;
        if at_ms > fenced_ms + HEARS_MS {
            return Some((
                "P9",
                format!("{what}; epoch {fence} began at {fenced_ms} ms, and it is deaf to that"),
            ));
        }
        let slept_past =
            self.pauses.get(&attempt.process).into_iter().flatten().any(|thawed_ms| thawed_ms > fenced_ms);
        slept_past.then(|| {
            let why = format!("epoch {fence} began at {fenced_ms} ms, and the process slept past that");
            ("ORD-12", format!("{what}; {why}"))
        })
    }

    /// An attempt ended.
    pub fn ended(&mut self, at_ms: u64, number: u64, end: End) {
        let Some(attempt) = self.attempts.remove(&number) else {
            return;
        };
        let Attempt { partition, position, epoch, lane, .. } = attempt;
        self.trace.add(at_ms, format_args!("end #{number} {partition}/{position} {end:?}"));
        let part = &mut self.parts[partition as usize];
        let entry = part.log.get_mut(&position).expect("it began");
        match end {
            End::Rejected => {
                entry.rejected.insert(epoch);
            }
            End::Failed | End::Abandoned => {}
            End::Done => {
                self.counts.completions += 1;
                self.counts.repeats += u64::from(!entry.done.is_empty());
                let first = entry.done.is_empty();
                entry.done.insert(epoch);
                if let (true, false, Some(lane)) = (first, part.was_reset, &lane)
                    && let Some(later) = part.first_done_above(position, lane)
                {
                    self.violate(
                        at_ms,
                        "P2",
                        format!("{partition}/{position} is first done after {later} of its key"),
                    );
                }
            }
        }
    }

    /// Something became durable. Returns the partition if that was a step of a take-over.
    pub fn landed(&mut self, at_ms: u64, landed: &Landed<'_>) -> Option<u32> {
        match landed {
            Landed::Message { partition, position, frame, .. } => {
                self.message(at_ms, *partition, *position, frame)
            }
            Landed::Record { partition, kind: LogKind::Hold, position, record, .. } => {
                self.parts[*partition as usize].hold.insert(*position, Bytes::clone(record));
            }
            Landed::Record { partition, position, record, .. } => {
                return self.record(at_ms, *partition, *position, record).then_some(*partition);
            }
            Landed::Commit { partition, commit, .. } => self.commit(at_ms, *partition, commit),
            _ => {}
        }
        None
    }

    fn message(&mut self, at_ms: u64, partition: u32, position: u64, frame: &[u8]) {
        self.counts.messages += 1;
        let delivery = Delivery::parse(Bytes::copy_from_slice(frame), position, partition, 0, 0)
            .expect("what a producer encoded can be read");
        self.trace.add(at_ms, format_args!("message {partition}/{position} {}", delivery.id()));
        let lane = match self.terms.order {
            Order::Key => delivery.key().map(Bytes::copy_from_slice),
            Order::Partition => Some(Bytes::new()),
            Order::None => None,
        };
        let part = &mut self.parts[partition as usize];
        if let Some(lane) = &lane {
            part.by_key.entry(lane.clone()).or_default().insert(position);
        }
        let entry = Entry {
            id: delivery.id().to_owned(),
            lane,
            acknowledged: false,
            skipped: false,
            done: BTreeSet::new(),
            rejected: BTreeSet::new(),
            attempts: 0,
        };
        part.log.insert(position, entry);
    }

    /// True for a claim or a fence that counts.
    fn record(&mut self, at_ms: u64, partition: u32, position: u64, bytes: &Bytes) -> bool {
        let record = Record::decode(bytes).expect("what an owner encoded can be read");
        let part = &mut self.parts[partition as usize];
        let before = part.journal.state().expect("read from its beginning").clone();
        let applied = part.journal.read(position, &record, bytes.len());
        let counts = applied == Replayed::Applied(Applied::Counted);
        let low = part.state().settled.low();
        part.low_max = part.low_max.max(low);
        self.trace.add(
            at_ms,
            format_args!(
                "journal {partition} @{position} {} {} low {low}",
                brief(&record),
                if counts { "counts" } else { "is void" }
            ),
        );
        self.counts.void += u64::from(!counts);
        let takes_over = counts && matches!(record, Record::Claim(_) | Record::Fence(_));
        match record {
            Record::Fence(_) if counts => {
                self.counts.fences += 1;
                self.parts[partition as usize].fences.insert(position, at_ms);
            }
            Record::Facts(facts) if counts => {
                self.counts.facts += 1;
                for (property, what) in self.judge_facts(partition, &before, &facts) {
                    self.violate(at_ms, property, what);
                }
            }
            Record::Snapshot(snapshot) if counts => {
                self.counts.snapshots += 1;
                self.counts.pieces += u64::from(matches!(snapshot.body, SnapshotBody::Chunks(_)));
            }
            _ => {}
        }
        takes_over
    }

    /// Proves that what goes on record has happened, and in this epoch (P9).
    fn judge_facts(&mut self, partition: u32, before: &State, facts: &Facts) -> Vec<(&'static str, String)> {
        let part = &mut self.parts[partition as usize];
        let mut broken = Vec::new();
        if let Some(position) = facts.start.or(facts.reset).filter(|at| *at > 0 || facts.reset.is_some()) {
            self.counts.resets += 1;
            part.was_reset = true;
            part.committed_max = 0;
            if !part.asked.contains(&position) {
                let what = format!("partition {partition} is set to {position}, which nobody asked for");
                broken.push(("P4", what));
            }
            for (at, entry) in part.log.range_mut(..position) {
                entry.skipped |= !before.settled.contains(*at);
            }
        }
        for range in facts.done.iter() {
            for (position, entry) in part.log.range(range) {
                if !entry.done.contains(&facts.epoch) {
                    broken.push((
                        if entry.done.is_empty() { "P4" } else { "P9" },
                        format!(
                            "{partition}/{position} is on record as done in epoch {}, and was done in epochs {:?}",
                            facts.epoch, entry.done
                        ),
                    ));
                }
            }
        }
        for dead in &facts.dead {
            self.counts.dead += 1;
            let rejected =
                part.log.get(&dead.position).is_some_and(|entry| entry.rejected.contains(&facts.epoch));
            // Format, kind 1 for a body, source position.
            let stored = part.hold.get(&dead.body).is_some_and(|entry| {
                entry.len() > 10 && entry[1] == 1 && entry[2..10] == dead.position.to_le_bytes()
            });
            if !rejected || !stored {
                broken.push((
                    "P1",
                    format!(
                        "{partition}/{} is on record as dead in epoch {}; rejected in it: {rejected}; body stored: {stored}",
                        dead.position, facts.epoch
                    ),
                ));
            }
        }
        broken
    }

    fn commit(&mut self, at_ms: u64, partition: u32, commit: &Commit) {
        let part = &mut self.parts[partition as usize];
        let mirror = parse_commit_metadata(&commit.metadata);
        let position = commit.position;
        let current = part.epoch();
        // A commit that lands late may stand above an operator's reset; Keylane does not read it as truth.
        let bound = match mirror {
            Some(mirror) if Some(mirror.epoch) == current => part.state().settled.low(),
            _ => part.low_max,
        };
        match mirror {
            None => {
                part.asked.insert(position);
            }
            Some(_) => part.committed_max = part.committed_max.max(position),
        }
        let of = mirror.map(|mirror| mirror.epoch);
        self.trace.add(at_ms, format_args!("commit {partition} {position} of {of:?}"));
        if mirror.is_some() && position > bound {
            self.violate(
                at_ms,
                "P4",
                format!("partition {partition} is committed up to {position}, and settled up to {bound}"),
            );
        }
    }

    /// The first thing that must still happen before all is quiet.
    pub fn unsettled(&self) -> Option<String> {
        for (partition, part) in self.parts.iter().enumerate() {
            let settled = &part.state().settled;
            if let Some((position, _)) = part.log.iter().find(|(at, _)| !settled.contains(**at)) {
                return Some(format!("{partition}/{position} is not settled"));
            }
            // A commit that lands late may replace the newest one; Keylane does not read it as truth.
            let committed = part.committed_max;
            if !part.log.is_empty() && committed != settled.low() {
                let low = settled.low();
                return Some(format!("partition {partition} is committed up to {committed}, not {low}"));
            }
        }
        None
    }

    /// Proves that nothing that was acknowledged is lost (P1).
    pub fn finish(&mut self, at_ms: u64) {
        let mut lost = Vec::new();
        for (partition, part) in self.parts.iter().enumerate() {
            let state = part.state();
            for (position, entry) in &part.log {
                let kept = !entry.done.is_empty() || state.entries.get(*position).is_some() || entry.skipped;
                if entry.acknowledged && !kept {
                    lost.push(format!(
                        "{partition}/{position} was acknowledged, and is neither done nor dead"
                    ));
                }
            }
        }
        for what in lost {
            self.violate(at_ms, "P1", what);
        }
    }

    /// Where a partition begins and ends, for an operator's reset.
    pub fn span(&self, partition: u32) -> (u64, u64) {
        let log = &self.parts[partition as usize].log;
        let end = log.last_key_value().map_or(0, |(position, _)| position + 1);
        (0, end)
    }
}

impl Part {
    fn state(&self) -> &State {
        self.journal.state().expect("read from its beginning")
    }

    fn epoch(&self) -> Option<u64> {
        self.state().epoch.as_ref().map(|epoch| epoch.position)
    }

    /// Judges whether all earlier messages of a key were handled in this epoch or are on record, and no later one (P2).
    fn judge_order(
        &self,
        position: u64,
        epoch: u64,
        lane: &Bytes,
        what: &str,
    ) -> Option<(&'static str, String)> {
        let state = self.state();
        let of_key = &self.by_key[lane];
        let before = of_key
            .range(state.settled.low()..position.max(state.settled.low()))
            .find(|at| !state.settled.contains(**at) && !self.log[at].done.contains(&epoch));
        if let Some(before) = before {
            return Some(("P2", format!("{what}, and {before} of its key is neither done nor dead")));
        }
        let behind = of_key
            .range(position + 1..)
            .find(|at| state.settled.contains(**at) && state.entries.get(**at).is_none());
        behind
            .filter(|_| !self.was_reset)
            .map(|behind| ("P2", format!("{what}, and {behind} of its key is on record as done")))
    }

    fn first_done_above(&self, position: u64, lane: &Bytes) -> Option<u64> {
        self.by_key[lane].range(position + 1..).find(|at| !self.log[at].done.is_empty()).copied()
    }
}

fn brief(record: &Record) -> String {
    match record {
        Record::Identity { .. } => "identity".to_owned(),
        Record::Claim(claim) => format!("claim {:04x}", claim.id as u16),
        Record::Fence(fence) => format!("fence of claim @{}", fence.claim_position),
        Record::Facts(facts) => {
            let done: Vec<String> =
                facts.done.iter().take(8).map(|range| format!("{}..{}", range.start, range.end)).collect();
            let dead: Vec<u64> = facts.dead.iter().map(|dead| dead.position).collect();
            format!(
                "facts epoch {} seq {} done {done:?} dead {dead:?}{}{}{}",
                facts.epoch,
                facts.seq,
                facts.start.map_or(String::new(), |at| format!(" start {at}")),
                facts.reset.map_or(String::new(), |at| format!(" reset {at}")),
                if facts.released { " released" } else { "" }
            )
        }
        Record::Snapshot(snapshot) => format!("snapshot epoch {} seq {}", snapshot.epoch, snapshot.seq),
        Record::Command(_) => "command".to_owned(),
    }
}
