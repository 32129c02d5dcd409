//! The state of the memory broker's cluster: topics, journals, commits, groups, and the processes that use it.
//!
//! Every change is one function here, made under one lock. Invariants: positions of a partition rise and are never used
//! again; positions of a journal have no gaps; every map is sorted, so nothing depends on the order of hashing.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use keylane_core::message::{POSITION_MAX, put_frame};
use keylane_core::{Batch, Frames};

use super::group::Group;
use crate::contract::{
    AppendError, BrokerError, Commit, Ends, JournalName, JournalPage, LogKind, ProduceError, Topic, TopicSpec,
};
use crate::testing::random::Random;
use crate::testing::waiters::Waiters;

pub(super) type JournalKey = (String, String, u32, LogKind);
pub(super) type GroupKey = (String, String);

/// What has just become durable, as a test that watches the cluster sees it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Landed<'a> {
    /// A message of a topic.
    Message {
        /// The topic.
        topic: &'a str,
        /// The partition.
        partition: u32,
        /// The message's position.
        position: u64,
        /// The frame as it was sent; its delta is zero.
        frame: &'a [u8],
    },
    /// A record of a `journal.p`, or a body in a `hold.p`.
    Record {
        /// The group it belongs to.
        group: &'a str,
        /// The source topic.
        topic: &'a str,
        /// The source partition.
        partition: u32,
        /// Which of the two logs it is.
        kind: LogKind,
        /// The record's position in that log.
        position: u64,
        /// The record's bytes.
        record: &'a Bytes,
    },
    /// A group's commit, whether Keylane or an operator made it.
    Commit {
        /// The group.
        group: &'a str,
        /// The topic.
        topic: &'a str,
        /// The partition.
        partition: u32,
        /// The commit as it is now.
        commit: &'a Commit,
    },
}

pub(super) type Observer = Box<dyn FnMut(&Landed<'_>) + Send>;

pub(super) struct State {
    pub(super) random: Random,
    pub(super) conditional: bool,
    pub(super) proves_dead: bool,
    pub(super) keeps_metadata: bool,
    pub(super) latency: (Duration, Duration),
    pub(super) gap_max: u64,
    pub(super) topics: BTreeMap<String, TopicState>,
    pub(super) journals: BTreeMap<JournalKey, JournalState>,
    /// For how many partitions each group's journals were made.
    pub(super) made_for: BTreeMap<GroupKey, u32>,
    pub(super) commits: BTreeMap<(String, String, u32), Commit>,
    pub(super) groups: BTreeMap<GroupKey, Group>,
    pub(super) processes: BTreeMap<u128, Process>,
    /// Wakers to be woken once the lock is released.
    pub(super) to_wake: Vec<Waker>,
    pub(super) observer: Option<Observer>,
    tickets: u64,
}

/// One simulated process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) alive: bool,
    pub(super) reachable: bool,
}

pub(super) struct TopicState {
    pub(super) incarnation: u128,
    pub(super) spec: TopicSpec,
    pub(super) partitions: Vec<PartitionState>,
    pub(super) full: bool,
}

#[derive(Default)]
pub(super) struct PartitionState {
    pub(super) ends: Ends,
    pub(super) entries: VecDeque<Entry>,
    pub(super) waiters: Waiters,
}

pub(super) struct Entry {
    pub(super) position: u64,
    appended_ms: u64,
    frame: Bytes,
}

#[derive(Default)]
pub(super) struct JournalState {
    start: u64,
    records: VecDeque<Bytes>,
    pub(super) waiters: Waiters,
}

impl State {
    pub(super) fn new(seed: u64) -> State {
        State {
            random: Random::new(seed),
            conditional: true,
            proves_dead: false,
            keeps_metadata: true,
            latency: (Duration::ZERO, Duration::ZERO),
            gap_max: 0,
            topics: BTreeMap::new(),
            journals: BTreeMap::new(),
            made_for: BTreeMap::new(),
            commits: BTreeMap::new(),
            groups: BTreeMap::new(),
            processes: BTreeMap::new(),
            to_wake: Vec::new(),
            observer: None,
            tickets: 0,
        }
    }

    pub(super) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// The latency of the next call or answer.
    pub(super) fn travel(&mut self) -> Duration {
        let (least, most) = self.latency;
        if least == most {
            return least;
        }
        let spread = most.saturating_sub(least).as_nanos() as u64;
        least + Duration::from_nanos(self.random.up_to(spread))
    }

    /// An error if a process cannot talk to the cluster now.
    pub(super) fn admit(&self, instance: u128) -> Result<(), BrokerError> {
        let process = self.processes.get(&instance).ok_or(BrokerError::Closed)?;
        match (process.alive, process.reachable) {
            (false, _) => Err(BrokerError::Closed),
            (true, false) => Err(BrokerError::Unavailable(format!("{} is cut off", process.name))),
            (true, true) => Ok(()),
        }
    }

    pub(super) fn describe(&self, name: &str) -> Option<Topic> {
        self.topics.get(name).map(|topic| topic.describe(name))
    }

    pub(super) fn topic(&self, name: &str) -> Result<&TopicState, BrokerError> {
        self.topics.get(name).ok_or_else(|| BrokerError::UnknownTopic(name.to_owned()))
    }

    /// A partition that must exist.
    pub(super) fn partition(
        &mut self,
        name: &str,
        partition: u32,
    ) -> Result<&mut PartitionState, BrokerError> {
        let Some(topic) = self.topics.get_mut(name) else {
            return Err(BrokerError::UnknownTopic(name.to_owned()));
        };
        let count = topic.partitions.len();
        topic.partitions.get_mut(partition as usize).ok_or_else(|| {
            BrokerError::Invalid(format!(
                "topic {name} has {count} partitions; there is no partition {partition}"
            ))
        })
    }

    pub(super) fn create_topic(&mut self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        if let Some(there) = self.describe(name) {
            if there.partitions != spec.partitions {
                return Err(BrokerError::Partitions {
                    topic: name.to_owned(),
                    there: there.partitions,
                    asked: spec.partitions,
                });
            }
            let topic = self.topics.get_mut(name).expect("it was described");
            topic.spec = spec.clone();
            return Ok(topic.describe(name));
        }
        if name.is_empty() || spec.partitions == 0 {
            return Err(BrokerError::Invalid("a topic has a name and at least one partition".to_owned()));
        }
        let topic = TopicState {
            incarnation: self.random.next_u128(),
            spec: spec.clone(),
            partitions: (0..spec.partitions).map(|_| PartitionState::default()).collect(),
            full: false,
        };
        let described = topic.describe(name);
        self.topics.insert(name.to_owned(), topic);
        self.resize_groups(name, spec.partitions);
        Ok(described)
    }

    pub(super) fn delete_topic(&mut self, name: &str) -> Option<TopicSpec> {
        let mut topic = self.topics.remove(name)?;
        for partition in &mut topic.partitions {
            partition.waiters.take_all(&mut self.to_wake);
        }
        self.commits.retain(|(_, topic, _), _| topic != name);
        self.resize_groups(name, 0);
        Some(topic.spec)
    }

    /// Gives a topic more partitions.
    pub(super) fn grow_topic(&mut self, name: &str, partitions: u32) -> Option<()> {
        let topic = self.topics.get_mut(name)?;
        topic.spec.partitions = partitions.max(topic.spec.partitions);
        topic.partitions.resize_with(topic.spec.partitions as usize, PartitionState::default);
        self.resize_groups(name, partitions);
        self.wake_all();
        Some(())
    }

    fn resize_groups(&mut self, name: &str, partitions: u32) {
        for ((_, topic), group) in &mut self.groups {
            if topic == name {
                group.resize(partitions, &mut self.to_wake);
            }
        }
    }

    pub(super) fn produce(
        &mut self,
        name: &str,
        frames: &Frames,
        now_ms: u64,
    ) -> Vec<Result<u64, ProduceError>> {
        let unknown = || Err(ProduceError::UnknownTopic(name.to_owned()));
        let Some(topic) = self.topics.get_mut(name) else {
            return frames.iter().map(|_| unknown()).collect();
        };
        let mut results = Vec::with_capacity(frames.len());
        for (index, frame) in frames.iter() {
            results.push(match topic.refusal(name, frame.len()) {
                Some(refusal) => Err(refusal),
                None => match topic.partitions.get_mut(index as usize) {
                    Some(partition) => {
                        let gap = match self.gap_max {
                            0 => 0,
                            most => self.random.up_to(most),
                        };
                        partition.skip(gap);
                        partition.waiters.take_all(&mut self.to_wake);
                        let position = partition.append(frame, now_ms);
                        if let Some(observer) = &mut self.observer {
                            observer(&Landed::Message { topic: name, partition: index, position, frame });
                        }
                        Ok(position)
                    }
                    None => unknown(),
                },
            });
        }
        results
    }

    /// The group of that name and topic. Its first use makes it, empty and with fair shares.
    pub(super) fn group(&mut self, group: &str, topic: &str) -> &mut Group {
        let partitions = self.topics.get(topic).map_or(0, |topic| topic.spec.partitions);
        let to_wake = &mut self.to_wake;
        self.groups.entry((group.to_owned(), topic.to_owned())).or_insert_with(|| {
            let mut group = Group::new(false);
            group.resize(partitions, to_wake);
            group
        })
    }

    /// A group, and the list that takes the wakers which a change of the group moves.
    pub(super) fn group_to_wake(&mut self, key: &GroupKey) -> (&mut Group, &mut Vec<Waker>) {
        self.group(&key.0, &key.1);
        let group = self.groups.get_mut(key).expect("made on the line above");
        (group, &mut self.to_wake)
    }

    pub(super) fn journal(&mut self, key: &JournalKey) -> &mut JournalState {
        // A journal that was never appended to is an entry without records.
        self.journals.entry(key.clone()).or_default()
    }

    pub(super) fn append(
        &mut self,
        key: &JournalKey,
        record: Bytes,
        expect_end: Option<u64>,
    ) -> Result<u64, AppendError> {
        if expect_end.is_some() && !self.conditional {
            return Err(AppendError::Unconditional);
        }
        let partitions = self.topics.get(&key.1).map(|topic| topic.spec.partitions);
        if let Some(partitions) = partitions {
            self.made_for.entry((key.0.clone(), key.1.clone())).or_insert(partitions);
        }
        let journal = self.journals.entry(key.clone()).or_default();
        let end = journal.end();
        if expect_end.is_some_and(|expected| expected != end) {
            return Err(AppendError::Moved { end });
        }
        if let Some(observer) = &mut self.observer {
            observer(&Landed::Record {
                group: &key.0,
                topic: &key.1,
                partition: key.2,
                kind: key.3,
                position: end,
                record: &record,
            });
        }
        journal.records.push_back(record);
        journal.waiters.take_all(&mut self.to_wake);
        Ok(end)
    }

    pub(super) fn commit(&mut self, group: &str, topic: &str, partition: u32, commit: Commit) {
        if let Some(observer) = &mut self.observer {
            observer(&Landed::Commit { group, topic, partition, commit: &commit });
        }
        self.commits.insert((group.to_owned(), topic.to_owned(), partition), commit);
    }

    /// Wakes everyone who waits, so that each sees what happened to its process or to the cluster.
    pub(super) fn wake_all(&mut self) {
        for partition in self.topics.values_mut().flat_map(|topic| &mut topic.partitions) {
            partition.waiters.take_all(&mut self.to_wake);
        }
        for journal in self.journals.values_mut() {
            journal.waiters.take_all(&mut self.to_wake);
        }
        for group in self.groups.values_mut() {
            group.wake_all(&mut self.to_wake);
        }
    }
}

impl TopicState {
    fn describe(&self, name: &str) -> Topic {
        Topic {
            name: name.to_owned(),
            partitions: self.spec.partitions,
            incarnation: self.incarnation,
            spec: self.spec.clone(),
        }
    }

    fn refusal(&self, name: &str, bytes: usize) -> Option<ProduceError> {
        if bytes > self.spec.message_bytes_max {
            return Some(ProduceError::TooLarge {
                topic: name.to_owned(),
                bytes,
                bytes_max: self.spec.message_bytes_max,
            });
        }
        self.full.then(|| {
            let entries = self.partitions.iter().flat_map(|partition| &partition.entries);
            let kept = entries.map(|entry| entry.frame.len() as u64).sum();
            ProduceError::Full {
                topic: name.to_owned(),
                bytes: kept,
                bytes_max: self.spec.retention_bytes.unwrap_or(kept),
            }
        })
    }
}

impl PartitionState {
    /// Skips positions, as aborted transactions do.
    pub(super) fn skip(&mut self, positions: u64) {
        self.ends.end = self.ends.end.saturating_add(positions);
        assert!(self.ends.end < POSITION_MAX, "positions stay below 2^53");
    }

    fn append(&mut self, frame: &[u8], appended_ms: u64) -> u64 {
        let position = self.ends.end;
        self.entries.push_back(Entry { position, appended_ms, frame: Bytes::copy_from_slice(frame) });
        self.ends.end += 1;
        position
    }

    pub(super) fn delete_below(&mut self, position: u64) {
        self.ends.start = position.clamp(self.ends.start, self.ends.end);
        while self.entries.front().is_some_and(|entry| entry.position < self.ends.start) {
            self.entries.pop_front();
        }
    }

    /// The next batch for a reader at `from`; `None` at the tail. A batch has one append time and 32-bit deltas, so it
    /// ends before a message that needs another append time or a larger delta.
    pub(super) fn batch(&self, partition: u32, from: u64, bytes_max: usize) -> Option<Batch> {
        let first_at = self.entries.partition_point(|entry| entry.position < from);
        let first = self.entries.get(first_at)?;
        let mut frames = Vec::new();
        let mut count = 0;
        for entry in self.entries.range(first_at..) {
            let too_many = count > 0 && frames.len() + entry.frame.len() > bytes_max;
            let Ok(delta) = u32::try_from(entry.position - first.position) else {
                break;
            };
            if too_many || entry.appended_ms != first.appended_ms {
                break;
            }
            put_frame(&mut frames, &entry.frame, delta);
            count += 1;
        }
        let behind = self.entries.get(first_at + count as usize);
        Some(Batch {
            partition,
            base: first.position,
            next: behind.map_or(self.ends.end, |entry| entry.position),
            appended_ms: first.appended_ms,
            count,
            frames: frames.into(),
        })
    }
}

impl JournalState {
    /// Loses all records; with `keeps_end` the journal's end stays, otherwise it begins at 0 again.
    pub(super) fn lose(&mut self, keeps_end: bool) {
        self.start = if keeps_end { self.end() } else { 0 };
        self.records.clear();
    }
}

impl JournalState {
    pub(super) fn end(&self) -> u64 {
        self.start + self.records.len() as u64
    }

    pub(super) fn page(&self, from: u64, bytes_max: usize) -> JournalPage {
        let from = from.max(self.start);
        let skip = usize::try_from(from - self.start).unwrap_or(usize::MAX);
        let mut records: Vec<(u64, Bytes)> = Vec::new();
        let mut bytes = 0;
        for (record, position) in self.records.iter().skip(skip).zip(from..) {
            if !records.is_empty() && bytes + record.len() > bytes_max {
                break;
            }
            bytes += record.len();
            records.push((position, record.clone()));
        }
        JournalPage { start: self.start, end: self.end(), records }
    }

    pub(super) fn cut(&mut self, below: u64) {
        let below = below.clamp(self.start, self.end());
        self.records.drain(..(below - self.start) as usize);
        self.start = below;
    }
}

pub(super) fn journal_key(name: &JournalName) -> JournalKey {
    (name.group.clone(), name.topic.clone(), name.partition, name.kind)
}
