//! Group commit: callers put their writes into a [`Queue`] and wait; one thread per log takes all of them at once.
//!
//! While the thread syncs, the next group gathers. Callers that were just answered return at about the same time, so
//! the thread waits until as many calls have gathered as the last group had, but only for a part of the time of a
//! sync. Without this wait the first caller to return would get a sync for itself, and all others would wait for two
//! syncs. A *lazy* write waits up to [`LAZY_MS`] for other writes. In a simulation there is no thread: the test calls
//! [`Drive::commit_once`].
#![allow(
    clippy::disallowed_methods,
    reason = "reads the clock; nothing is decided by it that a test could not set"
)]

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::lock;
use crate::threads::{self, Threads};

/// A write that is not urgent waits at most this long. A commit that mirrors a journal can share another caller's
/// sync.
const LAZY_MS: u64 = 50;
/// The thread waits for further callers at most this part of the duration of the last commit, …
const GATHER_PART: u32 = 4;
/// … at most this long, because on a disk whose syncs are slower a longer wait would only add to the delay, …
const GATHER_MAX: Duration = Duration::from_millis(2);
/// … and not at all if the wait would be shorter than timers can measure.
const GATHER_MIN: Duration = Duration::from_micros(100);
/// An idle log checks this often for old segments to free.
const IDLE_MS: u64 = 1000;

/// A log that a writer thread drives.
pub(crate) trait Drive: Send + Sync + 'static {
    /// Takes what waits, writes and syncs it, answers the callers, and frees old segments.
    fn commit_once(&self);
    /// Called once after the log was closed: writes what still waits, and records that the log ended cleanly.
    fn finish(&self);
    /// Waits for work, and then up to `gather` for further calls. False: the log is to be closed.
    fn wait(&self, gather: Duration) -> bool;
    /// Called when the thread has panicked: fails all callers that wait, and all later ones.
    fn abandon(&self);
}

/// Starts the thread `log-NAME`, which runs the log until it is closed. If the thread panics the log stops, as after a
/// write of which nobody knows how far it got.
pub(crate) fn drive(name: &str, log: Arc<dyn Drive>, panics: &Threads) -> io::Result<JoinHandle<()>> {
    let (name, panics) = (format!("log-{name}"), panics.clone());
    threads::thread(&name.clone(), move || {
        let _told = panics.watch(&name, "its log takes nothing more", || {
            let log = Driven(log);
            let mut gather = Duration::ZERO;
            while log.0.wait(gather) {
                panics.may_be_struck(&name);
                let start = Instant::now();
                log.0.commit_once();
                gather = match (start.elapsed() / GATHER_PART).min(GATHER_MAX) {
                    short if short < GATHER_MIN => Duration::ZERO,
                    gather => gather,
                };
            }
            log.0.finish();
        });
    })
}

/// A log together with its thread. If the thread panics, callers must not wait for ever.
struct Driven(Arc<dyn Drive>);

impl Drop for Driven {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandon();
        }
    }
}

/// Writes that wait for the log's thread.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    pending: T,
    urgent: bool,
    lazy_until: Option<Instant>,
    /// The thread sleeps until this many urgent calls wait.
    sleeping_until: Option<usize>,
    /// Urgent calls that wait, and how many the last group had.
    calls: usize,
    last_calls: usize,
    closing: bool,
}

/// Whether a write waits for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Now,
    Lazy,
}

impl<T> Queue<T> {
    /// An open queue, in which nothing waits yet.
    pub fn new(pending: T) -> Queue<T> {
        let state = State {
            pending,
            urgent: false,
            lazy_until: None,
            sleeping_until: None,
            calls: 0,
            last_calls: 0,
            closing: false,
        };
        Queue { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds to what waits. `None`: the log is closed, and nothing was added.
    pub fn add<R>(&self, urgency: Urgency, add: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut state = lock(&self.state);
        if state.closing {
            return None;
        }
        let result = add(&mut state.pending);
        match urgency {
            Urgency::Now => {
                state.urgent = true;
                state.calls += 1;
            }
            Urgency::Lazy if state.lazy_until.is_none() => {
                state.lazy_until = Some(Instant::now() + Duration::from_millis(LAZY_MS));
            }
            Urgency::Lazy => return Some(result),
        }
        // A thread that is awake looks again by itself; waking it would cost a system call for each message.
        let enough = |until: usize| urgency == Urgency::Lazy || state.calls >= until;
        let wake = state.sleeping_until.is_some_and(enough);
        if wake {
            state.sleeping_until = None;
        }
        drop(state);
        if wake {
            self.changed.notify_one();
        }
        Some(result)
    }

    /// Takes what waits, as the next group.
    pub fn take<R>(&self, take: impl FnOnce(&mut T) -> R) -> R {
        let mut state = lock(&self.state);
        state.urgent = false;
        state.lazy_until = None;
        state.last_calls = std::mem::take(&mut state.calls);
        take(&mut state.pending)
    }

    /// Changes what waits, also in a log that is closing. If `change` returns true, the thread is woken for more
    /// work.
    pub fn change(&self, change: impl FnOnce(&mut T) -> bool) {
        let mut state = lock(&self.state);
        if change(&mut state.pending) {
            state.urgent = true;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Waits for an urgent call, for the end of a lazy call's wait, or for the next check of an idle log; then up to
    /// `gather` for as many calls as the last group had. False: the log is to be closed.
    pub fn wait(&self, gather: Duration) -> bool {
        let mut state = lock(&self.state);
        let idle_until = Instant::now() + Duration::from_millis(IDLE_MS);
        while !state.urgent && !state.closing {
            let until = state.lazy_until.map_or(idle_until, |lazy| lazy.min(idle_until));
            if Instant::now() >= until {
                return true;
            }
            state = self.sleep(state, until, 1);
        }
        let gather_until = Instant::now() + gather;
        let wanted = state.last_calls;
        while state.calls < wanted && !state.closing && Instant::now() < gather_until {
            state = self.sleep(state, gather_until, wanted);
        }
        !state.closing
    }

    fn sleep<'s>(
        &self,
        mut state: MutexGuard<'s, State<T>>,
        until: Instant,
        calls: usize,
    ) -> MutexGuard<'s, State<T>> {
        state.sleeping_until = Some(calls);
        let left = until.saturating_duration_since(Instant::now());
        let mut state = match self.changed.wait_timeout(state, left) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        state.sleeping_until = None;
        state
    }

    /// Closes the queue: later calls of [`Queue::add`] get `None`.
    pub fn close(&self) {
        lock(&self.state).closing = true;
        self.changed.notify_all();
    }
}
