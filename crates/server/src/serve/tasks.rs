//! Starts tasks. No other file of this crate may do so, so that one place shows what runs in the background.
//!
//! A task that panics would just be gone, and its work would stop. [`EndedTasks`] logs and counts the panic, and whoever
//! started the task goes on in its place (KL-1321), as `keylane`'s own tasks do.

use std::future::{Future, pending, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use keylane::ErrorCode;
use tokio::task::{JoinHandle, JoinSet};

/// Before something that ended begins anew: one that ends at once must not keep a core busy, nor fill the log.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// Runs `task` in the background.
#[allow(clippy::disallowed_methods, reason = "this is the file that starts tasks")]
pub(super) fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(task)
}

/// What of a server must not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerTask {
    /// Who accepts connections. It begins anew.
    Accept,
    /// Who looks at the broker once a second. It begins anew.
    BrokerHealth,
    /// Who brings up what did not come up at once. The server ends.
    ComingUp,
    /// What an outbox runs in. The outbox stops.
    Outbox,
    /// Who answers the requests of a connection. The connection is closed.
    Connection,
}

impl ServerTask {
    const ALL: [ServerTask; 5] = [
        ServerTask::Accept,
        ServerTask::BrokerHealth,
        ServerTask::ComingUp,
        ServerTask::Outbox,
        ServerTask::Connection,
    ];

    /// Its name in logs and metrics, and what becomes of it.
    fn told(self) -> (&'static str, &'static str) {
        match self {
            ServerTask::Accept => ("accept", "it is begun anew"),
            ServerTask::BrokerHealth => ("broker_health", "it is begun anew"),
            ServerTask::ComingUp => ("coming_up", "the server ends"),
            ServerTask::Outbox => ("outbox", "the outbox has stopped"),
            ServerTask::Connection => ("connection", "its connection is closed"),
        }
    }
}

/// How often each of them ended as nobody asked.
#[derive(Debug, Default)]
pub(crate) struct EndedTasks {
    ended: [AtomicU64; ServerTask::ALL.len()],
    /// Those that a test ends.
    #[cfg(test)]
    struck: std::sync::Mutex<Vec<ServerTask>>,
}

impl EndedTasks {
    /// How often, by what they are.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ServerTask::ALL
            .into_iter()
            .map(|task| (task.told().0, self.ended[task as usize].load(Ordering::Relaxed)))
    }

    /// Awaits `work`. A panic is logged and counted, and what it said comes back as the error.
    pub(super) async fn supervise<T>(
        &self,
        task: ServerTask,
        work: impl Future<Output = T>,
    ) -> Result<T, String> {
        let mut work = pin!(work);
        let watched = poll_fn(|cx| {
            self.may_be_struck(task);
            work.as_mut().poll(cx)
        });
        AssertUnwindSafe(watched).catch_unwind().await.map_err(|panic| {
            let (name, then) = task.told();
            self.ended[task as usize].fetch_add(1, Ordering::Relaxed);
            let said = panic.downcast_ref::<&str>().copied();
            let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let why = format!("{name} ended unexpectedly: {}", said.unwrap_or("no message"));
            let code = ErrorCode::TaskEnded;
            tracing::error!(task = name, %code, why, "something ended that should not; {then}");
            why
        })
    }

    /// Does what `begin` makes until that ends by itself; after a panic it begins anew.
    pub(super) async fn keep<F: Future<Output = ()>>(&self, task: ServerTask, mut begin: impl FnMut() -> F) {
        while self.supervise(task, begin()).await.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Ends the next task of that kind that moves, as a panic would.
    #[cfg(test)]
    pub(super) fn strike(&self, task: ServerTask) {
        self.struck.lock().expect("no holder panics").push(task);
    }

    /// Here a test may end a task.
    fn may_be_struck(&self, task: ServerTask) {
        #[cfg(test)]
        {
            let mut struck = self.struck.lock().expect("no holder panics");
            let at = struck.iter().position(|struck| *struck == task);
            at.map(|at| struck.remove(at));
            drop(struck);
            assert!(at.is_none(), "a test ended it");
        }
        #[cfg(not(test))]
        let _ = task;
    }
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
