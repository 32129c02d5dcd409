//! Keylane as a server: config, HTTP ingest, admin API, metrics, health, status page.
//!
//! [`Config`] is read from a file and the environment; [`serve`] runs a server with it until the caller's future ends.
//! Each route calls one function of the library `keylane`; `http/access` decides which client may call which route.
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

mod admin;
pub mod config;
mod http;
mod ingest;
mod serve;

pub use config::is_name;
pub use config::{Config, ConfigError, Environment, HandlerConfig, PipelineConfig, TokenConfig};
pub use http::{Role, hash_token, is_token, new_token};
pub use serve::{ServeError, Server, serve};
