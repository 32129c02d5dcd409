//! Which partitions wait for the broker, and which keys wait behind a message that it refused for good.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use keylane_broker::BrokerError;
use keylane_core::{Delivery, Frames, Settled};

use super::store::{Kept, Kind, Place, Store};
use super::{Way, lock};
use crate::call::Target;

/// Bytes read at a time.
pub(super) const READ_BYTES: usize = 1 << 20;

/// All partitions that something was ever kept for.
#[derive(Default)]
pub(crate) struct Lines {
    lines: HashMap<Arc<str>, BTreeMap<(u32, u32), Arc<Line>>>,
    /// Partitions that wait now.
    waiting: usize,
    /// What was refused for good, or stands behind it.
    pub(super) refused: BTreeMap<Place, Refused>,
    /// Keys of it, and how many messages of each.
    blocked: HashMap<Arc<str>, HashMap<Bytes, u64>>,
}

/// One partition's messages that wait for the broker.
pub(crate) struct Line {
    pub(super) place: Place,
    /// True while all that comes for the partition is kept.
    waits: AtomicBool,
    /// Messages that are to be kept and are not yet.
    queued: AtomicU64,
    /// Messages kept, less those drained, which may be counted first.
    messages: AtomicU64,
    /// Bytes of keys that were blocked when they were kept here, since the partition began to wait: they will be put
    /// aside.
    behind: AtomicU64,
    /// The next position to be given out.
    end: AtomicU64,
    /// Up to where it was brought to the broker.
    drained: AtomicU64,
    pub(super) tries: Mutex<Tries>,
}

/// How bringing it to the broker went.
#[derive(Debug, Clone, Default)]
pub(super) struct Tries {
    /// Failed tries since the last that went well.
    pub(super) failed: u64,
    pub(super) error: Option<String>,
    /// Not before this.
    pub(super) again_ms: u64,
    /// What was tried last ends here.
    pub(super) tried_to: u64,
    /// A try is under way.
    pub(super) trying: bool,
    /// Tries of which nothing was heard, since the last that went well.
    pub(super) silent: u32,
}

/// One partition's refused messages.
#[derive(Debug, Clone, Default)]
pub(super) struct Refused {
    pub(super) drained: Settled,
    pub(super) end: u64,
    /// Messages that are to be put here and are not yet.
    pub(super) queued: u64,
    /// They are being tried again.
    pub(super) trying: bool,
    /// Somebody asked for it meanwhile.
    pub(super) once_more: bool,
    /// To be tried again when those that are queued are there.
    pub(super) again: bool,
}

impl Line {
    pub(super) fn drained(&self) -> u64 {
        self.drained.load(Ordering::Acquire)
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned()
    }

    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// True if nothing is kept that was not brought to the broker.
    pub(super) fn is_empty(&self) -> bool {
        self.drained() >= self.end()
    }

    /// A message that was queued is kept at that position, or not at all.
    pub(super) fn unqueue(&self, kept: Option<u64>) {
        if let Some(position) = kept {
            self.end.fetch_max(position + 1, Ordering::AcqRel);
            self.messages.fetch_add(1, Ordering::Relaxed);
        }
        self.queued.fetch_sub(1, Ordering::AcqRel);
    }

    /// A message was kept here whose key is blocked.
    pub(super) fn add_behind(&self, bytes: usize) {
        self.behind.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many messages, up to `position`, are with the broker or were refused.
    pub(super) fn drain_to(&self, position: u64, messages: u64) {
        self.drained.store(position, Ordering::Release);
        self.messages.fetch_sub(messages, Ordering::Relaxed);
    }
}

impl Lines {
    /// What an earlier process left.
    pub(super) async fn restore(store: &Store, kept: Vec<Kept>) -> Result<Lines, BrokerError> {
        let mut lines = Lines::default();
        // Which keys are blocked is asked of what waits.
        let (refused, waiting): (Vec<_>, _) = kept.into_iter().partition(|kept| kept.kind == Kind::Refused);
        for kept in refused.into_iter().chain(waiting) {
            let place = kept.place.clone();
            match kept.kind {
                Kind::Waiting => {
                    let line = lines.line(&place);
                    let low = kept.drained.low();
                    let mut messages = 0;
                    let mut count = |message: Delivery| {
                        messages += 1;
                        store.count(Kind::Waiting, message.size());
                        if lines.blocks_key(&place.topic, message.key()) {
                            line.add_behind(message.size());
                        }
                    };
                    scan(store, &kept, low, &mut count).await?;
                    line.end.store(kept.end, Ordering::Release);
                    line.drained.store(low, Ordering::Release);
                    line.messages.store(messages, Ordering::Relaxed);
                    if messages > 0 {
                        lines.spill(&place);
                    }
                }
                Kind::Refused => {
                    let drained = kept.drained.clone();
                    let mut block = |message: Delivery| {
                        if !drained.above().contains(message.position()) {
                            store.count(Kind::Refused, message.size());
                            lines.block(&place.topic, message.key());
                        }
                    };
                    scan(store, &kept, drained.low(), &mut block).await?;
                    lines.refused.insert(place, Refused { drained, end: kept.end, ..Refused::default() });
                }
            }
        }
        Ok(lines)
    }

    fn line(&mut self, place: &Place) -> Arc<Line> {
        let lines = self.lines.entry(Arc::clone(&place.topic)).or_default();
        let line = lines.entry((place.partition, place.partitions)).or_insert_with(|| {
            Arc::new(Line {
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
        Arc::clone(line)
    }

    /// From now on all that comes for the partition is kept.
    pub(super) fn spill(&mut self, place: &Place) {
        let line = self.line(place);
        if !line.waits.swap(true, Ordering::Relaxed) {
            self.waiting += 1;
        }
    }

    /// Goes straight to the broker again, if nothing waits. False if something does.
    pub(super) fn release(&mut self, line: &Line) -> bool {
        let done = line.queued.load(Ordering::Acquire) == 0 && line.is_empty();
        if done && line.waits.swap(false, Ordering::Relaxed) {
            let mut tries = lock(&line.tries);
            *tries = Tries { trying: tries.trying, ..Tries::default() };
            line.behind.store(0, Ordering::Relaxed);
            self.waiting -= 1;
        }
        done
    }

    /// True if everything goes straight to the broker.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting == 0 && self.blocked.is_empty()
    }

    pub(super) fn spills(&self, target: &Target, partition: u32) -> bool {
        self.get(target, partition).is_some_and(|line| line.is_waiting())
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
        let again = aside.queued == 0 && std::mem::take(&mut aside.again);
        match kept {
            Some(position) => aside.end = aside.end.max(position + 1),
            None => {
                if let Some(message) = parsed(frame) {
                    self.unblock(&place.topic, message.key());
                }
            }
        }
        again
    }

    /// Bytes of blocked keys in partitions that wait.
    pub(super) fn behind_bytes(&self) -> u64 {
        let all = self.lines.values().flat_map(BTreeMap::values);
        all.map(|line| line.behind.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn get(&self, target: &Target, partition: u32) -> Option<&Arc<Line>> {
        self.lines.get(&target.name)?.get(&(partition, target.partitions))
    }

    /// Messages that are about to be kept.
    pub(super) fn queued(&self, target: &Target, frames: &Frames) {
        for (partition, _) in frames.iter() {
            let line = self.get(target, partition).expect("a partition waits before anything is kept for it");
            line.queued.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Partitions that wait now.
    pub(super) fn waiting(&self) -> Vec<Arc<Line>> {
        self.lines.values().flat_map(BTreeMap::values).filter(|line| line.is_waiting()).cloned().collect()
    }

    /// Messages kept, those refused for good apart.
    pub(super) fn messages(&self) -> u64 {
        self.lines.values().flat_map(BTreeMap::values).map(|line| line.messages()).sum()
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
