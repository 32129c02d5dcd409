//! Topics that are produced to, as they were seen last.
//!
//! A topic that got more partitions has its keys elsewhere, and whoever reads it has to accept that (BRK-10). So a
//! topic in use is looked at again from time to time, beside the calls; one that was not for longer, before the next
//! call. All of Keylane's producers use the new number soon, and who accepts it can wait until they do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use keylane_broker::{Broker, Topic};
use tokio::sync::Mutex;

use super::call::Target;
use crate::clock::Clock;
use crate::tasks::Tasks;

/// After so long a topic is looked at again, beside the calls.
const REFRESH_MS: u64 = 3_000;
/// After so long no call goes by what was seen, unless nobody answers.
const STALE_MS: u64 = 6_000;
/// How long a call waits for that. A broker that does not answer is for the spill to bridge.
const WAIT: Duration = Duration::from_secs(1);
/// When a topic has changed for so long, calls go by what it is, unless they waited for long, or nobody answers.
pub(crate) const KNOWN_MS: u64 = STALE_MS + 4_000;

/// Topics by name.
pub(crate) struct Targets {
    broker: Arc<dyn Broker>,
    clock: Clock,
    tasks: Tasks,
    known: RwLock<HashMap<String, Arc<Known>>>,
}

struct Known {
    target: Arc<Target>,
    /// When the look began that found it so.
    seen_ms: AtomicU64,
    /// When somebody last began to look.
    asked_ms: AtomicU64,
    /// Held by who looks while calls wait for it.
    looking: Mutex<()>,
}

impl Targets {
    pub(crate) fn new(broker: Arc<dyn Broker>, clock: Clock, tasks: Tasks) -> Arc<Targets> {
        Arc::new(Targets { broker, clock, tasks, known: RwLock::default() })
    }

    /// A topic that is known.
    pub(crate) async fn find(self: &Arc<Self>, topic: &str) -> Option<Arc<Target>> {
        let known = self.get(topic)?;
        let (now_ms, seen_ms) = (self.clock.now_ms(), known.seen_ms.load(Ordering::Relaxed));
        if now_ms < seen_ms + REFRESH_MS {
            return Some(Arc::clone(&known.target));
        }
        let asked_ms = known.asked_ms.load(Ordering::Relaxed);
        if now_ms >= seen_ms + STALE_MS {
            // Together with all others that wait; and not for every call, while nobody answers. It goes on if nobody
            // waits for it any more.
            if known.looking.try_lock().is_err() || now_ms >= asked_ms + REFRESH_MS {
                let (targets, topic, known) = (Arc::clone(self), topic.to_owned(), Arc::clone(&known));
                let looking = self.tasks.spawn(async move { targets.look_first(&topic, &known).await });
                let _late = tokio::time::timeout(WAIT, looking).await;
            }
            return self.get(topic).map(|known| Arc::clone(&known.target));
        }
        if now_ms >= asked_ms + REFRESH_MS && known.asks(asked_ms, now_ms) {
            let (targets, topic) = (Arc::clone(self), topic.to_owned());
            self.tasks.spawn(async move { targets.look_at(&topic).await });
        }
        Some(Arc::clone(&known.target))
    }

    /// Looks, unless somebody else has while this waited for its turn.
    async fn look_first(&self, topic: &str, known: &Known) {
        let _turn = known.looking.lock().await;
        let (now_ms, asked_ms) = (self.clock.now_ms(), known.asked_ms.load(Ordering::Relaxed));
        let seen_ms = self.get(topic).map_or(0, |known| known.seen_ms.load(Ordering::Relaxed));
        if now_ms >= seen_ms + STALE_MS && now_ms >= asked_ms + REFRESH_MS && known.asks(asked_ms, now_ms) {
            self.look_at(topic).await;
        }
    }

    fn get(&self, topic: &str) -> Option<Arc<Known>> {
        self.known.read().expect("no holder panics").get(topic).cloned()
    }

    /// Remembers a topic, whether the broker can be asked or not; if another was quicker, what that one found.
    /// `seen_ms` is when it was asked.
    pub(crate) fn know(&self, target: Target, seen_ms: u64) -> Arc<Target> {
        let mut known = self.known.write().expect("no holder panics");
        let known = known.entry(target.name.to_string()).or_insert_with(|| Known::new(target, seen_ms));
        Arc::clone(&known.target)
    }

    /// Looks at a topic: calls that begin from then on use what it is.
    pub(crate) async fn look_at(&self, topic: &str) {
        let now_ms = self.clock.now_ms();
        let found = match self.broker.topic(topic).await {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => return tracing::debug!(topic, %error, "a topic could not be looked at"),
        };
        let mut all = self.known.write().expect("no holder panics");
        match all.get(topic) {
            Some(known) if known.is(&found) => {
                known.seen_ms.fetch_max(now_ms, Ordering::Relaxed);
            }
            // A look that began earlier and ended later.
            Some(known) if known.seen_ms.load(Ordering::Relaxed) > now_ms => {}
            _ => {
                tracing::info!(topic, partitions = found.partitions, "a topic has changed");
                let known = Known::new(Target::of(&found), now_ms);
                all.insert(topic.to_owned(), known);
            }
        }
    }
}

impl Known {
    fn new(target: Target, now_ms: u64) -> Arc<Known> {
        Arc::new(Known {
            target: Arc::new(target),
            seen_ms: AtomicU64::new(now_ms),
            asked_ms: AtomicU64::new(now_ms),
            looking: Mutex::default(),
        })
    }

    fn is(&self, found: &Topic) -> bool {
        let Target { partitions, message_bytes_max, ids, .. } = &*self.target;
        (partitions, message_bytes_max, ids)
            == (&found.partitions, &found.spec.message_bytes_max, &found.spec.ids)
    }

    /// True for the one who is to look.
    fn asks(&self, before_ms: u64, now_ms: u64) -> bool {
        self.asked_ms.compare_exchange(before_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
