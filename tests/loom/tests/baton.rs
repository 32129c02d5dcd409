//! A shard's baton under every schedule: a poll and a watchdog never both have the shard (ORD-4).

#[allow(unused, reason = "the part that decides when, not how, is not needed here")]
#[path = "../../../crates/runtime/src/shard/blocking/baton.rs"]
mod contain;

use contain::Baton;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

struct Cell {
    baton: Baton,
    /// The shard's state: loom fails if two threads touch it without a happens-before between them.
    shard: UnsafeCell<u32>,
    late: Mutex<u32>,
}

/// What the runner does with the shard between two polls.
fn work(cell: &Cell) {
    cell.shard.with_mut(|shard| {
        // SAFETY: loom checks that nobody else is here.
        #[allow(unsafe_code, reason = "that is what is tested")]
        unsafe {
            *shard += 1
        }
    });
}

/// A runner: works, polls, and works again only if it still has the baton.
fn run(cell: &Cell, polls: u32) -> bool {
    for _ in 0..polls {
        work(cell);
        let polling = cell.baton.enter();
        thread::yield_now();
        if !cell.baton.leave(polling) {
            *cell.late.lock().expect("free") += 1;
            return false;
        }
    }
    work(cell);
    true
}

#[test]
fn a_contained_poll_and_its_successor_never_touch_the_shard_together() {
    loom::model(|| {
        let cell = Arc::new(Cell { baton: Baton::new(), shard: UnsafeCell::new(0), late: Mutex::new(0) });
        let runner = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || run(&cell, 2))
        };
        let watchdog = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || match cell.baton.look() {
                Some(polling) if cell.baton.take(polling) => {
                    // The shard runs on here, in a new task.
                    work(&cell);
                    assert!(run(&cell, 1));
                    true
                }
                _ => false,
            })
        };
        let kept = runner.join().expect("no panic");
        let taken = watchdog.join().expect("no panic");
        assert_ne!(kept, taken, "exactly one of them has the shard at the end");
        assert_eq!(*cell.late.lock().expect("free"), u32::from(taken), "the late poll reports back");
    });
}
