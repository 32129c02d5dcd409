//! What every broker gives (BRK-5), and what Keylane assumes of it.
//!
//! A broker is a partitioned log with a few small logs beside it. Positions of a partition rise and never come back;
//! gaps of any size may lie between them. What a call acknowledged stays. Nothing else is assumed: an append may land
//! late, twice, or after its sender is dead, and the journals' rules (`keylane_core::owner`) are made for that.
//!
//! Calls carry batches, so a boxed future each costs nothing that matters.

use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use keylane_core::{Batch, Frames};

/// Where topics live.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// `embedded`, `kafka`, `nats`, `redis`, `memory`: for people and metrics.
    fn kind(&self) -> &'static str;

    /// Why messages cannot be taken or kept now, if so: what `/readyz` says (BRK-8, P10).
    async fn health(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Creates a topic, or gives the one that is there the limits of `spec`. A topic that exists with another partition count is an
    /// error (BRK-10): its keys would move.
    async fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError>;

    /// The topic of that name, if there is one.
    async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError>;

    /// What of these topics, or of the broker, weakens a promise (BRK-9). A topic that is not there is left out.
    async fn warnings(&self, _topics: &[String]) -> Result<Vec<Warning>, BrokerError> {
        Ok(Vec::new())
    }

    /// All topics, by name.
    async fn topics(&self) -> Result<Vec<Topic>, BrokerError>;

    /// Appends messages, each to its partition, and answers once each is durable or refused: a result each, in the
    /// order given. Messages of one call that go to one partition keep their order, and a call takes its place before
    /// all later ones when its future is first polled. A topic's limit is on the whole frame.
    ///
    /// A broker on another machine may take as long as it likes, and answers [`ProduceError::Unavailable`] in order:
    /// where a message's fate is not known, no later one of its partition that was under way then is acknowledged.
    async fn produce(&self, topic: &str, frames: Frames) -> Vec<Result<u64, ProduceError>>;

    /// Gives up what was not acknowledged: calls of [`Broker::produce`] that are under way end soon, and what of them
    /// was not acknowledged is `Unavailable` and is not sent any more, though it may have landed (PRD-3).
    async fn recall(&self) {}

    /// Whether a partition would take messages now, as far as asking can tell.
    async fn takes(&self, _topic: &str, _partition: u32) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Reads a partition from `from` on. A position below the log's start or above its end is
    /// [`BrokerError::OutOfRange`], never a silent reset (BRK-10).
    async fn reader(&self, topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError>;

    /// First position kept and the next to be given out, for each partition of a topic.
    async fn ends(&self, topic: &str) -> Result<Vec<Ends>, BrokerError>;

    /// Mirrors how far a group has settled a partition. Never read as truth: the journal is (COM-3).
    async fn commit(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
        commit: Commit,
    ) -> Result<(), BrokerError>;

    /// The last commit of a group, and whose it is.
    async fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError>;

    /// Joins a group's reading of a topic. What is assigned comes as [`Change`]s.
    async fn join(&self, group: &str, topic: &str, node: &str) -> Result<Box<dyn Membership>, BrokerError>;

    /// One of the two small logs beside a source partition (BRK-6). Created empty by its first append.
    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError>;
}

/// Reads one partition in order. Not polling it is how reading stops (BPR-2); nothing is lost by it.
pub trait Reader: Send {
    /// The next batch: at most about `bytes_max` bytes of frames, but at least one message. Pending at the end of the
    /// log, and woken when more is durable. Ends only with an error.
    fn poll_batch(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>>;
}

/// This process's part in a group.
#[async_trait]
pub trait Membership: Send {
    /// What changed. Cancel safe. Ends only with an error; [`BrokerError::Closed`] when the broker is closed,
    /// [`BrokerError::Partitions`] or [`BrokerError::Recreated`] when the topic is not what was joined (BRK-10).
    async fn changed(&mut self) -> Result<Change, BrokerError>;

    /// Asks the broker anew whether the partition is this member's (after a long pause, ORD-12; before claiming again).
    async fn confirm(&mut self, partition: u32) -> Result<bool, BrokerError>;

    /// Tells the broker that a revoked partition is no longer read here. Must be called for each `Revoked`.
    async fn gave_up(&mut self, partition: u32);

    /// True if the broker proves that a process other than this one is dead, whatever it was: only one process can
    /// have the embedded folder's lock. `instance` is the random id of the process that made the claim.
    fn proves_dead(&self, instance: u128) -> bool;

    /// The random id of this process, for its claims.
    fn instance(&self) -> u128;

    /// Leaves the group. Partitions go to others.
    async fn leave(&mut self);
}

/// A change in what a member may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// May be claimed now.
    Assigned(u32),
    /// To be drained and given up: start nothing more, say `released` (ORD-9).
    Revoked(u32),
    /// Gone already: drop everything, write nothing.
    Lost(u32),
}

/// A log of Keylane's own records. Anyone may append; positions rise from 0 without gaps.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends one record and answers once it is durable. With `expect_end`, it lands only if the log ends there
    /// ([`AppendError::Moved`] otherwise); brokers that cannot do so answer [`AppendError::Unconditional`].
    async fn append(&self, record: Bytes, expect_end: Option<u64>) -> Result<u64, AppendError>;

    /// True if `expect_end` works here.
    fn conditional(&self) -> bool;

    /// Records from `from` on, in order: about `bytes_max` bytes, at least one if there is any. A `from` below the
    /// log's start begins at the start; the page says where that is.
    async fn read(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError>;

    /// Returns once the log ends beyond `end`. Cancel safe.
    async fn beyond(&self, end: u64) -> Result<(), BrokerError>;

    /// Forgets everything below `below`, durably. Never more than that, and never what is above the end.
    async fn cut(&self, below: u64) -> Result<(), BrokerError>;
}

/// Part of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalPage {
    /// The first position kept.
    pub start: u64,
    /// The next position to be given out.
    pub end: u64,
    /// Records with their positions, ascending.
    pub records: Vec<(u64, Bytes)>,
}

/// Names a journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JournalName {
    /// Whose state it is.
    pub group: String,
    /// The source topic.
    pub topic: String,
    /// The source partition.
    pub partition: u32,
    /// Which of the two.
    pub kind: LogKind,
}

/// The two logs beside a source partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogKind {
    /// `journal.p`: the truth, in small records.
    Journal,
    /// `hold.p`: bodies, which count only once a journal record names them.
    Hold,
}

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
}

/// How a broker that compresses keeps a topic's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compression {
    /// Quick, and small enough.
    #[default]
    Lz4,
    /// As they are.
    None,
    /// Quicker than small.
    Snappy,
    /// Smaller than quick.
    Zstd,
    /// Small, and slow.
    Gzip,
    /// As each producer sent them; a topic of somebody else's.
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

/// A group's position in a partition, as the broker keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The lowest position not settled.
    pub position: u64,
    /// Journal id and epoch, as `keylane_core::owner` writes them. Empty: an operator's reset (COM-3).
    pub metadata: Bytes,
}

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
    /// The request itself makes no sense.
    #[error("{0}")]
    Invalid(String),
}
