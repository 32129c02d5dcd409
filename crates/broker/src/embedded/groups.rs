//! The known groups: how far each has settled a topic, and which of them keep messages from being deleted.
//!
//! Kept in memory; the journals' log has the durable copy. Retention asks here before it frees anything. A group is
//! known from its first join or commit until an operator forgets it by name. It holds messages back while a pipeline
//! is configured for it, and for [`REMOVED_KEEP_MS`] after Keylane first saw that none is: a group renamed by mistake
//! must not lose its messages at once, and a removed pipeline must not fill the disk for ever.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;

use super::lock;
use crate::contract::{Commit, HeldBack};

/// How long a group without a configured pipeline still holds messages back: a day, so that an operator who reads the
/// warnings the next morning can put the pipeline back.
pub(crate) const REMOVED_KEEP_MS: u64 = 24 * 3600 * 1000;

/// Known groups by topic.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    topics: Mutex<HashMap<String, BTreeMap<String, Group>>>,
    /// The journals cannot be read: any group may exist, and how far it has settled is unknown.
    unknown: AtomicBool,
    /// How many backups are under way. While there are any, nothing is deleted.
    still: AtomicUsize,
}

/// A group in relation to one topic.
#[derive(Debug, Default)]
struct Group {
    commits: BTreeMap<u32, Commit>,
    /// When Keylane first saw that no pipeline is configured for the group.
    removed_ms: Option<u64>,
}

impl Group {
    /// Until when the group holds messages back; `None`: without limit.
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

/// Whether a pipeline is configured for a group, as recorded in the journals' log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Configured,
    /// At this time (ms since 1970) Keylane first saw that no pipeline is configured for the group.
    Removed(u64),
}

impl Standing {
    pub fn record(self) -> Bytes {
        match self {
            Standing::Configured => Bytes::from_static(b"known"),
            Standing::Removed(at_ms) => format!("removed {at_ms}").into(),
        }
    }

    /// Reads a record. An empty record means that the group was forgotten.
    pub fn parse(record: &[u8]) -> Option<Standing> {
        if record.is_empty() {
            return None;
        }
        let removed = std::str::from_utf8(record).ok().and_then(|text| text.strip_prefix("removed "));
        // A record that makes no sense counts as a configured group, because a wrong guess would delete messages.
        Some(removed.and_then(|at| at.parse().ok()).map_or(Standing::Configured, Standing::Removed))
    }
}

impl Groups {
    /// Notes that the journals cannot be read: from then on nothing may be deleted.
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

    /// True while nothing may be deleted, whatever is settled.
    pub fn stands_still(&self) -> bool {
        self.still.load(Ordering::SeqCst) > 0
    }

    /// Notes whether a pipeline is configured for the group, which is known from then on.
    pub fn know(&self, group: &str, topic: &str, standing: Standing) {
        self.change(group, topic, |group| {
            group.removed_ms = match standing {
                Standing::Configured => None,
                Standing::Removed(at_ms) => Some(at_ms),
            };
        });
    }

    /// Called when a group joins. The group counts as configured at once, because nothing that it has not settled may
    /// be deleted while the join is being recorded. Unless the caller reports the record, dropping the answer undoes
    /// this.
    pub fn joining<'g>(&'g self, group: &'g str, topic: &'g str) -> Joining<'g> {
        let before = self.standing(group, topic);
        self.know(group, topic, Standing::Configured);
        Joining { groups: self, group, topic, before, is_recorded: before == Some(Standing::Configured) }
    }

    /// Whether a pipeline is configured for the group; `None` if the group is not known.
    pub fn standing(&self, group: &str, topic: &str) -> Option<Standing> {
        let topics = lock(&self.topics);
        let removed_ms = topics.get(topic)?.get(group)?.removed_ms;
        Some(removed_ms.map_or(Standing::Configured, Standing::Removed))
    }

    /// All known groups, each with its topic.
    pub fn all(&self) -> Vec<(String, String)> {
        let topics = lock(&self.topics);
        let of = |(topic, groups): (&String, &BTreeMap<String, Group>)| {
            groups.keys().map(|group| (group.clone(), topic.clone())).collect::<Vec<_>>()
        };
        topics.iter().flat_map(of).collect()
    }

    /// Notes a commit. The group is known from then on.
    pub fn commit(&self, group: &str, topic: &str, partition: u32, commit: Commit) {
        self.change(group, topic, |group| {
            group.commits.insert(partition, commit);
        });
    }

    /// The last commit, if there is one.
    pub fn committed(&self, group: &str, topic: &str, partition: u32) -> Option<Commit> {
        let topics = lock(&self.topics);
        topics.get(topic)?.get(group)?.commits.get(&partition).cloned()
    }

    /// Undoes a join that was not recorded. A group that has committed meanwhile stays known.
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

    /// Forgets a group, which then holds no messages back.
    pub fn forget(&self, group: &str, topic: &str) {
        if let Some(groups) = lock(&self.topics).get_mut(topic) {
            groups.remove(group);
        }
    }

    /// For each partition, the lowest commit of all groups that hold messages back; `None` if no group does.
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

    /// The groups that hold messages back and have not settled everything below `next` in every partition.
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

/// A group whose join is not on record yet. If this value is dropped before that (the caller may have gone away), the
/// group is again what it was before: otherwise messages would be kept that no pipeline reads.
pub(crate) struct Joining<'g> {
    groups: &'g Groups,
    group: &'g str,
    topic: &'g str,
    before: Option<Standing>,
    is_recorded: bool,
}

impl Joining<'_> {
    /// True if it is on record that a pipeline is configured for the group.
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Notes that the join is on record.
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
