//! What every broker gives (BRK-5), and what Keylane assumes of it.
//!
//! A broker is a partitioned log with a few small logs beside it. Positions of a partition rise and never come back;
//! gaps of any size may lie between them. What a call acknowledged stays. Nothing else is assumed: an append may land
//! late, twice, or after its sender is dead, and the journals' rules (`keylane_core::owner`) are made for that.
//!
//! Calls carry batches, so a boxed future each costs nothing that matters.

mod errors;
mod kept;
mod topic;

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use keylane_core::{Batch, Frames};

pub use errors::{AppendError, BrokerError, ProduceError};
pub use kept::{Backup, HeldBack, Scrubbed};
pub use topic::{Compression, Ends, Ids, Topic, TopicSpec, Warning, Weakness};

/// Where topics live.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// `embedded`, `kafka`, `nats`, `redis`, `memory`: for people and metrics.
    fn kind(&self) -> &'static str;

    /// Why messages cannot be taken or kept now, if so: what `/readyz` says (BRK-8, P10).
    async fn health(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    /// What of the broker does not work, though the rest does: each concerns one topic, or what keeps journals (P10).
    async fn troubles(&self) -> Vec<BrokerError> {
        Vec::new()
    }

    /// What was read again to find damage early, since the broker was opened.
    fn scrubbed(&self) -> Scrubbed {
        Scrubbed::default()
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
    /// all later ones when its future is first polled. A topic's limit is on the whole frame. A position may be
    /// [`NO_POSITION`].
    ///
    /// Whoever drops the future does not hear what became of its messages; they may land. What the broker keeps of such
    /// calls counts within its own bound until it has landed or is given up: the caller may forget it (P5).
    ///
    /// A broker on another machine may take as long as it likes, and answers [`ProduceError::Unavailable`] in order:
    /// where a message's fate is not known, no later one of its partition that was under way then is acknowledged.
    async fn produce(&self, topic: &str, frames: Frames) -> Vec<Result<u64, ProduceError>>;

    /// Gives up what was not acknowledged: calls of [`Broker::produce`] that are under way end soon, and what of them
    /// was not acknowledged is `Unavailable` and is not sent any more, though it may have landed (PRD-3).
    async fn recall(&self) {}

    /// For each of these partitions, how long its leader has acknowledged nothing at all, of any partition; the time
    /// does not count for which it throttled us. A broker that is slow, because it has much to do or has a quota, is
    /// not away (BRK-2). None where a leader was never heard of, or does not take anything, or cannot be told.
    async fn silence(&self, _topic: &str, partitions: &[u32]) -> Vec<Option<Duration>> {
        vec![None; partitions.len()]
    }

    /// Whether a partition would take messages now, as far as asking can tell.
    async fn takes(&self, _topic: &str, _partition: u32) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Reads a partition from `from` on. A position below the log's start or above its end is
    /// [`BrokerError::OutOfRange`], never a silent reset (BRK-10).
    async fn reader(&self, topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError>;

    /// What the client of a partition's reader keeps of messages in this process that nobody has asked for yet, at most,
    /// if it may use so many bytes for it; 0 if there are none. A pipeline's bound of memory holds for those too (P5,
    /// BPR-1).
    fn reads_ahead(&self, _ahead_bytes: usize) -> usize {
        0
    }

    /// As [`Broker::reader`], with the memory that may be used for what is read ahead.
    async fn reader_ahead(
        &self,
        topic: &str,
        partition: u32,
        from: u64,
        _ahead_bytes: usize,
    ) -> Result<Box<dyn Reader>, BrokerError> {
        self.reader(topic, partition, from).await
    }

    /// What the broker's client library tells about itself, as of a moment ago: for metrics. Asks nobody.
    fn client_figures(&self) -> Option<ClientFigures> {
        None
    }

    /// How often a thread of it ended as nobody asked, since it was opened: for metrics. Asks nobody.
    fn threads_ended(&self) -> u64 {
        self.client_figures().map_or(0, |figures| figures.threads_ended)
    }

    /// First position kept and the next to be given out, for each partition of a topic.
    async fn ends(&self, topic: &str) -> Result<Vec<Ends>, BrokerError>;

    /// Where each partition ends, with what a transaction has not committed yet: nothing was appended above it so far.
    async fn tails(&self, topic: &str) -> Result<Vec<u64>, BrokerError> {
        Ok(self.ends(topic).await?.iter().map(|ends| ends.end).collect())
    }

    /// Mirrors how far a group has settled partitions, in one call (COM-2): a result each, in the order given, where a
    /// broker can tell them apart. Never read as truth: the journal is (COM-3).
    async fn commit_all(
        &self,
        group: &str,
        topic: &str,
        commits: Vec<(u32, Commit)>,
    ) -> Vec<Result<(), BrokerError>>;

    /// The same for one partition.
    async fn commit(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
        commit: Commit,
    ) -> Result<(), BrokerError> {
        let results = self.commit_all(group, topic, vec![(partition, commit)]).await;
        results.into_iter().next().unwrap_or(Err(BrokerError::Closed))
    }

    /// The last commit of a group, and whose it is.
    async fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError>;

    /// Joins a group's reading of a topic. What is assigned comes as [`Change`]s.
    async fn join(&self, group: &str, topic: &str, node: &str) -> Result<Box<dyn Membership>, BrokerError>;

    /// Says which groups pipelines are configured for, each with its topic. What only others have not settled may be
    /// deleted, a day after that was first seen (BRK-1). A broker that keeps groups for itself does not care.
    async fn configured(&self, _groups: &[(String, String)]) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Forgets a group's commits and journals of a topic: what it has not settled may be deleted, and if it comes back
    /// it is new. False if it was not known. Nobody may be in the group.
    async fn forget_group(&self, _group: &str, _topic: &str) -> Result<bool, BrokerError> {
        let text = "this broker keeps groups itself; remove the group with the broker's own tools";
        Err(BrokerError::Invalid(text.to_owned()))
    }

    /// Groups that keep a topic's oldest messages from being deleted, though their time has come or the topic is full.
    async fn held_back(&self, _topic: &str) -> Result<Vec<HeldBack>, BrokerError> {
        Ok(Vec::new())
    }

    /// Copies everything to a folder of this machine that is empty or not there, while the broker is used.
    async fn backup(&self, _target: &Path) -> Result<Backup, BrokerError> {
        let text = "this broker keeps its data elsewhere; back it up with its own tools";
        Err(BrokerError::Backup(text.to_owned()))
    }

    /// One of the two small logs beside a source partition (BRK-6). Created empty by its first append.
    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError>;

    /// For how many partitions of a topic a group's journals were made; none if they were not made yet, or where a
    /// topic never gets more partitions. One that does has no journals for those (BRK-10).
    async fn journals(&self, _group: &str, _topic: &str) -> Result<Option<u32>, BrokerError> {
        Ok(None)
    }

    /// Makes a group's journals for so many partitions: somebody has accepted that the topic has them.
    async fn grow_journals(&self, _group: &str, _topic: &str, _partitions: u32) -> Result<(), BrokerError> {
        Ok(())
    }
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

    /// As [`Membership::confirm`], for several at once. Where that takes time, it takes no longer than for one.
    async fn confirm_all(&mut self, partitions: &[u32]) -> Result<Vec<bool>, BrokerError> {
        let mut all = Vec::with_capacity(partitions.len());
        for partition in partitions {
            all.push(self.confirm(*partition).await?);
        }
        Ok(all)
    }

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

    /// The largest record that is taken, as far as is known now.
    fn bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Records from `from` on, in order: about `bytes_max` bytes, at least one if there is any. A `from` below the
    /// log's start begins at the start; the page says where that is.
    async fn read(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError>;

    /// As [`Journal::read`], for who was told by [`Journal::beyond`] that something has landed: what is at hand, of
    /// which a broker on another machine need not be asked. Its `end` is not where the log ends by now, so that it is
    /// not for whoever must have read everything.
    async fn read_landed(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        self.read(from, bytes_max).await
    }

    /// Returns once the log ends beyond `end`. Cancel safe.
    async fn beyond(&self, end: u64) -> Result<(), BrokerError>;

    /// Forgets everything below `below`, durably. Never more than that, and never what is above the end.
    async fn cut(&self, below: u64) -> Result<(), BrokerError>;
}

/// What a broker's client library tells about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFigures {
    /// Each broker that it talks to.
    pub brokers: Vec<ClientBroker>,
    /// Requests sent since the start.
    pub sent: u64,
    /// Messages handed over and not acknowledged yet.
    pub queued_messages: u64,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Messages read ahead.
    pub ahead_messages: u64,
    /// Their bytes.
    pub ahead_bytes: u64,
    /// Partitions that are read: topic, partition, and how many messages were not handed over yet.
    pub behind: Vec<(String, u32, u64)>,
    /// How often a thread that serves it ended as nobody asked, and was begun anew.
    pub threads_ended: u64,
}

/// How a broker answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientBroker {
    /// Its number.
    pub id: u32,
    /// The mean time of an answer, in microseconds, of the client for which it was longest.
    pub round_trip_us: u64,
    /// How long it made clients wait because of a quota, in milliseconds, of the client for which it was longest.
    pub throttled_ms: u64,
    /// Requests that wait to be sent, or for their answer.
    pub requests: u64,
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

/// The position of a message that is durable, where the broker did not tell which it got.
pub const NO_POSITION: u64 = u64::MAX;

/// A group's position in a partition, as the broker keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The lowest position not settled.
    pub position: u64,
    /// Journal id and epoch, as `keylane_core::owner` writes them. Empty: an operator's reset (COM-3).
    pub metadata: Bytes,
}
