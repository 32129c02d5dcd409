//! `keylane bench`: every figure beside its raw limit, in one run.

use std::path::PathBuf;

use keylane_bench::{HEAD, Options, Suite};

use crate::failure::Failure;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to measure: `dispatch`, `embedded`, `ingest`, `kafka`, or figures by id such as `PRF-7`; all if left out
    what: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Folder on the disk that is to be measured
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// A Kafka cluster that is to be measured
    #[arg(long, env = "KEYLANE_KAFKA", value_name = "HOST:PORT")]
    brokers: Option<String>,
    /// Fill a log until killed: what the start-up figure does to a process of its own
    #[arg(long, hide = true, value_name = "FOLDER")]
    fill: Option<PathBuf>,
    /// Be one of the peers of bench/peers: what to do, as JSON
    #[arg(long, hide = true, value_name = "JSON")]
    peer: Option<String>,
}

/// Measures, on a thread outside of this runtime: each figure starts runtimes of its own.
pub async fn run(args: Args) -> Result<(), Failure> {
    tokio::task::block_in_place(|| {
        let measuring = std::thread::Builder::new().name("bench".to_owned()).spawn(move || measure(&args));
        let measuring =
            measuring.map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
        measuring.join().unwrap_or_else(|_| Err(Failure::Failed("the benchmark panicked".to_owned())))
    })
}

fn measure(args: &Args) -> Result<(), Failure> {
    if let Some(folder) = &args.fill {
        return keylane_bench::fill(folder).map_err(failed);
    }
    if let Some(job) = &args.peer {
        let job = serde_json::from_str(job).map_err(|error| Failure::Wrong(format!("--peer: {error}")))?;
        let measured = keylane_bench::measure_peer(&job).map_err(failed)?;
        let measured = serde_json::value::to_raw_value(&measured)
            .map_err(|error| Failure::Failed(format!("cannot write JSON: {error}")))?;
        return crate::show::raw_json(&measured);
    }
    let known = |name: &str| keylane_bench::names().any(|known| known == name);
    if let Some(name) = args.what.iter().find(|name| !known(name)) {
        let names: Vec<_> = keylane_bench::names().collect();
        return Err(Failure::Wrong(format!("nothing is called {name}; there are {}", names.join(", "))));
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
    let filler = vec![program.display().to_string(), "bench".to_owned(), "--fill".to_owned()];
    let options = Options { folder: args.folder.clone(), filler, brokers: args.brokers.clone() };
    let chosen = |suite: Suite, id: &str| match suite {
        // Without a cluster, all is all that needs none.
        Suite::Kafka if args.what.is_empty() => args.brokers.is_some(),
        _ => args.what.is_empty() || args.what.iter().any(|name| name == id || name == suite.name()),
    };
    if args.what.is_empty() && args.brokers.is_none() {
        eprintln!("kafka is left out: {}", keylane_bench::Error::NoCluster);
    }
    let mut figures = Vec::new();
    keylane_bench::run(&options, chosen, |figure| {
        if !args.json {
            if figures.is_empty() {
                println!("{HEAD}");
            }
            println!("{figure}");
        }
        figures.push(figure);
    })
    .map_err(failed)?;
    if args.json {
        crate::show::json(&figures)?;
    }
    Ok(())
}

fn failed(error: keylane_bench::Error) -> Failure {
    match error {
        keylane_bench::Error::NoCluster => Failure::Wrong(error.to_string()),
        error => Failure::Failed(error.to_string()),
    }
}
