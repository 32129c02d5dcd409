//! Runs the outboxes of the config (PRD-5): each has a task that relays its rows until the server drains.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use keylane::outbox::{OutboxOptions, OutboxStatus};
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::app::{App, Phase};
use super::tasks::{self, ServerTask};

/// The running relays, by the name of their outbox.
#[derive(Default)]
pub(crate) struct Outboxes(Mutex<BTreeMap<String, Running>>);

struct Running {
    status: watch::Receiver<OutboxStatus>,
    task: Option<JoinHandle<()>>,
}

/// An outbox as the admin API shows it.
#[derive(Debug, Serialize)]
pub(crate) struct ShownOutbox {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) status: OutboxStatus,
}

impl Outboxes {
    /// Starts the relay of an outbox. It stops when the server drains.
    pub(crate) fn start(&self, app: &Arc<App>, name: &str, options: &OutboxOptions) {
        let relay = app.keylane.outbox(options.clone());
        let status = relay.watch();
        let mut phase = app.phase.subscribe();
        let (named, app) = (name.to_owned(), Arc::clone(app));
        let task = tasks::spawn(async move {
            let draining = async { _ = phase.wait_for(|phase| *phase >= Phase::Draining).await };
            let relaying = app.ended_tasks.supervise(ServerTask::Outbox, relay.run_until(draining));
            if let Ok(Err(error)) = relaying.await {
                tracing::error!(outbox = named, code = %error.code(), %error, "an outbox cannot be relayed");
            }
        });
        self.running().insert(name.to_owned(), Running { status, task: Some(task) });
    }

    /// Waits until all relays have stopped. The caller has already moved the server to the phase `Draining`, which
    /// tells them to stop.
    pub(crate) async fn stopped(&self) {
        let tasks: Vec<_> = self.running().values_mut().filter_map(|running| running.task.take()).collect();
        join_all(tasks).await;
    }

    /// The status of each outbox.
    pub(crate) fn shown(&self) -> Vec<ShownOutbox> {
        let shown = |(name, running): (&String, &Running)| ShownOutbox {
            name: name.clone(),
            status: running.status.borrow().clone(),
        };
        self.running().iter().map(shown).collect()
    }

    fn running(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Running>> {
        self.0.lock().expect("no holder panics")
    }
}
