//! Tells a thread that is blocked from a thread that only waits for a core.
//!
//! On a busy machine a runnable thread can wait for a core longer than the watchdog waits for a poll. Linux says which
//! of the two is the case. Other systems do not; there every thread that makes no progress counts as blocked.

use std::cell::Cell;

/// The state of a thread, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The thread runs, or would run if it had a core.
    runnable: bool,
    /// The CPU time that the thread has used so far.
    ran_ns: u64,
}

/// CPU time after which a thread counts as busy: far more than one poll needs, less than a tick of the scheduler.
const BUSY_NS: u64 = 1_000_000;

impl Pace {
    /// True if the thread neither slept nor computed since `before`: it only waited for a core.
    pub(crate) fn starved_since(self, before: Pace) -> bool {
        self.runnable && self.ran_ns < before.ran_ns + BUSY_NS
    }
}

/// The kernel's number of the calling thread; 0 where it has none.
#[inline]
pub(crate) fn current() -> u32 {
    thread_local!(static NUMBER: Cell<Option<u32>> = const { Cell::new(None) });
    NUMBER.get().unwrap_or_else(|| {
        let number = own_number().unwrap_or(0);
        NUMBER.set(Some(number));
        number
    })
}

fn own_number() -> Option<u32> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

/// The state of the thread with this number, if the kernel reports it.
pub(crate) fn pace(number: u32) -> Option<Pace> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/self/task/{number}/{file}")).ok();
    // The state follows the thread's name, which is in parentheses and may contain anything, parentheses too.
    let stat = read("stat")?;
    let state = stat.rsplit_once(')')?.1.trim_start().chars().next()?;
    let ran_ns = read("schedstat")?.split(' ').next()?.parse().ok()?;
    Some(Pace { runnable: state == 'R', ran_ns })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// ORD-4.
    #[test]
    fn a_thread_that_sleeps_is_not_starved_and_one_without_a_core_is() {
        let (number, numbers) = mpsc::sync_channel(1);
        let (end, ended) = mpsc::sync_channel::<()>(1);
        let thread = std::thread::spawn(move || {
            number.send(current()).expect("the test waits");
            let _ = ended.recv();
        });
        let number = numbers.recv().expect("the thread says its number");
        let before = loop {
            let pace = pace(number).expect("Linux says");
            if !pace.runnable {
                break pace;
            }
        };
        assert!(!before.starved_since(before), "it waits for something else");
        let waits = Pace { runnable: true, ..before };
        assert!(waits.starved_since(before));
        let computes = Pace { runnable: true, ran_ns: before.ran_ns + BUSY_NS };
        assert!(!computes.starved_since(before));
        drop(end);
        thread.join().expect("it ends");
    }
}
