//! What keeps one blocking handler from stopping its shard (ORD-4).
//!
//! A shard stores an odd number in its baton before each poll of a handler and swaps it to the next even one after.
//! A watchdog that sees the same odd number for 8 ms takes the baton away and has the shard run elsewhere;
//! the late thread finds its swap failed, touches nothing of the shard any more, posts its result and ends. No clock
//! is read on the message path.
//!
//! Invariant: between `enter` and a `leave` that succeeded, nobody but the one who `take`s the baton may touch the
//! shard; whoever finds `leave` failed has lost it for good.

use std::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

/// How often the watchdog looks.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(4);
/// A poll that was there at so many looks before has lasted for 8 ms at least, and blocks its thread.
pub(crate) const WATCHES_BLOCKED: u32 = 2;

/// A blocked poll weighs as much as so many that were not. Where cores are short, a poll can wait for a lock whose
/// holder has no core, and looks as if its handler blocked; but that does not happen to one poll in a thousand.
const WEIGHT: u32 = 1_000;
/// Three blocked polls close together.
const TOO_OFTEN: u32 = 2 * WEIGHT + 1;

/// How often the handlers of a pipeline block their thread. Once that is too often, it stays so, and their polls go to
/// threads of their own (`threads.rs`).
#[derive(Debug)]
pub(crate) struct Blocked {
    /// What the handler says of itself. If it cannot block, whatever looks so is the machine, which does not stay so.
    may_block: bool,
    weight: std::sync::atomic::AtomicU32,
    /// Polls that were contained and have not returned.
    contained: std::sync::atomic::AtomicU32,
}

impl Default for Blocked {
    fn default() -> Blocked {
        Blocked::new(true)
    }
}

impl Blocked {
    /// Of a handler that may block its thread, or says that it does not.
    pub(crate) fn new(may_block: bool) -> Blocked {
        Blocked { may_block, weight: Default::default(), contained: Default::default() }
    }

    /// Whether the handler may block its thread.
    pub(crate) fn may_block(&self) -> bool {
        self.may_block
    }

    /// One more poll blocks its thread; it must be said when it `returned`.
    pub(crate) fn one_more(&self) {
        self.weight.fetch_add(WEIGHT, Ordering::Relaxed);
        self.contained.fetch_add(1, Ordering::Relaxed);
    }

    /// A poll that blocked its thread has ended.
    pub(crate) fn returned(&self) {
        self.contained.fetch_sub(1, Ordering::Relaxed);
    }

    /// Threads that contained polls have now.
    pub(crate) fn contained(&self) -> u32 {
        self.contained.load(Ordering::Relaxed)
    }

    /// So many polls were not.
    pub(crate) fn forgive(&self, polls: u32) {
        let weight = self.weight.load(Ordering::Relaxed);
        if (1..TOO_OFTEN).contains(&weight) {
            let less = weight.saturating_sub(polls);
            // One that was blocked meanwhile must not be forgotten; these will be forgiven another time.
            let _ = self.weight.compare_exchange(weight, less, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// True if attempts of the pipeline are to be polled elsewhere, for good.
    pub(crate) fn too_often(&self) -> bool {
        self.may_block && self.weight.load(Ordering::Relaxed) >= TOO_OFTEN
    }

    /// True if attempts are to be polled elsewhere now: one more that blocks could take the last of so many workers of the
    /// runtime. Where its blocking threads are all in use, nobody takes a worker's place.
    pub(crate) fn elsewhere(&self, workers: usize) -> bool {
        let contained = self.contained() as usize;
        self.too_often() || (contained > 0 && contained + 1 >= workers)
    }
}

/// Says who may touch a shard.
#[derive(Debug)]
pub(crate) struct Baton(AtomicU64);

/// Seen in a baton: a poll under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Polling(u64);

impl Baton {
    pub(crate) fn new() -> Baton {
        Baton(AtomicU64::new(0))
    }

    /// A poll begins. Release: whoever takes the baton sees all that the shard did before.
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

    /// Takes the baton away from that very poll. True: the caller has it now. Acquire: it sees the shard as it was
    /// left when the poll began.
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
