//! What the broker will not take as it is: it stays here, blocks its key and nothing else, until somebody changes the
//! topic and asks for a drain.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::future::join_all;
use keylane_broker::Topic;
use keylane_core::{Delivery, Draft, Frames};

use super::Spill;
use super::drain::{Stuck, is_for_good, target_of, too_large};
use super::lines::READ_BYTES;
use super::store::{Kind, Place};

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
        let mut lines = self.lines.write().expect("no holder panics");
        let mut failed = None;
        for ((index, why), result) in refused.iter().zip(stored) {
            let position = match result {
                Ok(position) => position,
                Err(error) => {
                    failed.get_or_insert(error.to_string());
                    continue;
                }
            };
            let aside = lines.refused.entry(place.clone()).or_default();
            aside.end = aside.end.max(position + 1);
            lines.block(&place.topic, messages[*index].key());
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
        // What is there already blocks its key, and will be there twice after the next try.
        failed.map_or(Ok(()), |error| Err(Stuck::Offering(error)))
    }

    /// Tries everything that was refused once more, each topic in a task of its own: its partitions all at once, but of
    /// a topic that got more of them first what went by fewer.
    pub(super) fn drain_refused(self: &Arc<Self>) {
        let mut lines = self.lines.write().expect("no holder panics");
        let mut due = BTreeMap::<Arc<str>, BTreeMap<u32, Vec<Place>>>::new();
        for (place, aside) in &mut lines.refused {
            if aside.trying {
                // It may be past what is asked for.
                aside.once_more = true;
            } else if aside.drained.low() < aside.end {
                aside.trying = true;
                let of_topic = due.entry(Arc::clone(&place.topic)).or_default();
                of_topic.entry(place.partitions).or_default().push(place.clone());
            }
        }
        for by_number in due.into_values() {
            let spill = Arc::clone(self);
            self.tasks.spawn(async move {
                for places in by_number.values() {
                    join_all(places.iter().map(|place| spill.drain_place(place))).await;
                }
            });
        }
    }

    async fn drain_place(self: &Arc<Self>, place: &Place) {
        loop {
            let tried = self.drain_aside(place).await;
            let once_more = {
                let mut lines = self.lines.write().expect("no holder panics");
                let aside = lines.refused.entry(place.clone()).or_default();
                // What was on its way here meanwhile belongs to what was asked for: a busy key would never be free.
                aside.again = matches!(tried, Ok(brought) if brought > 0) && aside.queued > 0;
                aside.trying = std::mem::take(&mut aside.once_more);
                aside.trying
            };
            if let Err(stuck) = tried {
                let (error, Place { topic, partition, .. }) = (stuck.why(), place);
                tracing::warn!(
                    topic = &**topic,
                    partition,
                    error,
                    "refused messages could not be tried again"
                );
            }
            if !once_more {
                return;
            }
        }
    }

    /// Brings what the broker takes now; says how much.
    async fn drain_aside(self: &Arc<Self>, place: &Place) -> Result<usize, Stuck> {
        let topic = self.ask(place).await?;
        let (mut at, _) = self.aside(place);
        let mut reading = self.store.read(Kind::Refused, place, at).await?;
        let mut still = self.keys_before(place).await?;
        let mut brought = 0;
        while at < self.aside(place).1 {
            let (messages, next) = reading.next(READ_BYTES).await?;
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
        Ok(brought)
    }

    /// Keys of which something was put aside when the topic had fewer partitions: what is here follows it.
    async fn keys_before(&self, place: &Place) -> Result<HashSet<Bytes>, Stuck> {
        let earlier: Vec<Place> = {
            let lines = self.lines.read().expect("no holder panics");
            let is_earlier =
                |other: &&Place| other.topic == place.topic && other.partitions < place.partitions;
            lines.refused.keys().filter(is_earlier).cloned().collect()
        };
        let mut keys = HashSet::new();
        for earlier in &earlier {
            let (mut at, end) = self.aside(earlier);
            if at >= end {
                continue;
            }
            let mut reading = self.store.read(Kind::Refused, earlier, at).await?;
            while at < end {
                let (messages, next) = reading.next(READ_BYTES).await?;
                let left = self.not_drained(earlier, &messages);
                keys.extend(left.iter().filter_map(|message| message.key()).map(Bytes::copy_from_slice));
                at = next;
            }
        }
        Ok(keys)
    }

    /// From where to where there is something.
    fn aside(&self, place: &Place) -> (u64, u64) {
        let lines = self.lines.read().expect("no holder panics");
        lines.refused.get(place).map_or((0, 0), |aside| (aside.drained.low(), aside.end))
    }

    fn not_drained<'a>(&self, place: &Place, messages: &'a [Delivery]) -> Vec<&'a Delivery> {
        let lines = self.lines.read().expect("no holder panics");
        let drained = lines.refused.get(place).map(|aside| &aside.drained);
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
        lot.iter().for_each(|message| push(&mut frames, place.now(topic, message), message, None));
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
            let lines = self.lines.read().expect("no holder panics");
            let mut drained = lines.refused.get(place).map(|aside| aside.drained.clone()).unwrap_or_default();
            taken.iter().for_each(|message| drained.settle(message.position()..message.position() + 1));
            drained
        };
        self.store.drained(Kind::Refused, place, &drained).await?;
        self.store.uncount(Kind::Refused, taken.iter().map(|message| message.size()).sum());
        self.counters.drained.fetch_add(taken.len() as u64, Ordering::Relaxed);
        let mut lines = self.lines.write().expect("no holder panics");
        taken.iter().for_each(|message| lines.unblock(&place.topic, message.key()));
        lines.refused.entry(place.clone()).or_default().drained = drained;
        Ok(())
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
    };
    if frames.push(partition, &draft).is_err() {
        frames.push_frame(partition, message.frame());
    }
}
