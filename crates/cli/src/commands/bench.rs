//! `keylane bench`: measures this machine and prints each figure beside the raw limit from the same run.

use std::path::PathBuf;

use keylane_bench::{HEAD, Options, Suite};

use crate::failure::Failure;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to measure: `dispatch`, `embedded`, `ingest`, `kafka`, or the id of a figure such as `PRF-7` [default: all]
    what: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Folder on the disk to measure
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// Kafka cluster to measure; without it, the figures of `kafka` are left out
    #[arg(long, env = "KEYLANE_KAFKA", value_name = "HOST:PORT")]
    brokers: Option<String>,
    /// Fill a log until killed; the figure of the start-up time runs this in a process of its own
    #[arg(long, hide = true, value_name = "FOLDER")]
    fill: Option<PathBuf>,
    /// Run as one of the peers of bench/peers; the JSON says what the peer does
    #[arg(long, hide = true, value_name = "JSON")]
    peer: Option<String>,
}

/// Runs the command on a thread outside of this runtime. Each figure starts runtimes of its own, and a thread of
/// one runtime cannot run another.
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
        // If no figure is named and no cluster is given, leave out the figures that need a cluster.
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
