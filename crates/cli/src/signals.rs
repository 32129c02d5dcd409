//! SIGINT and SIGTERM: the first asks for a drain, the second cuts the drain short. SIGHUP changes nothing.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// The signals; from when this is made on, none of them ends the process by itself.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Terminals send it when they close, and operators to have a config read again.
    hangup: Signal,
}

impl Signals {
    /// Takes the signals over.
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

    /// Waits for a signal that asks for an end. Cancel safe.
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

    /// Lets a drain finish, unless another signal comes.
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
