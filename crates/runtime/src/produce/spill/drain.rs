//! Brings what waits to the broker: each partition in its order, as soon as the broker takes it again.
//!
//! A partition is asked for first, every second: only when it answers is anything sent. A try that fails after that
//! opens the breaker: the next comes after `drain_every`, or when somebody asks for it.
//!
//! A partition may answer and not take anything, as one does that has too few replicas. What was offered to it stays
//! with the client then, and lands when it can; the other partitions go their ways meanwhile. Only after `drain_every`
//! is it called back, which calls back everything else, too, and so the time doubles with each such try.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use keylane_broker::{BrokerError, ProduceError, Topic};
use keylane_core::{Delivery, Frames, Settled};

use super::partition::SpillPartition;
use super::partitions::READ_BYTES;
use super::store::{Kind, Place};
use super::{Notifies, Spill, lock};
use crate::produce::call::Target;
use crate::tasks::TaskKind;

/// How long after the broker did not answer it is asked again.
const ASK_MS: u64 = 1_000;

/// The longest time that an offer may take before it is called back.
const PATIENCE_MS: u64 = 600_000;

/// Drains for as long as somebody produces.
pub(super) async fn drain(spill: Weak<Spill>, notifies: Arc<Notifies>) {
    loop {
        let Some(here) = spill.upgrade() else { return };
        here.drain_due();
        let (next, clock) = (here.next_try_ms(), here.clock);
        drop(here);
        match next {
            None => notifies.to_drain.notified().await,
            Some(at_ms) => tokio::select! {
                biased;
                () = notifies.to_drain.notified() => {}
                () = tokio::time::sleep_until(clock.instant(at_ms)) => {}
            },
        }
    }
}

/// Why nothing more was brought.
pub(super) enum Stuck {
    /// The broker did not answer.
    Asking(String),
    /// It answered, and then did not take it.
    Offering(String),
    /// It answered, and then nothing was heard of what was offered.
    Silent(String),
    /// Who tried it ended as nobody asked.
    Ended(String),
}

impl Stuck {
    pub(super) fn why(self) -> String {
        match self {
            Stuck::Asking(why) | Stuck::Offering(why) | Stuck::Silent(why) | Stuck::Ended(why) => why,
        }
    }
}

impl From<BrokerError> for Stuck {
    fn from(error: BrokerError) -> Stuck {
        Stuck::Offering(format!("the spill cannot be read or written: {error}"))
    }
}

impl Spill {
    /// Begins with all that is due, each in a task of its own. What is called back comes first; its end rings.
    fn drain_due(self: &Arc<Self>) {
        if lock(&self.calls).is_recalling() {
            return;
        }
        let asked = self.counters.asked.swap(false, Ordering::Relaxed);
        if asked {
            self.drain_refused();
        }
        let now_ms = self.clock.now_ms();
        let waiting = self.parts.read().expect("no holder panics").in_turn();
        for part in waiting {
            let mut tries = lock(&part.tries);
            if tries.trying || !(asked || tries.again_ms <= now_ms) {
                continue;
            }
            tries.trying = true;
            drop(tries);
            let spill = Arc::clone(self);
            self.tasks.spawn(async move {
                spill.drain_part(&part).await;
                spill.notifies.to_drain.notify_one();
            });
        }
    }

    /// When the next partition is due; not while something is called back.
    fn next_try_ms(&self) -> Option<u64> {
        if lock(&self.calls).is_recalling() {
            return None;
        }
        let waiting = self.parts.read().expect("no holder panics").in_turn();
        let due = waiting.iter().map(|part| lock(&part.tries)).filter(|tries| !tries.trying);
        due.map(|tries| tries.again_ms).min()
    }

    async fn drain_part(self: &Arc<Self>, part: &Arc<SpillPartition>) {
        // Whatever happens in a try, the partition is tried again: what is below must run.
        let tried = self.tasks.supervise(TaskKind::SpillPartition, self.try_part(part)).await;
        let stuck = tried.unwrap_or_else(|why| Err(Stuck::Ended(why))).err();
        let now_ms = self.clock.now_ms();
        let mut tries = lock(&part.tries);
        tries.trying = false;
        let wait_ms = match &stuck {
            // Something more is on its way here, and rings when it is kept.
            None | Some(Stuck::Asking(_)) => ASK_MS,
            // One that ends again and again may offer the same messages each time.
            Some(Stuck::Ended(_)) if tries.failed == 0 => ASK_MS,
            Some(_) => self.options.drain_every.as_millis() as u64,
        };
        tries.again_ms = now_ms + wait_ms;
        let Some(stuck) = stuck else { return };
        tries.silent += u32::from(matches!(stuck, Stuck::Silent(_)));
        let (error, Place { topic, partition, .. }) = (stuck.why(), &part.place);
        tracing::debug!(topic = &**topic, partition, error, "the spill was not drained");
        tries.failed += 1;
        tries.error = Some(error);
    }

    /// How long an offer may take that follows so many of which nothing was heard.
    pub(super) fn patience_ms(&self, silent: u32) -> u64 {
        let first_ms = self.options.drain_every.max(self.options.after).as_millis() as u64;
        first_ms.saturating_mul(1 << silent.min(16)).min(PATIENCE_MS.max(first_ms))
    }

    async fn try_part(self: &Arc<Self>, part: &Arc<SpillPartition>) -> Result<(), Stuck> {
        let asked = self.ask(&part.place).await;
        // With nothing kept it is enough that the broker answers. Not less: a call that is not to be kept would find
        // out by itself, and with it all that is under way to other partitions is called back.
        if !matches!(asked, Err(Stuck::Asking(_))) && self.is_released(part) {
            return Ok(());
        }
        let topic = asked?;
        let mut reading = self.store.read(Kind::Waiting, &part.place, part.drained()).await?;
        while !part.is_empty() {
            let (messages, next) = reading.next(READ_BYTES).await?;
            lock(&part.tries).tried_to = next;
            self.bring(part, &topic, &messages, next).await?;
            let mut tries = lock(&part.tries);
            (tries.failed, tries.silent, tries.error) = (0, 0, None);
        }
        self.is_released(part);
        Ok(())
    }

    /// True if nothing waits any more: then the partition's messages go straight to the broker from now on.
    fn is_released(&self, part: &SpillPartition) -> bool {
        let mut parts = self.parts.write().expect("no holder panics");
        // What is called back may yet belong before all that comes.
        !lock(&self.calls).is_recalling() && parts.release(part)
    }

    /// Asks the broker whether it would take something, and what.
    pub(super) async fn ask(&self, place: &Place) -> Result<Topic, Stuck> {
        let Place { topic: name, partition, partitions } = place;
        let asked = async {
            self.broker.takes(name, *partition).await?;
            self.broker.topic(name).await?.ok_or_else(|| BrokerError::UnknownTopic(name.to_string()))
        };
        let topic = match tokio::time::timeout(self.options.after, asked).await {
            Err(_) => return Err(Stuck::Asking("the broker did not answer".to_owned())),
            Ok(answer) => answer.map_err(|error| Stuck::Asking(error.to_string()))?,
        };
        // Partitions that were added do not matter: whoever accepts them reads the others first (BRK-10).
        if topic.partitions < *partitions {
            let (topic, there) = (name.to_string(), topic.partitions);
            let moved = BrokerError::Partitions { topic, there, asked: *partitions };
            return Err(Stuck::Offering(moved.to_string()));
        }
        Ok(topic)
    }

    /// Brings messages to the broker; what it refuses for good, and what waits behind that, is put aside.
    async fn bring(
        self: &Arc<Self>,
        part: &SpillPartition,
        topic: &Topic,
        messages: &[Delivery],
        next: u64,
    ) -> Result<(), Stuck> {
        let mut refused = self.known_refused(topic, messages);
        let (mut frames, mut offered) = (Frames::default(), Vec::new());
        for (index, message) in messages.iter().enumerate() {
            if !refused.contains_key(&index) {
                frames.push_frame(part.place.partition, message.frame());
                offered.push(index);
            }
        }
        frames.stop_at_refused();
        let (results, silent) = match offered.is_empty() {
            true => (Vec::new(), false),
            false => self.offer_in_line(part, topic, frames).await,
        };
        let (mut settled, mut stuck, mut taken) = (messages.len(), None, 0);
        for (index, result) in offered.into_iter().zip(results) {
            match result {
                Ok(_) => taken += 1,
                // Not sent, since one of its key before it was refused.
                Err(ProduceError::Behind) => drop(refused.insert(index, String::new())),
                Err(error) if is_for_good(&error) => drop(refused.insert(index, error.to_string())),
                Err(error) => {
                    (settled, stuck) = (index, Some(error.to_string()));
                    break;
                }
            }
        }
        refused.retain(|index, _| *index < settled);
        self.refuse(&part.place, messages, &refused).await?;
        let position = messages.get(settled).map_or(next, Delivery::position);
        self.store.drained(Kind::Waiting, &part.place, &Settled::below(position)).await?;
        self.store.uncount(Kind::Waiting, messages[..settled].iter().map(Delivery::size).sum());
        part.drain_to(position, settled as u64);
        self.counters.drained.fetch_add(taken, Ordering::Relaxed);
        let brought = (0..settled).filter(|index| !refused.contains_key(index));
        lock(&self.recent).add(&part.place.topic, brought.map(|index| &messages[index]));
        match (stuck, silent) {
            (None, _) => Ok(()),
            (Some(error), false) => Err(Stuck::Offering(error)),
            (Some(error), true) => Err(Stuck::Silent(error)),
        }
    }

    /// Offers messages, and notes it if that takes long.
    async fn offer_in_line(
        self: &Arc<Self>,
        part: &SpillPartition,
        topic: &Topic,
        frames: Frames,
    ) -> (Vec<Result<u64, ProduceError>>, bool) {
        let patience_ms = self.patience_ms(lock(&part.tries).silent);
        let target = target_of(topic);
        let mut offer = pin!(self.offer(&target, frames, patience_ms));
        if let Ok(answered) = tokio::time::timeout(self.options.after, &mut offer).await {
            return answered;
        }
        {
            let mut tries = lock(&part.tries);
            tries.failed += 1;
            tries.error = Some("the partition answers, but does not acknowledge what it is sent".to_owned());
        }
        offer.await
    }

    /// What need not be offered: it is too large by what the broker says, or stands behind what was refused.
    fn known_refused(&self, topic: &Topic, messages: &[Delivery]) -> BTreeMap<usize, String> {
        let parts = self.parts.read().expect("no holder panics");
        let mut keys = HashSet::new();
        let mut refused = BTreeMap::new();
        for (index, message) in messages.iter().enumerate() {
            let key = message.key();
            let why = too_large(topic, message);
            if why.is_some()
                || parts.blocks_key(&topic.name, key)
                || key.is_some_and(|key| keys.contains(key))
            {
                keys.extend(key);
                refused.insert(index, why.unwrap_or_default());
            }
        }
        refused
    }
}

/// Why a topic would not take a message, if so.
pub(super) fn too_large(topic: &Topic, message: &Delivery) -> Option<String> {
    let (bytes, bytes_max) = (message.size(), topic.spec.message_bytes_max);
    let too_large = || ProduceError::TooLarge { topic: topic.name.clone(), bytes, bytes_max };
    (bytes > bytes_max).then(|| too_large().to_string())
}

/// True for what would be refused again.
pub(super) fn is_for_good(error: &ProduceError) -> bool {
    use ProduceError::{Invalid, Keyless, TooLarge, TooLargeThere};
    matches!(error, TooLarge { .. } | TooLargeThere(_) | Invalid(_) | Keyless(_))
}

pub(super) fn target_of(topic: &Topic) -> Arc<Target> {
    Arc::new(Target::of(topic))
}
