//! `keylane serve`: the server, from its config to its drain.

use std::path::PathBuf;
use std::pin::pin;

use keylane_server::{Config, Environment, ServeError, Server};

use crate::failure::Failure;
use crate::show;
use crate::signals::Signals;
use crate::telemetry::{self, LogFormat};

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The config; without one: the embedded broker in ./keylane-data, topics made by first use, no pipelines
    #[arg(short, long, value_name = "FILE", env = "KEYLANE_CONFIG")]
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
    for name in Environment::process().without_effect() {
        tracing::warn!(
            "the environment variable {name} changes nothing; settings are named with their levels, as in KEYLANE_SERVER__LISTEN"
        );
    }
    let mut signals = Signals::take()?;
    let mut starting = pin!(Server::start(config));
    let server = tokio::select! {
        started = &mut starting => started.map_err(failed)?,
        // What has begun to start has a broker open and perhaps pipelines at work: it ends as any other does.
        () = signals.next() => {
            let drain = async { starting.await.map_err(failed)?.stop().await.map_err(failed) };
            return signals.unless_again(drain).await;
        }
    };
    // A server whose output nobody reads is a server all the same.
    let _ = show::line(&format!("listening on http://{}", server.address()));
    let failing = tokio::select! {
        () = signals.next() => None,
        error = server.failed() => Some(failed(error)),
    };
    if let Some(failure) = failing {
        // The error that stopped us is the one worth telling.
        let _ = signals.unless_again(async { server.stop().await.map_err(failed) }).await;
        return Err(failure);
    }
    tracing::info!("draining; a second signal stops at once");
    signals.unless_again(async { server.stop().await.map_err(failed) }).await
}

/// What a server ended with, with the code under which it is explained.
pub fn failed(error: impl Into<ServeError>) -> Failure {
    let error = error.into();
    let said = format!("{error} ({})", error.code());
    match error {
        ServeError::NoTokens(_) => Failure::Wrong(said),
        _ => Failure::Failed(said),
    }
}
