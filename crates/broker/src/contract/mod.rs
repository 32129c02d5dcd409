//! The contract of every broker (BRK-5): the traits that an adapter implements, and what Keylane assumes of a broker.
//!
//! A broker is a partitioned log with a few small logs, the journals, beside it. Positions of a partition rise and are
//! never used again; gaps of any size may lie between them. What a call acknowledged stays. Nothing else is assumed: an
//! append may land late, twice, or after its sender is dead, and the journals' rules (`keylane_core::owner`) are made
//! for that.
//!
//! Calls carry batches, so the boxed future of each call costs nothing that matters.

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

/// A broker, which keeps topics, their partitions, and the journals beside them.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// The kind of broker, `embedded`, `kafka`, `nats`, `redis` or `memory`, for people and metrics.
    fn kind(&self) -> &'static str;

    /// An error if the broker cannot take or keep messages now; `/readyz` shows it (BRK-8, P10).
    async fn health(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Troubles that leave the rest of the broker working: each concerns one topic, or the journals (P10).
    async fn troubles(&self) -> Vec<BrokerError> {
        Vec::new()
    }

    /// What scrubbing has read again since the broker was opened, to find damage early.
    fn scrubbed(&self) -> Scrubbed {
        Scrubbed::default()
    }

    /// Creates a topic, or gives the existing one the limits of `spec`. An existing topic with another number of
    /// partitions is an error (BRK-10), because its keys would move.
    async fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError>;

    /// The topic with that name, if it exists.
    async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError>;

    /// Settings of these topics, or of the broker, that weaken a promise (BRK-9). Topics that do not exist are left
    /// out.
    async fn warnings(&self, _topics: &[String]) -> Result<Vec<Warning>, BrokerError> {
        Ok(Vec::new())
    }

    /// All topics, sorted by name.
    async fn topics(&self) -> Result<Vec<Topic>, BrokerError>;

    /// Appends messages, each to its partition, and returns a result for each, in the order given, once each is durable
    /// or refused. Messages of one call to one partition keep their order, and a call takes its place before all later
    /// calls when its future is first polled. A topic's limit applies to the whole frame. A returned position may be
    /// [`NO_POSITION`].
    ///
    /// A caller that drops the future does not learn what became of its messages, which may still land. What the broker
    /// keeps of such calls counts toward the broker's own bound until it has landed or is given up, so the caller may
    /// forget it (P5).
    ///
    /// A broker on another machine may take any time, but answers [`ProduceError::Unavailable`] in order: if the fate
    /// of a message is not known, no later message of its partition that was under way then is acknowledged.
    async fn produce(&self, topic: &str, frames: Frames) -> Vec<Result<u64, ProduceError>>;

    /// Gives up all that is not acknowledged: the calls of [`Broker::produce`] under way end soon. Their unacknowledged
    /// messages become `Unavailable` and are not sent any more, though they may have landed (PRD-3).
    async fn recall(&self) {}

    /// For each of these partitions, how long its leader has acknowledged nothing at all, of any partition. Time during
    /// which the leader throttled this client does not count: a broker that is slow from load or a quota is not away
    /// (BRK-2). `None` if a leader was never heard of, takes nothing, or cannot be told.
    async fn silence(&self, _topic: &str, partitions: &[u32]) -> Vec<Option<Duration>> {
        vec![None; partitions.len()]
    }

    /// Checks whether a partition would take messages now, as far as the broker can tell.
    async fn takes(&self, _topic: &str, _partition: u32) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Opens a reader of a partition at `from`. A position below the partition's start or above its end is
    /// [`BrokerError::OutOfRange`], never a silent reset (BRK-10).
    async fn reader(&self, topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError>;

    /// The most bytes of messages that the client behind a partition's reader keeps in this process before anybody asks
    /// for them, if it may use `ahead_bytes`; 0 if it reads nothing ahead. A pipeline's memory bound includes these
    /// bytes (P5, BPR-1).
    fn reads_ahead(&self, _ahead_bytes: usize) -> usize {
        0
    }

    /// Like [`Broker::reader`], with the memory that the reader may use for reading ahead.
    async fn reader_ahead(
        &self,
        topic: &str,
        partition: u32,
        from: u64,
        _ahead_bytes: usize,
    ) -> Result<Box<dyn Reader>, BrokerError> {
        self.reader(topic, partition, from).await
    }

    /// What the broker's client library reports about itself, as of a moment ago: for metrics. Sends no request.
    fn client_figures(&self) -> Option<ClientFigures> {
        None
    }

    /// How often a thread of the broker panicked since it was opened: for metrics. Asks nobody.
    fn threads_ended(&self) -> u64 {
        self.client_figures().map_or(0, |figures| figures.threads_ended)
    }

    /// For each partition of a topic, the first position kept and the position that the next message gets.
    async fn ends(&self, topic: &str) -> Result<Vec<Ends>, BrokerError>;

    /// For each partition, the end of the log including messages of open transactions: nothing was appended at or above
    /// it.
    async fn tails(&self, topic: &str) -> Result<Vec<u64>, BrokerError> {
        Ok(self.ends(topic).await?.iter().map(|ends| ends.end).collect())
    }

    /// Mirrors how far a group has settled partitions, in one call (COM-2). Returns a result for each, in the order
    /// given, where a broker can tell them apart. Keylane never reads a commit as the truth: the journal is (COM-3).
    async fn commit_all(
        &self,
        group: &str,
        topic: &str,
        commits: Vec<(u32, Commit)>,
    ) -> Vec<Result<(), BrokerError>>;

    /// Like [`Broker::commit_all`], for one partition.
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

    /// The last commit of a group for a partition, with its metadata.
    async fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError>;

    /// Joins a group that reads a topic. Assignments come as [`Change`]s.
    async fn join(&self, group: &str, topic: &str, node: &str) -> Result<Box<dyn Membership>, BrokerError>;

    /// Tells the broker for which groups, each with its topic, pipelines are configured. Messages that only other
    /// groups have not settled may be deleted a day after that was first seen (BRK-1). A broker that manages groups
    /// itself ignores this.
    async fn configured(&self, _groups: &[(String, String)]) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Forgets a group's commits and journals for a topic: messages that it has not settled may be deleted, and a group
    /// of that name starts as a new one. False if the group was not known. The group must have no members.
    async fn forget_group(&self, _group: &str, _topic: &str) -> Result<bool, BrokerError> {
        let text = "this broker keeps groups itself; remove the group with the broker's own tools";
        Err(BrokerError::Invalid(text.to_owned()))
    }

    /// Groups that keep a topic's oldest messages from being deleted although these are too old or the topic is full.
    async fn held_back(&self, _topic: &str) -> Result<Vec<HeldBack>, BrokerError> {
        Ok(Vec::new())
    }

    /// Copies all data to a folder of this machine that is empty or does not exist, while the broker is in use.
    async fn backup(&self, _target: &Path) -> Result<Backup, BrokerError> {
        let text = "this broker keeps its data elsewhere; back it up with its own tools";
        Err(BrokerError::Backup(text.to_owned()))
    }

    /// Opens one of the two small logs beside a source partition (BRK-6). Its first append creates it.
    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError>;

    /// For how many partitions of a topic a group's journals exist; `None` if they were not made yet, or on a broker
    /// whose topics never grow. Partitions that were added later have no journals (BRK-10).
    async fn journals(&self, _group: &str, _topic: &str) -> Result<Option<u32>, BrokerError> {
        Ok(None)
    }

    /// Makes a group's journals for this many partitions, after an operator accepted that the topic has them.
    async fn grow_journals(&self, _group: &str, _topic: &str, _partitions: u32) -> Result<(), BrokerError> {
        Ok(())
    }
}

/// Reads one partition in order. To stop reading, a caller does not poll it (BPR-2); nothing is lost by that.
pub trait Reader: Send {
    /// The next batch: about `bytes_max` bytes of frames at most, but at least one message. Pending at the end of the
    /// log until more is durable. After an error the reader has ended.
    fn poll_batch(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>>;
}

/// This process's membership in a group.
#[async_trait]
pub trait Membership: Send {
    /// Waits for the next change. Cancel safe. After an error the membership has ended: [`BrokerError::Closed`] if the
    /// broker was closed, [`BrokerError::Partitions`] or [`BrokerError::Recreated`] if the topic is not the one that
    /// was joined (BRK-10).
    async fn changed(&mut self) -> Result<Change, BrokerError>;

    /// Asks the broker anew whether a partition is assigned to this member: after a long pause (ORD-12), and before
    /// claiming again.
    async fn confirm(&mut self, partition: u32) -> Result<bool, BrokerError>;

    /// Like [`Membership::confirm`], for several partitions; takes no longer than for one where the broker must be
    /// asked.
    async fn confirm_all(&mut self, partitions: &[u32]) -> Result<Vec<bool>, BrokerError> {
        let mut all = Vec::with_capacity(partitions.len());
        for partition in partitions {
            all.push(self.confirm(*partition).await?);
        }
        Ok(all)
    }

    /// Tells the broker that this member no longer reads a revoked partition. Must be called for each `Revoked`.
    async fn gave_up(&mut self, partition: u32);

    /// True if the broker proves that the process with the id `instance`, which made a claim, is not this one and is
    /// dead: only one process at a time can have the embedded folder's lock, for example.
    fn proves_dead(&self, instance: u128) -> bool;

    /// The random id of this process, which its claims carry.
    fn instance(&self) -> u128;

    /// Leaves the group; its partitions go to other members.
    async fn leave(&mut self);
}

/// A change of the partitions that a member may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The member may claim this partition now.
    Assigned(u32),
    /// The member must drain this partition and give it up: start nothing more, and put `released` on record (ORD-9).
    Revoked(u32),
    /// The partition is gone already: drop everything of it, and write nothing.
    Lost(u32),
}

/// A log of Keylane's own records. Any process may append; positions rise from 0 without gaps.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Appends a record, and returns its position once it is durable. With `expect_end` the record lands only if the
    /// log ends there, and [`AppendError::Moved`] is returned otherwise; a broker that cannot do this returns
    /// [`AppendError::Unconditional`].
    async fn append(&self, record: Bytes, expect_end: Option<u64>) -> Result<u64, AppendError>;

    /// True if `expect_end` works on this broker.
    fn conditional(&self) -> bool;

    /// The largest record that the journal takes, as far as is known now.
    fn bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Records from `from` on, in order: about `bytes_max` bytes, but at least one record if there is any. If `from` is
    /// below the log's start, reading begins at the start, and the page says where that is.
    async fn read(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError>;

    /// Like [`Journal::read`], for a caller that [`Journal::beyond`] told that something has landed: a broker on
    /// another machine may answer with what it has at hand, without a request. The page's `end` may then be old, so
    /// this is not for a caller that must have read everything.
    async fn read_landed(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        self.read(from, bytes_max).await
    }

    /// Waits until the log ends beyond `end`. Cancel safe.
    async fn beyond(&self, end: u64) -> Result<(), BrokerError>;

    /// Forgets everything below `below`, durably; nothing at or above it, and nothing above the log's end.
    async fn cut(&self, below: u64) -> Result<(), BrokerError>;
}

/// What a broker's client library reports about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFigures {
    /// The brokers that the client talks to.
    pub brokers: Vec<ClientBroker>,
    /// Requests sent since the client was started.
    pub sent: u64,
    /// Messages that were handed over and are not acknowledged yet.
    pub queued_messages: u64,
    /// Bytes of those messages.
    pub queued_bytes: u64,
    /// Messages that were read ahead.
    pub ahead_messages: u64,
    /// Bytes of those messages.
    pub ahead_bytes: u64,
    /// For each partition that is read: topic, partition, and how many messages were not handed over yet.
    pub behind: Vec<(String, u32, u64)>,
    /// How often a thread that serves the client ended unexpectedly and was started anew.
    pub threads_ended: u64,
}

/// How one broker answers its clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientBroker {
    /// The broker's number.
    pub id: u32,
    /// The mean time of an answer in microseconds, of the client for which it was longest.
    pub round_trip_us: u64,
    /// How long the broker made clients wait because of a quota, in milliseconds, for the client that waited longest.
    pub throttled_ms: u64,
    /// Requests that wait to be sent or to be answered.
    pub requests: u64,
}

/// A part of a journal, as one read returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalPage {
    /// The first position that the journal keeps.
    pub start: u64,
    /// The position that the next append gets.
    pub end: u64,
    /// The records with their positions, ascending.
    pub records: Vec<(u64, Bytes)>,
}

/// The name of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JournalName {
    /// The group whose state it is.
    pub group: String,
    /// The source topic.
    pub topic: String,
    /// The source partition.
    pub partition: u32,
    /// Which of the two logs it is.
    pub kind: LogKind,
}

/// The two logs beside a source partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogKind {
    /// `journal.p`: the truth about the partition, in small records.
    Journal,
    /// `hold.p`: bodies, which mean something only once a counting journal record names them.
    Hold,
}

/// Stands for the position of a durable message where the broker did not tell it.
pub const NO_POSITION: u64 = u64::MAX;

/// A group's commit for a partition, as the broker keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The lowest position that is not settled.
    pub position: u64,
    /// Journal id and epoch, as `keylane_core::owner` writes them. Empty if an operator made the commit, as a reset
    /// (COM-3).
    pub metadata: Bytes,
}
