//! Checks the broker again and again in the background, so that `/readyz` and `/metrics` never have to (ING-8).
//!
//! In: the opened broker. Out: [`BrokerHealth`], which those routes read from memory. So they answer at once, whatever
//! the lag, the number of partitions or the state of the cluster.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use super::app::App;
use super::tasks::ServerTask;

/// Time between two checks whether the broker accepts messages.
const HEALTH_EVERY: Duration = Duration::from_secs(1);
/// Number of such checks for each read of the partitions' ends, which costs a remote broker more.
const HEALTH_LOOKS: u32 = 5;

/// The state of the broker when it was last checked.
#[derive(Debug, Default)]
pub(crate) struct BrokerHealth {
    /// Why the broker does not accept messages, if it does not.
    trouble: RwLock<Option<String>>,
    /// Troubles with parts of the broker, while the rest works.
    besides: RwLock<Vec<String>>,
}

impl BrokerHealth {
    /// Why the broker does not accept messages, if it does not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.read().expect("no holder panics").clone()
    }

    /// Troubles with parts of the broker, while the rest works.
    pub(crate) fn besides(&self) -> Vec<String> {
        self.besides.read().expect("no holder panics").clone()
    }
}

/// Checks the broker once, and stores what `/readyz` will report.
pub(super) async fn at_health(app: &App) {
    let said = |error: keylane::Error| format!("{}: {error}", error.code());
    let trouble = app.keylane.health().await.err().map(said);
    let mut besides: Vec<String> = app.keylane.troubles().await.into_iter().map(said).collect();
    besides.retain(|said| trouble.as_ref() != Some(said));
    *app.broker_health.trouble.write().expect("no holder panics") = trouble;
    *app.broker_health.besides.write().expect("no holder panics") = besides;
}

/// Checks the broker until the task is ended. If the broker does not answer, only the next check is delayed, and the
/// routes show the state from the last check.
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
