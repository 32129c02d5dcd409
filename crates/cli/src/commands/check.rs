//! `keylane check`: reads a config as `serve` would, and says what would run. Opens and connects nothing.

use std::path::PathBuf;

use keylane_server::Config;
use keylane_server::config::HandlerConfig;
use reqwest::Url;
use serde::Serialize;

use crate::client::without_secrets;
use crate::failure::Failure;
use crate::show::{self, Cell};

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The config; without one, what `serve` does without one
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the JSON schema of the config instead
    #[arg(long, conflicts_with = "config")]
    schema: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What would run.
#[derive(Debug, Serialize)]
struct Plan {
    listen: String,
    data: PathBuf,
    tokens: Vec<String>,
    topics: Vec<PlannedTopic>,
    pipelines: Vec<PlannedPipeline>,
}

#[derive(Debug, Serialize)]
struct PlannedTopic {
    name: String,
    partitions: u32,
    retention_seconds: Option<u64>,
    retention_bytes: Option<u64>,
    message_bytes_max: u64,
}

#[derive(Debug, Serialize)]
struct PlannedPipeline {
    name: String,
    topic: String,
    group: String,
    handler: String,
    order: String,
    concurrency: u64,
    retries: u32,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    if args.schema {
        return show::json(&Config::schema());
    }
    let config = Config::load(args.config.as_deref()).map_err(|error| Failure::Config(error.to_string()))?;
    let plan = Plan::of(&config);
    match args.json {
        true => show::json(&plan),
        false => plan.print(),
    }
}

impl Plan {
    fn of(config: &Config) -> Plan {
        Plan {
            listen: config.server.listen.to_string(),
            data: config.data.clone(),
            tokens: config.server.tokens.iter().map(|token| token.name.clone()).collect(),
            topics: config
                .topics
                .iter()
                .map(|(name, spec)| PlannedTopic {
                    name: name.clone(),
                    partitions: spec.partitions,
                    retention_seconds: spec.retention_ms.map(|ms| ms / 1_000),
                    retention_bytes: spec.retention_bytes,
                    message_bytes_max: spec.message_bytes_max as u64,
                })
                .collect(),
            pipelines: config
                .pipelines
                .iter()
                .map(|(name, pipeline)| PlannedPipeline {
                    name: name.clone(),
                    topic: pipeline.topic.clone(),
                    group: pipeline.group.clone(),
                    handler: handler_name(&pipeline.handler),
                    order: format!("{:?}", pipeline.settings.order).to_lowercase(),
                    concurrency: pipeline.settings.concurrency as u64,
                    retries: pipeline.settings.retries,
                })
                .collect(),
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let who = match self.tokens.len() {
            0 => "this machine only, without tokens".to_owned(),
            _ => format!("tokens: {}", show::harmless(&self.tokens.join(", "))),
        };
        show::line(&format!("listens on {} ({who})", self.listen))?;
        let data = self.data.display().to_string();
        show::line(&format!("keeps its log in {}", show::harmless(&data)))?;
        show::line("")?;
        let rows = self.topics.iter().map(topic_row).collect();
        show::table(
            &["topic", "partitions", "kept for", "kept bytes", "largest message"],
            rows,
            "no topics declared: each is made by its first use, with 4 partitions",
        )?;
        show::line("")?;
        let rows = self.pipelines.iter().map(pipeline_row).collect();
        show::table(
            &["pipeline", "topic", "group", "handler", "order", "concurrency", "retries"],
            rows,
            "no pipelines: messages are kept, and nothing handles them",
        )
    }
}

fn topic_row(topic: &PlannedTopic) -> Vec<Cell> {
    vec![
        Cell::text(Some(&topic.name)),
        Cell::number(topic.partitions.into()),
        Cell::seconds(topic.retention_seconds.map(|seconds| seconds as f64)),
        topic.retention_bytes.map_or_else(|| Cell::text(None), Cell::number),
        Cell::number(topic.message_bytes_max),
    ]
}

fn pipeline_row(pipeline: &PlannedPipeline) -> Vec<Cell> {
    vec![
        Cell::text(Some(&pipeline.name)),
        Cell::text(Some(&pipeline.topic)),
        Cell::text(Some(&pipeline.group)),
        Cell::text(Some(&pipeline.handler)),
        Cell::text(Some(&pipeline.order)),
        Cell::number(pipeline.concurrency),
        Cell::number(pipeline.retries.into()),
    ]
}

fn handler_name(handler: &HandlerConfig) -> String {
    match handler {
        HandlerConfig::Http(http) => {
            let url = Url::parse(&http.url);
            format!(
                "http {}",
                url.map_or_else(
                    |_| "(an address that cannot be read)".to_owned(),
                    |url| without_secrets(&url)
                )
            )
        }
        HandlerConfig::Log => "log".to_owned(),
        _ => "of a kind that this command does not know".to_owned(),
    }
}
