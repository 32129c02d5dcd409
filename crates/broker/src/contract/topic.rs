//! A topic in the broker contract: how it is made, what it is, and which of its settings weaken a promise.

use super::errors::BrokerError;

/// How a topic is made (MSG-4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// The number of partitions.
    pub partitions: u32,
    /// How many copies of each message, on a broker that keeps several.
    pub replicas: u32,
    /// How many copies must have a message before it is acknowledged.
    pub min_insync: u32,
    /// How long messages are kept; `None` for ever.
    pub retention_ms: Option<u64>,
    /// How many bytes the whole topic keeps; `None` for no bound.
    pub retention_bytes: Option<u64>,
    /// The largest message, in bytes of its frame.
    pub message_bytes_max: usize,
    /// How messages are compressed, on a broker that does that.
    pub compression: Compression,
    /// Which messages carry an id, on a broker where an id costs room.
    pub ids: Ids,
}

/// Which messages of a topic carry an id. A message without one is named by its position (MSG-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Ids {
    /// All messages: one that came without an id gets one.
    #[default]
    All,
    /// Only messages that came with an id. A message without one that lands twice cannot be recognised.
    Caller,
}

/// How a topic's messages are compressed, on a broker that does that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// lz4: fast, with small results.
    Lz4,
    /// No compression.
    None,
    /// snappy: prefers speed to size.
    Snappy,
    /// zstd: prefers size to speed.
    Zstd,
    /// gzip: small results, slow.
    Gzip,
    /// As each producer compressed them; Keylane's producer uses lz4.
    #[default]
    AsProduced,
}

impl Default for TopicSpec {
    /// The settings of a topic that is created by its first use.
    fn default() -> TopicSpec {
        TopicSpec {
            partitions: 4,
            replicas: 1,
            min_insync: 1,
            retention_ms: Some(7 * 24 * 3600 * 1000),
            retention_bytes: Some(10 << 30),
            message_bytes_max: 1 << 20,
            compression: Compression::default(),
            ids: Ids::default(),
        }
    }
}

/// A topic that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// The topic's name.
    pub name: String,
    /// The number of partitions.
    pub partitions: u32,
    /// A random id, made with the topic: a topic that was deleted and made again has another (BRK-10).
    pub incarnation: u128,
    /// How the topic was made, as far as the broker knows.
    pub spec: TopicSpec,
}

impl Topic {
    /// An error if `there` is not the same topic any more: its keys or its positions would mean something else
    /// (BRK-10).
    pub fn same(&self, there: &Topic) -> Result<(), BrokerError> {
        if there.incarnation != self.incarnation {
            return Err(BrokerError::Recreated(self.name.clone()));
        }
        match there.partitions == self.partitions {
            true => Ok(()),
            false => Err(BrokerError::Partitions {
                topic: self.name.clone(),
                there: there.partitions,
                asked: self.partitions,
            }),
        }
    }
}

/// A setting that weakens a promise (BRK-9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The promise that is weakened, and how.
    pub weakness: Weakness,
    /// The topic that has the setting.
    pub topic: String,
    /// Which setting it is, and what may come of it.
    pub what: String,
    /// What an operator can do about it.
    pub remedy: String,
}

/// The ways in which a setting weakens a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Weakness {
    /// A message is acknowledged once one copy has it.
    InSync,
    /// There is only one copy of each message.
    OneCopy,
    /// A copy that lacks acknowledged messages may become the leader.
    UncleanElection,
    /// The append time of a message is taken from its producer's clock.
    ProducersTime,
    /// Messages are deleted before a pipeline that was away for a day could settle them.
    ShortRetention,
}

/// Where a partition begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ends {
    /// The first position kept.
    pub start: u64,
    /// The position that the next message gets.
    pub end: u64,
}
