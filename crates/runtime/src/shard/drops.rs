//! Dropping futures that did not end: of attempts that took too long, or whose partition is lost.
//!
//! That runs destructors of the handler, which may block their thread as its polls may, so it is done as polls are: while
//! nobody touches the shard, and where the watchdog can have the shard run on elsewhere (ORD-4).
#![allow(unsafe_code, reason = "who has the baton may touch the shard; see `task.rs`")]

use std::future::Future;
use std::sync::Arc;

use keylane_core::Outcome;

use super::blocking::Thread;
use super::slot::{Begin, Late};
use super::task::{SendPointer, ShardTask};

impl<F, B> ShardTask<F, B>
where
    F: Future<Output = Outcome> + Send + 'static,
    B: Begin<F>,
{
    /// Drops futures that are not to go on. As with a poll, the watchdog may take the baton meanwhile. False: it did.
    pub(super) fn drop_futures(&self) -> bool {
        // SAFETY: as in `poll`.
        let shard = || unsafe { &mut *self.shard.get() };
        while let Some(seat) = shard().next_ending() {
            let slot = shard().attempts.slot(seat);
            let polling = self.baton.enter();
            // SAFETY: the seat stays filled until this is reported, and nobody polls it any more.
            unsafe { (*slot).end() };
            if !self.baton.leave(polling) {
                self.blocked.returned();
                self.post(seat, Late::Dropped);
                return false;
            }
            shard().ended_early(seat);
        }
        true
    }

    /// Drops a future that is not to go on, on a thread of its own.
    pub(super) fn drop_future_elsewhere(self: &Arc<Self>, seat: u32, thread: Thread) {
        // SAFETY: as in `poll`.
        let shard = unsafe { &mut *self.shard.get() };
        let slot = SendPointer(shard.attempts.slot(seat));
        shard.current_went_elsewhere();
        let cell = Arc::clone(self);
        thread.run(&self.tasks, move || {
            let slot = slot;
            // SAFETY: the seat stays filled until this is reported, and nobody polls it any more.
            unsafe { (*slot.0).end() };
            cell.post(seat, Late::Dropped);
        });
    }
}
