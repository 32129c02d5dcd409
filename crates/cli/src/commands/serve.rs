//! `keylane serve`: reads the config, runs the server until a signal arrives, and drains it.

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
    /// Config file. Without one: embedded broker in ./keylane-data, topics created by their first message, no pipelines
    #[arg(short, long, value_name = "FILE", env = "KEYLANE_CONFIG")]
    config: Option<PathBuf>,
    /// Format of the diagnostics on standard error
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Which diagnostics to write: a level, or levels by module (`info,keylane=debug`)
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
        // A server that is starting has the broker open and may have pipelines at work. So let the start finish, and
        // drain: dropping the future would leave running attempts unsettled.
        () = signals.next() => {
            let drain = async { starting.await.map_err(failed)?.stop().await.map_err(failed) };
            return signals.unless_again(drain).await;
        }
    };
    // The server keeps running if nobody reads its standard output.
    let _ = show::line(&format!("listening on http://{}", server.address()));
    let failing = tokio::select! {
        () = signals.next() => None,
        error = server.failed() => Some(failed(error)),
    };
    if let Some(failure) = failing {
        // Report the error that stopped the server. An error of the drain after it is only a consequence.
        let _ = signals.unless_again(async { server.stop().await.map_err(failed) }).await;
        return Err(failure);
    }
    tracing::info!("draining; a second signal stops at once");
    signals.unless_again(async { server.stop().await.map_err(failed) }).await
}

/// Turns an error of the server into a failure that names the error's code, under which `docs/errors/` explains it.
pub fn failed(error: impl Into<ServeError>) -> Failure {
    let error = error.into();
    let said = format!("{error} ({})", error.code());
    match error {
        ServeError::NoTokens(_) => Failure::Wrong(said),
        _ => Failure::Failed(said),
    }
}
