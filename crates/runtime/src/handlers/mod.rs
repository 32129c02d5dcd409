//! Handlers that come with Keylane.

mod address;
mod answer;
pub(crate) mod content_type;
mod http;
mod log;
mod signature;
mod trace;

pub use content_type::{CONTENT_TYPE, OCTET_STREAM, is_content_type};
pub use http::{HttpHandler, HttpSettings, HttpSettingsError};
pub use log::LogHandler;
