//! Drops the futures of attempts that must not go on: those that timed out, and those whose partition was lost.
//!
//! Dropping a future runs destructors of the handler, which may block their thread just as a poll may. So a future is
//! dropped under the same rules as a poll: nothing else touches the shard meanwhile, and the watchdog can take the
//! shard away (ORD-4).
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
    /// Drops the futures in the shard's list `ending`. False: the watchdog took the baton meanwhile, and the caller
    /// must not touch the shard any more.
    pub(super) fn drop_futures(&self) -> bool {
        // SAFETY: as in `poll`.
        let shard = || unsafe { &mut *self.shard.get() };
        while let Some(seat) = shard().next_ending() {
            let slot = shard().attempts.slot(seat);
            let polling = self.baton.enter();
            // SAFETY: the seat stays filled until `ended_early` or the late report, and no thread polls it any more.
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

    /// Drops the current attempt's future on a thread of the pool.
    pub(super) fn drop_future_elsewhere(self: &Arc<Self>, seat: u32, thread: Thread) {
        // SAFETY: as in `poll`.
        let shard = unsafe { &mut *self.shard.get() };
        let slot = SendPointer(shard.attempts.slot(seat));
        shard.current_went_elsewhere();
        let cell = Arc::clone(self);
        thread.run(&self.tasks, move || {
            let slot = slot;
            // SAFETY: the seat stays filled until this is reported, and no thread polls it any more.
            unsafe { (*slot.0).end() };
            cell.post(seat, Late::Dropped);
        });
    }
}
