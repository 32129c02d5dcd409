//! Handlers, the code that runs on a message: the [`Handler`] trait, closures as handlers, and Keylane's own handlers.

mod http;
mod log;

use std::fmt::Display;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use keylane_core::{Delivery, Outcome};

use crate::Message;

pub use http::{
    CONTENT_TYPE_HEADER as CONTENT_TYPE, HttpHandler, HttpSettings, HttpSettingsError, OCTET_STREAM,
    is_content_type,
};
pub use log::LogHandler;

/// Handles messages. A handler borrows each message, so that an attempt copies nothing; a closure that takes an owned
/// [`Message`] is a handler too.
///
/// ```
/// use keylane::{Attempt, Handler, Outcome};
///
/// struct Count(std::sync::atomic::AtomicU64);
///
/// impl Handler for Count {
///     async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
///         self.0.fetch_add(attempt.payload().map_or(0, |p| p.len() as u64), std::sync::atomic::Ordering::Relaxed);
///         Outcome::Done
///     }
/// }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Handles one message. Called again for the same message if it fails, and after a crash; never for two messages of
    /// one key at the same time.
    fn handle<'a>(&'a self, attempt: Attempt<'a>) -> impl Future<Output = Outcome> + Send + 'a;

    /// Whether a call may occupy its thread: by a blocking read, or by computing for long. If a handler does that
    /// often, its pipeline gives each call a thread of its own, and warns. If the handler says no, it is never blamed:
    /// a call of it that takes long all the same only shows that the machine is short of time.
    fn may_block(&self) -> bool {
        true
    }
}

impl<H: Handler> Handler for Arc<H> {
    fn handle<'a>(&'a self, attempt: Attempt<'a>) -> impl Future<Output = Outcome> + Send + 'a {
        H::handle(self, attempt)
    }

    fn may_block(&self) -> bool {
        H::may_block(self)
    }
}

/// One call of a handler: a delivery, and the number of the attempt. Reads like the delivery itself.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) topic: &'a Arc<str>,
    pub(crate) number: u32,
}

impl<'a> Attempt<'a> {
    /// The number of this attempt, from 1. A restart of Keylane begins at 1 again.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The topic from which the message was read.
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// The message, to be kept beyond this attempt. Shares the buffer into which it was read.
    pub fn to_message(&self) -> Message {
        Message::read(Arc::clone(self.topic), self.delivery.clone(), self.number)
    }
}

impl Deref for Attempt<'_> {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        self.delivery
    }
}

/// The answers that a closure may give: an [`Outcome`], `()`, or a `Result` whose error is a retryable failure.
pub trait IntoOutcome {
    /// Converts the answer.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl<E: Display> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::failed(error.to_string()),
        }
    }
}

/// The argument of a pipeline's `.handle(…)`: a [`Handler`], or a closure from [`Message`] to a future.
pub trait IntoHandler<Marker> {
    /// The handler that it becomes.
    type Handler: Handler;
    /// Converts it.
    fn into_handler(self) -> Self::Handler;
}

impl<H: Handler> IntoHandler<()> for H {
    type Handler = H;

    fn into_handler(self) -> H {
        self
    }
}

/// A closure as a handler.
pub struct Closure<C, F>(C, PhantomData<fn() -> F>);

impl<C, F> IntoHandler<(F,)> for C
where
    C: Fn(Message) -> F + Send + Sync + 'static,
    F: Future + Send + 'static,
    F::Output: IntoOutcome,
{
    type Handler = Closure<C, F>;

    fn into_handler(self) -> Closure<C, F> {
        Closure(self, PhantomData)
    }
}

impl<C, F> Handler for Closure<C, F>
where
    C: Fn(Message) -> F + Send + Sync + 'static,
    F: Future + Send + 'static,
    F::Output: IntoOutcome,
{
    fn handle<'a>(&'a self, attempt: Attempt<'a>) -> impl Future<Output = Outcome> + Send + 'a {
        let future = (self.0)(attempt.to_message());
        async move { future.await.into_outcome() }
    }
}
