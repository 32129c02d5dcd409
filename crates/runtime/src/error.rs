//! The errors of the library. Each has a code, and each code has a page under `docs/errors/`.

use std::path::PathBuf;

use keylane_broker::{BrokerError, ProduceError, Weakness};
use keylane_core::ErrorCode;

/// Why Keylane could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The embedded broker's folder cannot be opened.
    #[error("cannot open the data folder {folder}: {why}")]
    Open {
        /// The folder.
        folder: PathBuf,
        /// Why the folder cannot be opened.
        why: String,
    },
    /// The broker refused or failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A message was not accepted.
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
    /// A group cannot be forgotten: a pipeline of this process uses it.
    #[error(
        "group {group} of topic {topic} cannot be forgotten: pipeline {pipeline} uses it; drain the pipeline or take it out of the config first"
    )]
    GroupInUse {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The pipeline that uses it.
        pipeline: String,
    },
    /// A group has never read the topic.
    #[error("group {0} has never read topic {1}; `keylane topics` names the groups that hold messages back")]
    UnknownGroup(String, String),
    /// The format of a topic's journals cannot be raised.
    #[error("the journals of topic {0} cannot be upgraded: {1}")]
    Upgrade(String, String),
    /// The description of an outbox is wrong.
    #[error("the outbox cannot be relayed: {0}")]
    Outbox(String),
}

impl Error {
    /// The code under which `docs/errors/` explains the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Error::Open { .. } => ErrorCode::FolderNotOpened,
            Error::Broker(error) => broker_code(error),
            Error::Produce(error) => produce_code(error),
            Error::Pipeline(..) => ErrorCode::PipelineNotStarted,
            Error::UnknownPipeline(_) => ErrorCode::UnknownPipeline,
            Error::Outbox(_) => ErrorCode::OutboxNotRelayed,
            Error::Accept(..) => ErrorCode::PartitionsNotAccepted,
            Error::GroupInUse { .. } => ErrorCode::GroupInUse,
            Error::UnknownGroup(..) => ErrorCode::UnknownGroup,
            Error::Upgrade(..) => ErrorCode::JournalsNotUpgraded,
        }
    }
}

/// The code of a broker's error.
pub fn broker_code(error: &BrokerError) -> ErrorCode {
    match error {
        BrokerError::Unavailable(_) => ErrorCode::BrokerUnreachable,
        BrokerError::Closed => ErrorCode::BrokerClosed,
        BrokerError::Stopped(_) => ErrorCode::BrokerStopped,
        BrokerError::UnknownTopic(_) => ErrorCode::UnknownTopic,
        BrokerError::Partitions { .. } => ErrorCode::PartitionsChanged,
        BrokerError::Recreated(_) => ErrorCode::TopicMadeAnew,
        BrokerError::OutOfRange { .. } => ErrorCode::NoSuchPosition,
        BrokerError::Damaged(_) => ErrorCode::DamagedData,
        BrokerError::Credentials(_) => ErrorCode::CredentialsRefused,
        BrokerError::Denied { .. } => ErrorCode::RightMissing,
        BrokerError::Replicas { .. } => ErrorCode::TooManyReplicas,
        BrokerError::NotKept { .. } => ErrorCode::TopicNotKept,
        BrokerError::Foreign(_) => ErrorCode::ForeignRecord,
        BrokerError::Backup(_) => ErrorCode::NoBackup,
        BrokerError::Newer(_) => ErrorCode::WrittenByNewer,
        BrokerError::DiskFull(_) => ErrorCode::DiskFull,
        BrokerError::Refused { .. } => ErrorCode::TopicSettingsRefused,
        BrokerError::NotMade { .. } => ErrorCode::OwnTopicMissing,
        _ => ErrorCode::RequestRefused,
    }
}

/// The code of a refused message.
pub fn produce_code(error: &ProduceError) -> ErrorCode {
    match error {
        ProduceError::TooLarge { .. } | ProduceError::TooLargeThere(_) => ErrorCode::MessageTooLarge,
        ProduceError::Denied(_) => ErrorCode::RightMissing,
        ProduceError::UnknownTopic(_) => ErrorCode::UnknownTopic,
        ProduceError::Full { .. } => ErrorCode::TopicFull,
        ProduceError::InFlight { .. } => ErrorCode::TooMuchInFlight,
        ProduceError::Invalid(_) => ErrorCode::InvalidMessage,
        ProduceError::Keyless(_) => ErrorCode::KeylessInCompacted,
        ProduceError::Behind => ErrorCode::EarlierRefused,
        ProduceError::SpillFull { .. } | ProduceError::BehindFull { .. } => ErrorCode::SpillFull,
        _ => ErrorCode::MessageNotTaken,
    }
}

/// The code of a setting that weakens a promise.
pub fn warning_code(weakness: Weakness) -> ErrorCode {
    match weakness {
        Weakness::InSync => ErrorCode::AcknowledgedByOne,
        Weakness::UncleanElection => ErrorCode::UncleanElection,
        Weakness::ProducersTime => ErrorCode::ProducersTime,
        Weakness::OneCopy => ErrorCode::OneCopy,
        _ => ErrorCode::ShortRetention,
    }
}
