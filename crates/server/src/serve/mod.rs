//! The life of a server from its config to its drain, and the life of its connections.
//!
//! `server` opens, starts, serves, drains and ends; `start` makes topics and pipelines; `opening` answers requests
//! while the broker is being opened. `listen` accepts connections, which `raw_stream`, `request_head`, `leftover_body`,
//! `linger` and `write_timeout` keep within bounds; `refused_requests` logs refused requests. [`App`] is the state that
//! all routes share.

mod app;
mod broker_health;
mod file_limit;
mod leftover_body;
mod linger;
mod listen;
mod opening;
mod outboxes;
mod raw_stream;
mod refused_requests;
mod request_head;
mod server;
mod start;
mod tasks;
mod write_timeout;

pub(crate) use app::{App, Phase};
pub use server::{ServeError, Server, serve};
