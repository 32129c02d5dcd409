//! The only file of this crate that starts tasks: connections, and what accepts them. All are ended by the drain.

use std::future::{Future, pending};

use tokio::task::{JoinHandle, JoinSet};

/// Runs `task` in the background.
#[allow(clippy::disallowed_methods, reason = "this is the file that starts tasks")]
pub(super) fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(task)
}

/// Tasks that end together.
#[derive(Default)]
pub(super) struct Tasks(JoinSet<()>);

impl Tasks {
    /// Runs `task` in the background.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Waits until one has ended, and lets go of it; for ever if there is none. Cancel safe.
    pub(super) async fn one_ends(&mut self) {
        if self.0.join_next().await.is_none() {
            pending::<()>().await;
        }
    }

    /// Ends all that are left.
    pub(crate) async fn end(&mut self) {
        self.0.shutdown().await;
    }
}
