//! What groups are known, and how far each has settled a topic.
//!
//! In memory; the journals' log keeps it. Retention asks here before it frees anything. A group is known from its
//! first join or commit on, and stays so until it is forgotten by name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lock;
use crate::contract::Commit;

/// Known groups by topic.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    topics: Mutex<HashMap<String, BTreeMap<String, Commits>>>,
    /// The journals cannot be read: any group may be known, and none may have settled anything.
    unknown: AtomicBool,
}

/// A group's commits by partition.
type Commits = BTreeMap<u32, Commit>;

impl Groups {
    /// Nobody can say which groups there are: nothing may be deleted.
    pub fn unknown(&self) {
        self.unknown.store(true, Ordering::Relaxed);
    }

    /// Notes that a group reads a topic.
    pub fn know(&self, group: &str, topic: &str) {
        let mut topics = lock(&self.topics);
        let groups = topics.entry(topic.to_owned()).or_default();
        groups.entry(group.to_owned()).or_default();
    }

    /// True if the group has joined or committed before.
    pub fn is_known(&self, group: &str, topic: &str) -> bool {
        let topics = lock(&self.topics);
        topics.get(topic).is_some_and(|groups| groups.contains_key(group))
    }

    /// Notes a commit; the group is known from then on.
    pub fn commit(&self, group: &str, topic: &str, partition: u32, commit: Commit) {
        let mut topics = lock(&self.topics);
        let groups = topics.entry(topic.to_owned()).or_default();
        groups.entry(group.to_owned()).or_default().insert(partition, commit);
    }

    /// The last commit.
    pub fn committed(&self, group: &str, topic: &str, partition: u32) -> Option<Commit> {
        let topics = lock(&self.topics);
        topics.get(topic)?.get(group)?.get(&partition).cloned()
    }

    /// Forgets a group: it keeps nothing from being deleted any more. Returns the partitions it had commits for, or
    /// `None` if it was not known.
    pub fn forget(&self, group: &str, topic: &str) -> Option<Vec<u32>> {
        let commits = lock(&self.topics).get_mut(topic)?.remove(group)?;
        Some(commits.into_keys().collect())
    }

    /// For each partition the lowest position that some known group has not settled; `None` if no group is known.
    pub fn settled(&self, topic: &str, partitions: u32) -> Option<Vec<u64>> {
        if self.unknown.load(Ordering::Relaxed) {
            return Some(vec![0; partitions as usize]);
        }
        let topics = lock(&self.topics);
        let groups = topics.get(topic).filter(|groups| !groups.is_empty())?;
        let lowest = |partition| {
            let commits =
                groups.values().map(|commits| commits.get(&partition).map_or(0, |commit| commit.position));
            commits.min().unwrap_or(0)
        };
        Some((0..partitions).map(lowest).collect())
    }
}
