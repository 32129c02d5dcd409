//! The threads on which one pipeline polls handlers that may block.
//!
//! The runtime's own blocking pool starts a thread whenever none is idle, and on a busy machine a thread that has
//! finished its work is not idle at once. So a few dozen polls at a time grew to hundreds of threads, and delayed other
//! users of that pool. This pool counts its threads; the pipeline's setting `blocking` limits them. When all of them
//! block, the pipeline's other messages wait; that is logged once and shown in the status.
//!
//! Invariant: a shard reserves a thread before it chooses the message that runs there. So a message that waits for a
//! thread waits in its lane, where the shard can still take it back. If it waited here, its attempt could begin after
//! its partition was given up.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use keylane_core::ErrorCode;
use tokio::runtime::Handle;

use crate::shard::wake::Wakes;
use crate::tasks::Tasks;

/// A thread that had no work for this long ends.
const IDLE: Duration = Duration::from_secs(10);
/// The most threads for a handler that says that it does not block. They are used only while a machine that is short of
/// time makes its calls look blocked. More threads would add to the load, and all of these become free again.
const UNBLOCKED_MAX: usize = 16;

type Work = Box<dyn FnOnce() + Send>;

/// The threads of one pipeline. They end with the pipeline.
pub(crate) struct ThreadPool(Arc<Shared>);

struct Shared {
    pipeline: Arc<str>,
    threads_max: usize,
    /// The handler may block its threads. If none is free, the handler is to blame, and a warning says so.
    may_block: bool,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    /// Work that was handed over and that no thread has begun. Each piece has a thread reserved for it.
    waiting: VecDeque<Work>,
    threads: usize,
    /// Threads that are reserved or have work.
    taken: usize,
    /// Of the taken threads, those that have no work yet.
    reserved: usize,
    /// Shards that found no free thread, and the number of attempts for which each wants one.
    short: Vec<(Arc<Wakes>, usize)>,
    /// Threads that wait for work, including those that were notified and do not run yet.
    idle: usize,
    ended: bool,
    /// The warning that no thread is free was logged.
    said: bool,
}

impl ThreadPool {
    /// Allows `threads_max` threads for a handler that may block, and few for a handler that says that it does not.
    pub(crate) fn new(pipeline: &Arc<str>, threads_max: usize, may_block: bool) -> ThreadPool {
        let threads_max = if may_block { threads_max } else { threads_max.min(UNBLOCKED_MAX) };
        ThreadPool(Arc::new(Shared {
            pipeline: Arc::clone(pipeline),
            threads_max: threads_max.max(1),
            may_block,
            state: Mutex::default(),
            more: Condvar::new(),
        }))
    }

    /// How many threads are at work, how many polls wait for a thread, and how many threads are allowed.
    pub(crate) fn figures(&self) -> (usize, usize, usize) {
        let state = self.0.state.lock().expect("no holder panics");
        (state.taken - state.reserved, state.short.iter().map(|(_, wants)| wants).sum(), self.0.threads_max)
    }

    /// Reserves a thread for one of a shard's `wants` attempts. If none is free, the shard is woken once one is.
    pub(crate) fn reserve(&self, wants: usize, shard: &Arc<Wakes>) -> Option<Thread> {
        let mut state = self.0.state.lock().expect("no holder panics");
        state.short.retain(|(short, _)| !Arc::ptr_eq(short, shard));
        if wants == 0 {
            return None;
        }
        if state.taken < self.0.threads_max {
            (state.taken, state.reserved) = (state.taken + 1, state.reserved + 1);
            return Some(Thread(Some(Arc::clone(&self.0))));
        }
        // The shard stays listed until it has a thread: when it wakes, another shard may have taken the free one.
        state.short.push((Arc::clone(shard), wants));
        if self.0.may_block && !std::mem::replace(&mut state.said, true) {
            tracing::warn!(
                code = %ErrorCode::AllThreadsBlocked,
                pipeline = &*self.0.pipeline,
                threads = self.0.threads_max,
                "handlers block all threads that they may block; other messages wait until one of them returns"
            );
        }
        None
    }

    /// True if a thread could be reserved now.
    pub(crate) fn any_free(&self) -> bool {
        self.0.state.lock().expect("no holder panics").taken < self.0.threads_max
    }
}

/// A reserved thread. If it is dropped unused, the reservation is given back.
pub(crate) struct Thread(Option<Arc<Shared>>);

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            let mut state = shared.state.lock().expect("no holder panics");
            state.reserved -= 1;
            shared.give_back(&mut state);
        }
    }
}

impl Thread {
    /// Runs `work` on the reserved thread.
    pub(crate) fn run(mut self, tasks: &Tasks, work: impl FnOnce() + Send + 'static) {
        let shared = self.0.take().expect("used once");
        let mut state = shared.state.lock().expect("no holder panics");
        state.reserved -= 1;
        state.waiting.push_back(Box::new(work));
        if state.idle >= state.waiting.len() {
            shared.more.notify_one();
        } else if state.threads < shared.threads_max {
            let (serving, runtime) = (Arc::clone(&shared), Handle::current());
            let serve = move || {
                let _inside = runtime.enter();
                serving.serve();
            };
            match tasks.spawn_thread("keylane-blocked", serve) {
                Ok(()) => state.threads += 1,
                // The threads that exist will do the work later. If there is none, the runtime's blocking pool does it.
                Err(error) if state.threads == 0 => {
                    tracing::warn!(%error, "no thread for a handler that blocks its own");
                    let serving = Arc::clone(&shared);
                    state.threads += 1;
                    tasks.run_blocking(move || serving.serve());
                }
                Err(_) => {}
            }
        }
    }
}

impl Shared {
    /// A thread is no longer reserved or at work: wakes the shards that want one.
    fn give_back(&self, state: &mut State) {
        state.taken -= 1;
        state.short.iter().for_each(|(shard, _)| shard.wake());
    }

    fn serve(&self) {
        let mut state = self.state.lock().expect("no holder panics");
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                work();
                state = self.state.lock().expect("no holder panics");
                self.give_back(&mut state);
                continue;
            }
            if state.ended {
                break;
            }
            state.idle += 1;
            let (woken, waited) = self.more.wait_timeout(state, IDLE).expect("no holder panics");
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.waiting.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.0.state.lock().expect("no holder panics").ended = true;
        self.0.more.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// ORD-4: however fast work comes and goes, threads are bounded, and no work is lost.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn threads_are_bounded_and_all_work_is_done() {
        const THREADS_MAX: usize = 64;
        let (pool, tasks) = (ThreadPool::new(&"t".into(), THREADS_MAX, true), Tasks::default());
        let shard = Arc::<Wakes>::default();
        let (done, all) = mpsc::sync_channel(10_000);
        for number in 0..10_000 {
            let done = done.clone();
            let thread = loop {
                if let Some(thread) = pool.reserve(1, &shard) {
                    break thread;
                }
                std::thread::yield_now();
            };
            thread.run(&tasks, move || done.send(number).expect("somebody listens"));
            assert!(pool.figures().0 <= THREADS_MAX);
        }
        let mut seen: Vec<u32> = all.iter().take(10_000).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..10_000).collect::<Vec<_>>());
    }
    /// ORD-4, P5: calls that only look blocked, because the machine is short of time, do not take hundreds of threads.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_handler_that_blocks_nothing_has_few_threads() {
        let pool = ThreadPool::new(&"t".into(), 512, false);
        let shard = Arc::<Wakes>::default();
        let threads: Vec<Thread> = std::iter::from_fn(|| pool.reserve(1_000, &shard)).collect();
        assert_eq!(threads.len(), UNBLOCKED_MAX);
        drop(threads);
        assert!(pool.any_free());
    }
}
