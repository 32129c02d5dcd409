//! Handles signals: the first SIGINT or SIGTERM starts a drain, the second one ends the process without waiting for the
//! drain. SIGHUP only causes a warning.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// The signals that this process handles. While this exists, none of them ends the process by default.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Terminals send SIGHUP when they close, and operators send it to make a server read its config again.
    hangup: Signal,
}

impl Signals {
    /// Starts to handle the signals.
    pub fn take() -> Result<Signals, Failure> {
        let take = |kind| {
            signal(kind).map_err(|error| Failure::Failed(format!("cannot listen for signals: {error}")))
        };
        Ok(Signals {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: take(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGINT or SIGTERM. Cancel safe.
    pub async fn next(&mut self) {
        loop {
            tokio::select! {
                biased;
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                _ = self.hangup.recv() => {
                    tracing::warn!(
                        "SIGHUP is ignored: this version does not read its config again; restart it to apply a change"
                    );
                }
            }
        }
    }

    /// Waits for `drain`, but gives it up if another signal arrives.
    pub async fn unless_again<T>(
        &mut self,
        drain: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            drained = drain => drained,
            () = self.next() => Err(Failure::Failed(
                "a second signal: stopped without a drain; what was not settled is handled again".to_owned(),
            )),
        }
    }
}
