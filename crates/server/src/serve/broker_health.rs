//! Asks the broker how it is, again and again, so that `/readyz` and `/metrics` never have to (ING-8).
//!
//! Comes in: the opened broker. Goes out: [`BrokerHealth`], which those routes read from memory, at once, whatever the lag,
//! the number of partitions or the state of the cluster.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use super::app::App;
use super::tasks::ServerTask;

/// Between two looks at whether the broker takes messages.
const HEALTH_EVERY: Duration = Duration::from_secs(1);
/// Looks at its health for each look at where partitions end, which costs a remote broker more.
const HEALTH_LOOKS: u32 = 5;

/// How the broker was when it was last looked at.
#[derive(Debug, Default)]
pub(crate) struct BrokerHealth {
    /// Why messages cannot be taken or kept, if so.
    trouble: RwLock<Option<String>>,
    /// What of it does not work, though the rest does.
    besides: RwLock<Vec<String>>,
}

impl BrokerHealth {
    /// Why the broker does not take messages, if it does not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.read().expect("no holder panics").clone()
    }

    /// What of the broker does not work, though the rest does.
    pub(crate) fn besides(&self) -> Vec<String> {
        self.besides.read().expect("no holder panics").clone()
    }
}

/// Looks at the broker once: what `/readyz` says of it.
pub(super) async fn at_health(app: &App) {
    let said = |error: keylane::Error| format!("{}: {error}", error.code());
    let trouble = app.keylane.health().await.err().map(said);
    let mut besides: Vec<String> = app.keylane.troubles().await.into_iter().map(said).collect();
    besides.retain(|said| trouble.as_ref() != Some(said));
    *app.broker_health.trouble.write().expect("no holder panics") = trouble;
    *app.broker_health.besides.write().expect("no holder panics") = besides;
}

/// Looks until the task is ended. An answer that does not come holds up the next look only: what is shown is then what
/// was seen last.
pub(crate) async fn watch(app: Arc<App>) {
    app.ended_tasks.keep(ServerTask::BrokerHealth, || look_for_ever(&app)).await;
}

async fn look_for_ever(app: &App) {
    loop {
        app.keylane.look().await;
        for _ in 0..HEALTH_LOOKS {
            at_health(app).await;
            tokio::time::sleep(HEALTH_EVERY).await;
        }
    }
}
