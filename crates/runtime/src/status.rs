//! What a pipeline, a lane or a topic looks like from outside. The admin API, the command line and the status page
//! show these as they are.

use keylane_broker::{Ends, HeldBack, Topic, Warning, Weakness};
use keylane_core::ErrorCode;
use serde::Serialize;

use crate::error::warning_code;

/// A pipeline now.
#[derive(Debug, Clone, Serialize)]
pub struct PipelineStatus {
    /// Its name.
    pub name: String,
    /// The topic it reads.
    pub topic: String,
    /// The group whose position it keeps.
    pub group: String,
    /// `normal`; recovery is not built yet.
    pub mode: &'static str,
    /// `starting`, `running`, `draining`, `partly stopped` (some partitions are), `stopped`.
    pub state: &'static str,
    /// What is still to be settled.
    pub lag: Lag,
    /// Lanes by what they do.
    pub lanes: LaneCounts,
    /// Messages handled since the process started.
    pub handled: u64,
    /// Attempts that failed since the process started.
    pub failed: u64,
    /// Dead letters on record, in the partitions that this process owns: as many as before a restart.
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
    /// Their bytes.
    pub buffered_bytes: u64,
    /// Each partition of the topic.
    pub partitions: Vec<PartitionStatus>,
    /// Why it did not start, and what to do.
    pub why: Option<String>,
}

impl PipelineStatus {
    /// One that did not start: nothing of it runs, for the same reason.
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
    /// Acknowledged.
    pub done: u64,
    /// Failed, and tried again.
    pub failed: u64,
}

/// Threads that handlers of a pipeline block (ORD-4).
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct BlockingThreads {
    /// Threads that run a handler that blocks, or may.
    pub threads: u64,
    /// Attempts that wait for such a thread, as far as is known: what was not read yet counts as one for its partition. Not
    /// 0: all threads are blocked.
    pub waiting: u64,
    /// How many such threads there may be (setting `blocking`).
    pub max: u64,
}

/// What a pipeline has not settled. The same wherever it is shown: metrics, admin API, command line, page.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Lag {
    /// Messages of its topic that are not on record as settled; what is being handled counts.
    pub messages: u64,
    /// Age of the oldest message not settled, in seconds; none without lag.
    pub oldest_age_seconds: Option<f64>,
}

/// Lanes of a pipeline by what they do.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LaneCounts {
    /// All there are.
    pub total: u64,
    /// With a handler running.
    pub busy: u64,
    /// Held behind a dead letter; none yet, hold is not built.
    pub held: u64,
    /// Waiting for a retry.
    pub retrying: u64,
    /// Retries spent, tried again at the longest interval.
    pub stuck: u64,
}

/// What the owner of a partition does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PartitionState {
    /// It is not owned here.
    #[default]
    Idle,
    /// It is being taken over.
    Claiming,
    /// It is read and handled.
    Running,
    /// It is owned, but nothing more is read of it now, or nothing of it starts.
    Paused,
    /// It is being given up.
    Draining,
    /// It stopped, and somebody must look at it.
    Stopped,
}

/// A partition of a pipeline now.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionStatus {
    /// Its number.
    pub partition: u32,
    /// What its owner does.
    pub state: PartitionState,
    /// The epoch it is owned under; 0 if it is not.
    pub epoch: u64,
    /// The lowest position not settled.
    pub committed: u64,
    /// Messages above it that are settled already.
    pub settled_above: u64,
    /// Dead letters on record; 0 while another process owns it.
    pub dead: u64,
    /// The next position to be given out.
    pub end: u64,
    /// Why it is paused or stopped or starts over, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When the oldest message not settled was appended, ms since 1970, if this process has read it.
    #[serde(skip)]
    pub(crate) oldest_ms: Option<u64>,
}

impl PartitionStatus {
    /// True if there is something that is not settled.
    pub(crate) fn lags(&self) -> bool {
        self.end > self.committed
    }
}

/// A lane now.
#[derive(Debug, Clone, Serialize)]
pub struct LaneStatus {
    /// Its pipeline.
    pub pipeline: String,
    /// Its key as text, percent-encoded as in `Keylane-Key`; none for a message without a key.
    pub key: Option<String>,
    /// The partition its messages lie in.
    pub partition: u32,
    /// Messages in it, the one being handled included.
    pub depth: usize,
    /// `running`, `ready`, `retrying`, `stuck`, `burying`, `idle`.
    pub state: &'static str,
    /// Attempts of its head so far.
    pub attempt: u32,
    /// How old the message is that is handled now or comes next, in seconds since it was appended.
    pub waiting_seconds: f64,
    /// For how long the lane has been in this state: since its last attempt began or ended, in seconds.
    pub last_tried_seconds: f64,
    /// What it waits for.
    pub why: Option<String>,
}

/// Lanes as far as shards have shown them.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Lanes {
    /// The first of them, as was asked for.
    pub lanes: Vec<LaneStatus>,
    /// Shards that did not answer in time: their lanes are missing.
    pub unanswered: Vec<Unanswered>,
}

impl Lanes {
    /// Those of several shards or pipelines together, the first `limit` by `sort`.
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

/// A shard that did not say in time which lanes it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unanswered {
    /// Its pipeline.
    pub pipeline: String,
    /// Its number, from 0; partition `p` belongs to shard `p` modulo the number of shards.
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

/// A topic now.
#[derive(Debug, Clone, Serialize)]
pub struct TopicStatus {
    /// Its name.
    pub name: String,
    /// Number of partitions.
    pub partitions: u32,
    /// First position kept and next to be given out, for each; empty if the broker cannot say now.
    pub ends: Vec<TopicEnds>,
    /// Messages kept.
    pub messages: u64,
    /// Settings of its broker that weaken a promise.
    pub warnings: Vec<TopicWarning>,
    /// Groups that keep its oldest messages from being deleted, though their time has come or the topic is full.
    pub held_back_by: Vec<HeldBackBy>,
    /// Pipelines of this process that read it.
    pub pipelines: Vec<String>,
}

/// A group that keeps messages from being deleted.
#[derive(Debug, Clone, Serialize)]
pub struct HeldBackBy {
    /// The group.
    pub group: String,
    /// Whether a pipeline is configured for it.
    pub configured: bool,
    /// Until when, ms since 1970, if none is.
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
    /// What is set, and what may come of it.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    #[serde(skip)]
    weakness: Weakness,
}

fn as_text<S: serde::Serializer>(code: &ErrorCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code.as_str())
}

impl TopicWarning {
    /// True if it says that there is one copy only, which is what a single broker has.
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
    /// First position kept.
    pub start: u64,
    /// Next position to be given out.
    pub end: u64,
}
