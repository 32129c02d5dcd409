//! The status of pipelines, lanes and topics. The admin API, the command line and the status page show it as it is.

use keylane_broker::{Ends, HeldBack, Topic, Warning, Weakness};
use keylane_core::ErrorCode;
use serde::Serialize;

use crate::error::warning_code;

/// The status of a pipeline.
#[derive(Debug, Clone, Serialize)]
pub struct PipelineStatus {
    /// The pipeline's name.
    pub name: String,
    /// The topic that it reads.
    pub topic: String,
    /// The group whose position it keeps.
    pub group: String,
    /// `normal`; recovery is not built yet.
    pub mode: &'static str,
    /// `starting`, `running`, `draining`, `partly stopped` (some partitions are stopped), `stopped`.
    pub state: &'static str,
    /// The messages that are still to be settled.
    pub lag: Lag,
    /// How many lanes are in which state.
    pub lanes: LaneCounts,
    /// Messages handled since the process started.
    pub handled: u64,
    /// Attempts that failed since the process started.
    pub failed: u64,
    /// Dead letters on record in the partitions that this process owns; a restart does not change this number.
    pub dead: u64,
    /// Messages rejected since the process started.
    pub rejected: u64,
    /// Commits mirrored to the broker since the process started, and those that failed.
    pub commits: Commits,
    /// Handlers running.
    pub in_flight: u64,
    /// Threads that handlers block.
    pub blocking: BlockingThreads,
    /// Messages read and not settled.
    pub buffered: u64,
    /// The bytes of these messages.
    pub buffered_bytes: u64,
    /// Each partition of the topic.
    pub partitions: Vec<PartitionStatus>,
    /// Why the pipeline did not start, and what to do.
    pub why: Option<String>,
}

impl PipelineStatus {
    /// A pipeline that did not start, with the same reason at each partition.
    pub(crate) fn stopped(
        name: &str,
        topic: &str,
        group: &str,
        partitions: u32,
        why: &str,
    ) -> PipelineStatus {
        let stopped = |partition| PartitionStatus {
            partition,
            state: PartitionState::Stopped,
            epoch: 0,
            committed: 0,
            settled_above: 0,
            dead: 0,
            end: 0,
            oldest_ms: None,
            why: Some(why.to_owned()),
        };
        PipelineStatus {
            name: name.to_owned(),
            topic: topic.to_owned(),
            group: group.to_owned(),
            mode: "normal",
            state: "stopped",
            lag: Lag::default(),
            lanes: LaneCounts::default(),
            handled: 0,
            failed: 0,
            dead: 0,
            rejected: 0,
            commits: Commits::default(),
            in_flight: 0,
            blocking: BlockingThreads::default(),
            buffered: 0,
            buffered_bytes: 0,
            partitions: (0..partitions).map(stopped).collect(),
            why: Some(why.to_owned()),
        }
    }
}

/// Commits of a pipeline.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Commits {
    /// Commits that the broker acknowledged.
    pub done: u64,
    /// Commits that failed and are tried again.
    pub failed: u64,
}

/// Threads that handlers of a pipeline block (ORD-4).
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct BlockingThreads {
    /// Threads that run a handler that blocks, or may block.
    pub threads: u64,
    /// An estimate of the attempts that wait for such a thread: all unread messages of a partition count as one. If
    /// this is not 0, all threads are blocked.
    pub waiting: u64,
    /// How many such threads there may be (setting `blocking`).
    pub max: u64,
}

/// What a pipeline has not settled. The same wherever it is shown: metrics, admin API, command line, page.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Lag {
    /// Messages of the topic that are not on record as settled; messages that are being handled count.
    pub messages: u64,
    /// The age of the oldest unsettled message, in seconds; none without lag.
    pub oldest_age_seconds: Option<f64>,
}

/// How many lanes of a pipeline are in which state.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LaneCounts {
    /// All lanes.
    pub total: u64,
    /// Lanes with a running handler.
    pub busy: u64,
    /// Lanes held behind a dead letter; always 0, since hold is not built yet.
    pub held: u64,
    /// Lanes that wait for a retry.
    pub retrying: u64,
    /// Lanes whose message has spent its retries and is tried again at the longest interval.
    pub stuck: u64,
}

/// The states of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PartitionState {
    /// This process does not own the partition.
    #[default]
    Idle,
    /// The partition is being taken over.
    Claiming,
    /// The partition is read and handled.
    Running,
    /// The partition is owned, but it is not read further now, or nothing of it starts.
    Paused,
    /// The partition is being given up.
    Draining,
    /// The partition stopped, and an operator must look at it.
    Stopped,
}

/// The status of a partition.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionStatus {
    /// The partition's number.
    pub partition: u32,
    /// The partition's state.
    pub state: PartitionState,
    /// The epoch under which it is owned; 0 if it is not.
    pub epoch: u64,
    /// The lowest unsettled position.
    pub committed: u64,
    /// Messages above that position that are settled already.
    pub settled_above: u64,
    /// Dead letters on record; 0 while another process owns the partition.
    pub dead: u64,
    /// The position that the next message gets.
    pub end: u64,
    /// Why the partition is paused, has stopped or starts over, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When the oldest unsettled message was appended, ms since 1970, if this process has read it.
    #[serde(skip)]
    pub(crate) oldest_ms: Option<u64>,
}

impl PartitionStatus {
    /// True if the partition has an unsettled message.
    pub(crate) fn lags(&self) -> bool {
        self.end > self.committed
    }
}

/// The status of a lane.
#[derive(Debug, Clone, Serialize)]
pub struct LaneStatus {
    /// The lane's pipeline.
    pub pipeline: String,
    /// The lane's key as text, percent-encoded as in `Keylane-Key`; none for a message without a key.
    pub key: Option<String>,
    /// The partition in which its messages lie.
    pub partition: u32,
    /// Messages in the lane, including the one that is being handled.
    pub depth: usize,
    /// `running`, `ready`, `retrying`, `stuck`, `burying`, `idle`.
    pub state: &'static str,
    /// How many attempts its head has had so far.
    pub attempt: u32,
    /// The age of the message that is handled now or comes next, in seconds since it was appended.
    pub waiting_seconds: f64,
    /// For how long the lane has been in this state: since its last attempt began or ended, in seconds.
    pub last_tried_seconds: f64,
    /// What the lane waits for.
    pub why: Option<String>,
}

/// The lanes that shards have shown.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Lanes {
    /// The first lanes in the order that was asked for.
    pub lanes: Vec<LaneStatus>,
    /// Shards that did not answer in time: their lanes are missing.
    pub unanswered: Vec<Unanswered>,
}

impl Lanes {
    /// The lanes of several shards or pipelines together, the first `limit` by `sort`.
    pub(crate) fn of(parts: impl IntoIterator<Item = Lanes>, sort: LaneSort, limit: usize) -> Lanes {
        let mut all = Lanes::default();
        for part in parts {
            all.lanes.extend(part.lanes);
            all.unanswered.extend(part.unanswered);
        }
        crate::pipeline::sort_lanes(&mut all.lanes, sort, limit);
        all
    }
}

/// A shard that did not answer in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unanswered {
    /// The shard's pipeline.
    pub pipeline: String,
    /// The shard's number, from 0; partition `p` belongs to shard `p` modulo the number of shards.
    pub shard: usize,
}

/// Which lanes to show first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneSort {
    /// The deepest.
    Depth,
    /// Those whose first message is the oldest.
    Waiting,
}

/// The status of a topic.
#[derive(Debug, Clone, Serialize)]
pub struct TopicStatus {
    /// The topic's name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u32,
    /// For each partition, the first position kept and the position that the next message gets; empty if the broker
    /// cannot say now.
    pub ends: Vec<TopicEnds>,
    /// Messages kept.
    pub messages: u64,
    /// Settings of the broker that weaken a promise.
    pub warnings: Vec<TopicWarning>,
    /// Groups that keep the oldest messages from being deleted, though their time has come or the topic is full.
    pub held_back_by: Vec<HeldBackBy>,
    /// Pipelines of this process that read the topic.
    pub pipelines: Vec<String>,
}

/// A group that keeps messages from being deleted.
#[derive(Debug, Clone, Serialize)]
pub struct HeldBackBy {
    /// The group.
    pub group: String,
    /// Whether a pipeline is configured for the group.
    pub configured: bool,
    /// If none is configured: until when the group keeps them, ms since 1970.
    pub until: Option<u64>,
}

impl TopicStatus {
    pub(crate) fn held_back(mut self, by: Vec<HeldBack>) -> TopicStatus {
        let shown = |HeldBack { group, until_ms }| HeldBackBy {
            group,
            configured: until_ms.is_none(),
            until: until_ms,
        };
        self.held_back_by = by.into_iter().map(shown).collect();
        self
    }

    pub(crate) fn of(topic: &Topic, ends: Vec<Ends>, warnings: &[TopicWarning]) -> TopicStatus {
        TopicStatus {
            held_back_by: Vec::new(),
            pipelines: Vec::new(),
            warnings: warnings.iter().filter(|warning| warning.topic == topic.name).cloned().collect(),
            name: topic.name.clone(),
            partitions: topic.partitions,
            messages: ends.iter().map(|ends| ends.end - ends.start).sum(),
            ends: (0..)
                .zip(ends)
                .map(|(partition, ends)| TopicEnds { partition, start: ends.start, end: ends.end })
                .collect(),
        }
    }
}

/// A setting that weakens a promise (BRK-9).
#[derive(Debug, Clone, Serialize)]
pub struct TopicWarning {
    /// The code under which `docs/errors/` explains it.
    #[serde(serialize_with = "as_text")]
    pub code: ErrorCode,
    /// The topic.
    #[serde(skip)]
    pub topic: String,
    /// The setting, and what may come of it.
    pub what: String,
    /// The remedy.
    pub remedy: String,
    #[serde(skip)]
    weakness: Weakness,
}

fn as_text<S: serde::Serializer>(code: &ErrorCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code.as_str())
}

impl TopicWarning {
    /// True for the warning that there is one copy only, as on every single broker.
    pub fn is_one_copy(&self) -> bool {
        self.weakness == Weakness::OneCopy
    }
}

impl From<Warning> for TopicWarning {
    fn from(warning: Warning) -> TopicWarning {
        let Warning { weakness, topic, what, remedy } = warning;
        TopicWarning { code: warning_code(weakness), topic, what, remedy, weakness }
    }
}

/// Where a partition of a topic begins and ends.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TopicEnds {
    /// The partition.
    pub partition: u32,
    /// The first position kept.
    pub start: u64,
    /// The position that the next message gets.
    pub end: u64,
}
