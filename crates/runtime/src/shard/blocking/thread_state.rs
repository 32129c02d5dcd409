//! Whether a thread that does not move is blocked, or only waits for a core.
//!
//! On a busy machine a thread can wait for its turn longer than the watchdog's patience. Linux tells the two apart;
//! elsewhere nothing is known, and every thread that does not move counts as blocked.

use std::cell::Cell;

/// What the kernel says of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// It runs, or would if it had a core.
    runnable: bool,
    /// CPU time that it had so far.
    ran_ns: u64,
}

/// CPU time that makes a poll one that keeps its thread busy: far more than one poll needs, less than a tick.
const BUSY_NS: u64 = 1_000_000;

impl Pace {
    /// True if the thread neither slept nor computed since `before`: it waited for a core.
    pub(crate) fn starved_since(self, before: Pace) -> bool {
        self.runnable && self.ran_ns < before.ran_ns + BUSY_NS
    }
}

/// The calling thread's number at the kernel; 0 where it has none.
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

/// How that thread is now, if the kernel says.
pub(crate) fn pace(number: u32) -> Option<Pace> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/self/task/{number}/{file}")).ok();
    // The state follows the name, which is in parentheses and may contain anything.
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
