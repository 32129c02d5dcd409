//! A topic as the contract has it: what it is made with, what it is, and what of it weakens a promise.

use super::errors::BrokerError;

/// How a topic is made (MSG-4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// Number of partitions.
    pub partitions: u32,
    /// Copies, on a broker that keeps several.
    pub replicas: u32,
    /// Copies that must have a message before it is acknowledged.
    pub min_insync: u32,
    /// How long messages are kept; `None`: for ever.
    pub retention_ms: Option<u64>,
    /// How many bytes of the whole topic are kept; `None`: no bound.
    pub retention_bytes: Option<u64>,
    /// The largest message, as a frame.
    pub message_bytes_max: usize,
    /// How messages are kept, on a broker that compresses.
    pub compression: Compression,
    /// Which messages carry an id, on a broker where that costs.
    pub ids: Ids,
}

/// Which messages of a topic carry an id. Without one a message is called by where it lies (MSG-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Ids {
    /// All: one that came without gets one.
    #[default]
    All,
    /// Those that came with one. What lands twice cannot be told by its id then.
    Caller,
}

/// How a broker that compresses keeps a topic's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// Quick, and small enough.
    Lz4,
    /// As they are.
    None,
    /// Quicker than small.
    Snappy,
    /// Smaller than quick.
    Zstd,
    /// Small, and slow.
    Gzip,
    /// As each producer sent them: Keylane's sends lz4.
    #[default]
    AsProduced,
}

impl Default for TopicSpec {
    /// What a topic created by its first use gets.
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
    /// Its name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u32,
    /// Random, made with the topic: one that was deleted and made again has another (BRK-10).
    pub incarnation: u128,
    /// How it was made, as far as the broker knows.
    pub spec: TopicSpec,
}

impl Topic {
    /// An error if `there` is not this topic any more: its keys, or its positions, would mean something else (BRK-10).
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
    /// What kind.
    pub weakness: Weakness,
    /// The topic whose setting it is.
    pub topic: String,
    /// What is set, and what may come of it.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

/// How a promise is weakened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Weakness {
    /// A message is acknowledged that one copy has.
    InSync,
    /// There is only one copy.
    OneCopy,
    /// A copy that lacks acknowledged messages may become the one that counts.
    UncleanElection,
    /// What counts as a message's append time is what its producer says.
    ProducersTime,
    /// Messages go before a pipeline that was away for a day could settle them.
    ShortRetention,
}

/// Where a partition begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ends {
    /// First position kept.
    pub start: u64,
    /// Next position to be given out.
    pub end: u64,
}
