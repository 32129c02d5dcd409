//! What the broker will not take as it is: it stays here, blocks its key and nothing else, until somebody changes the
//! topic and asks for a drain.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::future::join_all;
use keylane_broker::Topic;
use keylane_core::{Delivery, Draft, Frames};

use super::Spill;
use super::drain::{Stuck, is_for_good, target_of, too_large};
use super::partitions::READ_BYTES;
use super::store::{Kind, Place};
use crate::tasks::TaskKind;

/// Says why a message was refused; only in the spill.
const WHY: &str = "keylane-refused";

impl Spill {
    /// Puts messages aside, by their index and why.
    pub(super) async fn refuse(
        &self,
        place: &Place,
        messages: &[Delivery],
        refused: &BTreeMap<usize, String>,
    ) -> Result<(), Stuck> {
        if refused.is_empty() {
            return Ok(());
        }
        let mut frames = Frames::default();
        for (index, why) in refused {
            let why = Some(why.as_str()).filter(|why| !why.is_empty());
            push(&mut frames, place.partition, &messages[*index], why);
        }
        let stored = self.store.append(Kind::Refused, &place.topic, place.partitions, frames).await;
        let mut parts = self.parts.write().expect("no holder panics");
        let (mut failed, mut too_late) = (None, false);
        for ((index, why), result) in refused.iter().zip(stored) {
            let position = match result {
                Ok(position) => position,
                Err(error) => {
                    failed.get_or_insert(error.to_string());
                    continue;
                }
            };
            let aside = parts.refused.entry(place.clone()).or_default();
            aside.end = aside.end.max(position + 1);
            // What it stands behind may have been brought to the broker since that was looked at.
            too_late |= why.is_empty() && !parts.blocks_key(&place.topic, messages[*index].key());
            parts.block(&place.topic, messages[*index].key());
            if !why.is_empty() {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                let id = messages[*index].id();
                tracing::error!(
                    topic = &*place.topic,
                    id,
                    why,
                    "the broker refuses a message for good; its key waits in the spill"
                );
            }
        }
        drop(parts);
        if too_late {
            self.drain_now();
        }
        // What is there already blocks its key, and will be there twice after the next try.
        failed.map_or(Ok(()), |error| Err(Stuck::Offering(error)))
    }

    /// Tries everything that was refused once more, each topic in a task of its own.
    pub(super) fn drain_refused(self: &Arc<Self>) {
        let mut parts = self.parts.write().expect("no holder panics");
        let left = parts.refused.iter().filter(|(_, aside)| aside.is_left());
        let topics: BTreeSet<Arc<str>> = left.map(|(place, _)| Arc::clone(&place.topic)).collect();
        for topic in topics {
            let retry = parts.retries.entry(Arc::clone(&topic)).or_default();
            match std::mem::replace(&mut retry.trying, true) {
                // It may be past what is asked for.
                true => retry.once_more = true,
                false => {
                    // `trying` stays set if it panics, since it is begun anew a second later.
                    let spill = Arc::downgrade(self);
                    self.tasks.keep(TaskKind::SpillRefused, move || drain(spill.clone(), Arc::clone(&topic)));
                }
            }
        }
    }

    /// Tries a topic again until nothing comes behind it any more: what was put aside meanwhile, or was on its way,
    /// belongs to what was asked for, or a busy key would never be free.
    async fn drain_topic(self: &Arc<Self>, topic: &Arc<str>) {
        loop {
            let (brought, tried) = self.drain_places(topic).await;
            let mut parts = self.parts.write().expect("no holder panics");
            let (came, comes) = (parts.came_aside(topic, &tried), parts.puts_aside(topic));
            let retry = parts.retries.entry(Arc::clone(topic)).or_default();
            // Not if nothing was taken: what comes for a key that is refused still would keep this going for ever.
            retry.again = brought > 0 && comes;
            retry.trying = std::mem::take(&mut retry.once_more) || brought > 0 && came;
            if !retry.trying {
                return;
            }
        }
    }

    /// Tries a topic's partitions, all at once; but if it got more of them, first what was put aside by fewer, and
    /// behind that nothing of a key that is left there. Says how much was brought to the broker, and how far each was
    /// tried.
    async fn drain_places(self: &Arc<Self>, topic: &Arc<str>) -> (usize, BTreeMap<Place, u64>) {
        let (mut by_number, mut tried) = (BTreeMap::<u32, Vec<Place>>::new(), BTreeMap::new());
        {
            let parts = self.parts.read().expect("no holder panics");
            let left = parts.refused.iter().filter(|(place, aside)| place.topic == *topic && aside.is_left());
            for (place, aside) in left {
                by_number.entry(place.partitions).or_default().push(place.clone());
                tried.insert(place.clone(), aside.end);
            }
            // What waits by fewer is sent, or put aside, before.
            if let Some(fewest) = parts.fewest(topic) {
                by_number.retain(|number, _| *number <= fewest);
            }
        }
        let (mut left, mut brought) = (HashSet::new(), 0);
        for places in by_number.into_values() {
            let all =
                join_all(places.iter().map(|place| self.drain_aside(place, tried[place], left.clone())));
            let mut stuck = false;
            for (Place { partition, .. }, ended) in places.iter().zip(all.await) {
                match ended {
                    Ok((some, still)) => {
                        brought += some;
                        left.extend(still);
                    }
                    Err(why) => {
                        let (error, topic) = (why.why(), &**topic);
                        tracing::warn!(topic, partition, error, "refused messages could not be tried again");
                        stuck = true;
                    }
                }
            }
            if stuck {
                break;
            }
        }
        (brought, tried)
    }

    /// Brings what the broker takes now of all below `end`, but nothing of the keys in `still`. Says how much that was,
    /// and which keys have something left.
    async fn drain_aside(
        self: &Arc<Self>,
        place: &Place,
        end: u64,
        mut still: HashSet<Bytes>,
    ) -> Result<(usize, HashSet<Bytes>), Stuck> {
        let mut at = self.drained_aside(place);
        let mut reading = self.store.read(Kind::Refused, place, at).await?;
        let mut brought = 0;
        while at < end {
            let (messages, next) = reading.next(READ_BYTES).await?;
            let topic = self.ask(place).await?;
            let (mut lot, mut keys) = (Vec::new(), HashSet::new());
            for message in self.not_drained(place, &messages) {
                // One of a key at a time: if it is refused, the next must not go before it.
                if message.key().is_some_and(|key| keys.contains(key)) {
                    brought += self.bring_aside(place, &topic, &lot, &mut still).await?;
                    (lot, keys) = (Vec::new(), HashSet::new());
                }
                let blocked = message.key().is_some_and(|key| still.contains(key));
                if blocked || too_large(&topic, message).is_some() {
                    still.extend(message.key().map(Bytes::copy_from_slice));
                    continue;
                }
                keys.extend(message.key());
                lot.push(message);
            }
            brought += self.bring_aside(place, &topic, &lot, &mut still).await?;
            at = next;
        }
        Ok((brought, still))
    }

    /// Up to where all of it was brought to the broker.
    fn drained_aside(&self, place: &Place) -> u64 {
        let parts = self.parts.read().expect("no holder panics");
        parts.refused.get(place).map_or(0, |aside| aside.drained.low())
    }

    fn not_drained<'a>(&self, place: &Place, messages: &'a [Delivery]) -> Vec<&'a Delivery> {
        let parts = self.parts.read().expect("no holder panics");
        let drained = parts.refused.get(place).map(|aside| &aside.drained);
        let is_drained = |at: u64| drained.is_some_and(|drained| drained.above().contains(at));
        messages.iter().filter(|message| !is_drained(message.position())).collect()
    }

    /// Offers messages of different keys; those that are refused again keep their keys blocked.
    async fn bring_aside(
        self: &Arc<Self>,
        place: &Place,
        topic: &Topic,
        lot: &[&Delivery],
        still: &mut HashSet<Bytes>,
    ) -> Result<usize, Stuck> {
        if lot.is_empty() {
            return Ok(0);
        }
        let mut frames = Frames::default();
        lot.iter().for_each(|message| push(&mut frames, place.partition, message, None));
        let (results, _) = self.offer(&target_of(topic), frames, self.patience_ms(0)).await;
        let (mut taken, mut stuck) = (Vec::new(), None);
        for (message, result) in lot.iter().zip(results) {
            match result {
                Ok(_) => taken.push(*message),
                Err(error) if is_for_good(&error) => still.extend(message.key().map(Bytes::copy_from_slice)),
                Err(error) => stuck = Some(Stuck::Offering(error.to_string())),
            }
        }
        self.settle_aside(place, &taken).await?;
        stuck.map_or(Ok(taken.len()), Err)
    }

    async fn settle_aside(&self, place: &Place, taken: &[&Delivery]) -> Result<(), Stuck> {
        let drained = {
            let parts = self.parts.read().expect("no holder panics");
            let mut drained = parts.refused.get(place).map(|aside| aside.drained.clone()).unwrap_or_default();
            taken.iter().for_each(|message| drained.settle(message.position()..message.position() + 1));
            drained
        };
        self.store.drained(Kind::Refused, place, &drained).await?;
        self.store.uncount(Kind::Refused, taken.iter().map(|message| message.size()).sum());
        self.counters.drained.fetch_add(taken.len() as u64, Ordering::Relaxed);
        let mut parts = self.parts.write().expect("no holder panics");
        taken.iter().for_each(|message| parts.unblock(&place.topic, message.key()));
        parts.refused.entry(place.clone()).or_default().drained = drained;
        Ok(())
    }
}

/// Tries a topic again, if anybody produces still: while it waits to begin anew it holds nothing open.
async fn drain(spill: Weak<Spill>, topic: Arc<str>) {
    if let Some(spill) = spill.upgrade() {
        spill.drain_topic(&topic).await;
    }
}

/// Why a message that was put aside was refused; nothing for one that only stands behind such a one.
pub(super) fn why(message: &Delivery) -> Option<String> {
    let why = message.headers().find(|(name, _)| *name == WHY);
    why.map(|(_, why)| String::from_utf8_lossy(why).into_owned())
}

/// Adds a message for a partition, with or without why it was refused. Where there is no room for a header, it goes
/// without.
fn push(frames: &mut Frames, partition: u32, message: &Delivery, why: Option<&str>) {
    let mut headers: Vec<(&str, &[u8])> = message.headers().filter(|(name, _)| *name != WHY).collect();
    headers.extend(why.map(|why| (WHY, why.as_bytes())));
    let draft = Draft {
        id: message.id(),
        key: message.key(),
        payload: message.payload(),
        headers: &headers,
        version: message.version(),
        produced_ms: message.produced_ms(),
        appended_ms: None,
        deliver_at_ms: message.deliver_at_ms(),
        priority: message.priority(),
        ttl_ms: message.ttl_ms(),
    };
    if frames.push(partition, &draft).is_err() {
        frames.push_frame(partition, message.frame());
    }
}
