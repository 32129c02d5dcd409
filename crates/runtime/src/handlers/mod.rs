//! Handlers that come with Keylane.

mod address;
mod answer;
mod http;
mod log;
mod trace;

pub use http::{HttpHandler, HttpSettings};
pub use log::LogHandler;
