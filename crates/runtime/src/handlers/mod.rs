//! What runs on a message: the [`Handler`] trait, closures as handlers, and the handlers that come with Keylane.

mod handler;
mod http;
mod log;

pub use handler::{Attempt, Closure, Handler, IntoHandler, IntoOutcome};
pub use http::{HttpHandler, HttpSettings};
pub use log::LogHandler;
