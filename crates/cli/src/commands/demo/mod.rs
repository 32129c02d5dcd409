//! `keylane demo`: a server, a pipeline and steady traffic in one process, on the embedded broker.
//!
//! Thousands of keys flow; one key is slow and one fails for minutes at a time, and neither may hold up another. A
//! [`Witness`] checks the order of every key as the handler sees it; a line a second tells how it goes.

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

/// The topic, and the pipeline on it.
const TOPIC: &str = "demo";
/// What the slow key's handler takes.
const SLOW: Duration = Duration::from_secs(1);
/// The failing key fails for this part of each [`SPELL_MS`], long enough to spend its retries and be seen as stuck.
const FAILING_MS: u64 = 40_000;
/// A spell of failing and recovering.
const SPELL_MS: u64 = 60_000;
/// What is stuck is tried again this often, so that a recovery shows within seconds.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How much of the log a demonstration keeps.
const RETENTION_BYTES: u64 = 1 << 30;

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the server listens
    #[arg(long, default_value = "127.0.0.1:7400")]
    listen: SocketAddr,
    /// Folder for the log, kept; without it, one that goes away with the demonstration
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Messages a second
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Keys, besides the slow and the failing one
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
    /// End after so many seconds, as Ctrl-C would
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Which events are logged: a level, or levels by module
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
    // Whoever closed the output still gets a drain.
    let _ = show::line("draining …");
    let drain = async {
        let drained = pipeline.drain().await.map_err(failed);
        server.stop().await.map_err(failed).and(drained)
    };
    let drained = signals.unless_again(drain).await;
    let told = farewell(&produced, &witness);
    // The worst first: a closed output must not hide a violation.
    match witness.violations() {
        0 => ended.and(drained).and(told),
        violations => Err(Failure::Failed(format!("{violations} order violations"))),
    }
}

/// Lets traffic flow until `over`, and then until what was sent is acknowledged, so that the count is exact.
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

/// What the demonstration does with a message: nothing but take its time, and watch the order.
async fn handle(message: Message, witness: Arc<Witness>, clock: Clock) -> Outcome {
    let key = message.key().unwrap_or_default();
    // What somebody else sent to the topic has no number, and no order to check.
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

/// A line a second, until `seconds` are over.
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

/// Messages of this run that are durable and not handled. The handled ones are read first, so that one that is taken in
/// and handled in between does not count as minus one.
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
