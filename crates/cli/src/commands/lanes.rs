//! `keylane lanes`: lists the keys that have messages in memory, by default those with the most messages first.

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::show::{self, Cell};

/// Arguments of `lanes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// List only the lanes of this pipeline
    #[arg(long)]
    pipeline: Option<String>,
    /// Which lanes come first
    #[arg(long, value_enum, default_value = "depth")]
    sort: Sort,
    /// List at most this many lanes
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Sort {
    /// Lanes with the most messages
    Depth,
    /// Lanes whose first message is the oldest
    Waiting,
}

#[derive(Debug, Deserialize)]
struct Lanes {
    lanes: Vec<Lane>,
    /// Shards that did not answer in time. Servers of earlier versions do not send this field.
    #[serde(default)]
    unanswered: Vec<Unanswered>,
}

#[derive(Debug, Deserialize)]
struct Unanswered {
    pipeline: String,
    shard: u64,
}

#[derive(Debug, Deserialize)]
struct Lane {
    pipeline: String,
    key: Option<String>,
    partition: u32,
    depth: u64,
    state: String,
    attempt: u64,
    waiting_seconds: f64,
    last_tried_seconds: f64,
    why: Option<String>,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let sort = match args.sort {
        Sort::Depth => "depth",
        Sort::Waiting => "waiting",
    };
    let mut query = vec![("sort", sort.to_owned()), ("limit", args.limit.to_string())];
    query.extend(args.pipeline.map(|pipeline| ("pipeline", pipeline)));
    let answer: Box<RawValue> = client.get(&["admin", "lanes"], &query).await?;
    if args.json {
        return show::raw_json(&answer);
    }
    let answer: Lanes = client.read(&answer)?;
    let rows = answer.lanes.iter().map(row).collect();
    let header =
        ["pipeline", "key", "partition", "depth", "state", "attempt", "waits for", "last tried", "why"];
    show::table(&header, rows, "no lanes: nothing is being handled or waits")?;
    for Unanswered { pipeline, shard } in &answer.unanswered {
        let pipeline = show::harmless(pipeline);
        show::line(&format!("shard {shard} of {pipeline} did not answer in time: its lanes are missing"))?;
    }
    Ok(())
}

fn row(lane: &Lane) -> Vec<Cell> {
    vec![
        Cell::text(Some(&lane.pipeline)),
        Cell::text(lane.key.as_deref()),
        Cell::number(lane.partition.into()),
        Cell::number(lane.depth),
        Cell::text(Some(&lane.state)),
        Cell::number(lane.attempt),
        Cell::seconds(Some(lane.waiting_seconds)),
        Cell::seconds(Some(lane.last_tried_seconds)),
        Cell::beginning(lane.why.as_deref()),
    ]
}
