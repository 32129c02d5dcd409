//! How the watchdog sees a shard, and takes it away from a poll that blocks its thread.
#![allow(unsafe_code, reason = "who takes the baton may touch the shard; see `task.rs`")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use keylane_core::Outcome;

use super::blocking::{Blocking, Polling, Watched};
use super::slot::Begin;
use super::task::ShardTask;
use crate::tasks::TaskKind;

impl<F, B> Watched for ShardTask<F, B>
where
    F: Future<Output = Outcome> + Send + 'static,
    B: Begin<F>,
{
    fn polling(&self) -> Option<Polling> {
        self.baton.look()
    }

    fn beat(&self) {
        self.pauses.beat();
    }

    fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    fn contain(self: Arc<Self>, polling: Polling) -> Option<Blocking> {
        if !self.baton.take(polling) {
            return None;
        }
        self.blocked.one_more();
        // SAFETY: the caller took the baton just now; the new task gets it.
        let shard = unsafe { &mut *self.shard.get() };
        let contained = self.tasks.supervise_now(TaskKind::Shard, || {
            let delivery = shard.attempts.delivery(shard.current.seat);
            let (partition, position) = (delivery.partition(), delivery.position());
            let (id, by_handler) = (delivery.id().to_owned(), self.blocked.may_block());
            let message = Blocking { partition, position, id, by_handler };
            shard.current_went_elsewhere();
            message
        });
        match contained {
            Ok(message) => {
                self.go();
                Some(message)
            }
            Err(why) => {
                // The blocked thread still polls this seat, whatever else is known of the seat.
                shard.attempts.is_elsewhere(shard.current.seat);
                self.fall(&why);
                None
            }
        }
    }
}
