//! What goes wrong, for the caller of the library: each with a code that has a page under `docs/errors/`.

use std::path::PathBuf;

use keylane_broker::{BrokerError, ProduceError, Weakness};

/// Why Keylane could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The embedded broker's folder cannot be opened.
    #[error("cannot open the data folder {folder}: {why}")]
    Open {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The broker says no.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A message was not taken.
    #[error(transparent)]
    Produce(#[from] ProduceError),
    /// A pipeline of that name, or one with the same group and topic, runs already.
    #[error("pipeline {0} cannot start: {1}")]
    Pipeline(String, String),
    /// There is no such pipeline.
    #[error("there is no pipeline {0}")]
    UnknownPipeline(String),
    /// A topic's new number of partitions cannot be accepted.
    #[error("the partitions of topic {0} cannot be accepted: {1}")]
    Accept(String, String),
    /// A group cannot be forgotten: a pipeline here uses it.
    #[error(
        "group {group} of topic {topic} cannot be forgotten: pipeline {pipeline} uses it; drain the pipeline or take it out of the config first"
    )]
    GroupInUse {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// Who uses it.
        pipeline: String,
    },
    /// A group has never read the topic.
    #[error("group {0} has never read topic {1}; `keylane topics` names the groups that hold messages back")]
    UnknownGroup(String, String),
    /// The format of a topic's journals cannot be raised.
    #[error("the journals of topic {0} cannot be upgraded: {1}")]
    Upgrade(String, String),
    /// An outbox is not described well.
    #[error("the outbox cannot be relayed: {0}")]
    Outbox(String),
}

impl Error {
    /// The code under which `docs/errors/` explains it.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Open { .. } => "KL-1101",
            Error::Broker(error) => broker_code(error),
            Error::Produce(error) => produce_code(error),
            Error::Pipeline(..) => "KL-1308",
            Error::UnknownPipeline(_) => "KL-1309",
            Error::Outbox(_) => "KL-1310",
            Error::Accept(..) => "KL-1311",
            Error::GroupInUse { .. } => "KL-1120",
            Error::UnknownGroup(..) => "KL-1121",
            Error::Upgrade(..) => "KL-1313",
        }
    }
}

/// The code of a broker's error.
pub fn broker_code(error: &BrokerError) -> &'static str {
    match error {
        BrokerError::Unavailable(_) => "KL-1102",
        BrokerError::Closed => "KL-1103",
        BrokerError::Stopped(_) => "KL-1104",
        BrokerError::UnknownTopic(_) => "KL-1201",
        BrokerError::Partitions { .. } => "KL-1105",
        BrokerError::Recreated(_) => "KL-1303",
        BrokerError::OutOfRange { .. } => "KL-1106",
        BrokerError::Damaged(_) => "KL-1107",
        BrokerError::Credentials(_) => "KL-1109",
        BrokerError::Denied { .. } => "KL-1110",
        BrokerError::Replicas { .. } => "KL-1111",
        BrokerError::NotKept { .. } => "KL-1112",
        BrokerError::Foreign(_) => "KL-1113",
        BrokerError::Backup(_) => "KL-1122",
        BrokerError::Newer(_) => "KL-1114",
        BrokerError::DiskFull(_) => "KL-1115",
        BrokerError::Refused { .. } => "KL-1130",
        BrokerError::NotMade { .. } => "KL-1131",
        _ => "KL-1108",
    }
}

/// The code of a refused message.
pub fn produce_code(error: &ProduceError) -> &'static str {
    match error {
        ProduceError::TooLarge { .. } | ProduceError::TooLargeThere(_) => "KL-1203",
        ProduceError::Denied(_) => "KL-1110",
        ProduceError::UnknownTopic(_) => "KL-1201",
        ProduceError::Full { .. } => "KL-1204",
        ProduceError::InFlight { .. } => "KL-1205",
        ProduceError::Invalid(_) => "KL-1202",
        ProduceError::Keyless(_) => "KL-1405",
        ProduceError::Behind => "KL-1406",
        ProduceError::SpillFull { .. } | ProduceError::BehindFull { .. } => "KL-1220",
        _ => "KL-1206",
    }
}

/// The code of a setting that weakens a promise.
pub fn warning_code(weakness: Weakness) -> &'static str {
    match weakness {
        Weakness::InSync => "KL-1601",
        Weakness::UncleanElection => "KL-1602",
        Weakness::ProducersTime => "KL-1603",
        Weakness::OneCopy => "KL-1604",
        _ => "KL-1605",
    }
}
