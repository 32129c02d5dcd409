//! Threads for polls that may block, of one pipeline.
//!
//! The runtime's own blocking pool starts a thread whenever none is idle, and on a busy machine a thread that has done
//! its work is not idle at once: a few dozen polls at a time came to hundreds of threads, and kept others of that pool
//! waiting. These are counted. How many there may be is a setting of the pipeline (`blocking`): when all of them block, its
//! other messages wait too, which is logged once and shown.
//!
//! Kept: a shard has a thread before it chooses what runs there. What waits for a thread so waits in its lane, where it can
//! still be taken back; an attempt that waited here would begin after its partition was given up.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use keylane_core::ErrorCode;
use tokio::runtime::Handle;

use crate::shard::wake::Wakes;
use crate::tasks::Tasks;

/// A thread that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(10);
/// Threads for a handler that blocks none. They are used only while a machine that is short of time makes its calls look
/// blocked; more of them would be one more load, and all of these come free again.
const UNBLOCKED_MAX: usize = 16;

type Work = Box<dyn FnOnce() + Send>;

/// The threads of one pipeline. They end with it.
pub(crate) struct ThreadPool(Arc<Shared>);

struct Shared {
    pipeline: Arc<str>,
    threads_max: usize,
    /// The handler may block its threads: it is to blame if none is free.
    may_block: bool,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    /// Handed over, and not begun: as many threads are on their way.
    waiting: VecDeque<Work>,
    threads: usize,
    /// Threads that are reserved or have work.
    taken: usize,
    /// Of these, those that have none yet.
    reserved: usize,
    /// Shards that found none free, and for how many attempts.
    short: Vec<(Arc<Wakes>, usize)>,
    /// Threads that wait for work, those included that were woken and do not run yet.
    idle: usize,
    ended: bool,
    /// It was logged that none is free.
    said: bool,
}

impl ThreadPool {
    /// At most so many threads for a handler that may block them, few for one that says it does not.
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

    /// Threads at work, polls that wait for one, and how many threads there may be.
    pub(crate) fn figures(&self) -> (usize, usize, usize) {
        let state = self.0.state.lock().expect("no holder panics");
        (state.taken - state.reserved, state.short.iter().map(|(_, wants)| wants).sum(), self.0.threads_max)
    }

    /// Reserves a thread for one of `wants` attempts of a shard. If there is none, the shard is woken when one is free.
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
        // It stays there until it has one: who is told that one is free may find that another shard was faster.
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

/// A thread that is reserved. Not used, it is given back.
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
    /// Runs `work` there.
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
                // Those that are there will come to it; without any, whoever has a thread left does it.
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
    /// A thread is no longer reserved or at work.
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

    /// ORD-4: however fast work comes and goes, threads are bounded, and none of it is lost.
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
    /// ORD-4, P5: calls that only look blocked, since the machine is short of time, do not come to hundreds of threads.
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
