//! What may be in flight: bounded in calls and bytes (PRD-2). Past the bound a caller waits or fails at once, as it chose.
//!
//! A call's share goes with its messages, not with its caller: it is given back when the broker has let go of them (P5).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use keylane_broker::ProduceError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Error;
use crate::produce::Producer;
use crate::tasks::Tasks;

/// Calls in flight (PRD-2): the seed's figure; a batch is one call.
pub const CALLS_MAX: usize = 1_000;
/// Bytes in flight (PRD-2): enough for a thousand batches of 64 KiB, little beside the pipelines' buffers.
pub const BYTES_MAX: usize = 64 << 20;

/// What a caller does when too much is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenFull {
    /// Wait until there is room.
    #[default]
    Wait,
    /// Fail at once: "producer in-flight limit reached".
    Fail,
}

/// A call's share of what may be in flight. It is with the call's messages, whether somebody still waits for them or not.
pub(crate) struct Room {
    producer: Producer,
    number: u64,
    permits: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

impl Room {
    pub(crate) fn new(
        producer: Producer,
        number: u64,
        permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    ) -> Room {
        Room { producer, number, permits: Some(permits) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.permits = None;
        self.producer.call_ended(self.number);
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A call that keeps its room for as long as the broker has its messages, also if nobody waits for it any more: then it
/// goes on by itself. Callers who give up and come again would else have the broker hold any number of bytes (P5).
pub(crate) struct ToItsEnd<T: Send + 'static> {
    call: Option<(Boxed<T>, Room)>,
    tasks: Tasks,
}

impl<T: Send + 'static> ToItsEnd<T> {
    pub(crate) fn new(call: Boxed<T>, room: Room, tasks: &Tasks) -> ToItsEnd<T> {
        ToItsEnd { call: Some((call, room)), tasks: tasks.clone() }
    }
}

impl<T: Send + 'static> Future for ToItsEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let (call, _) = self.call.as_mut().expect("it is not polled once it has ended");
        let ended = std::task::ready!(call.as_mut().poll(cx));
        // First, so that who hears of it finds room.
        self.call = None;
        Poll::Ready(ended)
    }
}

impl<T: Send + 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        if let Some((call, room)) = self.call.take() {
            self.tasks.spawn_if_runs(async move {
                call.await;
                drop(room);
            });
        }
    }
}

/// What may be in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    calls: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Default for InFlight {
    fn default() -> InFlight {
        InFlight { calls: Arc::new(Semaphore::new(CALLS_MAX)), bytes: Arc::new(Semaphore::new(BYTES_MAX)) }
    }
}

impl InFlight {
    /// Calls in flight.
    pub(crate) fn calls(&self) -> usize {
        CALLS_MAX - self.calls.available_permits()
    }

    /// Returns once no call is in flight.
    pub(crate) async fn idle(&self) {
        let _all = self.calls.acquire_many(CALLS_MAX as u32).await.expect("never closed");
    }

    /// Bytes in flight.
    pub(crate) fn bytes(&self) -> usize {
        BYTES_MAX - self.bytes.available_permits()
    }

    /// The larger of the shares of both bounds that are used.
    pub(crate) fn share(&self) -> f64 {
        (self.calls() as f64 / CALLS_MAX as f64).max(self.bytes() as f64 / BYTES_MAX as f64)
    }

    pub(crate) async fn room(
        &self,
        when_full: WhenFull,
        bytes: usize,
    ) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), Error> {
        let bytes = bytes.min(BYTES_MAX) as u32;
        let (calls, room) = (Arc::clone(&self.calls), Arc::clone(&self.bytes));
        let full = |_| ProduceError::InFlight { calls_max: CALLS_MAX, bytes_max: BYTES_MAX };
        match when_full {
            WhenFull::Fail => {
                let call = calls.try_acquire_owned().map_err(full)?;
                Ok((call, room.try_acquire_many_owned(bytes).map_err(full)?))
            }
            WhenFull::Wait => {
                let call = calls.acquire_owned().await.expect("never closed");
                Ok((call, room.acquire_many_owned(bytes).await.expect("never closed")))
            }
        }
    }
}
