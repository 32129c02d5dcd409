//! `keylane spill`: lists the messages that the server keeps locally while the broker is away, and asks the server to
//! send them to the broker now.

use clap::{Subcommand, ValueEnum};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::show::{self, Cell};

/// Arguments of `spill`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List messages that wait for the broker, that the broker refused for good, or that it stored most recently
    Ls(Ls),
    /// Send all messages in the spill to the broker now, including those that the broker refused for good
    Drain(Drain),
}

#[derive(Debug, clap::Args)]
struct Ls {
    #[command(flatten)]
    server: ServerArgs,
    /// List only messages in this state
    #[arg(long, value_enum)]
    state: Option<State>,
    /// List at most this many messages
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Drain {
    #[command(flatten)]
    server: ServerArgs,
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    /// Not sent to the broker yet
    Pending,
    /// Sent without success; the server will send them again
    Retrying,
    /// Stored by the broker
    Success,
    /// Refused for good by the broker, or waiting behind such a message of the same key
    Failed,
}

#[derive(Debug, Deserialize)]
struct Spill {
    state: String,
    messages: u64,
    failed: u64,
    bytes: u64,
    bytes_max: u64,
    entries: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    topic: String,
    partition: u32,
    id: String,
    key: Option<String>,
    at: u64,
    retries: u64,
    last_error: Option<String>,
    state: String,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Ls(ls) => list(ls).await,
        Action::Drain(drain) => drain_now(drain).await,
    }
}

async fn list(args: Ls) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let mut query = vec![("limit", args.limit.to_string())];
    let state = args.state.and_then(|state| state.to_possible_value());
    query.extend(state.map(|state| ("state", state.get_name().to_owned())));
    let answer: Box<RawValue> = client.get(&["admin", "spill"], &query).await?;
    if args.json {
        return show::raw_json(&answer);
    }
    let spill: Spill = client.read(&answer)?;
    show::line(&summary(&spill))?;
    let rows = spill.entries.iter().map(row).collect();
    let header = ["state", "topic", "partition", "id", "key", "at", "retries", "last error"];
    show::table(&header, rows, "nothing to show")
}

async fn drain_now(args: Drain) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let answer: Box<RawValue> = client.order(&["admin", "spill", "drain"]).await?;
    if args.json {
        return show::raw_json(&answer);
    }
    let spill: Spill = client.read(&answer)?;
    show::line(&format!("asked for; now: {}", summary(&spill)))
}

fn summary(spill: &Spill) -> String {
    match spill.state.as_str() {
        "off" => "off: the broker is the server's own, and nothing is ever spilled".to_owned(),
        state => format!(
            "{state}: {} messages wait, {} are refused or behind one that is, {} of {} bytes",
            spill.messages, spill.failed, spill.bytes, spill.bytes_max
        ),
    }
}

fn row(entry: &Entry) -> Vec<Cell> {
    vec![
        Cell::text(Some(&entry.state)),
        Cell::text(Some(&entry.topic)),
        Cell::number(entry.partition.into()),
        Cell::text(Some(&entry.id)),
        Cell::text(entry.key.as_deref()),
        Cell::text(Some(&show::time(entry.at))),
        Cell::number(entry.retries),
        Cell::text(entry.last_error.as_deref()),
    ]
}
