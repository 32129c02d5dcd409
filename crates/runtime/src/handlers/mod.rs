//! What runs on a message: the [`Handler`] trait, closures as handlers, and the handlers that come with Keylane.

mod handler;
mod http;
mod log;

pub use handler::{Attempt, Closure, Handler, IntoHandler, IntoOutcome};
pub use http::{
    CONTENT_TYPE_HEADER as CONTENT_TYPE, HttpHandler, HttpSettings, HttpSettingsError, OCTET_STREAM,
    is_content_type,
};
pub use log::LogHandler;
