//! From a tree to a [`Config`]: reads every setting, then checks what only the whole can show.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use keylane::{Order, Settings, TopicSpec};

use super::error::{ConfigProblem, Place};
use super::reader::{Reader, Section};
use super::table::ROOT;
use super::tree::Node;
use super::{Config, HandlerConfig, HttpConfig, IngestConfig, PipelineConfig, ServerConfig, TokenConfig};
use crate::access::Role;

/// How much longer than the handler's own call an attempt may take: the call's error says more than a time-out.
const ATTEMPT_MARGIN: Duration = Duration::from_secs(1);

/// Reads `root`. With problems, the config is not to be used.
pub(super) fn read(root: &Node) -> (Config, Vec<ConfigProblem>) {
    let mut reader = Reader::default();
    let top = reader.section(Some(root), &ROOT, String::new(), Place::Whole);
    let server = server(&mut reader, &top);
    let broker = reader.inner(&top, "broker");
    reader.choice(&broker, "kind");
    let data = reader.text(&top, "data").into();
    let topics = topics(&mut reader, &top);
    let pipelines = pipelines(&mut reader, &top, &topics, server.drain);
    let ingest = reader.inner(&top, "ingest");
    let ingest = IngestConfig {
        in_flight: reader.whole(&ingest, "in_flight") as usize,
        max_request: reader.size(&ingest, "max_request") as usize,
    };
    let config = Config { server, data, topics, pipelines, ingest };
    (config, reader.problems)
}

fn server(reader: &mut Reader, top: &Section<'_>) -> ServerConfig {
    let section = reader.inner(top, "server");
    let listen = reader.address(&section, "listen").unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut tokens: Vec<TokenConfig> = Vec::new();
    for (_, token) in reader.many(&section, "tokens") {
        let token = TokenConfig {
            name: reader.text(&token, "name"),
            role: Role::named(reader.choice(&token, "role")),
            sha256: reader.hash(&token, "sha256"),
        };
        tokens.push(token);
    }
    let config = ServerConfig {
        listen,
        tokens,
        connections: reader.whole(&section, "connections") as usize,
        idle_timeout: reader.duration(&section, "idle_timeout"),
        body_timeout: reader.duration(&section, "body_timeout"),
        drain: reader.duration(&section, "drain"),
    };
    if config.is_open_to_all() {
        reader.problems.push(ConfigProblem {
            code: "KL-1009",
            place: section.place_of("listen"),
            what: format!(
                "server.listen is {listen}, which other machines can reach, and there are no tokens"
            ),
            help:
                "make a token with `keylane token new` and put it under server.tokens, or listen on 127.0.0.1"
                    .to_owned(),
        });
    }
    config
}

fn topics(reader: &mut Reader, top: &Section<'_>) -> BTreeMap<String, TopicSpec> {
    let mut topics = BTreeMap::new();
    for (name, section) in reader.many(top, "topics") {
        reader.choice(&section, "kind");
        reader.choice(&section, "compression");
        let spec = TopicSpec {
            partitions: reader.whole(&section, "partitions") as u32,
            replicas: reader.whole(&section, "replicas") as u32,
            min_insync: reader.whole(&section, "min_insync") as u32,
            retention_ms: Some(reader.duration(&section, "retention").as_millis() as u64),
            retention_bytes: Some(reader.size(&section, "retention_bytes")),
            message_bytes_max: reader.size(&section, "max_message") as usize,
        };
        for (setting, copies) in [("replicas", spec.replicas), ("min_insync", spec.min_insync)] {
            if copies > 1 {
                reader.problems.push(ConfigProblem {
                    code: "KL-1007",
                    place: section.place_of(setting),
                    what: format!(
                        "topics.{name}.{setting} is {copies}, but the embedded broker keeps one copy"
                    ),
                    help: format!("set {setting} to 1"),
                });
            }
        }
        topics.insert(name, spec);
    }
    topics
}

fn pipelines(
    reader: &mut Reader,
    top: &Section<'_>,
    topics: &BTreeMap<String, TopicSpec>,
    drain: Duration,
) -> BTreeMap<String, PipelineConfig> {
    let mut pipelines = BTreeMap::<String, PipelineConfig>::new();
    for (name, section) in reader.many(top, "pipelines") {
        let pipeline = pipeline(reader, &name, &section, drain);
        if !topics.is_empty() && !topics.contains_key(&pipeline.topic) {
            reader.problems.push(ConfigProblem {
                code: "KL-1007",
                place: section.place_of("topic"),
                what: format!("pipelines.{name} reads topic {}, which is not declared", pipeline.topic),
                help: format!("declare it: `topics: {{ {}: {{}} }}`", pipeline.topic),
            });
        }
        let same = |(_, other): &(&String, &PipelineConfig)| {
            other.group == pipeline.group && other.topic == pipeline.topic
        };
        if let Some((other, _)) = pipelines.iter().find(same) {
            reader.problems.push(ConfigProblem {
                code: "KL-1007",
                place: section.place_of("group"),
                what: format!(
                    "pipelines.{name} and pipelines.{other} both read topic {} as group {}: each message would go to one of them only",
                    pipeline.topic, pipeline.group
                ),
                help: "give one of them another group".to_owned(),
            });
        }
        pipelines.insert(name, pipeline);
    }
    pipelines
}

fn pipeline(reader: &mut Reader, name: &str, section: &Section<'_>, drain: Duration) -> PipelineConfig {
    let named = |text: String| if text.is_empty() { name.to_owned() } else { text };
    let mut settings = Settings::default();
    settings.order = match reader.choice(section, "order") {
        "partition" => Order::Partition,
        "none" => Order::None,
        _ => Order::Key,
    };
    settings.shards = reader.auto(section, "shards").map(|shards| shards as usize);
    settings.concurrency = reader.whole(section, "concurrency") as usize;
    let lane = reader.inner(section, "lane");
    settings.lane_capacity = reader.whole(&lane, "capacity") as usize;
    settings.lane_idle = reader.duration(&lane, "idle");
    reader.choice(&lane, "overflow");
    let buffer = reader.inner(section, "buffer");
    settings.buffer_messages = reader.whole(&buffer, "messages") as usize;
    settings.buffer_bytes = reader.size(&buffer, "bytes") as usize;
    settings.pause_at = reader.share(&buffer, "pause_at");
    settings.resume_at = reader.share(&buffer, "resume_at");
    if settings.resume_at > settings.pause_at {
        reader.problems.push(ConfigProblem {
            code: "KL-1007",
            place: buffer.place_of("resume_at"),
            what: format!(
                "{}.resume_at is {}, above pause_at ({}): reading would stop and go on at once",
                buffer.path, settings.resume_at, settings.pause_at
            ),
            help: "set resume_at below pause_at".to_owned(),
        });
    }
    let retry = reader.inner(section, "retry");
    settings.retries = reader.whole(&retry, "retries") as u32;
    settings.retry_base = reader.duration(&retry, "base");
    settings.retry_max = reader.duration(&retry, "max");
    if settings.retry_base > settings.retry_max {
        reader.problems.push(ConfigProblem {
            code: "KL-1007",
            place: retry.place_of("base"),
            what: format!("{}.base is above {}.max", retry.path, retry.path),
            help: "set base below max".to_owned(),
        });
    }
    settings.drain = drain;
    let handler = handler(reader, section);
    if let HandlerConfig::Http(http) = &handler {
        settings.timeout = http.timeout + ATTEMPT_MARGIN;
    }
    PipelineConfig {
        topic: named(reader.text(section, "topic")),
        group: named(reader.text(section, "group")),
        settings,
        handler,
    }
}

fn handler(reader: &mut Reader, pipeline: &Section<'_>) -> HandlerConfig {
    let before = reader.problems.len();
    let section = reader.inner(pipeline, "handler");
    let (http, log) = (section.names("http"), section.names("log"));
    if http == log && reader.problems.len() == before {
        reader.problems.push(ConfigProblem {
            code: if http { "KL-1007" } else { "KL-1006" },
            place: section.place.clone(),
            what: format!(
                "{} {}",
                section.path,
                if http { "has both `http` and `log`" } else { "is missing" }
            ),
            help: "give exactly one: `handler: { http: { url: \"http://127.0.0.1:9000/\", allow_private: true } }` or `handler: { log: {} }`"
                .to_owned(),
        });
    }
    if !http {
        if log {
            reader.inner(&section, "log");
        }
        return HandlerConfig::Log;
    }
    let http = reader.inner(&section, "http");
    let url = reader.text(&http, "url");
    if http.node("url").is_some() && !(url.starts_with("http://") || url.starts_with("https://")) {
        reader.problems.push(ConfigProblem {
            code: "KL-1005",
            place: http.place_of("url"),
            what: format!("{}.url must be a URL that begins with http:// or https://", http.path),
            help: "write it like this: `url: \"http://127.0.0.1:9000/orders\"`".to_owned(),
        });
    }
    let config = HttpConfig {
        url,
        timeout: reader.duration(&http, "timeout"),
        allow_private: reader.flag(&http, "allow_private"),
        reject: reader.statuses(&http, "reject"),
    };
    // What pushing would refuse later is found now, with its line.
    if reader.problems.len() == before
        && let Err(what) = config.handler()
    {
        let help = match (HttpConfig { allow_private: true, ..config.clone() }).handler() {
            Ok(_) => {
                "a public address needs nothing; for one of your own network set `allow_private: true` beside it"
            }
            Err(_) => "write it like this: `url: \"http://127.0.0.1:9000/orders\"`, without user or password",
        };
        reader.problems.push(ConfigProblem {
            code: "KL-1005",
            place: http.place_of("url"),
            what: format!("{}.url: {what}", http.path),
            help: help.to_owned(),
        });
    }
    HandlerConfig::Http(config)
}
