//! What people see of the spill.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;

use keylane_core::Delivery;
use serde::{Deserialize, Serialize};

use super::partition::Tries;
use super::{Spill, lock};

/// Drained messages that are remembered, for who looks.
const RECENT_MAX: usize = 100;
/// Keys that are counted; beyond it their number is a lower bound.
const KEYS_MAX: usize = 100_000;

/// How producing is (PRD-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SpillState {
    /// Nothing is ever spilled: the broker is this process's own.
    Off,
    /// Messages go straight to the broker.
    Healthy,
    /// Some are kept here until the broker takes them.
    Spilling,
    /// The spill is full or cannot be written: some are refused.
    Refusing,
}

/// What is kept, and why.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SpillStatus {
    /// How producing is.
    pub state: SpillState,
    /// Messages that wait for the broker.
    pub messages: u64,
    /// Messages that the broker refused for good, and those behind them.
    pub failed: u64,
    /// Keys that wait behind a refused message.
    pub blocked_keys: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Bytes allowed.
    pub bytes_max: u64,
    /// Messages that were ever kept by this process.
    pub degraded_messages: u64,
    /// Keys of them since nothing waited last; at most as many as are counted.
    pub degraded_keys: u64,
    /// When the last was kept, ms since 1970.
    pub last_at: Option<u64>,
    /// Messages that were brought to the broker.
    pub drained_messages: u64,
    /// Messages that the broker refused for good.
    pub refused_messages: u64,
    /// Partitions that wait, by topic and number.
    pub lines: Vec<SpillLine>,
}

/// A partition that waits for the broker.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SpillLine {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// Messages that wait.
    pub messages: u64,
    /// Failed tries since the last that went well.
    pub retries: u64,
    /// What went wrong last.
    pub last_error: Option<String>,
}

/// Where a message of the spill is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SpillEntryState {
    /// Was not tried yet.
    Pending,
    /// Was tried, and will be again.
    Retrying,
    /// Is with the broker.
    Success,
    /// The broker refused it for good, or one of its key before it.
    Failed,
}

/// One message of the spill.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SpillEntry {
    /// Its topic.
    pub topic: String,
    /// Its partition.
    pub partition: u32,
    /// Its id.
    pub id: String,
    /// Its key, as text.
    pub key: Option<String>,
    /// When it was kept, ms since 1970.
    pub at: u64,
    /// How often it was tried in vain since the last that went well.
    pub retries: u64,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Where it is.
    pub state: SpillEntryState,
}

/// What was drained last, and which keys were kept.
#[derive(Debug, Default)]
pub(super) struct Recent {
    pub(super) drained: VecDeque<SpillEntry>,
    keys: HashSet<u64>,
}

impl Recent {
    pub(super) fn add<'a>(&mut self, topic: &str, messages: impl DoubleEndedIterator<Item = &'a Delivery>) {
        let newest: Vec<&Delivery> = messages.rev().take(RECENT_MAX).collect();
        for message in newest.into_iter().rev() {
            if self.drained.len() == RECENT_MAX {
                self.drained.pop_front();
            }
            self.drained.push_back(entry(topic, message, SpillEntryState::Success));
        }
    }

    /// A key that is kept.
    pub(super) fn key(&mut self, key: &[u8]) {
        if self.keys.len() < KEYS_MAX {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            self.keys.insert(hasher.finish());
        }
    }

    /// A new time of trouble: keys are counted anew.
    pub(super) fn forget_keys(&mut self) {
        self.keys.clear();
    }
}

impl SpillStatus {
    /// Where nothing is ever spilled.
    pub(crate) fn off() -> SpillStatus {
        SpillStatus {
            state: SpillState::Off,
            messages: 0,
            failed: 0,
            blocked_keys: 0,
            bytes: 0,
            bytes_max: 0,
            degraded_messages: 0,
            degraded_keys: 0,
            last_at: None,
            drained_messages: 0,
            refused_messages: 0,
            lines: Vec::new(),
        }
    }
}

impl Spill {
    /// How it is now.
    pub(crate) fn status(&self) -> SpillStatus {
        let parts = self.parts.read().expect("no holder panics");
        let (bytes, bytes_max) = self.store.bytes();
        let waiting = parts.waiting();
        let refusing = self.counters.refusing.load(Ordering::Relaxed) && !parts.is_quiet();
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let aside = parts.refused.values();
        let mut shown: Vec<SpillLine> = waiting
            .iter()
            .map(|part| {
                let Tries { failed, error, .. } = lock(&part.tries).clone();
                SpillLine {
                    topic: part.place.topic.to_string(),
                    partition: part.place.partition,
                    messages: part.messages(),
                    retries: failed,
                    last_error: error,
                }
            })
            .collect();
        shown.sort_by(|one, other| (&one.topic, one.partition).cmp(&(&other.topic, other.partition)));
        SpillStatus {
            state: match (refusing, parts.is_quiet()) {
                (true, _) => SpillState::Refusing,
                (false, false) => SpillState::Spilling,
                (false, true) => SpillState::Healthy,
            },
            messages: parts.messages(),
            failed: aside
                .map(|aside| aside.end - aside.drained.low() - aside.drained.above().positions())
                .sum(),
            blocked_keys: parts.blocked_keys() as u64,
            bytes,
            bytes_max,
            degraded_messages: get(&self.counters.spilled),
            degraded_keys: lock(&self.recent).keys.len() as u64,
            last_at: Some(get(&self.counters.last_ms)).filter(|ms| *ms > 0),
            drained_messages: get(&self.counters.drained),
            refused_messages: get(&self.counters.refused),
            lines: shown,
        }
    }
}

pub(super) fn entry(topic: &str, message: &Delivery, state: SpillEntryState) -> SpillEntry {
    SpillEntry {
        topic: topic.to_owned(),
        partition: message.partition(),
        id: message.id().to_owned(),
        key: message.key().map(|key| String::from_utf8_lossy(key).into_owned()),
        at: message.appended_ms(),
        retries: 0,
        last_error: None,
        state,
    }
}
