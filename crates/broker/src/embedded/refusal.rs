//! Remembers whether a log refuses writes for a reason that may pass, for health checks and for warnings.

use std::sync::Mutex;

use super::failure::Failure;
use super::lock;
use crate::contract::BrokerError;

/// The reason why a log refuses writes at this moment, if it does.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    why: Mutex<Option<BrokerError>>,
}

impl Refusal {
    /// Notes that the log refused a write. Warns only once until the log takes writes again.
    pub fn begin(&self, log: &str, failure: &Failure) {
        let mut why = lock(&self.why);
        if why.is_none() {
            tracing::warn!(log, %failure, "nothing more is taken for now; nothing that was acknowledged is lost");
        }
        *why = Some(failure.to_broker_error());
    }

    /// Notes that the log took a write, or could take one.
    pub fn end(&self, log: &str) {
        if lock(&self.why).take().is_some() {
            tracing::info!(log, "messages and records are taken again");
        }
    }

    /// The reason, if the log refuses writes now.
    pub fn now(&self) -> Option<BrokerError> {
        lock(&self.why).clone()
    }
}
