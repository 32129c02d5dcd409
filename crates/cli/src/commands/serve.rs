//! `keylane serve`: the server, from its config to its drain.

use std::path::PathBuf;

use keylane_server::{Config, Server};

use crate::failure::Failure;
use crate::show;
use crate::signals::Signals;
use crate::telemetry::{self, LogFormat};

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The config; without one: the embedded broker in ./keylane-data, topics made by first use, no pipelines
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How events are written to standard error
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Which events: a level, or levels by module (`info,keylane=debug`)
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    log: String,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    telemetry::start(args.log_format, &args.log)?;
    let config = Config::load(args.config.as_deref()).map_err(|error| Failure::Config(error.to_string()))?;
    let mut signals = Signals::take()?;
    let server = tokio::select! {
        started = Server::start(config) => started.map_err(|error| Failure::Failed(error.to_string()))?,
        // Nothing was taken in yet, so there is nothing to drain.
        () = signals.next() => return Ok(()),
    };
    // A server whose output nobody reads is a server all the same.
    let _ = show::line(&format!("listening on http://{}", server.address()));
    signals.next().await;
    tracing::info!("draining; a second signal stops at once");
    let drain = async { server.stop().await.map_err(|error| Failure::Failed(error.to_string())) };
    signals.unless_again(drain).await
}
