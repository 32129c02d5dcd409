//! A topic that got more partitions: how far each may be read until what stood before that is settled (BRK-10).
//!
//! Comes in: what was accepted, from the journal of partition 0 or, if that does not tell, from those of the others; and
//! what each partition has settled, from its commit, which is never above an unsettled position. Goes out: readers that
//! stop where they must, and go on when they may.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use keylane_broker::{BrokerError, Journal, Reader, Topic};
use keylane_core::journal::{Command, CommandKind};
use keylane_core::{Acceptance, Batch, Committed, Growth, Source, State};
use tokio::sync::Notify;

use super::super::journal_client::{JournalClient, command};
use crate::pipeline::Subscription;

/// How often it is looked what others have settled.
const SETTLED_EVERY_MS: u64 = 500;

/// How far each partition of a pipeline's topic may be read.
#[derive(Debug, Default)]
pub(crate) struct ReadLimits {
    growth: Mutex<Option<Growth>>,
    partitions: Vec<ReadLimit>,
    /// Told when something was learned that has to be waited for, and at the end.
    learned: Arc<Notify>,
    /// Who is waited for, in words.
    awaited: Mutex<String>,
}

impl Drop for ReadLimits {
    fn drop(&mut self) {
        self.learned.notify_one();
    }
}

#[derive(Debug, Default)]
struct ReadLimit {
    /// `u64::MAX`: without end.
    limit: AtomicU64,
    waker: AtomicWaker,
}

impl ReadLimits {
    pub(crate) fn new(growth: Growth) -> Arc<ReadLimits> {
        let partitions = (0..growth.partitions()).map(|_| ReadLimit::default()).collect();
        let limits = ReadLimits {
            growth: Mutex::default(),
            partitions,
            learned: Arc::default(),
            awaited: Mutex::default(),
        };
        limits.publish(&growth);
        *limits.growth.lock().expect("no holder panics") = Some(growth);
        Arc::new(limits)
    }

    /// Numbers of partitions from which an acceptance has led to the present one.
    pub(crate) fn former(&self) -> Vec<u32> {
        self.with(|growth| growth.former()).unwrap_or_default()
    }

    /// Takes in what a partition's own journal says, before the partition is read. It may know what that of partition 0
    /// has lost.
    pub(crate) fn learn(&self, state: &State) {
        if self.with(|growth| growth.learn(state)) == Some(true) {
            tracing::warn!(
                "a journal knows of added partitions that were accepted, and that of partition 0 did not"
            );
            self.with(|growth| self.publish(growth));
            self.learned.notify_one();
        }
    }

    /// Acceptances that a partition's journal lacks.
    pub(crate) fn missing(&self, state: &State) -> Vec<Acceptance> {
        self.with(|growth| growth.missing(state).cloned().collect()).unwrap_or_default()
    }

    fn with<T>(&self, look: impl FnOnce(&mut Growth) -> T) -> Option<T> {
        self.growth.lock().expect("no holder panics").as_mut().map(look)
    }

    /// A reader that begins at `next`, and stops where it must.
    pub(crate) fn guard(
        self: &Arc<Self>,
        partition: u32,
        reader: Box<dyn Reader>,
        next: u64,
    ) -> Box<dyn Reader> {
        match self.limit(partition) {
            u64::MAX => reader,
            _ => Box::new(Guarded { limits: Arc::clone(self), partition, reader, next, rest: None }),
        }
    }

    /// Why a partition that is settled up to `settled` is not read, if so.
    pub(crate) fn why(&self, partition: u32, settled: u64) -> Option<String> {
        (settled >= self.limit(partition)).then(|| {
            let awaited = self.awaited.lock().expect("no holder panics");
            format!(
                "what came behind new partitions waits until what stood before them is settled: {awaited}"
            )
        })
    }

    fn limit(&self, partition: u32) -> u64 {
        self.partitions.get(partition as usize).map_or(u64::MAX, |part| part.limit.load(Ordering::Acquire))
    }

    fn publish(&self, growth: &Growth) {
        let mut awaited: Vec<String> =
            growth.awaited().map(|(partition, end)| format!("partition {partition} up to {end}")).collect();
        let more = awaited.len().saturating_sub(10);
        awaited.truncate(10);
        if more > 0 {
            awaited.push(format!("{more} more"));
        }
        *self.awaited.lock().expect("no holder panics") = awaited.join(", ");
        for (partition, part) in (0..).zip(&self.partitions) {
            let limit = growth.limit(partition).unwrap_or(u64::MAX);
            if part.limit.swap(limit, Ordering::AcqRel) != limit {
                part.waker.wake();
            }
        }
    }
}

/// Lifts limits when what they wait for is settled, here or elsewhere, and puts on record that none is left. Ends with
/// the limits. While it only waits it keeps nothing alive: who drained a pipeline may open its folder again at once.
pub(crate) async fn lift_limits(limits: Weak<ReadLimits>, subscription: Weak<Subscription>) {
    loop {
        let (Some(strong), Some(at)) = (limits.upgrade(), subscription.upgrade()) else { return };
        let learned = Arc::clone(&strong.learned);
        let awaited: Vec<u32> = strong
            .with(|growth| growth.awaited().map(|(partition, _)| partition).collect())
            .unwrap_or_default();
        let new = strong.with(|growth| if growth.is_new() { growth.partitions() } else { 0 }).unwrap_or(0);
        drop(strong);
        if awaited.is_empty() {
            match put_on_record(&at, new).await {
                Ok(()) => drop(limits.upgrade().and_then(|limits| limits.with(Growth::open))),
                // The next start looks once more.
                Err(error) => {
                    tracing::debug!(%error, "it is not on record that what stood before new partitions is settled");
                }
            }
            drop(at);
            learned.notified().await;
            continue;
        }
        let Some(settled) = settled(&at, &awaited).await else { return };
        let Some(limits) = limits.upgrade() else { return };
        limits.with(|growth| {
            settled.iter().for_each(|(partition, position)| growth.settle(*partition, *position));
            limits.publish(growth);
        });
        drop(limits);
        let until = at.clock.instant(at.clock.now_ms() + SETTLED_EVERY_MS);
        drop(at);
        tokio::time::sleep_until(until).await;
    }
}

/// How far partitions are settled, of those whose commits say so. None: the broker is closed.
async fn settled(at: &Subscription, awaited: &[u32]) -> Option<Vec<(u32, u64)>> {
    let mut settled = Vec::new();
    for partition in awaited {
        match at.broker.committed(&at.group, &at.topic, *partition).await {
            // One that is not ours is an operator's wish, which its owner has not carried out yet.
            Ok(Some(commit)) => {
                let whose = Committed::read(Some((commit.position, &commit.metadata)), true);
                if matches!(whose, Committed::Mirror(_)) {
                    settled.push((*partition, commit.position));
                }
            }
            Ok(None) => {}
            Err(BrokerError::Closed) => return None,
            // The others would be waited for as long, and in vain.
            Err(error) => {
                tracing::debug!(partition, %error, "it is not known how far a partition is settled");
                break;
            }
        }
    }
    Some(settled)
}

/// In every journal: whichever of them is lost, the others know that the moment is history.
async fn put_on_record(at: &Subscription, partitions: u32) -> Result<(), BrokerError> {
    for partition in 0..partitions {
        let opened = Command { partitions: Some(partitions), ..command(at, CommandKind::Open, &at.node) };
        JournalClient::open(at, partition).await?.tell(opened).await?;
    }
    Ok(())
}

/// Puts acceptances that are known into a journal that lacks them, before its partition is owned.
pub(crate) async fn complete(
    at: &Subscription,
    limits: &ReadLimits,
    partition: u32,
    journal: &Arc<dyn Journal>,
) -> Result<(), BrokerError> {
    if !limits.with(|growth| growth.is_new()).unwrap_or(false) {
        return Ok(());
    }
    let mut journal = JournalClient::of(at, partition, Arc::clone(journal));
    let state = match journal.read_on().await {
        // Its owner stops for that, and says so.
        Err(BrokerError::Stopped(_)) => return Ok(()),
        read => read?,
    };
    for accept in limits.missing(&state) {
        journal.tell(Command { accept: Some(accept), ..command(at, CommandKind::Accept, &at.node) }).await?;
    }
    Ok(())
}

/// Reads up to a limit, and on when that is gone.
struct Guarded {
    limits: Arc<ReadLimits>,
    partition: u32,
    reader: Box<dyn Reader>,
    /// Everything below it was handed out.
    next: u64,
    /// What was read beyond the limit.
    rest: Option<Batch>,
}

impl Reader for Guarded {
    fn poll_batch(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>> {
        // Before the look: what is opened behind it wakes.
        if let Some(part) = self.limits.partitions.get(self.partition as usize) {
            part.waker.register(cx.waker());
        }
        let limit = self.limits.limit(self.partition);
        if self.next >= limit {
            return Poll::Pending;
        }
        let batch = match self.rest.take() {
            Some(rest) => rest,
            None => match self.reader.poll_batch(cx, bytes_max) {
                Poll::Ready(Ok(batch)) => batch,
                other => return other,
            },
        };
        let (below, rest) = batch.split(limit);
        (self.next, self.rest) = (below.next, rest);
        Poll::Ready(Ok(below))
    }
}

/// What was accepted of a topic as it is now; [`BrokerError::Partitions`] if its number of partitions was not.
pub(crate) async fn growth_of(at: &Subscription, topic: &Topic) -> Result<Growth, BrokerError> {
    let source = Source { incarnation: topic.incarnation, partitions: topic.partitions };
    let other = |asked| BrokerError::Partitions { topic: topic.name.clone(), there: topic.partitions, asked };
    let Some(made) = at.broker.journals(&at.group, &at.topic).await? else {
        return Growth::of(&State::default(), source).map_err(other);
    };
    // Behind what was accepted, journals are made: whoever sees these sees that.
    let known = accepted_of(at, made).await?;
    if incarnation_of(&known).is_some_and(|recorded| recorded != topic.incarnation) {
        return Err(BrokerError::Recreated(topic.name.clone()));
    }
    match made == topic.partitions {
        true => Growth::of(&known, source).map_err(other),
        false => Err(other(made)),
    }
}

/// What the journal of partition 0 says; if that is lost, what the others say of acceptances.
pub(crate) async fn accepted_of(at: &Subscription, made: u32) -> Result<State, BrokerError> {
    let mut known = State::default();
    for partition in 0..made {
        let state = match JournalClient::open(at, partition).await?.read_on().await {
            // Its own partition stops for that, and says so; the others go by what their journals say (P3).
            Err(BrokerError::Stopped(why)) => {
                tracing::warn!(topic = &*at.topic, partition, why, "a journal cannot be read");
                continue;
            }
            read => read?,
        };
        // Of the first one everything counts, of others what they have copies of: their partitions may not have been
        // owned since the topic grew.
        if partition == 0 && incarnation_of(&state).is_some() {
            return Ok(state);
        }
        if state.accepted.len() > known.accepted.len() {
            known.accepted = state.accepted;
        }
        known.opened = known.opened.max(state.opened);
    }
    Ok(known)
}

/// The incarnation of the topic that a journal of partition 0 is about.
pub(crate) fn incarnation_of(first: &State) -> Option<u128> {
    first.source.map(|source| source.incarnation).or(first.accepted.last().map(|last| last.incarnation))
}
