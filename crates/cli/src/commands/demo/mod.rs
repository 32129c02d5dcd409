//! `keylane demo`: runs a server, a pipeline and steady traffic in one process, on the embedded broker.
//!
//! The traffic has thousands of keys. The handler is slow for one key, and fails for most of each minute for another;
//! neither key may delay the others. A [`Witness`] checks the order of every key as the handler sees it. Each second
//! the command prints a line with the figures.

mod traffic;
mod witness;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use keylane::raw::Clock;
use keylane::{Message, Outcome, Pipeline, Settings, TopicSpec};
use keylane_server::{Config, Server};
use tokio::time::MissedTickBehavior;

use self::traffic::{FAILING_KEY, Numbered, SLOW_KEY, Traffic};
use self::witness::Witness;
use crate::commands::serve::failed;
use crate::failure::Failure;
use crate::show::{self, thousands};
use crate::signals::Signals;
use crate::telemetry::{self, LogFormat};

/// Name of the topic, and of the pipeline that reads it.
const TOPIC: &str = "demo";
/// How long the handler takes for a message of the slow key.
const SLOW: Duration = Duration::from_secs(1);
/// How long the failing key fails in each [`SPELL_MS`]: long enough that its message uses up its retries and its lane
/// shows as stuck.
const FAILING_MS: u64 = 40_000;
/// One period of the failing key: it fails, then it recovers.
const SPELL_MS: u64 = 60_000;
/// How often a stuck message is retried: so often that the recovery shows within seconds.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Bytes of the log that the demonstration keeps.
const RETENTION_BYTES: u64 = 1 << 30;

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address and port of the server
    #[arg(long, default_value = "127.0.0.1:7400")]
    listen: SocketAddr,
    /// Folder for the log, which stays afterwards; without it, a temporary folder that is deleted at the end
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Messages per second
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Number of keys, besides the slow key and the failing key
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
    /// Drain and end after this many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Which diagnostics to write: a level, or levels by module
    #[arg(long, env = "RUST_LOG", default_value = "error")]
    log: String,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    telemetry::start(LogFormat::Text, &args.log)?;
    let mut signals = Signals::take()?;
    let temporary = match args.data {
        Some(_) => None,
        None => Some(temporary_folder()?),
    };
    let mut config = Config::default();
    config.server.listen = args.listen;
    if let Some(folder) = args.data.as_deref().or(temporary.as_ref().map(|folder| folder.path())) {
        config.data = folder.to_owned();
    }
    let server = Server::start(config).await.map_err(failed)?;
    let witness = Arc::new(Witness::new(server.keylane().producer().wall_ms()));
    let pipeline = start_pipeline(&server, &witness).await?;
    let mut traffic = Traffic::new(server.keylane().clone(), witness.run(), args.keys, args.rate);
    let produced = traffic.produced();
    let watched = async {
        greet(&server, &args)?;
        tokio::select! {
            ended = watch(&pipeline, &witness, args.seconds) => ended,
            () = signals.next() => Ok(()),
        }
    };
    let ended = flow_until(&mut traffic, watched).await;
    // The drain runs even if standard output is closed, so the result of this line is ignored.
    let _ = show::line("draining …");
    let drain = async {
        let drained = pipeline.drain().await.map_err(failed);
        server.stop().await.map_err(failed).and(drained)
    };
    let drained = signals.unless_again(drain).await;
    let told = farewell(&produced, &witness);
    // Report order violations before any other failure: a closed output must not hide them.
    match witness.violations() {
        0 => ended.and(drained).and(told),
        violations => Err(Failure::Failed(format!("{violations} order violations"))),
    }
}

/// Runs the traffic until `over` ends, and then until all sent messages are acknowledged. Otherwise the number of
/// produced messages would be wrong.
async fn flow_until(
    traffic: &mut Traffic,
    over: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let enough = AtomicBool::new(false);
    let flow = traffic.flow(&enough);
    tokio::pin!(flow);
    tokio::select! {
        failure = &mut flow => failure.map_err(failed),
        ended = over => {
            enough.store(true, Ordering::Relaxed);
            ended.and(flow.await.map_err(failed))
        }
    }
}

async fn start_pipeline(server: &Server, witness: &Arc<Witness>) -> Result<Pipeline, Failure> {
    let spec = TopicSpec { partitions: 8, retention_bytes: Some(RETENTION_BYTES), ..TopicSpec::default() };
    server.keylane().ensure_topic(TOPIC, &spec).await.map_err(failed)?;
    let mut settings = Settings::default();
    settings.retry_max = RETRY_MAX;
    let clock = Clock::system();
    let witness = Arc::clone(witness);
    server
        .keylane()
        .pipeline(TOPIC)
        .settings(settings)
        .handle(move |message: Message| handle(message, Arc::clone(&witness), clock))
        .start()
        .await
        .map_err(failed)
}

/// The handler of the demonstration: it only reports to the witness, waits, and for the failing key fails.
async fn handle(message: Message, witness: Arc<Witness>, clock: Clock) -> Outcome {
    let key = message.key().unwrap_or_default();
    // A message that another program sent to the topic has no number, so its order cannot be checked.
    let Ok(numbered) = message.parse::<Numbered>() else {
        return Outcome::Done;
    };
    let sight = witness.begin(key, &numbered);
    if key == FAILING_KEY.as_bytes() && clock.now_ms() % SPELL_MS < FAILING_MS {
        return Outcome::failed("the demonstration lets this key fail for a while");
    }
    let takes = match key == SLOW_KEY.as_bytes() {
        true => SLOW,
        false => Duration::from_millis(1 + numbered.number * 7 % 20),
    };
    tokio::time::sleep(takes).await;
    sight.done();
    Outcome::Done
}

/// Prints a line each second, until `seconds` are over.
async fn watch(pipeline: &Pipeline, witness: &Witness, seconds: Option<u64>) -> Result<(), Failure> {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await;
    let mut handled_before = 0;
    for second in 1..=seconds.unwrap_or(u64::MAX) {
        tick.tick().await;
        let status = pipeline.status().await.map_err(failed)?;
        let handled = witness.handled() + witness.handled_of_earlier_runs();
        let order = match witness.violations() {
            0 => "yes".to_owned(),
            violations => format!("NO ({violations} violations)"),
        };
        show::line(&format!(
            "{second:>5} s  handled {:>6}/s  keys {:>6}  in order {order}  lag {:>5}  running {:>4}  stuck lanes {}",
            thousands(handled - handled_before),
            thousands(witness.keys()),
            thousands(status.lag.messages),
            thousands(status.in_flight),
            status.lanes.stuck,
        ))?;
        handled_before = handled;
    }
    Ok(())
}

fn greet(server: &Server, args: &Args) -> Result<(), Failure> {
    let address = server.address();
    show::line(&format!("Keylane runs. Status page: http://{address}/"))?;
    show::line(&format!(
        "{} messages/s over {} keys; key `{SLOW_KEY}` takes {} s a message, key `{FAILING_KEY}` fails {} s of every {} s",
        thousands(args.rate),
        thousands(args.keys),
        SLOW.as_secs(),
        FAILING_MS / 1_000,
        SPELL_MS / 1_000,
    ))?;
    show::line(&format!(
        "try: keylane lanes --url http://{address}   keylane tail {TOPIC} --url http://{address}   (Ctrl-C drains and ends)"
    ))
}

fn farewell(produced: &AtomicU64, witness: &Witness) -> Result<(), Failure> {
    show::line(&format!(
        "{} messages taken in, {} handled, {} left in the log; {} keys; {} order violations",
        thousands(produced.load(Ordering::Relaxed)),
        thousands(witness.handled()),
        thousands(left(produced, witness)),
        thousands(witness.keys()),
        witness.violations(),
    ))?;
    match witness.first_violation() {
        Some(violation) => show::line(&show::harmless(&format!("the first: {violation}"))),
        None => Ok(()),
    }
}

/// Messages of this run that are durable and not handled yet. The handled count is read first: if a message were
/// produced and handled between the two reads, the other order would give a negative number.
fn left(produced: &AtomicU64, witness: &Witness) -> u64 {
    let handled = witness.handled();
    produced.load(Ordering::Relaxed).saturating_sub(handled)
}

fn temporary_folder() -> Result<tempfile::TempDir, Failure> {
    tempfile::Builder::new()
        .prefix("keylane-demo-")
        .tempdir()
        .map_err(|error| Failure::Failed(format!("cannot make a temporary folder: {error}")))
}
