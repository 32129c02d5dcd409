//! Counts finished messages, for Keylane and for its raw limit alike.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// How many messages are finished.
#[derive(Default)]
pub(crate) struct Finished {
    count: AtomicU64,
    bound: AtomicU64,
    reached: Notify,
}

impl Finished {
    #[inline]
    pub(crate) fn one(&self) {
        let count = self.count.fetch_add(1, Ordering::AcqRel) + 1;
        if count == self.bound.load(Ordering::Acquire) {
            self.reached.notify_one();
        }
    }

    /// How many so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until `more` messages than at the last call are finished.
    pub(crate) async fn all(&self, more: u64) {
        let bound = self.bound.fetch_add(more, Ordering::AcqRel) + more;
        while self.count.load(Ordering::Acquire) < bound {
            let _ = tokio::time::timeout(Duration::from_millis(100), self.reached.notified()).await;
        }
    }
}
