//! Keylane as a server: config, HTTP ingest, admin API, metrics, health, status page.
//!
//! [`Config`] is read from a file and the environment; [`serve`] runs what it says until it is told to stop. What a
//! route does is one call of the library; what it may be asked by whom is decided in `access`.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use keylane_server::{Config, serve};
//!
//! let config = Config::load(None)?;
//! serve(config, async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await?;
//! # Ok(())
//! # }
//! ```

mod access;
mod admin;
mod app;
pub mod config;
mod descriptors;
mod edge;
mod errors;
mod head;
mod health;
mod ingest;
mod linger;
mod listen;
mod look;
mod metrics;
mod openapi;
mod opening;
mod outbox;
mod page;
mod patient;
mod problem;
mod rest;
mod routes;
mod segment;
mod server;
mod spill;
mod start;
mod tail;
mod tasks;

pub use access::{Role, hash_token, is_token, new_token};
pub use config::is_name;
pub use config::{
    BrokerConfig, Config, ConfigError, Environment, HandlerConfig, PipelineConfig, TokenConfig,
};
pub use server::{ServeError, Server, serve};
