//! A topic in our words and in Kafka's: which settings it gets, and what those of one that is there mean.

use rdkafka::admin::ConfigResource;

use super::native::Described;
use crate::contract::{BrokerError, Compression, Ids, Topic, TopicSpec};
use crate::kafka::options::BATCH_BYTES;
use crate::kafka::wire::AROUND;

/// A setting's value.
pub(crate) fn value(config: &ConfigResource, name: &str) -> Option<String> {
    config.get(name).and_then(|entry| entry.value.clone())
}

/// A topic's settings on Kafka.
pub(crate) fn settings_of(spec: &TopicSpec) -> Vec<(String, String)> {
    let bound = |bound: Option<u64>| bound.map_or("-1".to_owned(), |bound| bound.to_string());
    // Kafka's bound is of one partition.
    let bytes = spec.retention_bytes.map(|bytes| bytes / u64::from(spec.partitions.max(1)));
    let mut settings = vec![
        ("min.insync.replicas", spec.min_insync.to_string()),
        ("retention.ms", bound(spec.retention_ms)),
        ("retention.bytes", bound(bytes)),
        // Kafka's bound is of a batch, whose messages it would refuse together; ours, of a message, is kept here.
        ("max.message.bytes", (spec.message_bytes_max.max(BATCH_BYTES) + AROUND).to_string()),
        ("message.timestamp.type", "LogAppendTime".to_owned()),
        ("cleanup.policy", "delete".to_owned()),
    ];
    // Only where somebody asked for one: managed clusters refuse it, and what our producer sends is lz4 anyway.
    if let Some((_, codec)) = CODECS.iter().find(|(one, _)| *one == spec.compression) {
        settings.push(("compression.type", (*codec).to_owned()));
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Settings that give a topic that is there other limits. What says no limit stays as it is: a topic that somebody
/// made may be compacted, or carry its producers' times.
pub(crate) fn changes(there: &TopicSpec, wanted: &TopicSpec) -> Vec<(String, String)> {
    let larger = wanted.message_bytes_max > there.message_bytes_max;
    let old = settings_of(there);
    let changed = |new: &(String, String)| !old.contains(new) || (larger && new.0 == "max.message.bytes");
    settings_of(wanted).into_iter().filter(changed).collect()
}

/// The topic's own setting: it holds for every producer, and Kafka's tools show it. Our producer sends lz4, which a
/// topic of lz4 keeps as it came; for another codec the cluster compresses anew.
const CODECS: [(Compression, &str); 5] = [
    (Compression::Lz4, "lz4"),
    (Compression::None, "uncompressed"),
    (Compression::Snappy, "snappy"),
    (Compression::Zstd, "zstd"),
    (Compression::Gzip, "gzip"),
];

/// A topic as it was described, and its settings.
pub(crate) fn to_topic(topic: &Described, setting: impl Fn(&str) -> Option<String>) -> Topic {
    let number = |name: &str| setting(name).and_then(|value| value.parse::<u64>().ok());
    let limit = number("max.message.bytes").unwrap_or(1 << 20) as usize;
    Topic {
        name: topic.name.clone(),
        partitions: topic.partitions,
        incarnation: topic.id,
        spec: TopicSpec {
            partitions: topic.partitions,
            replicas: topic.replicas,
            min_insync: number("min.insync.replicas").unwrap_or(1) as u32,
            retention_ms: number("retention.ms"),
            retention_bytes: number("retention.bytes").map(|bytes| bytes * u64::from(topic.partitions)),
            message_bytes_max: limit.saturating_sub(AROUND),
            compression: setting("compression.type")
                .and_then(|there| CODECS.iter().find(|(_, name)| *name == there))
                .map_or(Compression::AsProduced, |(codec, _)| *codec),
            ids: Ids::default(),
        },
    }
}

/// Refuses a name that Kafka does not take.
pub(crate) fn check_name(name: &str) -> Result<(), BrokerError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 249 || name == "." || name == ".." || !name.bytes().all(fine) {
        return Err(BrokerError::Invalid(format!(
            "Kafka does not take the name {name:?}; use letters, digits, `.`, `_` and `-`, at most 249 of them"
        )));
    }
    Ok(())
}
