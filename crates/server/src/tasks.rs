//! The only file of this crate that starts tasks: connections, and what accepts them. All are ended by the drain.

use std::future::Future;

use tokio::task::JoinHandle;

/// Runs `task` in the background.
#[allow(clippy::disallowed_methods, reason = "this is the file that starts tasks")]
pub(crate) fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(task)
}
