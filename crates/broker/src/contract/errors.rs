//! What goes wrong with a broker, and what to do about it.

/// Why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProduceError {
    /// Over the topic's limit.
    #[error(
        "the message has {bytes} bytes; topic {topic} takes at most {bytes_max} (topics.{topic}.max_message)"
    )]
    TooLarge {
        /// The topic.
        topic: String,
        /// What it has.
        bytes: usize,
        /// What is taken.
        bytes_max: usize,
    },
    /// Over what the broker itself takes, which is less than the topic's limit here.
    #[error(
        "topic {0} takes less on its broker than topics.{0}.max_message allows here; raise its limit there, or lower the one here"
    )]
    TooLargeThere(String),
    /// The broker does not let us: a right is missing, or the log-in is wrong. Nothing was taken.
    #[error("{0}")]
    Denied(String),
    /// There is no such topic or partition.
    #[error("there is no topic {0}")]
    UnknownTopic(String),
    /// Full of what pipelines have not settled yet; nothing unsettled is ever deleted (BRK-1).
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
    /// A compacted topic keeps the last message of each key, and has no place for one without.
    #[error(
        "topic {0} is compacted, and takes no message without a key; give the message a key, or set cleanup.policy=delete on the topic"
    )]
    Keyless(String),
    /// An earlier message of its key, in the same call, was refused; the call asked for nothing to be sent behind it.
    #[error("an earlier message of its key was refused; this one was not sent, so that it does not go first")]
    Behind,
    /// The message itself cannot be taken: its id, key or headers are out of bounds.
    #[error("{0}")]
    Invalid(String),
    /// Too much is on its way already (PRD-2).
    #[error(
        "producer in-flight limit reached: {calls_max} calls or {bytes_max} bytes are not acknowledged yet; slow down, or choose to wait"
    )]
    InFlight {
        /// Calls allowed.
        calls_max: usize,
        /// Bytes allowed.
        bytes_max: usize,
    },
    /// The broker is away, and no more can be kept for it here (PRD-3).
    #[error(
        "the broker is away and the spill is full: {bytes} bytes wait for it, {bytes_max} are allowed; bring the broker back, or raise spill.bytes"
    )]
    SpillFull {
        /// Bytes that wait.
        bytes: u64,
        /// Bytes allowed.
        bytes_max: u64,
    },
    /// The message stands behind one of its key that the broker refused for good, and no more such are kept (PRD-3).
    #[error(
        "the broker refused an earlier message of this key for good, and what waits behind such messages has {bytes} bytes, of which {bytes_max} are allowed; `keylane spill ls --state failed` says why: raise the topic's limit and run `keylane spill drain`, or raise spill.bytes"
    )]
    BehindFull {
        /// Bytes that were refused or stand behind what was.
        bytes: u64,
        /// Bytes allowed.
        bytes_max: u64,
    },
    /// The broker cannot be reached or has stopped; whether the message was taken is not known.
    #[error("the broker did not take the message: {0}")]
    Unavailable(String),
}

/// Why a journal record was not appended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The log does not end where it was expected to; nothing was appended.
    #[error("the journal ends at {end}, not where it was expected to")]
    Moved {
        /// Where it ends.
        end: u64,
    },
    /// This broker cannot append on condition.
    #[error("this broker cannot append on condition")]
    Unconditional,
    /// Whether it landed is not known.
    #[error("the journal did not answer: {0}")]
    Unknown(String),
    /// The broker has stopped after a failure (P10); whether it landed is not known, and nothing more will.
    #[error("the broker has stopped: {0}")]
    Stopped(String),
}

/// What goes wrong with a broker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Cannot be reached now; trying again may help (BRK-8).
    #[error("the broker cannot be reached: {0}")]
    Unavailable(String),
    /// It does not accept who we say we are; waiting does not help.
    #[error(
        "the broker does not accept our log-in: {0}; look at the user, the password and the mechanism under broker.kafka.settings (sasl.username, sasl.password, sasl.mechanism)"
    )]
    Credentials(String),
    /// It does not let this user do something.
    #[error(
        "the broker does not let us use {on}: this user lacks {rights}; grant it, all rights are listed in docs/kafka.md"
    )]
    Denied {
        /// What of.
        on: String,
        /// The right, or those of which one is missing.
        rights: String,
    },
    /// More copies are asked for than there are brokers to keep them.
    #[error(
        "topic {topic} asks for {asked} replicas, and the cluster has {brokers} brokers; set topics.{topic}.replicas to at most {brokers}, choose the profile `development`, or add brokers"
    )]
    Replicas {
        /// The topic.
        topic: String,
        /// What was asked for.
        asked: u32,
        /// What there is.
        brokers: u32,
    },
    /// A topic of our own has settings under which what it keeps would be lost.
    #[error(
        "topic {topic} keeps Keylane's own state and must be kept whole, but {what}; set cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1 on it"
    )]
    NotKept {
        /// The topic.
        topic: String,
        /// What is set.
        what: String,
    },
    /// A topic cannot have the settings that were asked for: a policy of the cluster's, or its vendor's.
    #[error(
        "the cluster refuses the settings of topic {topic}: {why}; write others under topics.{topic}, or for a topic of Keylane's own under broker.kafka.journals.settings"
    )]
    Refused {
        /// The topic.
        topic: String,
        /// In the cluster's own words.
        why: String,
    },
    /// A topic of our own is not there, and somebody else makes them.
    #[error(
        "topic {topic}, which keeps Keylane's own state, is not there, and broker.kafka.journals.create is false; make it with: {command}"
    )]
    NotMade {
        /// The topic.
        topic: String,
        /// What makes it.
        command: String,
    },
    /// It was closed here.
    #[error("the broker is closed")]
    Closed,
    /// It stopped after a failure that would make going on a guess (P10), such as a failed fsync.
    #[error("the broker has stopped: {0}")]
    Stopped(String),
    /// There is no such topic.
    #[error("there is no topic {0}")]
    UnknownTopic(String),
    /// A topic exists, but not as it was asked for.
    #[error(
        "topic {topic} has {there} partitions, and {asked} are asked for; keys would move to other partitions: set topics.{topic}.partitions to {there}"
    )]
    Partitions {
        /// The topic.
        topic: String,
        /// What it has.
        there: u32,
        /// What was asked for.
        asked: u32,
    },
    /// A topic was deleted and made again while it was read: positions mean other messages now.
    #[error(
        "topic {0} was deleted and made again; nothing of it is handled until somebody decides what to do with what was not settled"
    )]
    Recreated(String),
    /// A position that is not there.
    #[error("position {position} of {topic}/{partition} is outside of what is kept ({start} to {end})")]
    OutOfRange {
        /// The topic.
        topic: String,
        /// The partition.
        partition: u32,
        /// What was asked for.
        position: u64,
        /// First kept.
        start: u64,
        /// Next to be given out.
        end: u64,
    },
    /// Stored bytes are damaged, at a place that is not the tail.
    #[error("damaged: {0}")]
    Damaged(String),
    /// A newer version of Keylane wrote what is stored, in a way that this one does not know (P10).
    #[error("{0}")]
    Newer(String),
    /// The disk under the broker is full: nothing is lost, and nothing more is taken until there is room.
    #[error("the disk is full: {0}; free some space, or move the data folder to a larger disk")]
    DiskFull(String),
    /// A backup could not be made.
    #[error("no backup was made: {0}")]
    Backup(String),
    /// A record that somebody else wrote cannot be a message here.
    #[error("{0}; make it smaller where it is written, or set the group's commit behind it")]
    Foreign(String),
    /// The request itself makes no sense.
    #[error("{0}")]
    Invalid(String),
}
