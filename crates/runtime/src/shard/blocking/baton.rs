//! The baton: the rule that keeps a handler that blocks its thread from stopping its shard (ORD-4).
//!
//! A shard stores an odd number in its baton before each poll of a handler, and swaps it to the next even number after
//! the poll. If the watchdog sees the same odd number for 8 ms, it takes the baton and lets the shard run on in another
//! task. When the blocked poll returns at last, its own swap fails; then its thread touches nothing of the shard any
//! more, posts the poll's result and ends. The message path reads no clock for this.
//!
//! Invariant: between `enter` and a `leave` that succeeded, only the caller of a `take` that succeeded may touch the
//! shard. A thread whose `leave` failed has lost the shard for good.

use std::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

/// How often the watchdog looks at each shard.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(4);
/// A poll that was already running at this many earlier looks has lasted for 8 ms at least: it blocks its thread.
pub(crate) const WATCHES_BLOCKED: u32 = 2;

/// The weight of one blocked poll, in polls that were not blocked. Where cores are short, a poll can wait for a lock
/// whose holder has no core, and looks as if its handler blocked; but that happens to less than one poll in a thousand.
const WEIGHT: u32 = 1_000;
/// More than two blocked polls close together.
const TOO_OFTEN: u32 = 2 * WEIGHT + 1;

/// How often the handlers of a pipeline block their thread. Once that is too often, the pipeline's handlers are polled
/// on threads of their own (`threads.rs`) until the pipeline ends.
#[derive(Debug)]
pub(crate) struct Blocked {
    /// What the handler says of itself. If it says that it never blocks, a poll that looks blocked only shows that the
    /// machine is short of time, which passes; so no lasting change follows from it.
    may_block: bool,
    weight: std::sync::atomic::AtomicU32,
    /// Blocked polls that were taken from their shard and have not returned.
    contained: std::sync::atomic::AtomicU32,
}

impl Default for Blocked {
    fn default() -> Blocked {
        Blocked::new(true)
    }
}

impl Blocked {
    /// Counts for one handler, which may block its thread or says that it does not.
    pub(crate) fn new(may_block: bool) -> Blocked {
        Blocked { may_block, weight: Default::default(), contained: Default::default() }
    }

    /// Whether the handler may block its thread.
    pub(crate) fn may_block(&self) -> bool {
        self.may_block
    }

    /// One more poll blocks its thread. The caller must call `returned` when that poll has ended.
    pub(crate) fn one_more(&self) {
        self.weight.fetch_add(WEIGHT, Ordering::Relaxed);
        self.contained.fetch_add(1, Ordering::Relaxed);
    }

    /// A poll that blocked its thread has ended.
    pub(crate) fn returned(&self) {
        self.contained.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of threads that blocked polls occupy now.
    pub(crate) fn contained(&self) -> u32 {
        self.contained.load(Ordering::Relaxed)
    }

    /// Takes `polls`, the number of polls that did not block, off the weight.
    pub(crate) fn forgive(&self, polls: u32) {
        let weight = self.weight.load(Ordering::Relaxed);
        if (1..TOO_OFTEN).contains(&weight) {
            let less = weight.saturating_sub(polls);
            // If a poll was counted as blocked since the load, that must not be overwritten; these polls are not
            // subtracted then.
            let _ = self.weight.compare_exchange(weight, less, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// True if the pipeline's attempts are to be polled on threads of their own, for good.
    pub(crate) fn too_often(&self) -> bool {
        self.may_block && self.weight.load(Ordering::Relaxed) >= TOO_OFTEN
    }

    /// True if attempts are to be polled on threads of their own now: for good, or because one more blocked poll could
    /// take the last of the runtime's `workers`. The runtime replaces a blocked worker only while it has a spare
    /// blocking thread.
    pub(crate) fn elsewhere(&self, workers: usize) -> bool {
        let contained = self.contained() as usize;
        self.too_often() || (contained > 0 && contained + 1 >= workers)
    }
}

/// Decides which thread may touch a shard.
#[derive(Debug)]
pub(crate) struct Baton(AtomicU64);

/// A poll under way, as seen in a baton.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Polling(u64);

impl Baton {
    pub(crate) fn new() -> Baton {
        Baton(AtomicU64::new(0))
    }

    /// A poll begins. Release: the thread that takes the baton must see all that the shard did before.
    #[inline]
    pub(crate) fn enter(&self) -> Polling {
        let odd = self.0.load(Ordering::Relaxed) + 1;
        debug_assert!(odd % 2 == 1, "one poll at a time");
        self.0.store(odd, Ordering::Release);
        Polling(odd)
    }

    /// The poll ended. False: the baton was taken away, and the shard runs elsewhere.
    #[inline]
    pub(crate) fn leave(&self, polling: Polling) -> bool {
        self.take(polling)
    }

    /// The watchdog's look: a poll under way, if there is one.
    pub(crate) fn look(&self) -> Option<Polling> {
        let seen = self.0.load(Ordering::Relaxed);
        (seen % 2 == 1).then_some(Polling(seen))
    }

    /// Takes the baton away from exactly this poll. True: the caller holds the baton now. Acquire: the caller sees the
    /// shard as it was when the poll began.
    pub(crate) fn take(&self, polling: Polling) -> bool {
        self.0.compare_exchange(polling.0, polling.0 + 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ORD-4.
    #[test]
    fn three_blocked_polls_are_too_often_unless_thousands_were_not() {
        let blocked = Blocked::default();
        for _ in 0..100 {
            blocked.one_more();
            blocked.forgive(WEIGHT);
        }
        assert!(!blocked.too_often());
        for _ in 0..2 {
            blocked.one_more();
            blocked.forgive(1);
        }
        assert!(!blocked.too_often());
        blocked.one_more();
        assert!(blocked.too_often());
        blocked.forgive(u32::MAX);
        assert!(blocked.too_often(), "it stays so");
    }

    /// ORD-4: a machine that is short of time does not change for good how the calls of a push handler are made.
    #[test]
    fn a_handler_that_cannot_block_never_gets_threads_of_its_own_for_good() {
        let blocked = Blocked::new(false);
        (0..10).for_each(|_| blocked.one_more());
        assert!(!blocked.too_often());
        assert!(blocked.elsewhere(4), "while so many calls keep the workers");
        (0..10).for_each(|_| blocked.returned());
        assert!(!blocked.elsewhere(4));
    }
}
