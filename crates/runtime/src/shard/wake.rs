//! Wakes a shard: for attempts and partitions, which each have a waker of their own, and for everything else.
//!
//! A future that wakes puts its seat on a list, once; a reader that has data does the same with its partition. The
//! shard takes both lists at the start of a pass, and so looks only where something happened. The shard's task is woken
//! only if it sleeps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use futures_util::task::{ArcWake, AtomicWaker};

/// Room that a list keeps when a burst is over.
pub(super) const LIST_KEPT: usize = 4096;

/// The lists and the waker of one shard.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    seats: Mutex<Vec<u32>>,
    partitions: Mutex<Vec<u32>>,
    asleep: AtomicBool,
    task: AtomicWaker,
}

impl Wakes {
    /// Moves the seats that were woken since the last call to `into`.
    pub(super) fn take_seats(&self, into: &mut VecDeque<u32>) {
        let mut woken = self.seats.lock().expect("no holder panics");
        let burst = woken.len() < woken.capacity() / 8 && woken.capacity() > LIST_KEPT;
        into.extend(woken.drain(..));
        if burst {
            // A burst is over, and its memory is freed (PRF-5).
            woken.shrink_to(LIST_KEPT);
        }
    }

    /// Takes one of the partitions that may have something to read since the last call.
    pub(super) fn take_partition(&self) -> Option<u32> {
        self.partitions.lock().expect("no holder panics").pop()
    }

    /// The shard is about to sleep, and `waker` wakes its task. After this the shard must look for work once more, or a
    /// wake just before the call would be missed.
    pub(super) fn sleep(&self, waker: &Waker) {
        self.task.register(waker);
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The shard is awake: wakes need not reach its task.
    pub(super) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// True if a list has an entry that the shard has not taken yet.
    pub(super) fn any(&self) -> bool {
        [&self.seats, &self.partitions].iter().any(|list| !list.lock().expect("no holder panics").is_empty())
    }

    /// Wakes the shard's task, if it sleeps.
    pub(crate) fn wake(&self) {
        // Read first: while the shard is awake, thousands of wakes a millisecond then need no exclusive cache line.
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

/// Which list of a shard a waker writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Seats,
    Partitions,
}

/// Wakes one seat or partition of a shard. A seat's waker is reused for the next attempt; a late wake of the last
/// attempt only causes one poll too many.
#[derive(Debug)]
pub(super) struct ListWaker {
    wakes: Arc<Wakes>,
    list: List,
    number: u32,
    listed: AtomicBool,
}

impl ListWaker {
    /// A waker of the attempt in a seat.
    pub(super) fn seat(wakes: &Arc<Wakes>, seat: u32) -> Arc<ListWaker> {
        ListWaker::new(wakes, List::Seats, seat)
    }

    /// A waker of a partition's reader.
    pub(super) fn partition(wakes: &Arc<Wakes>, partition: u32) -> Arc<ListWaker> {
        ListWaker::new(wakes, List::Partitions, partition)
    }

    fn new(wakes: &Arc<Wakes>, list: List, number: u32) -> Arc<ListWaker> {
        Arc::new(ListWaker { wakes: Arc::clone(wakes), list, number, listed: AtomicBool::new(false) })
    }

    /// A poll follows, and a wake from now on counts.
    #[inline]
    pub(super) fn rearm(&self) {
        // Before the poll, so that a wake during the poll is not missed. If a wake is not visible here yet, its entry
        // is on the list, and the attempt is polled again. A swap, so that the poll sees what was written before the
        // wake.
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
