//! The promise of an acknowledgement.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use keylane_broker::BrokerError;
use tokio::sync::oneshot;

use crate::{Error, Receipt};

/// How a message that was sent ended, or will.
pub struct Ticket(pub(crate) oneshot::Receiver<Result<Receipt, Error>>);

impl Future for Ticket {
    type Output = Result<Receipt, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|ended| ended.unwrap_or(Err(BrokerError::Closed.into())))
    }
}
