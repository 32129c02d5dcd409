//! The only file that spawns tasks and threads, and the one that notices when one of them ends as nobody asked.
//!
//! A task that panics would just be gone, and what it did would not be done any more. So what must not end stands in
//! [`Tasks::supervise`] or [`Tasks::keep`]: a panic is logged with what it said, counted by [`TaskKind`], and somebody
//! goes on in its place. Who that is stands with each kind.
//!
//! All tasks of one [`crate::Keylane`] go through one [`Tasks`]. In a simulation it has a gate: everything that the
//! simulated process runs stands behind it, so that the process can be frozen, woken late, or killed between any two
//! steps, while the others go on.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use keylane_core::ErrorCode;
use tokio::task::JoinHandle;

#[cfg(feature = "testing")]
pub use gate::Gate;

/// Runs `work`, which should not block its thread but may: a worker of the runtime hands its other tasks to another
/// thread meanwhile. A runtime of one thread has nobody to hand them to.
#[allow(clippy::disallowed_methods, reason = "this is the file that spawns threads")]
pub(crate) fn may_block<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Workers of the runtime that this runs on.
pub(crate) fn workers() -> usize {
    tokio::runtime::Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers())
}

/// Before something that ended begins anew: one that ends at once must not keep a core busy, nor fill the log.
const AGAIN: Duration = Duration::from_secs(1);

/// What must not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskKind {
    /// A shard's loop. Another takes its place, and its partitions start over.
    Shard,
    /// The owner of a partition. The partition starts over.
    Owner,
    /// The reader of a partition. The partition starts over.
    Reader,
    /// Who follows a group's assignment. It joins the group anew.
    Group,
    /// Who lets partitions that were added be read. It begins anew.
    ReadLimits,
    /// The thread that finds handlers that block theirs. It begins anew.
    Watchdog,
    /// Who writes the spill. It begins anew.
    SpillWriter,
    /// Who brings the spill to the broker. It begins anew.
    SpillDrain,
    /// Who brings one partition of the spill to the broker. The partition is tried again.
    SpillPartition,
    /// Who tries again what the broker refused of a topic. It begins anew.
    SpillRefused,
    /// Who waits for the broker's answer to a call that the spill may have to keep. Nothing is known of the call then.
    SpillCall,
    /// Who calls back what is under way to a broker that is away. It begins anew.
    SpillRecall,
    /// Who sees that the broker is away. It begins anew.
    SpillWatch,
    /// Who relays an outbox. It begins anew.
    Relay,
    /// Who stores a partition's dead letters. The partition starts over.
    Burial,
    /// Who makes the broker's commits of a pipeline. It begins anew.
    Committer,
    /// What a pipeline runs in: who follows its group, and its committer. The pipeline has stopped.
    Pipeline,
}

impl TaskKind {
    /// Every kind.
    pub const ALL: [TaskKind; 17] = [
        TaskKind::Shard,
        TaskKind::Owner,
        TaskKind::Reader,
        TaskKind::Group,
        TaskKind::ReadLimits,
        TaskKind::Watchdog,
        TaskKind::SpillWriter,
        TaskKind::SpillDrain,
        TaskKind::SpillPartition,
        TaskKind::SpillRefused,
        TaskKind::SpillCall,
        TaskKind::SpillRecall,
        TaskKind::SpillWatch,
        TaskKind::Relay,
        TaskKind::Burial,
        TaskKind::Committer,
        TaskKind::Pipeline,
    ];

    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            TaskKind::Shard => "shard",
            TaskKind::Owner => "owner",
            TaskKind::Reader => "reader",
            TaskKind::Group => "group",
            TaskKind::ReadLimits => "read_limits",
            TaskKind::Watchdog => "watchdog",
            TaskKind::SpillWriter => "spill_writer",
            TaskKind::SpillDrain => "spill_drain",
            TaskKind::SpillPartition => "spill_partition",
            TaskKind::SpillRefused => "spill_refused",
            TaskKind::SpillCall => "spill_call",
            TaskKind::SpillRecall => "spill_recall",
            TaskKind::SpillWatch => "spill_watch",
            TaskKind::Relay => "relay",
            TaskKind::Burial => "burial",
            TaskKind::Committer => "committer",
            TaskKind::Pipeline => "pipeline",
        }
    }

    /// What goes on in its place, for the log.
    fn then(self) -> &'static str {
        match self {
            TaskKind::Pipeline => "its pipeline has stopped",
            TaskKind::SpillCall => "its messages count as not acknowledged",
            _ => "it is begun anew",
        }
    }
}

/// Spawns the tasks of one process.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    ended: Arc<[AtomicU64; TaskKind::ALL.len()]>,
    #[cfg(feature = "testing")]
    gate: Option<Arc<Gate>>,
    #[cfg(feature = "testing")]
    strikes: Arc<strike::Strikes>,
}

impl Tasks {
    /// Tasks behind a gate, on one thread.
    #[cfg(feature = "testing")]
    pub fn behind(gate: Arc<Gate>) -> Tasks {
        Tasks { gate: Some(gate), ..Tasks::default() }
    }

    /// Ends the next task of that kind that moves, as a panic would.
    #[cfg(feature = "testing")]
    pub fn strike(&self, kind: TaskKind) {
        self.strikes.strike(kind);
    }

    /// Here a test may end a thread.
    pub(crate) fn may_be_struck(&self, kind: TaskKind) {
        #[cfg(feature = "testing")]
        self.strikes.fall(kind);
        #[cfg(not(feature = "testing"))]
        let _ = kind;
    }

    /// How often something of each kind ended as nobody asked. More than 0 is a bug, from which it was recovered.
    pub fn ended(&self) -> impl Iterator<Item = (TaskKind, u64)> {
        TaskKind::ALL.into_iter().map(|kind| (kind, self.ended[kind as usize].load(Ordering::Relaxed)))
    }

    /// Awaits `work`. A panic is logged and counted, and what it said comes back as the error.
    pub(crate) async fn supervise<T>(
        &self,
        kind: TaskKind,
        work: impl Future<Output = T>,
    ) -> Result<T, String> {
        #[cfg(feature = "testing")]
        let work = self.strikes.around(kind, work);
        AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| self.note(kind, &*panic))
    }

    /// Does `work`, which does not wait. A panic is logged and counted, and what it said comes back as the error.
    pub(crate) fn supervise_now<T>(&self, kind: TaskKind, work: impl FnOnce() -> T) -> Result<T, String> {
        let work = AssertUnwindSafe(|| {
            self.may_be_struck(kind);
            work()
        });
        catch_unwind(work).map_err(|panic| self.note(kind, &*panic))
    }

    /// Runs in the background what `begin` makes, until that ends by itself; after a panic it begins anew.
    pub(crate) fn keep<F>(&self, kind: TaskKind, mut begin: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let tasks = self.clone();
        self.spawn(async move {
            while tasks.supervise(kind, begin()).await.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
        });
    }

    /// Runs `work` on a thread of its own until it ends by itself; after a panic it begins anew.
    #[allow(clippy::disallowed_methods, reason = "sleeps on a thread of its own")]
    pub(crate) fn keep_thread(
        &self,
        kind: TaskKind,
        name: &str,
        mut work: impl FnMut() + Send + 'static,
    ) -> std::io::Result<()> {
        let tasks = self.clone();
        self.spawn_thread(name, move || {
            while tasks.supervise_now(kind, &mut work).is_err() {
                std::thread::sleep(AGAIN);
            }
        })
    }

    fn note(&self, kind: TaskKind, panic: &(dyn Any + Send)) -> String {
        self.ended[kind as usize].fetch_add(1, Ordering::Relaxed);
        let why = format!(
            "{}: its {} ended unexpectedly: {}",
            ErrorCode::TaskEnded,
            kind.name(),
            panic_said(panic)
        );
        tracing::error!(task = kind.name(), why, "something ended that should not; {}", kind.then());
        why
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
            return tokio::spawn(gate::gated(Arc::clone(gate), task));
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

    /// True while nothing of the process may move: a pass stops where it is, and goes on there when it is thawed.
    #[cfg(feature = "testing")]
    pub(crate) fn frozen(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_frozen())
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

/// What a panic said.
pub(crate) fn panic_said(panic: &(dyn Any + Send)) -> &str {
    let said = panic.downcast_ref::<&str>().copied();
    said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(feature = "testing")]
mod strike {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::{Arc, Mutex};
    use std::task::Waker;

    use super::TaskKind;

    /// Tasks that a test ends.
    #[derive(Debug, Default)]
    pub(super) struct Strikes(Mutex<Inside>);

    #[derive(Debug, Default)]
    struct Inside {
        doomed: Vec<TaskKind>,
        there: Vec<(TaskKind, Waker)>,
    }

    impl Strikes {
        pub(super) fn strike(&self, kind: TaskKind) {
            let mut inside = self.0.lock().expect("no holder panics");
            inside.doomed.push(kind);
            inside.there.extract_if(.., |(of, _)| *of == kind).for_each(|(_, waker)| waker.wake());
        }

        /// Ends the caller if it is its turn.
        pub(super) fn fall(&self, kind: TaskKind) {
            let mut inside = self.0.lock().expect("no holder panics");
            let doomed = inside.doomed.iter().position(|doomed| *doomed == kind);
            doomed.map(|at| inside.doomed.remove(at));
            drop(inside);
            assert!(doomed.is_none(), "a test ended it");
        }

        pub(super) fn around<T>(
            self: &Arc<Self>,
            kind: TaskKind,
            work: impl Future<Output = T>,
        ) -> impl Future<Output = T> {
            let strikes = Arc::clone(self);
            async move {
                let mut work = pin!(work);
                poll_fn(|cx| {
                    strikes.fall(kind);
                    let mut inside = strikes.0.lock().expect("no holder panics");
                    if !inside.there.iter().any(|(of, waker)| *of == kind && waker.will_wake(cx.waker())) {
                        inside.there.push((kind, cx.waker().clone()));
                    }
                    drop(inside);
                    work.as_mut().poll(cx)
                })
                .await
            }
        }
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
        /// Nothing of the process runs until it is thawed. A handler may call it: then a shard stops in the middle of a
        /// pass, as a process that is stopped does.
        pub fn freeze(&self) {
            self.inside().frozen = true;
        }

        pub(super) fn is_frozen(&self) -> bool {
            let inside = self.inside();
            inside.frozen || inside.dead
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
