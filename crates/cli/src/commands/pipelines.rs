//! `keylane pipelines`: lists each pipeline with its state, its lag, its lanes and its counts.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::show::{self, Cell};

/// Arguments of `pipelines`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Pipelines {
    pipelines: Vec<Pipeline>,
}

#[derive(Debug, Deserialize)]
struct Pipeline {
    name: String,
    topic: String,
    mode: String,
    state: String,
    lag: Lag,
    lanes: Lanes,
    handled: u64,
    failed: u64,
    dead: u64,
    #[serde(default)]
    blocking: Blocking,
    partitions: Vec<Partition>,
}

#[derive(Debug, Default, Deserialize)]
struct Blocking {
    waiting: u64,
    max: u64,
}

#[derive(Debug, Deserialize)]
struct Lag {
    messages: u64,
    oldest_age_seconds: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Lanes {
    total: u64,
    busy: u64,
    held: u64,
    stuck: u64,
}

#[derive(Debug, Deserialize)]
struct Partition {
    partition: u32,
    state: String,
    why: Option<String>,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let answer: Box<RawValue> = client.get(&["admin", "pipelines"], &[]).await?;
    if args.json {
        return show::raw_json(&answer);
    }
    let answer: Pipelines = client.read(&answer)?;
    let rows = answer.pipelines.iter().map(row).collect();
    let header = [
        "pipeline", "topic", "mode", "state", "lag", "oldest", "lanes", "busy", "held", "stuck", "handled",
        "failed", "dead",
    ];
    show::table(&header, rows, "no pipelines: the config declares them")?;
    for pipeline in &answer.pipelines {
        explain(pipeline)?;
    }
    Ok(())
}

fn row(pipeline: &Pipeline) -> Vec<Cell> {
    vec![
        Cell::text(Some(&pipeline.name)),
        Cell::text(Some(&pipeline.topic)),
        Cell::text(Some(&pipeline.mode)),
        Cell::text(Some(&pipeline.state)),
        Cell::number(pipeline.lag.messages),
        Cell::seconds(pipeline.lag.oldest_age_seconds),
        Cell::number(pipeline.lanes.total),
        Cell::number(pipeline.lanes.busy),
        Cell::number(pipeline.lanes.held),
        Cell::number(pipeline.lanes.stuck),
        Cell::number(pipeline.handled),
        Cell::number(pipeline.failed),
        Cell::number(pipeline.dead),
    ]
}

/// Prints, below the table, why messages wait for threads and why a partition does not run. A table has no room for a
/// sentence.
fn explain(pipeline: &Pipeline) -> Result<(), Failure> {
    if pipeline.blocking.waiting > 0 {
        let Blocking { waiting, max } = pipeline.blocking;
        let text = format!(
            "{}: handlers block all {max} threads that they may block, and {waiting} messages wait for one. Use async \
             calls in the handler, or raise `blocking` (KL-1320)",
            pipeline.name
        );
        show::line(&show::harmless(&text))?;
    }
    for partition in &pipeline.partitions {
        if let Some(why) = &partition.why {
            let text = format!("{}/{} is {}: {why}", pipeline.name, partition.partition, partition.state);
            show::line(&show::harmless(&text))?;
        }
    }
    Ok(())
}
