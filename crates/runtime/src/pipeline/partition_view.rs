//! The status of one partition: written by the partition's owner, read by status queries.

use std::sync::{Arc, Mutex, RwLock};

use keylane_core::State;

use crate::ownership::ReadLimits;
use crate::shard::Link;
use crate::status::{PartitionState, PartitionStatus};

/// The status of one partition.
#[derive(Debug)]
pub(crate) struct PartitionView {
    partition: u32,
    shown: Mutex<ViewState>,
}

#[derive(Debug, Clone, Default)]
struct ViewState {
    state: PartitionState,
    epoch: u64,
    committed: u64,
    settled_above: u64,
    dead: u64,
    why: Option<String>,
    /// Why nothing of the partition starts, though it is owned.
    held: Option<&'static str>,
    link: Option<Arc<Link>>,
    limits: Option<Arc<ReadLimits>>,
}

/// The status of each partition of a pipeline. More are added when the topic gets more partitions.
pub(crate) type Views = Arc<RwLock<Vec<Arc<PartitionView>>>>;

/// The views as they are now.
pub(crate) fn all(views: &Views) -> Vec<Arc<PartitionView>> {
    views.read().expect("no holder panics").clone()
}

impl PartitionView {
    /// A partition that is not owned yet; the broker's commit shows how far it is.
    pub(crate) fn new(partition: u32, committed: u64) -> PartitionView {
        PartitionView { partition, shown: Mutex::new(ViewState { committed, ..ViewState::default() }) }
    }

    pub(crate) fn set(&self, state: PartitionState, why: Option<String>) {
        self.change(|shown| (shown.state, shown.why) = (state, why));
    }

    pub(crate) fn started(&self, epoch: u64, state: &State, link: Arc<Link>, limits: Arc<ReadLimits>) {
        self.recorded(state);
        self.change(|shown| {
            (shown.state, shown.epoch, shown.why) = (PartitionState::Running, epoch, None);
            (shown.link, shown.limits, shown.held) = (Some(link), Some(limits), None);
        });
    }

    /// Shows why nothing of the partition starts, or that it starts again (P10).
    pub(crate) fn hold(&self, why: Option<&'static str>) {
        self.change(|shown| shown.held = why);
    }

    /// Shows what is on record.
    pub(crate) fn recorded(&self, state: &State) {
        let (low, above) = (state.settled.low(), state.settled.above().positions());
        self.change(|shown| {
            (shown.committed, shown.settled_above) = (low, above);
            shown.dead = state.entries.tally().dead as u64;
        });
    }

    pub(crate) fn idle(&self) {
        self.change(|shown| {
            if shown.state != PartitionState::Stopped {
                (shown.state, shown.epoch) = (PartitionState::Idle, 0);
            }
            shown.limits = None;
        });
    }

    fn change(&self, change: impl FnOnce(&mut ViewState)) {
        change(&mut self.shown.lock().expect("no holder panics"));
    }

    /// The partition's number.
    pub(crate) fn partition(&self) -> u32 {
        self.partition
    }

    /// The status. `end` is where the log ends; if the broker does not say, the log seems to end where it is settled.
    pub(crate) fn status(&self, end: Option<u64>) -> PartitionStatus {
        let mut shown = self.shown.lock().expect("no holder panics").clone();
        let waits = shown.limits.as_ref().and_then(|limits| limits.why(self.partition, shown.committed));
        let full = || shown.link.as_ref().and_then(|link| link.pause());
        let pause = shown.held.or_else(full).map(str::to_owned).or(waits);
        if let (PartitionState::Running, Some(pause)) = (shown.state, pause) {
            (shown.state, shown.why) = (PartitionState::Paused, Some(pause));
        }
        let reads = !matches!(shown.state, PartitionState::Idle | PartitionState::Stopped);
        let link = shown.link.as_ref().filter(|_| reads);
        // The log reaches at least as far as the shard has read, also if the broker was asked before that.
        let read_to = link.map_or(0, |link| link.read_to());
        PartitionStatus {
            oldest_ms: link.and_then(|link| link.appended_ms(shown.committed)),
            partition: self.partition,
            state: shown.state,
            epoch: shown.epoch,
            committed: shown.committed,
            settled_above: shown.settled_above,
            dead: shown.dead,
            end: end.unwrap_or(shown.committed).max(read_to),
            why: shown.why,
        }
    }
}
