//! Makes a [`Config`] from a tree: reads every setting, and checks settings against each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use keylane::outbox::OutboxOptions;
use keylane::{BrokerChoice, ErrorCode, KafkaOptions, Order, Settings, SpillOptions};

use super::error::{ConfigProblem, Place};
use super::fields::{Reader, Section};
use super::handler::handler;
use super::schema::Profile;
use super::settings::ROOT;
use super::topics::{TopicConfig, kafka_names, topics};
use super::tree::Node;
use super::{Config, HandlerConfig, IngestConfig, PipelineConfig, ServerConfig, TokenConfig};
use crate::http::Role;

/// How much longer an attempt may take than its HTTP call. So the call times out first, and its error says more than
/// the time-out of the attempt would.
const ATTEMPT_MARGIN: Duration = Duration::from_secs(1);

/// Default concurrency of a pipeline that pushes (ING-5): as many calls as an ordinary web server can take.
const PUSHES_AT_ONCE: usize = 256;

/// Shards of a pipeline at most in development, if the config says `auto` (ADM-9).
const DEVELOPMENT_SHARDS_MAX: usize = 64;

/// Reads `root`. If there are problems, the caller must not use the config: wrong settings have their defaults in it.
pub(super) fn read(root: &Node) -> (Config, Vec<ConfigProblem>) {
    let mut reader = Reader::default();
    let top = reader.section(Some(root), &ROOT, String::new(), Place::Whole);
    let profile = Profile::named(reader.choice(&top, "profile"));
    reader.profile = profile;
    let server = server(&mut reader, &top);
    let broker = broker(&mut reader, &top);
    let data = reader.text(&top, "data").into();
    let (topics, new_topic) = topics(&mut reader, &top, &broker);
    let pipelines = pipelines(&mut reader, &top, &topics, server.drain);
    if let (true, BrokerChoice::Kafka(options)) = (reader.problems.is_empty(), &broker) {
        kafka_names(&mut reader, &top, options, &pipelines);
    }
    let ingest = reader.inner(&top, "ingest");
    let ingest = IngestConfig {
        in_flight: reader.whole(&ingest, "in_flight") as usize,
        max_request: reader.size(&ingest, "max_request") as usize,
    };
    let section = reader.inner(&top, "spill");
    let mut spill = SpillOptions::default();
    spill.bytes_max = reader.size(&section, "bytes");
    spill.after = reader.duration(&section, "after");
    spill.drain_every = reader.duration(&section, "drain");
    let outbox = outbox(&mut reader, &top, server.drain);
    let config =
        Config { profile, server, data, broker, topics, new_topic, pipelines, ingest, spill, outbox };
    (config, reader.problems)
}

fn broker(reader: &mut Reader, top: &Section<'_>) -> BrokerChoice {
    let section = reader.inner(top, "broker");
    let kafka = reader.inner(&section, "kafka");
    let journals = reader.inner(&kafka, "journals");
    let mut options = KafkaOptions::new(reader.text(&kafka, "brokers"));
    options.settings = reader.passed_on(&kafka, "settings");
    options.journals.prefix = reader.text(&journals, "prefix");
    options.journals.create = reader.flag(&journals, "create");
    options.journals.settings = reader.passed_on(&journals, "settings");
    if reader.choice(&section, "kind") == "embedded" {
        if section.node("kafka").is_some() {
            reader.problems.push(ConfigProblem {
                code: ErrorCode::ContradictorySettings,
                place: section.place_of("kafka"),
                what: "broker.kafka is given, and broker.kind is embedded: the cluster would not be used"
                    .to_owned(),
                help: "set `kind: kafka` beside it, or remove it".to_owned(),
            });
        }
        return BrokerChoice::Embedded;
    }
    if let Err(error) = options.check() {
        let what = error.to_string();
        let section = if what.contains("broker.kafka.journals") { "journals" } else { "settings" };
        reader.problems.push(ConfigProblem {
            code: ErrorCode::ContradictorySettings,
            place: kafka.place_of(section),
            what,
            help: "see docs/kafka.md".to_owned(),
        });
    }
    BrokerChoice::Kafka(Box::new(options))
}

fn outbox(reader: &mut Reader, top: &Section<'_>, drain: Duration) -> BTreeMap<String, OutboxOptions> {
    let mut all = BTreeMap::new();
    for (name, section) in reader.many(top, "outbox") {
        let options = OutboxOptions::new(reader.text(&section, "url"))
            .table(reader.text(&section, "table"))
            .poll(reader.duration(&section, "poll"))
            .batch(reader.whole(&section, "batch") as usize)
            .retry(reader.duration(&section, "retry"))
            .create(reader.flag(&section, "create"))
            .drain(drain);
        if section.node("url").is_some()
            && let Err(what) = options.check()
        {
            let setting = if what.starts_with("the table") { "table" } else { "url" };
            reader.problems.push(ConfigProblem {
                code: ErrorCode::WrongValue,
                place: section.place_of(setting),
                what: format!("outbox.{name}.{setting}: {what}"),
                help: "see docs/outbox.md for what an outbox takes".to_owned(),
            });
        }
        all.insert(name, options);
    }
    all
}

fn server(reader: &mut Reader, top: &Section<'_>) -> ServerConfig {
    let section = reader.inner(top, "server");
    let listen = reader.address(&section, "listen").unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut tokens: Vec<TokenConfig> = Vec::new();
    for (_, token) in reader.many(&section, "tokens") {
        let place = token.place_of("sha256");
        let token = TokenConfig {
            name: reader.text(&token, "name"),
            role: Role::named(reader.choice(&token, "role")),
            sha256: reader.hash(&token, "sha256"),
        };
        let same = |other: &&TokenConfig| other.sha256 == token.sha256 && token.sha256 != [0; 32];
        if let Some(other) = tokens.iter().find(same) {
            reader.problems.push(ConfigProblem {
                code: ErrorCode::ContradictorySettings,
                place,
                what: format!(
                    "the tokens {} and {} in server.tokens have one hash: only one of the two roles would count",
                    other.name, token.name
                ),
                help: "make a token of its own for each with `keylane token new`".to_owned(),
            });
        }
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
            code: ErrorCode::OpenToAll,
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

fn pipelines(
    reader: &mut Reader,
    top: &Section<'_>,
    topics: &BTreeMap<String, TopicConfig>,
    drain: Duration,
) -> BTreeMap<String, PipelineConfig> {
    let mut pipelines = BTreeMap::<String, PipelineConfig>::new();
    for (name, section) in reader.many(top, "pipelines") {
        let pipeline = pipeline(reader, &name, &section, drain);
        if !topics.is_empty() && !topics.contains_key(&pipeline.topic) {
            reader.problems.push(ConfigProblem {
                code: ErrorCode::ContradictorySettings,
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
                code: ErrorCode::ContradictorySettings,
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
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    settings.shards = shards(reader.auto(section, "shards"), reader.profile, cores);
    settings.blocking = reader.whole(section, "blocking") as usize;
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
            code: ErrorCode::ContradictorySettings,
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
            code: ErrorCode::ContradictorySettings,
            place: retry.place_of("base"),
            what: format!("{}.base is above {}.max", retry.path, retry.path),
            help: "set base below max".to_owned(),
        });
    }
    settings.drain = drain;
    let handler = handler(reader, section);
    if let HandlerConfig::Http(http) = &handler {
        settings.timeout = http.timeout + ATTEMPT_MARGIN;
        settings.concurrency = PUSHES_AT_ONCE;
    }
    let concurrency = reader.whole(section, "concurrency") as usize;
    if concurrency > 0 {
        settings.concurrency = concurrency;
    }
    PipelineConfig {
        topic: named(reader.text(section, "topic")),
        group: named(reader.text(section, "group")),
        settings,
        handler,
    }
}

/// The number of shards: the written number, or for `auto` one per core (none), which the development profile bounds.
pub(super) fn shards(written: Option<u64>, profile: Profile, cores: usize) -> Option<usize> {
    let bounded = profile == Profile::Development && cores > DEVELOPMENT_SHARDS_MAX;
    written.map(|shards| shards as usize).or(bounded.then_some(DEVELOPMENT_SHARDS_MAX))
}
