//! `keylane check`: reads a config exactly as `serve` does, and prints what the server would run.
//!
//! The command opens neither the data folder nor a port, and connects to no broker. It only looks up the host names of
//! HTTP handlers, to warn of addresses that no push could reach.

use std::path::PathBuf;

use futures_util::future::join_all;
use keylane::BrokerChoice;
use keylane::{Compression, TopicSpec};
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
    /// Config file; without one, show what `serve` runs without a config file
    #[arg(short, long, value_name = "FILE", env = "KEYLANE_CONFIG")]
    config: Option<PathBuf>,
    /// Print only the JSON schema of the config, which editors use to complete and check the file
    #[arg(long)]
    schema: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What the server would run with this config.
#[derive(Debug, Serialize)]
struct Plan {
    profile: Option<&'static str>,
    listen: String,
    broker: String,
    data: PathBuf,
    tokens: Vec<String>,
    topics: Vec<PlannedTopic>,
    /// The settings of a topic that is created by its first message; none if the config declares topics.
    new_topic: Option<PlannedTopic>,
    pipelines: Vec<PlannedPipeline>,
    /// Parts of the config that are valid but will not work, such as a handler's address that no push can reach.
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PlannedTopic {
    name: String,
    partitions: u32,
    replicas: u32,
    min_insync: u32,
    compression: String,
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
    shards: Option<usize>,
    concurrency: u64,
    lane_capacity: usize,
    pause_at: f64,
    retries: u32,
    retry_base_seconds: f64,
    retry_max_seconds: f64,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    if args.schema {
        return show::json(&Config::schema());
    }
    let config = Config::load(args.config.as_deref()).map_err(|error| Failure::Config(error.to_string()))?;
    let mut plan = Plan::of(&config);
    plan.warnings = warnings(&config).await;
    match args.json {
        true => show::json(&plan),
        false => plan.print(),
    }
}

impl Plan {
    fn of(config: &Config) -> Plan {
        Plan {
            profile: config.profile.name(),
            listen: config.server.listen.to_string(),
            broker: match &config.broker {
                BrokerChoice::Embedded => "embedded".to_owned(),
                BrokerChoice::Kafka(options) => format!("kafka at {}", options.brokers),
            },
            data: config.data.clone(),
            tokens: config.server.tokens.iter().map(|token| token.name.clone()).collect(),
            topics: config.topics.iter().map(|(name, topic)| PlannedTopic::of(name, &topic.spec)).collect(),
            new_topic: config.topics.is_empty().then(|| PlannedTopic::of("", &config.new_topic)),
            pipelines: config
                .pipelines
                .iter()
                .map(|(name, pipeline)| PlannedPipeline {
                    name: name.clone(),
                    topic: pipeline.topic.clone(),
                    group: pipeline.group.clone(),
                    handler: handler_name(&pipeline.handler),
                    order: format!("{:?}", pipeline.settings.order).to_lowercase(),
                    shards: pipeline.settings.shards,
                    concurrency: pipeline.settings.concurrency as u64,
                    lane_capacity: pipeline.settings.lane_capacity,
                    pause_at: pipeline.settings.pause_at,
                    retries: pipeline.settings.retries,
                    retry_base_seconds: pipeline.settings.retry_base.as_secs_f64(),
                    retry_max_seconds: pipeline.settings.retry_max.as_secs_f64(),
                })
                .collect(),
            warnings: Vec::new(),
        }
    }

    fn print(&self) -> Result<(), Failure> {
        let who = match self.tokens.len() {
            0 => "this machine only, without tokens".to_owned(),
            _ => format!("tokens: {}", show::harmless(&self.tokens.join(", "))),
        };
        show::line(&format!("listens on {} ({who})", self.listen))?;
        let data = self.data.display().to_string();
        match self.broker == "embedded" {
            true => show::line(&format!("keeps its log in {}", show::harmless(&data)))?,
            false => show::line(&format!("topics are on {}", show::harmless(&self.broker)))?,
        }
        if let Some(profile) = self.profile {
            show::line(&format!("profile {profile}"))?;
        }
        show::line("")?;
        let rows = self.topics.iter().map(topic_row).collect();
        let made = self.new_topic.as_ref().map_or_else(String::new, |topic| {
            format!(
                "no topics declared: each is made by its first use, with {} partitions, {} replicas, {} in sync",
                topic.partitions, topic.replicas, topic.min_insync
            )
        });
        let columns = [
            "topic",
            "partitions",
            "replicas",
            "in sync",
            "kept for",
            "kept bytes",
            "largest message",
            "compression",
        ];
        show::table(&columns, rows, &made)?;
        show::line("")?;
        let rows = self.pipelines.iter().map(pipeline_row).collect();
        show::table(
            &["pipeline", "topic", "group", "handler", "order", "concurrency", "lane", "retries", "waits"],
            rows,
            "no pipelines: messages are kept, and nothing handles them",
        )?;
        for warning in &self.warnings {
            show::line(&format!("\nwarning: {}", show::harmless(warning)))?;
        }
        Ok(())
    }
}

/// Warns of each HTTP handler whose address no push can reach, as far as this machine can tell.
async fn warnings(config: &Config) -> Vec<String> {
    let looks = config.pipelines.iter().filter_map(|(name, pipeline)| match &pipeline.handler {
        HandlerConfig::Http(http) => Some(async move {
            let what = http.warning().await?;
            Some(format!("pipelines.{name}.handler.http.url: {what}"))
        }),
        _ => None,
    });
    join_all(looks).await.into_iter().flatten().collect()
}

impl PlannedTopic {
    fn of(name: &str, spec: &TopicSpec) -> PlannedTopic {
        PlannedTopic {
            name: name.to_owned(),
            partitions: spec.partitions,
            replicas: spec.replicas,
            min_insync: spec.min_insync,
            compression: match spec.compression {
                // The topic keeps messages as they are produced, and Keylane's producer sends lz4.
                Compression::AsProduced => "lz4".to_owned(),
                codec => format!("{codec:?}").to_lowercase(),
            },
            retention_seconds: spec.retention_ms.map(|ms| ms / 1_000),
            retention_bytes: spec.retention_bytes,
            message_bytes_max: spec.message_bytes_max as u64,
        }
    }
}

fn topic_row(topic: &PlannedTopic) -> Vec<Cell> {
    vec![
        Cell::text(Some(&topic.name)),
        Cell::number(topic.partitions.into()),
        Cell::number(topic.replicas.into()),
        Cell::number(topic.min_insync.into()),
        Cell::seconds(topic.retention_seconds.map(|seconds| seconds as f64)),
        topic.retention_bytes.map_or_else(|| Cell::text(None), Cell::number),
        Cell::number(topic.message_bytes_max),
        Cell::text(Some(&topic.compression)),
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
        Cell::number(pipeline.lane_capacity as u64),
        Cell::number(pipeline.retries.into()),
        Cell::text(Some(&format!("{}s to {}s", pipeline.retry_base_seconds, pipeline.retry_max_seconds))),
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
