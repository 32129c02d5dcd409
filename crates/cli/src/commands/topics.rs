//! `keylane topics`: the topics there are, with what they keep.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::show::{self, Cell};

/// Arguments of `topics`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,
}

/// `GET /admin/topics`.
#[derive(Debug, Deserialize)]
pub struct Topics {
    /// All of them.
    pub topics: Vec<Topic>,
}

/// A topic.
#[derive(Debug, Deserialize)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u32,
    messages: u64,
    ends: Vec<Ends>,
    #[serde(default)]
    warnings: Vec<Warning>,
}

#[derive(Debug, Deserialize)]
struct Warning {
    code: String,
    what: String,
    remedy: String,
}

#[derive(Debug, Deserialize)]
struct Ends {
    partition: u32,
    start: u64,
    end: u64,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let answer: Box<RawValue> = client.get(&["admin", "topics"], &[]).await?;
    if args.json {
        return show::raw_json(&answer);
    }
    let answer: Topics = client.read(&answer)?;
    let rows = answer.topics.iter().map(row).collect();
    show::table(
        &["topic", "partitions", "messages", "positions"],
        rows,
        "no topics yet: the first message makes one, unless the config declares them",
    )?;
    for warning in answer.topics.iter().flat_map(|topic| &topic.warnings) {
        let said = format!("{}: {}; {}", warning.code, warning.what, warning.remedy);
        show::line(&show::harmless(&said))?;
    }
    Ok(())
}

fn row(topic: &Topic) -> Vec<Cell> {
    let ends: Vec<String> =
        topic.ends.iter().map(|ends| format!("{}: {}..{}", ends.partition, ends.start, ends.end)).collect();
    vec![
        Cell::text(Some(&topic.name)),
        Cell::number(topic.partitions.into()),
        Cell::number(topic.messages),
        Cell::text(Some(&ends.join("  "))),
    ]
}
