//! An acknowledgement, and the promise of one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use keylane_broker::BrokerError;
use tokio::sync::oneshot;

use crate::Error;

/// How a message that was sent ended, or will.
pub struct Ticket(pub(crate) oneshot::Receiver<Result<Receipt, Error>>);

impl Future for Ticket {
    type Output = Result<Receipt, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|ended| ended.unwrap_or(Err(BrokerError::Closed.into())))
    }
}

/// Where a message was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// Its id: the caller's, or the one made for it. On a topic that keeps no others than callers' it is where the message
    /// lies; empty if the broker did not say where.
    pub id: String,
    /// The partition.
    pub partition: u32,
    /// The position; none if the broker is away and the message is durable in the spill (PRD-3), or if the broker has
    /// it and did not say where.
    pub offset: Option<u64>,
    pub(crate) spilled: bool,
}

impl Receipt {
    /// True if the message waits on this machine for the broker.
    pub fn is_spilled(&self) -> bool {
        self.spilled
    }
}
