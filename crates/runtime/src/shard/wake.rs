//! How a shard is woken: by its handlers' futures, each with a waker of its own, and by everybody else.
//!
//! A future that wakes puts its seat on a list, once; so does a reader that has something, with its partition. The shard
//! takes the whole lists at the start of a pass, and so looks only where something happened. The shard's task is woken
//! only if it sleeps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use futures_util::task::{ArcWake, AtomicWaker};

/// Room that a list keeps when a burst is over.
pub(super) const LIST_KEPT: usize = 4096;

/// What wakes one shard.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    seats: Mutex<Vec<u32>>,
    partitions: Mutex<Vec<u32>>,
    asleep: AtomicBool,
    task: AtomicWaker,
}

impl Wakes {
    /// Moves the seats that were woken since the last time into `into`.
    pub(super) fn take_seats(&self, into: &mut VecDeque<u32>) {
        let mut woken = self.seats.lock().expect("no holder panics");
        let burst = woken.len() < woken.capacity() / 8 && woken.capacity() > LIST_KEPT;
        into.extend(woken.drain(..));
        if burst {
            // A burst is over, and its room is given back (PRF-5).
            woken.shrink_to(LIST_KEPT);
        }
    }

    /// A partition that may have something to read since the last time.
    pub(super) fn take_partition(&self) -> Option<u32> {
        self.partitions.lock().expect("no holder panics").pop()
    }

    /// The shard is about to sleep; `waker` wakes its task. It must look for work once more after this.
    pub(super) fn sleep(&self, waker: &Waker) {
        self.task.register(waker);
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The shard found work after all.
    pub(super) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// True if somebody was woken whom nobody took yet.
    pub(super) fn any(&self) -> bool {
        [&self.seats, &self.partitions].iter().any(|list| !list.lock().expect("no holder panics").is_empty())
    }

    /// Wakes the shard's task, if it sleeps.
    pub(crate) fn wake(&self) {
        // Looked at first: while the shard is awake, thousands of wakes a millisecond need no exclusive line for it.
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

/// Which list of a shard something is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Seats,
    Partitions,
}

/// Wakes one seat or partition of a shard. Kept with it and used again; a wake that comes late polls once too often.
#[derive(Debug)]
pub(super) struct ListWaker {
    wakes: Arc<Wakes>,
    list: List,
    number: u32,
    listed: AtomicBool,
}

impl ListWaker {
    /// Wakes the attempt in a seat.
    pub(super) fn seat(wakes: &Arc<Wakes>, seat: u32) -> Arc<ListWaker> {
        ListWaker::new(wakes, List::Seats, seat)
    }

    /// Says that a partition has something to read.
    pub(super) fn partition(wakes: &Arc<Wakes>, partition: u32) -> Arc<ListWaker> {
        ListWaker::new(wakes, List::Partitions, partition)
    }

    fn new(wakes: &Arc<Wakes>, list: List, number: u32) -> Arc<ListWaker> {
        Arc::new(ListWaker { wakes: Arc::clone(wakes), list, number, listed: AtomicBool::new(false) })
    }

    /// It is about to be polled: a wake from now on counts.
    #[inline]
    pub(super) fn rearm(&self) {
        // Before the poll, so that a wake during it is not missed. What is listed by a wake not seen here is on the
        // list, and is polled again. A swap, so that the poll sees what was done before the wake that it takes back.
        if self.listed.load(Ordering::Relaxed) {
            self.listed.swap(false, Ordering::SeqCst);
        }
    }
}

impl ArcWake for ListWaker {
    fn wake_by_ref(this: &Arc<Self>) {
        if !this.listed.swap(true, Ordering::SeqCst) {
            let list = match this.list {
                List::Seats => &this.wakes.seats,
                List::Partitions => &this.wakes.partitions,
            };
            list.lock().expect("no holder panics").push(this.number);
            this.wakes.wake();
        }
    }
}
