//! A pipeline: one subscription with its handler and its settings (MSG-5). Here it is looked at and drained; `builder`
//! makes it, and `start` runs its shards.

mod builder;
mod lag;
mod partition_view;
mod rejections;
mod start;
mod stats;
mod subscription;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::Error;
use crate::client::Claimed;
use crate::ownership::Stopping;
use crate::status::{
    LaneCounts, LaneSort, LaneStatus, Lanes, PartitionState, PartitionStatus, PipelineStatus,
};

pub use builder::PipelineBuilder;
use lag::Lagging;
pub(crate) use partition_view::{PartitionView, Views, all};
pub(crate) use rejections::{Rejections, beginning};
use start::Shards;
pub(crate) use stats::ShardStats;
pub(crate) use subscription::{CommitCounters, Subscription};

/// A running pipeline. Cheap to clone.
#[derive(Clone)]
pub struct Pipeline {
    inner: Arc<Running>,
}

/// How a pipeline ended, if it has: as it was asked to, or with what a panic said.
type Ending = Option<Result<(), String>>;

struct Running {
    subscription: Arc<Subscription>,
    shards: Shards,
    views: Views,
    stop: watch::Sender<Stopping>,
    ended: watch::Receiver<Ending>,
    drain: Duration,
    lagging: Lagging,
    claimed: Mutex<Option<Claimed>>,
}

impl Pipeline {
    pub(crate) fn subscription(&self) -> &Subscription {
        &self.inner.subscription
    }

    /// The pipeline's name.
    pub fn name(&self) -> &str {
        &self.inner.subscription.pipeline
    }

    /// Drains the pipeline: stops reading, lets handlers finish within the deadline, puts on record what they did, and
    /// commits (ORD-10).
    pub async fn drain(&self) -> Result<(), Error> {
        let inner = &self.inner;
        inner.stop.send_if_modified(|stopping| advance(stopping, Stopping::Drain));
        let mut ended = inner.ended.clone();
        if tokio::time::timeout(inner.drain, ended.wait_for(Option::is_some)).await.is_err() {
            tracing::warn!(
                pipeline = self.name(),
                "handlers did not end in time; they run again after a restart"
            );
            inner.stop.send_if_modified(|stopping| advance(stopping, Stopping::Drop));
            let _ = ended.wait_for(Option::is_some).await;
        }
        inner.shards.stop();
        inner.subscription.rejections.end(&inner.subscription);
        // The pipeline's name and group may be used again.
        drop(inner.claimed.lock().expect("no holder panics").take());
        Ok(())
    }

    /// The pipeline's status, after asking the broker where partitions end and how far other processes are.
    pub async fn status(&self) -> Result<PipelineStatus, Error> {
        self.look().await?;
        let (at, lagging) = (&self.inner.subscription, &self.inner.lagging);
        lagging.look_at_ages(at, &lagging.partitions(&all(&self.inner.views))).await;
        Ok(self.seen())
    }

    /// Asks the broker for the part of [`Pipeline::seen`] that this process cannot know by itself.
    pub async fn look(&self) -> Result<(), Error> {
        self.inner.subscription.rejections.tell_rest(&self.inner.subscription);
        self.inner.lagging.look(&self.inner.subscription, &all(&self.inner.views)).await
    }

    /// The pipeline's status, from memory and at once. Where partitions end, and how far other processes are, is as of
    /// the last [`Pipeline::look`] or [`Pipeline::status`] (ING-8).
    pub fn seen(&self) -> PipelineStatus {
        let at = &self.inner.subscription;
        let mut partitions = self.inner.lagging.partitions(&all(&self.inner.views));
        // The process that owns a partition counts its dead letters. After a drain, the last count still holds.
        if matches!(*self.inner.stop.borrow(), Stopping::No) {
            let idle = partitions.iter_mut().filter(|partition| partition.state == PartitionState::Idle);
            idle.for_each(|partition| partition.dead = 0);
        }
        let figures = self.inner.shards.figures();
        PipelineStatus {
            name: self.name().to_owned(),
            topic: at.topic.to_string(),
            group: at.group.clone(),
            mode: "normal",
            state: self.state(&partitions),
            lag: self.inner.lagging.lag(at, &partitions),
            lanes: LaneCounts {
                total: figures.lanes,
                busy: figures.busy,
                held: 0,
                retrying: figures.retrying,
                stuck: figures.stuck,
            },
            handled: figures.handled,
            failed: figures.failed,
            dead: partitions.iter().map(|partition| partition.dead).sum(),
            rejected: figures.dead,
            commits: at.counters.shown(),
            in_flight: figures.in_flight,
            blocking: self.inner.shards.blocking(),
            buffered: figures.buffered,
            buffered_bytes: figures.buffered_bytes,
            partitions,
            why: self.inner.ended.borrow().clone().and_then(Result::err),
        }
    }

    /// A pipeline with stopped partitions does not just say `running`: it handles only a part of its messages.
    fn state(&self, partitions: &[PartitionStatus]) -> &'static str {
        let all = |state| partitions.iter().all(|partition| partition.state == state);
        let any = |state| partitions.iter().any(|partition| partition.state == state);
        match *self.inner.stop.borrow() {
            Stopping::No if self.inner.ended.borrow().is_some() => "stopped",
            Stopping::No if all(PartitionState::Stopped) => "stopped",
            Stopping::No if any(PartitionState::Stopped) => "partly stopped",
            Stopping::No if all(PartitionState::Claiming) => "starting",
            Stopping::No => "running",
            _ if self.inner.ended.borrow().is_some() => "stopped",
            _ => "draining",
        }
    }

    /// The pipeline's lanes, the first `limit` by `sort`. A shard that does not answer within some seconds is named.
    pub async fn lanes(&self, sort: LaneSort, limit: usize) -> Lanes {
        self.inner.shards.lanes(sort, limit).await
    }
}

fn advance(stopping: &mut Stopping, to: Stopping) -> bool {
    let further = to > *stopping;
    *stopping = to.max(*stopping);
    further
}

/// The first `limit` lanes by `sort`.
pub(crate) fn sort_lanes(lanes: &mut Vec<LaneStatus>, sort: LaneSort, limit: usize) {
    match sort {
        LaneSort::Depth => lanes.sort_by_key(|lane| std::cmp::Reverse(lane.depth)),
        LaneSort::Waiting => lanes.sort_by(|a, b| b.waiting_seconds.total_cmp(&a.waiting_seconds)),
    }
    lanes.truncate(limit);
}
