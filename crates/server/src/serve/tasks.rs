//! Starts tasks. No other file of this crate may do so, so that one place shows what runs in the background.

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

/// A set of tasks that are ended together.
#[derive(Default)]
pub(super) struct Tasks(JoinSet<()>);

impl Tasks {
    /// Runs `task` in the background.
    pub(super) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Waits until a task has ended, and removes it from the set. Waits for ever if the set is empty. Cancel safe.
    pub(super) async fn one_ends(&mut self) {
        if self.0.join_next().await.is_none() {
            pending::<()>().await;
        }
    }

    /// Ends all tasks that still run.
    pub(crate) async fn end(&mut self) {
        self.0.shutdown().await;
    }
}
