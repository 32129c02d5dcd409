//! The watchdog: finds polls that block their thread, and contains them (ORD-4; `contain.rs` has the rules).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::contain::{LOOK, LOOKS, Polling};
use crate::spawn::Tasks;
use crate::thread::{self, Pace};

/// A shard as the watchdog sees it.
pub(crate) trait Watched: Send + Sync {
    /// The poll under way.
    fn polling(&self) -> Option<Polling>;
    /// The thread that polls.
    fn thread(&self) -> u32;
    /// Takes the baton from that poll, and has the shard run elsewhere.
    /// The message that blocks it, if so.
    fn contain(self: Arc<Self>, polling: Polling) -> Option<Blocking>;
}

/// The message whose handler blocks its thread.
pub(crate) struct Blocking {
    pub(crate) partition: u32,
    pub(crate) position: u64,
    pub(crate) id: String,
}

/// Watches the shards of one pipeline until they are gone or `stop` is set.
#[allow(clippy::disallowed_methods, reason = "sleeps on a thread of its own")]
pub(crate) fn watch(tasks: &Tasks, pipeline: &str, shards: Vec<Weak<dyn Watched>>, stop: Arc<AtomicBool>) {
    if !tasks.watches() {
        return;
    }
    let runtime = tokio::runtime::Handle::current();
    let name = pipeline.to_owned();
    let watching = tasks.spawn_thread("keylane-watchdog", move || {
        let _inside = runtime.enter();
        let mut suspects: Vec<Option<Suspect>> = vec![None; shards.len()];
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            for (shard, suspect) in shards.iter().zip(&mut suspects) {
                let Some(shard) = shard.upgrade() else { continue };
                *suspect = look(&*shard, *suspect);
                if let Some(blocking) = suspect.filter(|suspect| suspect.looks > LOOKS) {
                    *suspect = None;
                    if let Some(message) = shard.contain(blocking.polling) {
                        tracing::warn!(
                            pipeline = &*name,
                            partition = message.partition,
                            position = message.position,
                            id = message.id,
                            "a handler blocks its thread; its shard goes on elsewhere. Use async calls, or spawn_blocking"
                        );
                    }
                }
            }
        }
    });
    if let Err(error) = watching {
        tracing::warn!(%error, "no thread for the watchdog: handlers that block their thread are not contained");
    }
}

/// A poll that was there at so many looks.
#[derive(Clone, Copy)]
struct Suspect {
    polling: Polling,
    looks: u32,
    /// How its thread was at the last look, once it was there at two.
    pace: Option<Pace>,
}

/// One look at a shard. A poll whose thread only waits for a core is not held against it.
fn look(shard: &dyn Watched, before: Option<Suspect>) -> Option<Suspect> {
    let polling = shard.polling()?;
    let Some(before) = before.filter(|before| before.polling == polling) else {
        return Some(Suspect { polling, looks: 1, pace: None });
    };
    let pace = thread::pace(shard.thread());
    let starved = pace.zip(before.pace).is_some_and(|(pace, before)| pace.starved_since(before));
    Some(Suspect {
        polling,
        looks: before.looks + u32::from(!starved),
        pace: if starved { before.pace } else { pace },
    })
}
