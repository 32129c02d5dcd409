//! `keylane topics`: lists topics, accepts added partitions of a topic, forgets a group, and raises the format of a
//! topic's journals.

use std::time::Duration;

use clap::Subcommand;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{Client, ServerArgs};
use crate::failure::Failure;
use crate::show::{self, Cell};

/// The server answers only after producers know the new partitions and running handlers have finished.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(600);

/// The server answers after it has read the journals of all partitions, one after another.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(600);

/// Arguments of `topics`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Resume the pipelines of a topic that got more partitions
    ///
    /// Messages that were produced before this command are settled first; newer messages are read after that. Each
    /// key keeps its order if the new number of partitions is a multiple of the old one, or if nothing was produced
    /// since the partitions were added. Run this command once for each group that reads the topic.
    Accept(Named),
    /// Forget a group that no pipeline uses any more, so that its unsettled messages can be deleted
    ///
    /// The server deletes the group's position and journals. A pipeline that uses the group later begins with the
    /// oldest message that the topic still has.
    ForgetGroup(ForgetGroup),
    /// Raise the format of a topic's journals, when all nodes run the new version
    ///
    /// Nodes of an older version cannot handle the topic afterwards, and there is no way back. Run this command once
    /// for each group that reads the topic.
    Upgrade(Named),
}

#[derive(Debug, clap::Args)]
struct ForgetGroup {
    /// Name of the topic
    topic: String,
    /// Name of the group
    group: String,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// Name of the topic
    topic: String,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Debug, clap::Args)]
struct Asked {
    #[command(flatten)]
    server: ServerArgs,
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,
}

/// The answer to `POST /admin/topics/{topic}/accept`.
#[derive(Debug, Deserialize)]
struct AllAccepted {
    accepted: Vec<Accepted>,
}

#[derive(Debug, Deserialize)]
struct Accepted {
    pipeline: String,
    group: String,
    from: u32,
    to: u32,
}

/// The answer to `POST /admin/topics/{topic}/upgrade`.
#[derive(Debug, Deserialize)]
struct AllUpgraded {
    upgraded: Vec<Upgraded>,
}

#[derive(Debug, Deserialize)]
struct Upgraded {
    pipeline: String,
    group: String,
    from: u8,
    to: u8,
    partitions: u32,
}

/// The answer to `GET /admin/topics`.
#[derive(Debug, Deserialize)]
pub struct Topics {
    /// All topics that the server knows.
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
    #[serde(default)]
    held_back_by: Vec<HeldBackBy>,
    #[serde(default)]
    pipelines: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct HeldBackBy {
    group: String,
    configured: bool,
    until: Option<u64>,
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
    match args.action {
        Some(Action::Accept(args)) => accept(args).await,
        Some(Action::ForgetGroup(args)) => forget_group(args).await,
        Some(Action::Upgrade(args)) => upgrade(args).await,
        None => list(args.asked).await,
    }
}

async fn accept(args: Named) -> Result<(), Failure> {
    let client = Client::new(&args.asked.server)?;
    let answer: Box<RawValue> =
        client.order_within(&["admin", "topics", &args.topic, "accept"], ACCEPT_TIMEOUT).await?;
    if args.asked.json {
        return show::raw_json(&answer);
    }
    let answer: AllAccepted = client.read(&answer)?;
    for Accepted { pipeline, group, from, to } in &answer.accepted {
        let said =
            format!("pipeline {pipeline}, group {group}: goes on with {to} partitions instead of {from}");
        show::line(&show::harmless(&said))?;
    }
    match answer.accepted.first() {
        None => show::line("nothing to accept: its pipelines know the partitions that it has"),
        Some(one) => {
            let said = format!(
                "set topics.{}.partitions to {} in the config before the next start",
                args.topic, one.to
            );
            show::line(&show::harmless(&said))
        }
    }
}

async fn forget_group(args: ForgetGroup) -> Result<(), Failure> {
    let client = Client::new(&args.asked.server)?;
    let path = ["admin", "topics", &args.topic, "forget-group"];
    let answer: Box<RawValue> = client.order_with(&path, &[("group", args.group.clone())]).await?;
    if args.asked.json {
        return show::raw_json(&answer);
    }
    let said = format!(
        "group {} of topic {} is forgotten; a pipeline that uses it later begins with the oldest message kept",
        args.group, args.topic
    );
    show::line(&show::harmless(&said))
}

async fn upgrade(args: Named) -> Result<(), Failure> {
    let client = Client::new(&args.asked.server)?;
    let answer: Box<RawValue> =
        client.order_within(&["admin", "topics", &args.topic, "upgrade"], UPGRADE_TIMEOUT).await?;
    if args.asked.json {
        return show::raw_json(&answer);
    }
    let answer: AllUpgraded = client.read(&answer)?;
    for Upgraded { pipeline, group, from, to, partitions } in &answer.upgraded {
        let said = format!(
            "pipeline {pipeline}, group {group}: journals use format {to} instead of {from} ({partitions} partitions)"
        );
        show::line(&show::harmless(&said))?;
    }
    if answer.upgraded.is_empty() {
        return show::line("nothing to upgrade: its journals use the newest format that the server knows");
    }
    Ok(())
}

async fn list(args: Asked) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let answer: Box<RawValue> = client.get(&["admin", "topics"], &[]).await?;
    if args.json {
        return show::raw_json(&answer);
    }
    let answer: Topics = client.read(&answer)?;
    let rows = answer.topics.iter().map(row).collect();
    show::table(
        &["topic", "partitions", "messages", "read by", "positions"],
        rows,
        "no topics yet: the first message makes one, unless the config declares them",
    )?;
    let unread: Vec<&str> = answer
        .topics
        .iter()
        .filter(|topic| topic.pipelines.is_empty() && topic.messages > 0)
        .map(|topic| topic.name.as_str())
        .collect();
    if !unread.is_empty() {
        show::line(&show::harmless(&format!("no pipeline of this server reads: {}", unread.join(", "))))?;
    }
    for topic in &answer.topics {
        for held in &topic.held_back_by {
            show::line(&show::harmless(&held_back(&topic.name, held)))?;
        }
    }
    for warning in answer.topics.iter().flat_map(|topic| &topic.warnings) {
        let said = format!("{}: {}; {}", warning.code, warning.what, warning.remedy);
        show::line(&show::harmless(&said))?;
    }
    Ok(())
}

fn held_back(topic: &str, HeldBackBy { group, configured, until }: &HeldBackBy) -> String {
    let end = match (configured, until) {
        (false, Some(until)) => format!(
            "no pipeline is configured for it, and it does so until {}, or until `keylane topics forget-group {topic} {group}`",
            show::time(*until)
        ),
        _ => "its pipeline has not settled them".to_owned(),
    };
    format!("topic {topic}: old messages are held back by group {group}: {end}")
}

fn row(topic: &Topic) -> Vec<Cell> {
    let ends: Vec<String> =
        topic.ends.iter().map(|ends| format!("{}: {}..{}", ends.partition, ends.start, ends.end)).collect();
    let readers = topic.pipelines.join(", ");
    vec![
        Cell::text(Some(&topic.name)),
        Cell::number(topic.partitions.into()),
        Cell::number(topic.messages),
        Cell::text((!readers.is_empty()).then_some(&readers)),
        Cell::text(Some(&ends.join("  "))),
    ]
}
