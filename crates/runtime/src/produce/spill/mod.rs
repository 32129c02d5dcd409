//! Spill: what a broker does not take is kept on this machine, in order, until it does (PRD-3, PRD-4).
//!
//! A message goes straight to the broker, unless something of its partition waits already. When the broker does not
//! answer in time, everything that it has not acknowledged is called back and kept, in the order in which it was
//! produced, and so is all that follows for those partitions, until a drain has brought all of it to the broker. So
//! within this process a partition's messages reach the broker in the order in which they were produced; what had
//! landed though its answer was lost comes twice, which handlers tell by its id.
//!
//! `way.rs` says which way a message goes, `calls.rs` has what is under way, `watch.rs` notices that the broker is away,
//! `partitions.rs` which partitions wait, `partition_counts.rs` what goes first if they became more, `write.rs` keeps,
//! `drain.rs` brings, `refused.rs` has what the broker will never take as it is, and `store.rs` is the disk.

mod calls;
mod drain;
mod entries;
mod job;
mod partition;
mod partition_counts;
mod partitions;
mod refused;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod watch;
mod way;
mod write;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use keylane_broker::{Broker, BrokerError, ProduceError, Topic, TopicSpec};
use tokio::sync::Notify;

use self::calls::Calls;
use self::status::Recent;
use self::store::Store;
use super::call::Target;
use crate::Error;
use crate::clock::Clock;
use crate::tasks::{TaskKind, Tasks};
use partitions::SpillPartitions;

pub(crate) use self::job::Caller;
pub use self::status::{SpillEntry, SpillEntryState, SpillLine, SpillState, SpillStatus};
pub use way::WhenAway;

/// How a broker's absence is bridged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpillOptions {
    /// Bytes of messages that are kept at most; past it producing is refused.
    pub bytes_max: u64,
    /// How long the broker may acknowledge nothing at all before it counts as away.
    pub after: Duration,
    /// How long after a failed try what waits is brought to the broker again.
    pub drain_every: Duration,
}

impl Default for SpillOptions {
    fn default() -> SpillOptions {
        SpillOptions {
            bytes_max: 1 << 30,
            after: Duration::from_secs(5),
            drain_every: Duration::from_secs(30),
        }
    }
}

/// Where a message is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// At the broker, at this position.
    At(u64),
    /// Here, until the broker takes it.
    Here,
}

type Results = Vec<Result<Stored, ProduceError>>;

/// Stands between producers and a broker that may be away.
pub(crate) struct Spill {
    broker: Arc<dyn Broker>,
    store: Store,
    options: SpillOptions,
    clock: Clock,
    tasks: Tasks,
    /// Held for reading while a call is handed over, so that a partition's change of ways meets no call half way.
    parts: RwLock<SpillPartitions>,
    calls: Mutex<Calls>,
    /// A call failed at once, and its partitions do not wait yet.
    failing: AtomicBool,
    counters: Counters,
    recent: Mutex<Recent>,
    notifies: Arc<Notifies>,
}

/// What its tasks wait for. Rung when it is dropped, too.
#[derive(Debug, Default)]
struct Notifies {
    /// A call was handed to the broker.
    handed: Notify,
    /// A call that was called back has ended.
    ended: Notify,
    /// There is something to be kept.
    to_write: Notify,
    /// There is something to be brought to the broker.
    to_drain: Notify,
}

#[derive(Debug, Default)]
struct Counters {
    spilled: AtomicU64,
    drained: AtomicU64,
    refused: AtomicU64,
    /// When something was spilled last, ms since 1970.
    last_ms: AtomicU64,
    /// True while the last message that was to be kept was not.
    refusing: AtomicBool,
    /// Somebody asked for all to be tried now, what was refused included.
    asked: AtomicBool,
}

impl Spill {
    /// Goes on with what an earlier process left in `log`.
    pub(crate) async fn open(
        broker: Arc<dyn Broker>,
        log: Arc<dyn Broker>,
        options: SpillOptions,
        clock: Clock,
        tasks: Tasks,
    ) -> Result<Arc<Spill>, Error> {
        let (store, kept) = Store::open(log, options.bytes_max).await?;
        let parts = SpillPartitions::restore(&store, kept).await?;
        let left = parts.messages();
        let notifies = Arc::<Notifies>::default();
        let spill = Arc::new(Spill {
            broker,
            store,
            options,
            clock,
            tasks: tasks.clone(),
            parts: parts.into(),
            calls: Mutex::default(),
            failing: AtomicBool::default(),
            counters: Counters::default(),
            recent: Mutex::default(),
            notifies: Arc::clone(&notifies),
        });
        if left > 0 {
            tracing::warn!(messages = left, "messages of an earlier run wait in the spill for the broker");
        }
        let weak = Arc::downgrade(&spill);
        let with = || (weak.clone(), Arc::clone(&notifies));
        let ((watched, to_watch), (written, to_write), (drained, to_drain)) = (with(), with(), with());
        tasks.keep(TaskKind::SpillWatch, move || watch::watch(watched.clone(), Arc::clone(&to_watch)));
        tasks.keep(TaskKind::SpillWriter, move || write::write(written.clone(), Arc::clone(&to_write)));
        tasks.keep(TaskKind::SpillDrain, move || drain::drain(drained.clone(), Arc::clone(&to_drain)));
        Ok(spill)
    }

    /// A topic as a producer needs it: what the broker says, or what is known here while it does not answer.
    pub(crate) async fn ask_or_know(
        &self,
        topic: &str,
        ask: impl Future<Output = Result<Topic, Error>>,
    ) -> Result<Target, Error> {
        let away = match tokio::time::timeout(self.options.after, ask).await {
            Ok(Ok(found)) => return Ok(Target::of(&found)),
            Ok(Err(Error::Broker(away @ BrokerError::Unavailable(_)))) => away,
            Ok(Err(error)) => return Err(error),
            Err(_) => BrokerError::Unavailable("no answer".to_owned()),
        };
        let known = self.store.partitions(topic).ok_or(Error::Broker(away))?;
        let TopicSpec { message_bytes_max, ids, .. } = TopicSpec::default();
        Ok(Target::new(topic, known, message_bytes_max, ids))
    }

    /// The most partitions by which something of a topic is here.
    pub(crate) fn number_of(&self, topic: &str) -> Option<u32> {
        self.parts.read().expect("no holder panics").number_of(topic)
    }

    /// True if messages of a topic are here that went by another number of partitions.
    pub(crate) fn has_by_other(&self, topic: &str, partitions: u32) -> bool {
        let parts = self.parts.read().expect("no holder panics");
        parts.waits_by_other(topic, partitions) || parts.refused_by_other(topic, partitions)
    }

    /// The log on this machine.
    pub(crate) fn log(&self) -> &dyn Broker {
        self.store.log()
    }

    /// Messages that wait.
    pub(crate) fn messages(&self) -> u64 {
        self.parts.read().expect("no holder panics").messages()
    }

    /// The share of its bound that is taken.
    pub(crate) fn share(&self) -> f64 {
        let (bytes, bytes_max) = self.store.bytes();
        bytes as f64 / bytes_max as f64
    }

    /// Everything that waits is tried now, what was refused for good included.
    pub(crate) fn drain_now(&self) {
        self.counters.asked.store(true, Ordering::Relaxed);
        self.notifies.to_drain.notify_one();
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        for waited_for in
            [&self.notifies.handed, &self.notifies.ended, &self.notifies.to_write, &self.notifies.to_drain]
        {
            waited_for.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}
