//! What the broker will not take as it is: it stays here, blocks its key and nothing else, until somebody changes the
//! topic and asks for a drain.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use keylane_core::{Delivery, Draft, Frames};

use super::Spill;
use super::drain::{Stuck, is_for_good, target_of, too_large};
use super::lines::{READ_BYTES, Refused};
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
            push(&mut frames, &messages[*index], Some(why.as_str()).filter(|why| !why.is_empty()));
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

    /// Tries everything that was refused once more.
    pub(super) async fn drain_refused(self: &Arc<Self>) {
        let aside = self.lines.read().expect("no holder panics").refused.clone();
        for (place, refused) in aside {
            if let Err(Stuck::Asking(error) | Stuck::Offering(error)) =
                self.drain_aside(&place, refused).await
            {
                tracing::warn!(
                    topic = &*place.topic,
                    partition = place.partition,
                    error,
                    "refused messages could not be tried again"
                );
            }
        }
    }

    async fn drain_aside(self: &Arc<Self>, place: &Place, mut aside: Refused) -> Result<(), Stuck> {
        if aside.drained.low() >= aside.end {
            return Ok(());
        }
        let topic = self.ask(place).await?;
        let mut reading = self.store.read(Kind::Refused, place, aside.drained.low()).await?;
        let mut still: HashSet<Bytes> = HashSet::new();
        let mut at = aside.drained.low();
        while at < aside.end {
            let (messages, next) = reading.next(READ_BYTES).await?;
            for message in &messages {
                if aside.drained.above().contains(message.position()) {
                    continue;
                }
                let blocked = message.key().is_some_and(|key| still.contains(key));
                if blocked || too_large(&topic, message).is_some() {
                    still.extend(message.key().map(Bytes::copy_from_slice));
                    continue;
                }
                let mut frames = Frames::default();
                push(&mut frames, message, None);
                match self.offer(&target_of(&topic), frames).await.pop() {
                    Some(Ok(_)) => {}
                    Some(Err(error)) if is_for_good(&error) => {
                        still.extend(message.key().map(Bytes::copy_from_slice));
                        continue;
                    }
                    Some(Err(error)) => return Err(Stuck::Offering(error.to_string())),
                    None => return Err(Stuck::Offering("the producer ended".to_owned())),
                }
                aside.drained.settle(message.position()..message.position() + 1);
                self.store.drained(Kind::Refused, place, &aside.drained).await?;
                self.store.uncount(Kind::Refused, message.size());
                self.counters.drained.fetch_add(1, Ordering::Relaxed);
                let mut lines = self.lines.write().expect("no holder panics");
                lines.unblock(&place.topic, message.key());
                if let Some(kept) = lines.refused.get_mut(place) {
                    kept.drained = aside.drained.clone();
                }
            }
            at = next;
        }
        Ok(())
    }
}

/// Why a message that was put aside was refused; nothing for one that only stands behind such a one.
pub(super) fn why(message: &Delivery) -> Option<String> {
    let why = message.headers().find(|(name, _)| *name == WHY);
    why.map(|(_, why)| String::from_utf8_lossy(why).into_owned())
}

/// Adds a message, with or without why it was refused. Where there is no room for a header, it goes without.
fn push(frames: &mut Frames, message: &Delivery, why: Option<&str>) {
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
    if frames.push(message.partition(), &draft).is_err() {
        frames.push_frame(message.partition(), message.frame());
    }
}
