//! SIGINT and SIGTERM: the first asks for a drain, the second cuts the drain short.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Both signals; from when this is made on, neither ends the process by itself.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes over both signals.
    pub fn take() -> Result<Signals, Failure> {
        let take = |kind| {
            signal(kind).map_err(|error| Failure::Failed(format!("cannot listen for signals: {error}")))
        };
        Ok(Signals { interrupt: take(SignalKind::interrupt())?, terminate: take(SignalKind::terminate())? })
    }

    /// Waits for a signal. Cancel safe.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
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
