//! What groups are known, how far each has settled a topic, and which of them keep messages from being deleted.
//!
//! In memory; the journals' log keeps it. Retention asks here before it frees anything. A group is known from its
//! first join or commit on, and stays so until it is forgotten by name. It holds messages back while a pipeline is
//! configured for it, and for [`REMOVED_KEEP_MS`] after it was first seen that none is: a pipeline whose group was
//! renamed by mistake must not lose its messages at once, and one that was removed must not fill the disk for ever.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;

use super::lock;
use crate::contract::{Commit, HeldBack};

/// How long a group that no pipeline is configured for still holds messages back: a day, so that whoever reads the
/// warnings of a deployment on the next morning can still put the pipeline back.
pub(crate) const REMOVED_KEEP_MS: u64 = 24 * 3600 * 1000;

/// Known groups by topic.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    topics: Mutex<HashMap<String, BTreeMap<String, Group>>>,
    /// The journals cannot be read: any group may be known, and none may have settled anything.
    unknown: AtomicBool,
    /// Backups under way: nothing is deleted meanwhile.
    still: AtomicUsize,
}

/// A group, as far as one topic is concerned.
#[derive(Debug, Default)]
struct Group {
    commits: BTreeMap<u32, Commit>,
    /// When it was first seen that no pipeline is configured for it.
    removed_ms: Option<u64>,
}

impl Group {
    /// Until when it holds messages back; `None`: without end.
    fn until_ms(&self) -> Option<u64> {
        self.removed_ms.map(|removed_ms| removed_ms.saturating_add(REMOVED_KEEP_MS))
    }

    fn holds_back(&self, now_ms: u64) -> bool {
        self.until_ms().is_none_or(|until_ms| now_ms < until_ms)
    }

    fn position(&self, partition: u32) -> u64 {
        self.commits.get(&partition).map_or(0, |commit| commit.position)
    }
}

/// Whether a pipeline is configured for a group, as the journals' log keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Configured,
    /// It was first seen at that time that none is.
    Removed(u64),
}

impl Standing {
    pub fn record(self) -> Bytes {
        match self {
            Standing::Configured => Bytes::from_static(b"known"),
            Standing::Removed(at_ms) => format!("removed {at_ms}").into(),
        }
    }

    /// What a record says; an empty one: the group was forgotten.
    pub fn parse(record: &[u8]) -> Option<Standing> {
        if record.is_empty() {
            return None;
        }
        let removed = std::str::from_utf8(record).ok().and_then(|text| text.strip_prefix("removed "));
        // What cannot be read stands for a group that holds back: nothing is deleted by a guess.
        Some(removed.and_then(|at| at.parse().ok()).map_or(Standing::Configured, Standing::Removed))
    }
}

impl Groups {
    /// Nobody can say which groups there are: nothing may be deleted.
    pub fn unknown(&self) {
        self.unknown.store(true, Ordering::Relaxed);
    }

    /// Begins or ends a time in which nothing is deleted.
    pub fn stand_still(&self, begins: bool) {
        match begins {
            true => self.still.fetch_add(1, Ordering::SeqCst),
            false => self.still.fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// True while nothing is to be deleted, whatever is settled.
    pub fn stands_still(&self) -> bool {
        self.still.load(Ordering::SeqCst) > 0
    }

    /// Notes that a group reads a topic, or that no pipeline is configured for it any more.
    pub fn know(&self, group: &str, topic: &str, standing: Standing) {
        self.change(group, topic, |group| {
            group.removed_ms = match standing {
                Standing::Configured => None,
                Standing::Removed(at_ms) => Some(at_ms),
            };
        });
    }

    /// A group joins: it counts as configured at once, since nothing that it has not settled may be deleted while that is
    /// put on record; and as what it was before, unless the answer is told that it is on record.
    pub fn joining<'g>(&'g self, group: &'g str, topic: &'g str) -> Joining<'g> {
        let before = self.standing(group, topic);
        self.know(group, topic, Standing::Configured);
        Joining { groups: self, group, topic, before, is_recorded: before == Some(Standing::Configured) }
    }

    /// How a group stands, if it has joined or committed before.
    pub fn standing(&self, group: &str, topic: &str) -> Option<Standing> {
        let topics = lock(&self.topics);
        let removed_ms = topics.get(topic)?.get(group)?.removed_ms;
        Some(removed_ms.map_or(Standing::Configured, Standing::Removed))
    }

    /// All groups that are known, each with its topic.
    pub fn all(&self) -> Vec<(String, String)> {
        let topics = lock(&self.topics);
        let of = |(topic, groups): (&String, &BTreeMap<String, Group>)| {
            groups.keys().map(|group| (group.clone(), topic.clone())).collect::<Vec<_>>()
        };
        topics.iter().flat_map(of).collect()
    }

    /// Notes a commit; the group is known from then on.
    pub fn commit(&self, group: &str, topic: &str, partition: u32, commit: Commit) {
        self.change(group, topic, |group| {
            group.commits.insert(partition, commit);
        });
    }

    /// The last commit.
    pub fn committed(&self, group: &str, topic: &str, partition: u32) -> Option<Commit> {
        let topics = lock(&self.topics);
        topics.get(topic)?.get(group)?.commits.get(&partition).cloned()
    }

    /// The group stands as it did before it tried to join; one that committed meanwhile is known by that.
    fn put_back(&self, group: &str, topic: &str, before: Option<Standing>) {
        let mut topics = lock(&self.topics);
        let Some(groups) = topics.get_mut(topic) else { return };
        let Some(known) = groups.get_mut(group) else { return };
        match before {
            Some(Standing::Removed(at_ms)) => known.removed_ms = Some(at_ms),
            None if known.commits.is_empty() => drop(groups.remove(group)),
            Some(Standing::Configured) | None => {}
        }
    }

    /// Forgets a group: it keeps nothing from being deleted any more.
    pub fn forget(&self, group: &str, topic: &str) {
        if let Some(groups) = lock(&self.topics).get_mut(topic) {
            groups.remove(group);
        }
    }

    /// For each partition the lowest position that some group which holds back has not settled; `None` if none does.
    pub fn settled(&self, topic: &str, partitions: u32, now_ms: u64) -> Option<Vec<u64>> {
        if self.unknown.load(Ordering::Relaxed) {
            return Some(vec![0; partitions as usize]);
        }
        let topics = lock(&self.topics);
        let holding: Vec<&Group> =
            topics.get(topic)?.values().filter(|group| group.holds_back(now_ms)).collect();
        let lowest = |partition| holding.iter().map(|group| group.position(partition)).min();
        (0..partitions).map(lowest).collect()
    }

    /// Groups that hold back what lies below `next` in some partition: those that have not settled it.
    pub fn holding(&self, topic: &str, next: &[u64], now_ms: u64) -> Vec<HeldBack> {
        let topics = lock(&self.topics);
        let Some(groups) = topics.get(topic) else {
            return Vec::new();
        };
        let behind =
            |group: &Group| (0..).zip(next).any(|(partition, next)| group.position(partition) < *next);
        let holding = groups.iter().filter(|(_, group)| group.holds_back(now_ms) && behind(group));
        holding.map(|(name, group)| HeldBack { group: name.clone(), until_ms: group.until_ms() }).collect()
    }

    fn change(&self, group: &str, topic: &str, change: impl FnOnce(&mut Group)) {
        let mut topics = lock(&self.topics);
        let groups = topics.entry(topic.to_owned()).or_default();
        change(groups.entry(group.to_owned()).or_default());
    }
}

/// A group that joins a topic, until that is on record. Dropped before, also because its caller went away, it takes back
/// that the group counts as configured: nobody would read what is kept for it.
pub(crate) struct Joining<'g> {
    groups: &'g Groups,
    group: &'g str,
    topic: &'g str,
    before: Option<Standing>,
    is_recorded: bool,
}

impl Joining<'_> {
    /// True if it is on record that the group is configured.
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// It is on record now.
    pub fn recorded(mut self) {
        self.is_recorded = true;
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.groups.put_back(self.group, self.topic, self.before);
        }
    }
}
