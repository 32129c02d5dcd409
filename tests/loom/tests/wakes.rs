//! How a shard is woken, under every schedule: nothing that woke is missed, neither by a shard that is about to sleep nor
//! by an attempt that is about to be polled (ORD-4).

#[allow(unused, reason = "what takes memory back is not needed here")]
#[path = "../../../crates/runtime/src/wake.rs"]
mod wake;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use futures_util::task::{ArcWake, waker};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::{self, Thread};
use wake::{ListWaker, Wakes};

/// Wakes the shard's task: unparks its thread.
struct Task(Thread);

impl ArcWake for Task {
    fn wake_by_ref(this: &Arc<Self>) {
        this.0.unpark();
    }
}

/// Sleeps as a shard does, unless there is something: loom fails if nobody wakes it.
fn sleep(wakes: &Wakes, task: &Waker) {
    wakes.sleep(task);
    if !wakes.any() {
        thread::park();
    }
    wakes.awake();
}

/// An attempt waits for a flag. Whoever sets it wakes its seat. The shard polls it when it is listed, and sleeps in
/// between; it must see the flag, however the two meet.
#[test]
fn an_attempt_that_becomes_ready_is_polled_once_more() {
    loom::model(|| {
        let wakes = Arc::<Wakes>::default();
        let (seat, ready) = (ListWaker::seat(&wakes, 7), Arc::new(AtomicBool::new(false)));
        let other = {
            let (seat, ready) = (Arc::clone(&seat), Arc::clone(&ready));
            thread::spawn(move || {
                // Once for nothing, as futures do.
                ArcWake::wake_by_ref(&seat);
                ready.store(true, Ordering::Release);
                ArcWake::wake_by_ref(&seat);
            })
        };
        let task = waker(Arc::new(Task(thread::current())));
        let mut woken = VecDeque::from([7]);
        loop {
            if woken.pop_front().is_some() {
                seat.rearm();
                if ready.load(Ordering::Acquire) {
                    break;
                }
            }
            wakes.take_seats(&mut woken);
            if woken.is_empty() {
                sleep(&wakes, &task);
                wakes.take_seats(&mut woken);
            }
        }
        other.join().expect("no panic");
    });
}

/// Two readers have something at once: the shard hears of both, and each is listed once.
#[test]
fn partitions_that_have_something_are_all_heard_of() {
    loom::model(|| {
        let wakes = Arc::<Wakes>::default();
        let others: Vec<_> = [1, 2]
            .map(|partition| {
                let reader = ListWaker::partition(&wakes, partition);
                thread::spawn(move || ArcWake::wake_by_ref(&reader))
            })
            .into();
        let task = waker(Arc::new(Task(thread::current())));
        let mut heard = Vec::new();
        while heard.len() < 2 {
            while let Some(partition) = wakes.take_partition() {
                heard.push(partition);
            }
            if heard.len() < 2 {
                sleep(&wakes, &task);
            }
        }
        heard.sort_unstable();
        assert_eq!(heard, [1, 2]);
        others.into_iter().for_each(|other| other.join().expect("no panic"));
    });
}
