//! Whether a log refuses what it is asked to write, for a reason that may pass: for health, and for the log file.

use std::sync::Mutex;

use super::failure::Failure;
use super::lock;
use crate::contract::BrokerError;

/// Why a log refuses now, if it does.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    why: Mutex<Option<BrokerError>>,
}

impl Refusal {
    /// It refused something. Said once, until it takes something again.
    pub fn begin(&self, log: &str, failure: &Failure) {
        let mut why = lock(&self.why);
        if why.is_none() {
            tracing::warn!(log, %failure, "nothing more is taken for now; nothing that was acknowledged is lost");
        }
        *why = Some(failure.to_broker_error());
    }

    /// It took something, or could.
    pub fn end(&self, log: &str) {
        if lock(&self.why).take().is_some() {
            tracing::info!(log, "messages and records are taken again");
        }
    }

    /// Why it refuses.
    pub fn now(&self) -> Option<BrokerError> {
        lock(&self.why).clone()
    }
}
