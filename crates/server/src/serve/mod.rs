//! A server's life, and its connections: from the config to the drain, and from an accepted socket to its last byte.
//!
//! `server` opens, starts, serves, drains and ends; `start` makes topics and pipelines; `opening` answers while the
//! broker is being opened. `listen` accepts connections, which `raw_stream`, `request_head`, `leftover_body`, `linger`
//! and `write_timeout` keep within bounds; `refused_requests` says in the log whom they refused. [`App`] is what all routes share.

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
