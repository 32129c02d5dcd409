//! Group commit: callers put what they want written into a [`Queue`] and wait; one thread takes all of it at once.
//!
//! While the thread syncs, the next group gathers. A lone caller waits for one sync. Many callers share one: those who
//! were just answered come back at about the same time, so a group waits for as many as the last one had, but for no
//! longer than a part of what the sync will cost; without this the first to come back would get a sync for itself and
//! all others would wait for two. What is *lazy* waits up to [`LAZY_MS`] for others to ride along with. In a simulation there is no
//! thread, and [`Drive::commit_once`] is called by whoever plays it.
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

/// What is not urgent waits at most this long: a commit that mirrors the journal may share another's sync.
const LAZY_MS: u64 = 50;
/// A group waits for its callers at most this part of what the last commit took…
const GATHER_PART: u32 = 4;
/// … at most this long, because a sync that takes longer is the disk's trouble and not to be added to …
const GATHER_MAX: Duration = Duration::from_millis(2);
/// … and not at all where it would be shorter than what timers can do.
const GATHER_MIN: Duration = Duration::from_micros(100);
/// An idle log looks after its old segments this often.
const IDLE_MS: u64 = 1000;

/// A log that a thread drives.
pub(crate) trait Drive: Send + Sync + 'static {
    /// Takes what waits, writes and syncs it, answers, and looks after old segments.
    fn commit_once(&self);
    /// Nothing comes any more: writes what waits, and that all is well.
    fn finish(&self);
    /// Waits for something to do, and up to `gather` for others to join; false if the log is to be closed.
    fn wait(&self, gather: Duration) -> bool;
    /// Nobody drives it any more: tells all who wait and all who come.
    fn abandon(&self);
}

/// Runs a log until it is closed. If that panics the log stops, as after a write of which nobody knows how far it got.
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

/// A log with its thread. A thread that panics must not leave callers waiting for ever.
struct Driven(Arc<dyn Drive>);

impl Drop for Driven {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandon();
        }
    }
}

/// What waits for a thread.
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
    /// The thread sleeps until so many urgent calls wait.
    sleeping_until: Option<usize>,
    /// Urgent calls that wait, and those that were taken last.
    calls: usize,
    last_calls: usize,
    closing: bool,
}

/// How soon something must be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    Now,
    Lazy,
}

impl<T> Queue<T> {
    /// A queue into which nothing was put yet.
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

    /// Adds to what waits. `None`: the log is closed.
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
        // A thread that is not asleep looks again by itself; waking it would cost a system call for each message.
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

    /// Takes what waits.
    pub fn take<R>(&self, take: impl FnOnce(&mut T) -> R) -> R {
        let mut state = lock(&self.state);
        state.urgent = false;
        state.lazy_until = None;
        state.last_calls = std::mem::take(&mut state.calls);
        take(&mut state.pending)
    }

    /// Changes what waits, also in a log that is closing. If that is true, there is more to do at once.
    pub fn change(&self, change: impl FnOnce(&mut T) -> bool) {
        let mut state = lock(&self.state);
        if change(&mut state.pending) {
            state.urgent = true;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Waits until there is something to do, or something may have grown old; then up to `gather` for as many calls
    /// as the last group had. False: the log is to be closed.
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

    /// Takes nothing more.
    pub fn close(&self) {
        lock(&self.state).closing = true;
        self.changed.notify_all();
    }
}
