//! Reads the topics of a config: their settings from the file or the profile (MSG-4), and whether a Kafka cluster can
//! have topics of these names.

use std::collections::BTreeMap;

use keylane::{BrokerChoice, Compression, ErrorCode, Ids, KafkaOptions, TopicSpec};

use super::PipelineConfig;
use super::error::{ConfigProblem, Place};
use super::fields::{Reader, Section};
use super::schema::NAME_BYTES_MAX;
use super::settings::TOPIC;

/// A topic that the config declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicConfig {
    /// The settings with which the topic is created.
    pub spec: TopicSpec,
    /// Names of the limits that the file writes. The others come from defaults or the profile.
    written: Vec<&'static str>,
}

impl TopicConfig {
    /// The settings that an existing topic should have: the limits that the file writes, otherwise its present ones. A
    /// default must not change an existing topic: if it shortened the retention, messages would be lost.
    pub fn over(&self, there: &TopicSpec) -> TopicSpec {
        let written = |name| self.written.contains(&name);
        let spec = &self.spec;
        TopicSpec {
            partitions: spec.partitions,
            replicas: spec.replicas,
            min_insync: if written("min_insync") { spec.min_insync } else { there.min_insync },
            retention_ms: if written("retention") { spec.retention_ms } else { there.retention_ms },
            retention_bytes: if written("retention_bytes") {
                spec.retention_bytes
            } else {
                there.retention_bytes
            },
            message_bytes_max: match written("max_message") {
                true => spec.message_bytes_max,
                // Keylane checks its own limit before it sends a message, so its limit may be the smaller one.
                false => spec.message_bytes_max.min(there.message_bytes_max),
            },
            compression: if written("compression") { spec.compression } else { there.compression },
            // Which messages get ids is Keylane's decision; the broker's topic does not have this setting.
            ids: spec.ids,
        }
    }
}

/// The limits that can be changed on an existing topic.
const LIMITS: [&str; 5] = ["min_insync", "retention", "retention_bytes", "max_message", "compression"];

/// Reads the declared topics by name, and the settings of a topic that is created by its first message.
pub(super) fn topics(
    reader: &mut Reader,
    top: &Section<'_>,
    broker: &BrokerChoice,
) -> (BTreeMap<String, TopicConfig>, TopicSpec) {
    let undeclared = reader.section(None, &TOPIC, "topics".to_owned(), Place::Whole);
    let new_topic = topic(reader, &undeclared, broker);
    let mut topics = BTreeMap::new();
    for (name, section) in reader.many(top, "topics") {
        let spec = topic(reader, &section, broker);
        let written = LIMITS.into_iter().filter(|limit| section.node(limit).is_some()).collect();
        topics.insert(name, TopicConfig { spec, written });
    }
    (topics, new_topic)
}

fn topic(reader: &mut Reader, section: &Section<'_>, broker: &BrokerChoice) -> TopicSpec {
    reader.choice(section, "kind");
    let codec = reader.choice(section, "compression");
    let compression = match codec {
        // Keylane's producer sends lz4. A topic gets a codec of its own only if the file writes one, because managed
        // clusters refuse topics with a codec of their own.
        _ if section.node("compression").is_none() => Compression::AsProduced,
        "none" => Compression::None,
        "snappy" => Compression::Snappy,
        "zstd" => Compression::Zstd,
        "gzip" => Compression::Gzip,
        _ => Compression::Lz4,
    };
    let ids = match reader.choice(section, "ids") {
        "caller" => Ids::Caller,
        _ => Ids::All,
    };
    let (replicas, min_insync) = copies(reader, section, *broker == BrokerChoice::Embedded);
    TopicSpec {
        partitions: reader.whole(section, "partitions") as u32,
        replicas,
        min_insync,
        retention_ms: Some(reader.duration(section, "retention").as_millis() as u64),
        retention_bytes: Some(reader.size(section, "retention_bytes")),
        message_bytes_max: reader.size(section, "max_message") as usize,
        compression,
        ids,
    }
}

/// Reads how many replicas a topic has, and how many of them must have a message. A number from a profile is lowered if
/// the broker or another setting makes it impossible. A number from the file is never changed, but reported.
fn copies(reader: &mut Reader, section: &Section<'_>, embedded: bool) -> (u32, u32) {
    let path = section.path.clone();
    let mut read = |name: &str, most: u32| {
        let read = reader.whole(section, name) as u32;
        if section.node(name).is_none() { read.min(most) } else { read }
    };
    let replicas = read("replicas", if embedded { 1 } else { u32::MAX });
    let min_insync = read("min_insync", replicas);
    for (setting, copies) in [("replicas", replicas), ("min_insync", min_insync)] {
        if copies > 1 && embedded {
            reader.problems.push(ConfigProblem {
                code: ErrorCode::ContradictorySettings,
                place: section.place_of(setting),
                what: format!("{path}.{setting} is {copies}, but the embedded broker keeps one copy"),
                help: format!("set {setting} to 1"),
            });
        }
    }
    if min_insync > replicas && !embedded {
        reader.problems.push(ConfigProblem {
            code: ErrorCode::ContradictorySettings,
            place: section.place_of("min_insync"),
            what: format!("{path}.min_insync is {min_insync}, above {path}.replicas ({replicas}): no message could ever be acknowledged"),
            help: format!("set min_insync to {replicas} or less, or replicas to {min_insync} or more"),
        });
    }
    (replicas, min_insync)
}

/// Reports names that Keylane accepts but a Kafka cluster cannot have, because Kafka's or Keylane's own topics lie
/// beside the user's.
pub(super) fn kafka_names(
    reader: &mut Reader,
    top: &Section<'_>,
    options: &KafkaOptions,
    pipelines: &BTreeMap<String, PipelineConfig>,
) {
    let own = format!("{}.", options.journals.prefix);
    // Kafka treats `.` and `_` as the same character when it compares names of topics.
    let folded = |name: &str| name.replace('.', "_");
    let mut taken = BTreeMap::<String, String>::new();
    let mut take = |reader: &mut Reader, place: Place, path: &str, name: String| {
        let refused = |what: String, help: &str| ConfigProblem {
            code: ErrorCode::ContradictorySettings,
            place: place.clone(),
            what,
            help: help.to_owned(),
        };
        if name.len() > NAME_BYTES_MAX {
            reader.problems.push(refused(
                format!(
                    "{path} needs a topic of its own on Kafka, `{name}`, of {} characters; Kafka takes {NAME_BYTES_MAX}",
                    name.len()
                ),
                "give its group or its topic a shorter name",
            ));
        }
        if let Some(other) = taken.insert(folded(&name), path.to_owned()) {
            reader.problems.push(refused(
                format!("{path} and {other} would have the same topic on Kafka, `{name}`: Kafka tells `.` and `_` not apart"),
                "rename one of them",
            ));
        }
    };
    for (name, section) in reader.sections(top, "topics") {
        let path = format!("topics.{name}");
        if name.starts_with("__") || name.starts_with(&own) {
            reader.problems.push(ConfigProblem {
                code: ErrorCode::ContradictorySettings,
                place: section.clone(),
                what: format!("{path}: names that begin with `__` are Kafka's own, with `{own}` Keylane's"),
                help: "rename it".to_owned(),
            });
        }
        take(reader, section, &path, name);
    }
    for (name, place) in reader.sections(top, "pipelines") {
        let Some(pipeline) = pipelines.get(&name) else { continue };
        // The journal has the longest name of all topics that Keylane makes for a pipeline.
        let journal = options.journals.topic_name(&pipeline.group, &pipeline.topic);
        take(reader, place, &format!("pipelines.{name}"), journal);
    }
}
