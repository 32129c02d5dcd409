//! Limits how far each partition of a topic may be read after the topic got more partitions, until everything older
//! than that is settled (BRK-10).
//!
//! Two things come in: the acceptances, from the journal of partition 0 or, if that has lost them, from the other
//! journals; and how far each partition is settled, from its commit, which never lies above an unsettled position.
//! Readers go out that stop at their limit, and go on when the limit is lifted.

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

/// How often the commits of the awaited partitions are read.
const SETTLED_EVERY_MS: u64 = 500;

/// How far each partition of a pipeline's topic may be read.
#[derive(Debug, Default)]
pub(crate) struct ReadLimits {
    growth: Mutex<Option<Growth>>,
    partitions: Vec<ReadLimit>,
    /// Notified when `learn` found something new to wait for, and at the end.
    learned: Arc<Notify>,
    /// The partitions that are waited for, as text for the status.
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

    /// The numbers of partitions before each acceptance that led to the present number.
    pub(crate) fn former(&self) -> Vec<u32> {
        self.with(|growth| growth.former()).unwrap_or_default()
    }

    /// Takes in what a partition's own journal says, before the partition is read. That journal may know acceptances
    /// that the journal of partition 0 has lost.
    pub(crate) fn learn(&self, state: &State) {
        if self.with(|growth| growth.learn(state)) == Some(true) {
            tracing::warn!(
                "a journal knows of added partitions that were accepted, and that of partition 0 did not"
            );
            self.with(|growth| self.publish(growth));
            self.learned.notify_one();
        }
    }

    /// The acceptances that a partition's journal lacks.
    pub(crate) fn missing(&self, state: &State) -> Vec<Acceptance> {
        self.with(|growth| growth.missing(state).cloned().collect()).unwrap_or_default()
    }

    fn with<T>(&self, look: impl FnOnce(&mut Growth) -> T) -> Option<T> {
        self.growth.lock().expect("no holder panics").as_mut().map(look)
    }

    /// Wraps a reader that begins at `next`, so that it stops at the partition's limit.
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

    /// Why a partition that is settled up to `settled` is not read, if a limit is the reason.
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

/// Lifts limits once what they wait for is settled, by this process or another, and puts on record that none is left.
/// Ends with the limits. While it waits it holds only weak references: the caller of `drain` may open the folder again
/// at once.
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
                // If this fails, the next start of the pipeline tries again.
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

/// How far the partitions are settled, as far as their commits say. None: the broker is closed.
async fn settled(at: &Subscription, awaited: &[u32]) -> Option<Vec<(u32, u64)>> {
    let mut settled = Vec::new();
    for partition in awaited {
        match at.broker.committed(&at.group, &at.topic, *partition).await {
            // A commit that is not ours is an operator's reset, which the partition's owner has not carried out yet.
            Ok(Some(commit)) => {
                let whose = Committed::read(Some((commit.position, &commit.metadata)), true);
                if matches!(whose, Committed::Mirror(_)) {
                    settled.push((*partition, commit.position));
                }
            }
            Ok(None) => {}
            Err(BrokerError::Closed) => return None,
            // A call for the other partitions would wait as long, and in vain.
            Err(error) => {
                tracing::debug!(partition, %error, "it is not known how far a partition is settled");
                break;
            }
        }
    }
    Some(settled)
}

/// Puts it into every journal: if any of them is lost, the others still know that no limit is left.
async fn put_on_record(at: &Subscription, partitions: u32) -> Result<(), BrokerError> {
    for partition in 0..partitions {
        let opened = Command { partitions: Some(partitions), ..command(at, CommandKind::Open, &at.node) };
        JournalClient::open(at, partition).await?.tell(opened).await?;
    }
    Ok(())
}

/// Adds known acceptances to a journal that lacks them, before its partition is owned.
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
        // The partition's owner stops for this error, and reports it.
        Err(BrokerError::Stopped(_)) => return Ok(()),
        read => read?,
    };
    for accept in limits.missing(&state) {
        journal.tell(Command { accept: Some(accept), ..command(at, CommandKind::Accept, &at.node) }).await?;
    }
    Ok(())
}

/// A reader that stops at a limit, and goes on when the limit is lifted.
struct Guarded {
    limits: Arc<ReadLimits>,
    partition: u32,
    reader: Box<dyn Reader>,
    /// Everything below this position was handed out.
    next: u64,
    /// The part of a batch that lies beyond the limit.
    rest: Option<Batch>,
}

impl Reader for Guarded {
    fn poll_batch(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>> {
        // Registered before the limit is read: a limit that is lifted after that wakes the reader.
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

/// What was accepted for a topic; [`BrokerError::Partitions`] if its present number of partitions was not accepted.
pub(crate) async fn growth_of(at: &Subscription, topic: &Topic) -> Result<Growth, BrokerError> {
    let source = Source { incarnation: topic.incarnation, partitions: topic.partitions };
    let other = |asked| BrokerError::Partitions { topic: topic.name.clone(), there: topic.partitions, asked };
    let Some(made) = at.broker.journals(&at.group, &at.topic).await? else {
        return Growth::of(&State::default(), source).map_err(other);
    };
    // Journals are made after the acceptance, so a process that sees the journals sees the acceptance too.
    let known = accepted_of(at, made).await?;
    if incarnation_of(&known).is_some_and(|recorded| recorded != topic.incarnation) {
        return Err(BrokerError::Recreated(topic.name.clone()));
    }
    match made == topic.partitions {
        true => Growth::of(&known, source).map_err(other),
        false => Err(other(made)),
    }
}

/// The state of the journal of partition 0; if that is lost, what the other journals say of acceptances.
pub(crate) async fn accepted_of(at: &Subscription, made: u32) -> Result<State, BrokerError> {
    let mut known = State::default();
    for partition in 0..made {
        let state = match JournalClient::open(at, partition).await?.read_on().await {
            // The owner of that partition stops for this and reports it; other partitions go by their journals (P3).
            Err(BrokerError::Stopped(why)) => {
                tracing::warn!(topic = &*at.topic, partition, why, "a journal cannot be read");
                continue;
            }
            read => read?,
        };
        // Of partition 0 the whole state counts. Of the others only their copies count: their partitions may not have
        // been owned since the topic grew.
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

/// The incarnation of the topic to which a journal of partition 0 belongs.
pub(crate) fn incarnation_of(first: &State) -> Option<u128> {
    first.source.map(|source| source.incarnation).or(first.accepted.last().map(|last| last.incarnation))
}
