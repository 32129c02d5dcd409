//! The errors of a broker: what went wrong, and what an operator or caller can do about it.

/// Why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProduceError {
    /// The message is over the topic's limit.
    #[error(
        "the message has {bytes} bytes; topic {topic} takes at most {bytes_max} (topics.{topic}.max_message)"
    )]
    TooLarge {
        /// The topic.
        topic: String,
        /// The message's size.
        bytes: usize,
        /// The largest message that the topic takes.
        bytes_max: usize,
    },
    /// The message is over the broker's own limit, which is lower than the topic's limit in Keylane.
    #[error(
        "topic {0} takes less on its broker than topics.{0}.max_message allows here; raise its limit there, or lower the one here"
    )]
    TooLargeThere(String),
    /// The broker does not let Keylane produce: a right is missing, or the log-in is wrong. Nothing was taken.
    #[error("{0}")]
    Denied(String),
    /// There is no such topic or partition.
    #[error("there is no topic {0}")]
    UnknownTopic(String),
    /// The topic is full of messages that pipelines have not settled yet; nothing unsettled is ever deleted (BRK-1).
    #[error(
        "topic {topic} is full: {bytes} bytes are kept, {bytes_max} are allowed, and what pipelines have not settled is not deleted; let them catch up, or raise topics.{topic}.retention_bytes"
    )]
    Full {
        /// The topic.
        topic: String,
        /// Bytes kept.
        bytes: u64,
        /// Bytes allowed.
        bytes_max: u64,
    },
    /// The topic is compacted: it keeps the last message of each key, and has no place for a message without a key.
    #[error(
        "topic {0} is compacted, and takes no message without a key; give the message a key, or set cleanup.policy=delete on the topic"
    )]
    Keyless(String),
    /// An earlier message of the same key, in the same call, was refused, and the call asked that nothing of a key is
    /// sent behind a refused message.
    #[error("an earlier message of its key was refused; this one was not sent, so that it does not go first")]
    Behind,
    /// The message itself is invalid: its id, key or headers are out of bounds.
    #[error("{0}")]
    Invalid(String),
    /// Too many calls or bytes wait for an acknowledgement already (PRD-2).
    #[error(
        "producer in-flight limit reached: {calls_max} calls or {bytes_max} bytes are not acknowledged yet; slow down, or choose to wait"
    )]
    InFlight {
        /// Calls allowed.
        calls_max: usize,
        /// Bytes allowed.
        bytes_max: usize,
    },
    /// The broker is away, and the spill has no room for more messages (PRD-3).
    #[error(
        "the broker is away and the spill is full: {bytes} bytes wait for it, {bytes_max} are allowed; bring the broker back, or raise spill.bytes"
    )]
    SpillFull {
        /// Bytes that wait in the spill.
        bytes: u64,
        /// Bytes allowed.
        bytes_max: u64,
    },
    /// The message's key has an earlier message that the broker refused for good, and no more messages are kept behind
    /// such ones (PRD-3).
    #[error(
        "the broker refused an earlier message of this key for good, and what waits behind such messages has {bytes} bytes, of which {bytes_max} are allowed; `keylane spill ls --state failed` says why: raise the topic's limit and run `keylane spill drain`, or raise spill.bytes"
    )]
    BehindFull {
        /// Bytes of refused messages and of those behind them.
        bytes: u64,
        /// Bytes allowed.
        bytes_max: u64,
    },
    /// The broker cannot be reached or has stopped. Whether the message was taken is not known.
    #[error("the broker did not take the message: {0}")]
    Unavailable(String),
}

/// Why a journal record was not appended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The journal does not end where the condition says; nothing was appended.
    #[error("the journal ends at {end}, not where it was expected to")]
    Moved {
        /// Where the journal ends.
        end: u64,
    },
    /// This broker cannot append on condition.
    #[error("this broker cannot append on condition")]
    Unconditional,
    /// Whether the record landed is not known.
    #[error("the journal did not answer: {0}")]
    Unknown(String),
    /// The broker has stopped after a failure (P10). Whether the record landed is not known, and no further record will
    /// land.
    #[error("the broker has stopped: {0}")]
    Stopped(String),
}

/// Why a call to a broker failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The broker cannot be reached now; trying again may help (BRK-8).
    #[error("the broker cannot be reached: {0}")]
    Unavailable(String),
    /// The broker does not accept our log-in; waiting does not help.
    #[error(
        "the broker does not accept our log-in: {0}; look at the user, the password and the mechanism under broker.kafka.settings (sasl.username, sasl.password, sasl.mechanism)"
    )]
    Credentials(String),
    /// The broker does not let this user do something.
    #[error(
        "the broker does not let us use {on}: this user lacks {rights}; grant it, all rights are listed in docs/kafka.md"
    )]
    Denied {
        /// The topic, group or cluster concerned.
        on: String,
        /// The missing right, or the rights of which one is missing.
        rights: String,
    },
    /// The topic asks for more copies than there are brokers to keep them.
    #[error(
        "topic {topic} asks for {asked} replicas, and the cluster has {brokers} brokers; set topics.{topic}.replicas to at most {brokers}, choose the profile `development`, or add brokers"
    )]
    Replicas {
        /// The topic.
        topic: String,
        /// Copies that were asked for.
        asked: u32,
        /// Brokers that there are.
        brokers: u32,
    },
    /// A topic of Keylane's own state has settings under which the state would be lost.
    #[error(
        "topic {topic} keeps Keylane's own state and must be kept whole, but {what}; set cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1 on it"
    )]
    NotKept {
        /// The topic.
        topic: String,
        /// Which setting is wrong.
        what: String,
    },
    /// The cluster refuses the settings that were asked for, by a policy of its operator or its vendor.
    #[error(
        "the cluster refuses the settings of topic {topic}: {why}; write others under topics.{topic}, or for a topic of Keylane's own under broker.kafka.journals.settings"
    )]
    Refused {
        /// The topic.
        topic: String,
        /// Why, in the cluster's own words.
        why: String,
    },
    /// A topic of Keylane's own state does not exist, and the config says that an operator makes such topics.
    #[error(
        "topic {topic}, which keeps Keylane's own state, is not there, and broker.kafka.journals.create is false; make it with: {command}"
    )]
    NotMade {
        /// The topic.
        topic: String,
        /// The command that makes the topic.
        command: String,
    },
    /// The broker was closed in this process.
    #[error("the broker is closed")]
    Closed,
    /// The broker stopped after a failure, such as a failed fsync, after which going on would be a guess (P10).
    #[error("the broker has stopped: {0}")]
    Stopped(String),
    /// There is no such topic.
    #[error("there is no topic {0}")]
    UnknownTopic(String),
    /// A topic exists with another number of partitions than was asked for.
    #[error(
        "topic {topic} has {there} partitions, and {asked} are asked for; keys would move to other partitions: set topics.{topic}.partitions to {there}"
    )]
    Partitions {
        /// The topic.
        topic: String,
        /// Partitions that the topic has.
        there: u32,
        /// Partitions that were asked for.
        asked: u32,
    },
    /// A topic was deleted and made again while it was read: its positions mean other messages now.
    #[error(
        "topic {0} was deleted and made again; nothing of it is handled until somebody decides what to do with what was not settled"
    )]
    Recreated(String),
    /// The position is outside of what the partition keeps.
    #[error("position {position} of {topic}/{partition} is outside of what is kept ({start} to {end})")]
    OutOfRange {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// The position that was asked for.
        position: u64,
        /// The first position kept.
        start: u64,
        /// The position that the next message gets.
        end: u64,
    },
    /// Stored bytes are damaged elsewhere than at the end of a log, where a torn write would explain it.
    #[error("damaged: {0}")]
    Damaged(String),
    /// A newer version of Keylane wrote the stored data in a way that this version does not know (P10).
    #[error("{0}")]
    Newer(String),
    /// The broker's disk is full: nothing is lost, but nothing more is taken until there is room.
    #[error("the disk is full: {0}; free some space, or move the data folder to a larger disk")]
    DiskFull(String),
    /// A backup could not be made.
    #[error("no backup was made: {0}")]
    Backup(String),
    /// A record of another program cannot become a Keylane message.
    #[error("{0}; make it smaller where it is written, or set the group's commit behind it")]
    Foreign(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
}
