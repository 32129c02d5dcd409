//! Which partitions wait for the broker, and which keys wait behind a message that it refused for good.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use keylane_broker::BrokerError;
use keylane_core::{Delivery, Frames};

use super::lock;
use super::partition::{RefusedMessages, Retry, SpillPartition, Tries};
use super::store::{Kept, Kind, Place, Store};
use super::way::Way;
use crate::produce::call::Target;

/// Bytes read at a time.
pub(super) const READ_BYTES: usize = 1 << 20;

/// By partition, and how many the topic had.
type ByPartition = BTreeMap<(u32, u32), Arc<SpillPartition>>;

/// All partitions that something was ever kept for.
#[derive(Default)]
pub(crate) struct SpillPartitions {
    pub(super) parts: HashMap<Arc<str>, ByPartition>,
    /// Partitions that wait now.
    waiting: usize,
    /// What was refused for good, or stands behind it.
    pub(super) refused: BTreeMap<Place, RefusedMessages>,
    pub(super) retries: HashMap<Arc<str>, Retry>,
    /// Keys of it, and how many messages of each.
    blocked: HashMap<Arc<str>, HashMap<Bytes, u64>>,
}

impl SpillPartitions {
    /// What an earlier process left.
    pub(super) async fn restore(store: &Store, kept: Vec<Kept>) -> Result<SpillPartitions, BrokerError> {
        let mut parts = SpillPartitions::default();
        // Which keys are blocked is asked of what waits.
        let (refused, waiting): (Vec<_>, _) = kept.into_iter().partition(|kept| kept.kind == Kind::Refused);
        for kept in refused.into_iter().chain(waiting) {
            let place = kept.place.clone();
            match kept.kind {
                Kind::Waiting => {
                    let part = parts.part(&place);
                    let low = kept.drained.low();
                    let mut messages = 0;
                    let mut count = |message: Delivery| {
                        messages += 1;
                        store.count(Kind::Waiting, message.size());
                        if parts.blocks_key(&place.topic, message.key()) {
                            part.add_behind(message.size());
                        }
                    };
                    scan(store, &kept, low, &mut count).await?;
                    part.end.store(kept.end, Ordering::Release);
                    part.drained.store(low, Ordering::Release);
                    part.messages.store(messages, Ordering::Relaxed);
                    if messages > 0 {
                        parts.spill(&place);
                    }
                }
                Kind::Refused => {
                    let drained = kept.drained.clone();
                    let mut block = |message: Delivery| {
                        if !drained.above().contains(message.position()) {
                            store.count(Kind::Refused, message.size());
                            parts.block(&place.topic, message.key());
                        }
                    };
                    scan(store, &kept, drained.low(), &mut block).await?;
                    parts.refused.insert(
                        place,
                        RefusedMessages { drained, end: kept.end, ..RefusedMessages::default() },
                    );
                }
            }
        }
        Ok(parts)
    }

    fn part(&mut self, place: &Place) -> Arc<SpillPartition> {
        let parts = self.parts.entry(Arc::clone(&place.topic)).or_default();
        let part = parts.entry((place.partition, place.partitions)).or_insert_with(|| {
            Arc::new(SpillPartition {
                place: place.clone(),
                waits: AtomicBool::new(false),
                queued: AtomicU64::new(0),
                messages: AtomicU64::new(0),
                behind: AtomicU64::new(0),
                end: AtomicU64::new(0),
                drained: AtomicU64::new(0),
                tries: Mutex::default(),
            })
        });
        Arc::clone(part)
    }

    /// From now on all that comes for the partition is kept.
    pub(super) fn spill(&mut self, place: &Place) {
        let part = self.part(place);
        if !part.waits.swap(true, Ordering::Relaxed) {
            self.waiting += 1;
        }
    }

    /// Goes straight to the broker again, if nothing waits. False if something does.
    pub(super) fn release(&mut self, part: &SpillPartition) -> bool {
        let done = part.queued.load(Ordering::Acquire) == 0 && part.is_empty();
        if done && part.waits.swap(false, Ordering::Relaxed) {
            let mut tries = lock(&part.tries);
            *tries = Tries { trying: tries.trying, ..Tries::default() };
            part.behind.store(0, Ordering::Relaxed);
            self.waiting -= 1;
        }
        done
    }

    /// True if everything goes straight to the broker.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting == 0 && self.blocked.is_empty()
    }

    pub(super) fn spills(&self, target: &Target, partition: u32) -> bool {
        self.get(target, partition).is_some_and(|part| part.is_waiting())
    }

    /// Where each message goes.
    pub(super) fn ways(&self, target: &Target, frames: &Frames) -> Vec<Way> {
        let way = |(partition, frame): (u32, &[u8])| {
            match (self.spills(target, partition), self.blocks(&target.name, frame)) {
                (false, false) => Way::Direct,
                _ if frame.len() > target.message_bytes_max => Way::Refused { bytes: frame.len() },
                (true, false) => Way::Kept,
                // Something of its key may wait, which has to be put aside before it.
                (true, true) => Way::Behind,
                (false, true) => Way::Aside,
            }
        };
        frames.iter().map(way).collect()
    }

    /// A message is about to go to what was refused; it blocks its key from now on, so that none overtakes it.
    pub(super) fn put_aside(&mut self, place: &Place, frame: &[u8]) {
        self.refused.entry(place.clone()).or_default().queued += 1;
        if let Some(message) = parsed(frame) {
            self.block(&place.topic, message.key());
        }
    }

    /// It is there now, at that position, or it is not. True if all that was refused is to be tried again.
    pub(super) fn is_aside(&mut self, place: &Place, frame: &[u8], kept: Option<u64>) -> bool {
        let aside = self.refused.entry(place.clone()).or_default();
        aside.queued -= 1;
        match kept {
            Some(position) => aside.end = aside.end.max(position + 1),
            None => {
                if let Some(message) = parsed(frame) {
                    self.unblock(&place.topic, message.key());
                }
            }
        }
        // While it is being tried, who does that looks for it at the end.
        let retry = self.retries.get_mut(&place.topic).filter(|retry| !retry.trying);
        retry.is_some_and(|retry| std::mem::take(&mut retry.again))
    }

    /// True if something of the topic was put aside that was not tried.
    pub(super) fn came_aside(&self, topic: &str, tried: &BTreeMap<Place, u64>) -> bool {
        let is_tried = |place: &Place, end: u64| tried.get(place).is_some_and(|tried| end <= *tried);
        let mut of_topic = self.refused.iter().filter(|(place, _)| *place.topic == *topic);
        of_topic.any(|(place, aside)| aside.is_left() && !is_tried(place, aside.end))
    }

    /// True if messages of the topic are on their way to what was refused.
    pub(super) fn puts_aside(&self, topic: &str) -> bool {
        self.refused.iter().any(|(place, aside)| *place.topic == *topic && aside.queued > 0)
    }

    /// Bytes of blocked keys in partitions that wait.
    pub(super) fn behind_bytes(&self) -> u64 {
        let all = self.parts.values().flat_map(BTreeMap::values);
        all.map(|part| part.behind.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn get(&self, target: &Target, partition: u32) -> Option<&Arc<SpillPartition>> {
        self.parts.get(&target.name)?.get(&(partition, target.partitions))
    }

    /// Messages that are about to be kept.
    pub(super) fn queued(&self, target: &Target, frames: &Frames) {
        for (partition, _) in frames.iter() {
            let part = self.get(target, partition).expect("a partition waits before anything is kept for it");
            part.queued.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Partitions that wait now.
    pub(super) fn waiting(&self) -> Vec<Arc<SpillPartition>> {
        self.parts.values().flat_map(BTreeMap::values).filter(|part| part.is_waiting()).cloned().collect()
    }

    /// Messages kept, those refused for good apart.
    pub(super) fn messages(&self) -> u64 {
        self.parts.values().flat_map(BTreeMap::values).map(|part| part.messages()).sum()
    }

    /// A message of that key was refused for good, or stands behind one.
    pub(super) fn block(&mut self, topic: &Arc<str>, key: Option<&[u8]>) {
        if let Some(key) = key {
            let keys = self.blocked.entry(Arc::clone(topic)).or_default();
            *keys.entry(Bytes::copy_from_slice(key)).or_default() += 1;
        }
    }

    /// One that was refused is with the broker after all.
    pub(super) fn unblock(&mut self, topic: &str, key: Option<&[u8]>) {
        let (Some(key), Some(keys)) = (key, self.blocked.get_mut(topic)) else { return };
        if let Some(messages) = keys.get_mut(key) {
            *messages -= 1;
            if *messages == 0 {
                keys.remove(key);
            }
        }
        if keys.is_empty() {
            self.blocked.remove(topic);
        }
    }

    /// True if messages of that key wait behind one that was refused.
    pub(super) fn blocks_key(&self, topic: &str, key: Option<&[u8]>) -> bool {
        key.is_some_and(|key| self.blocked.get(topic).is_some_and(|keys| keys.contains_key(key)))
    }

    fn blocks(&self, topic: &str, frame: &[u8]) -> bool {
        self.blocked.contains_key(topic)
            && parsed(frame).is_some_and(|message| self.blocks_key(topic, message.key()))
    }

    pub(super) fn blocks_any(&self, topic: &str, frames: &Frames) -> bool {
        self.blocked.contains_key(topic) && frames.iter().any(|(_, frame)| self.blocks(topic, frame))
    }

    /// Keys that wait behind a refused message.
    pub(super) fn blocked_keys(&self) -> usize {
        self.blocked.values().map(HashMap::len).sum()
    }
}

fn parsed(frame: &[u8]) -> Option<Delivery> {
    Delivery::parse(Bytes::copy_from_slice(frame), 0, 0, 0, 0).ok()
}

/// Shows every message from `low` on.
async fn scan(
    store: &Store,
    kept: &Kept,
    low: u64,
    each: &mut (dyn FnMut(Delivery) + Send),
) -> Result<(), BrokerError> {
    let mut at = low;
    if at >= kept.end {
        return Ok(());
    }
    let mut reading = store.read(kept.kind, &kept.place, at).await?;
    while at < kept.end {
        let (messages, next) = reading.next(READ_BYTES).await?;
        messages.into_iter().for_each(&mut *each);
        at = next;
    }
    Ok(())
}
