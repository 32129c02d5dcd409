//! How a shard is woken: by its handlers' futures, each with a waker of its own, and by everybody else.
//!
//! A future that wakes puts its seat on a list, once; the shard takes the whole list at the start of a pass. The
//! shard's task is woken only if it sleeps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use futures_util::task::{ArcWake, AtomicWaker};

/// Room that a list keeps when a burst is over.
pub(crate) const LIST_KEPT: usize = 4096;

/// What wakes one shard.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    woken: Mutex<Vec<u32>>,
    asleep: AtomicBool,
    task: AtomicWaker,
}

impl Wakes {
    /// Moves the seats that were woken since the last time into `into`.
    pub(crate) fn take(&self, into: &mut VecDeque<u32>) {
        let mut woken = self.woken.lock().expect("no holder panics");
        let burst = woken.len() < woken.capacity() / 8 && woken.capacity() > LIST_KEPT;
        into.extend(woken.drain(..));
        if burst {
            // A burst is over, and its room is given back (PRF-5).
            woken.shrink_to(LIST_KEPT);
        }
    }

    /// The shard is about to sleep; `waker` wakes its task. It must look for work once more after this.
    pub(crate) fn sleep(&self, waker: &Waker) {
        self.task.register(waker);
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The shard found work after all.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// True if a seat was woken that nobody took yet.
    pub(crate) fn any(&self) -> bool {
        !self.woken.lock().expect("no holder panics").is_empty()
    }

    /// Wakes the shard's task, if it sleeps.
    pub(crate) fn wake(&self) {
        // Looked at first: while the shard is awake, thousands of wakes a millisecond need no exclusive line for it.
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

/// Wakes one seat of a shard. Kept with the seat and used again; a wake that comes late polls once too often.
#[derive(Debug)]
pub(crate) struct SeatWaker {
    wakes: Arc<Wakes>,
    seat: u32,
    listed: AtomicBool,
}

impl SeatWaker {
    pub(crate) fn new(wakes: &Arc<Wakes>, seat: u32) -> Arc<SeatWaker> {
        Arc::new(SeatWaker { wakes: Arc::clone(wakes), seat, listed: AtomicBool::new(false) })
    }

    /// The seat is about to be polled: a wake from now on counts.
    #[inline]
    pub(crate) fn rearm(&self) {
        // Before the poll, so that a wake during it is not missed. A seat that is listed by a wake not seen here is on
        // the list, and is polled again.
        if self.listed.load(Ordering::Relaxed) {
            self.listed.store(false, Ordering::SeqCst);
        }
    }
}

impl ArcWake for SeatWaker {
    fn wake_by_ref(this: &Arc<Self>) {
        if !this.listed.swap(true, Ordering::SeqCst) {
            this.wakes.woken.lock().expect("no holder panics").push(this.seat);
            this.wakes.wake();
        }
    }
}
