//! The watchdog thread of a pipeline: finds polls that block their thread, and takes their shards away from them
//! (ORD-4; `baton.rs` has the rules). Each time it wakes, it also makes the shards look whether the process was paused
//! (ORD-12).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::baton::{Polling, WATCH_EVERY, WATCHES_BLOCKED};
use super::thread_state::{self, Pace};
use crate::tasks::{TaskKind, Tasks};

/// A shard, as the watchdog sees it.
pub(crate) trait Watched: Send + Sync {
    /// The poll under way, if there is one.
    fn polling(&self) -> Option<Polling>;
    /// Tells the shard that the watchdog is awake (ORD-12).
    fn beat(&self);
    /// The kernel's number of the thread that polls.
    fn thread(&self) -> u32;
    /// Takes the baton away from that poll and lets the shard run in another task. Returns the message whose handler
    /// blocks the thread, or nothing if the poll ended in time.
    fn contain(self: Arc<Self>, polling: Polling) -> Option<Blocking>;
}

/// The message whose handler keeps its thread.
pub(crate) struct Blocking {
    /// Whether the handler may be to blame. If not, the machine is short of time.
    pub(crate) by_handler: bool,
    pub(crate) partition: u32,
    pub(crate) position: u64,
    pub(crate) id: String,
}

/// The shards of a pipeline. If a shard falls, its successor takes its place in the list.
pub(crate) type AllWatched = Arc<Mutex<Vec<Weak<dyn Watched>>>>;

/// Watches the shards of one pipeline until all of them are gone or `stop` is set.
pub(crate) fn watch(tasks: &Tasks, pipeline: &Arc<str>, shards: AllWatched, stop: Arc<AtomicBool>) {
    if !tasks.watches() {
        return;
    }
    let (runtime, name, struck) = (tokio::runtime::Handle::current(), Arc::clone(pipeline), tasks.clone());
    let watching = tasks.keep_thread(TaskKind::Watchdog, "keylane-watchdog", move || {
        let _inside = runtime.enter();
        look_all(&struck, &name, &shards, &stop);
    });
    if let Err(error) = watching {
        tracing::warn!(%error, "no thread for the watchdog: handlers that block their thread are not contained");
    }
}

#[allow(clippy::disallowed_methods, reason = "sleeps on a thread of its own")]
fn look_all(tasks: &Tasks, pipeline: &str, shards: &AllWatched, stop: &AtomicBool) {
    let mut suspects: Vec<Option<Suspect>> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(WATCH_EVERY);
        tasks.may_be_struck(TaskKind::Watchdog);
        let now: Vec<Option<Arc<dyn Watched>>> =
            shards.lock().expect("no holder panics").iter().map(Weak::upgrade).collect();
        if now.iter().all(Option::is_none) {
            // The pipeline was dropped without a drain.
            return;
        }
        suspects.resize(now.len(), None);
        for (shard, suspect) in now.into_iter().zip(&mut suspects) {
            let Some(shard) = shard else { continue };
            shard.beat();
            *suspect = look(&*shard, *suspect);
            if let Some(blocking) = suspect.filter(|suspect| suspect.looks > WATCHES_BLOCKED) {
                *suspect = None;
                if let Some(message) = shard.contain(blocking.polling) {
                    say(pipeline, &message);
                }
            }
        }
    }
}

fn say(pipeline: &str, message: &Blocking) {
    let Blocking { partition, position, id, by_handler } = message;
    if *by_handler {
        tracing::warn!(
            pipeline,
            partition,
            position,
            id,
            "a handler blocks its thread; its shard goes on elsewhere. Use async calls, or spawn_blocking"
        );
    } else {
        // No user can change anything about this, and on a busy machine there are many such lines.
        tracing::debug!(
            pipeline,
            partition,
            position,
            id,
            "a call was slow to begin; its shard goes on elsewhere"
        );
    }
}

/// A poll that was under way at several looks in a row.
#[derive(Clone, Copy)]
struct Suspect {
    polling: Polling,
    looks: u32,
    /// The state of its thread at the last look; none until the poll was seen twice.
    pace: Option<Pace>,
}

/// One look at a shard. A look at which the poll's thread only waited for a core does not count.
fn look(shard: &dyn Watched, before: Option<Suspect>) -> Option<Suspect> {
    let polling = shard.polling()?;
    let Some(before) = before.filter(|before| before.polling == polling) else {
        return Some(Suspect { polling, looks: 1, pace: None });
    };
    let pace = thread_state::pace(shard.thread());
    let starved = pace.zip(before.pace).is_some_and(|(pace, before)| pace.starved_since(before));
    Some(Suspect {
        polling,
        looks: before.looks + u32::from(!starved),
        pace: if starved { before.pace } else { pace },
    })
}
