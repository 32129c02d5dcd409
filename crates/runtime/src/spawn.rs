//! The only file that spawns tasks and threads.
//!
//! All tasks of one [`crate::Keylane`] go through one [`Tasks`]. In a simulation it has a gate: everything that the
//! simulated process runs stands behind it, so that the process can be frozen, woken late, or killed between any two
//! steps, while the others go on.

use std::future::Future;

use tokio::task::JoinHandle;

#[cfg(feature = "testing")]
pub use gate::Gate;

/// Spawns the tasks of one process.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    #[cfg(feature = "testing")]
    gate: Option<std::sync::Arc<Gate>>,
}

impl Tasks {
    /// Tasks behind a gate, on one thread.
    #[cfg(feature = "testing")]
    pub fn behind(gate: std::sync::Arc<Gate>) -> Tasks {
        Tasks { gate: Some(gate) }
    }

    /// Runs `task` in the background.
    #[allow(clippy::disallowed_methods, reason = "this is the file that spawns tasks")]
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(feature = "testing")]
        if let Some(gate) = &self.gate {
            return tokio::spawn(gate::gated(std::sync::Arc::clone(gate), task));
        }
        tokio::spawn(task)
    }

    /// As [`Tasks::spawn`], but where no runtime is there any more `task` is dropped: for what is left over when
    /// something is dropped, which may be at the very end.
    pub(crate) fn spawn_if_runs(&self, task: impl Future<Output = ()> + Send + 'static) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.spawn(task);
        }
    }

    /// Runs `work`, which may block, on a thread of its own.
    #[allow(clippy::disallowed_methods, reason = "this is the file that spawns tasks")]
    pub(crate) fn run_blocking(&self, work: impl FnOnce() + Send + 'static) {
        tokio::task::spawn_blocking(work);
    }

    /// True where handlers that block their thread are looked for: not in a simulation, where time jumps.
    pub(crate) fn watches(&self) -> bool {
        #[cfg(feature = "testing")]
        if self.gate.is_some() {
            return false;
        }
        true
    }

    /// Runs `work` on a thread of its own, outside of the runtime.
    #[allow(clippy::disallowed_methods, reason = "this is the file that spawns threads")]
    pub(crate) fn spawn_thread(
        &self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }
}

#[cfg(feature = "testing")]
mod gate {
    use std::future::{Future, poll_fn};
    use std::sync::{Arc, Mutex};
    use std::task::{Poll, Waker};

    /// Freezes, wakes or kills all tasks of one simulated process.
    #[derive(Debug, Default)]
    pub struct Gate(Mutex<Inside>);

    #[derive(Debug, Default)]
    struct Inside {
        frozen: bool,
        dead: bool,
        waiting: Vec<Waker>,
    }

    impl Gate {
        /// Nothing of the process runs until it is thawed.
        pub fn freeze(&self) {
            self.inside().frozen = true;
        }

        /// The process goes on, believing what it believed.
        pub fn thaw(&self) {
            let mut inside = self.inside();
            inside.frozen = false;
            inside.waiting.drain(..).for_each(Waker::wake);
        }

        /// Runs `task` as a part of the process, for what a simulation starts itself.
        pub async fn around(self: Arc<Self>, task: impl Future<Output = ()>) {
            gated(self, task).await;
        }

        /// The process is gone: its tasks end where they are.
        pub fn kill(&self) {
            let mut inside = self.inside();
            inside.dead = true;
            inside.waiting.drain(..).for_each(Waker::wake);
        }

        fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
            self.0.lock().expect("no holder panics")
        }
    }

    /// Runs a task behind the gate. Killed, it is dropped where it is and never ends.
    pub(super) async fn gated<T>(gate: Arc<Gate>, task: impl Future<Output = T>) -> T {
        let mut task = Box::pin(Some(task));
        poll_fn(|cx| {
            let mut inside = gate.inside();
            if inside.dead {
                drop(inside);
                task.set(None);
                return Poll::Pending;
            }
            // Registered also while it runs: a kill must reach a task that waits for something else.
            if !inside.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                inside.waiting.push(cx.waker().clone());
            }
            if inside.frozen {
                return Poll::Pending;
            }
            drop(inside);
            match task.as_mut().as_pin_mut() {
                Some(task) => task.poll(cx),
                None => Poll::Pending,
            }
        })
        .await
    }
}
