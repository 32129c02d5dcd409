//! Threads for polls that may block, of one pipeline.
//!
//! The runtime's own blocking pool starts a thread whenever none is idle, and on a busy machine a thread that has done
//! its work is not idle at once: a few dozen polls at a time came to hundreds of threads, and kept others of that pool
//! waiting. These are counted, and a poll that finds none of them free waits for one. How many there may be is a setting
//! of the pipeline (`blocking`): when all of them block, its other messages wait too, which is logged once and shown.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::spawn::Tasks;

/// A thread that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

/// The threads of one pipeline. They end with it.
pub(crate) struct Elsewhere(Arc<Shared>);

struct Shared {
    pipeline: Arc<str>,
    threads_max: usize,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    threads: usize,
    /// Threads that wait for work, those included that were woken and do not run yet.
    idle: usize,
    ended: bool,
    /// It was logged that none is free.
    said: bool,
}

impl Elsewhere {
    /// At most so many threads.
    pub(crate) fn new(pipeline: &Arc<str>, threads_max: usize) -> Elsewhere {
        let (pipeline, threads_max) = (Arc::clone(pipeline), threads_max.max(1));
        Elsewhere(Arc::new(Shared { pipeline, threads_max, state: Mutex::default(), more: Condvar::new() }))
    }

    /// Threads at work, polls that wait for one, and how many threads there may be.
    pub(crate) fn figures(&self) -> (usize, usize, usize) {
        let state = self.0.state.lock().expect("no holder panics");
        let free = state.idle.min(state.threads);
        (state.threads - free, state.waiting.len().saturating_sub(free), self.0.threads_max)
    }

    /// Runs `work` on one of the threads.
    pub(crate) fn run(&self, tasks: &Tasks, work: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock().expect("no holder panics");
        state.waiting.push_back(Box::new(work));
        if state.idle >= state.waiting.len() {
            self.0.more.notify_one();
        } else if state.threads < self.0.threads_max {
            let (shared, runtime) = (Arc::clone(&self.0), Handle::current());
            let serve = move || {
                let _inside = runtime.enter();
                shared.serve();
            };
            match tasks.spawn_thread("keylane-blocked", serve) {
                Ok(()) => state.threads += 1,
                // Those that are there will come to it; without any, whoever has a thread left does it.
                Err(error) if state.threads == 0 => {
                    tracing::warn!(%error, "no thread for a handler that blocks its own");
                    let shared = Arc::clone(&self.0);
                    state.threads += 1;
                    tasks.run_blocking(move || shared.serve());
                }
                Err(_) => {}
            }
        } else if !std::mem::replace(&mut state.said, true) {
            tracing::warn!(
                code = "KL-1320",
                pipeline = &*self.0.pipeline,
                threads = self.0.threads_max,
                "handlers block all threads that they may block; other messages wait until one of them returns"
            );
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock().expect("no holder panics");
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                work();
                state = self.state.lock().expect("no holder panics");
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

impl Drop for Elsewhere {
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
        let (elsewhere, tasks) = (Elsewhere::new(&"t".into(), THREADS_MAX), Tasks::default());
        let (done, all) = mpsc::sync_channel(10_000);
        for number in 0..10_000 {
            let done = done.clone();
            elsewhere.run(&tasks, move || done.send(number).expect("somebody listens"));
            assert!(elsewhere.figures().0 <= THREADS_MAX);
        }
        let mut seen: Vec<u32> = all.iter().take(10_000).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..10_000).collect::<Vec<_>>());
    }
}
