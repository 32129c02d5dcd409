//! One shard's lanes: what may run now, and what must wait.
//!
//! In: deliveries of the partitions that the shard owns, how attempts ended, the time. Out: a [`Verdict`] for each
//! delivery, and heads of free lanes that are ready to run. Nothing here runs a handler, and nothing is shared.
//!
//! Kept whatever happens:
//! - one message of a lane is in its handler at a time, in the order of the source; what failed comes back to the head;
//! - what was queued is handed out by `next_ready` exactly once, unless its partition is dropped;
//! - lanes do not wait for each other; keyless messages in flight never exceed their share (MSG-2);
//! - nothing of a partition that is held is handed out, and nobody else waits for it (ORD-12);
//! - a [`LaneId`] of a lane that is gone is noticed, and changes nothing.
//!
//! No call allocates per message: queues, lanes and lists grow to what is live, and are used again.

mod held_lane;
mod hold;
mod idle;
mod intake;
mod judge;
mod lane;
mod outcomes;
mod partitions;
mod retry;
mod settings;
mod settle;
mod slab;
mod table;
mod transitions;
mod turns;
mod view;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{BuildHasher, Hasher};

use foldhash::quality::FixedState;

use crate::message::Delivery;
use lane::{Failure, LANES_CAP, Lane, Queues};
use slab::Slab;
use table::Table;

use partitions::Side;
#[cfg(feature = "flaws")]
pub use settings::Flaws;

pub use held_lane::{Arrival, HeldLane, HoldState, HoldView};
pub use hold::{Place, Turn, walk};
pub use intake::{Bounds, Intake, Load};
pub use judge::{Candidate, Verdict};
pub use lane::{LaneHash, LaneId, LaneKey, LaneState};
pub use partitions::Left;
pub use retry::{RETRY_AFTER_MS_MAX, Retry, RetryPolicy};
pub use settings::{Order, Settings};
pub use settle::{End, Settlement, settle};
pub use view::{Counts, LaneView};

/// A message whose turn it is. Its lane is busy with it.
#[derive(Debug)]
pub struct Ready {
    /// Its lane, to be told how the attempt ended.
    pub lane: LaneId,
    /// The message.
    pub delivery: Delivery,
    /// The number of this attempt, from 1.
    pub attempt: u32,
}

/// One shard's lanes. See the head of `engine.rs`.
pub struct Engine {
    settings: Settings,
    hasher: FixedState,
    lanes: Slab<Lane>,
    table: Table,
    queues: Queues,
    failures: Slab<Failure>,
    /// By partition: its lanes, and what of it has no lane.
    sides: Vec<Side>,
    /// Partitions that are held.
    held: usize,
    /// Free lanes with something queued, but for the hot one. This and the lists below may name lanes that are gone.
    ready: VecDeque<LaneId>,
    /// The lane that ended last: it goes on first, while its memory is near.
    hot: Option<LaneId>,
    burst: u32,
    /// Partitions with keyless messages that found no place in flight, in the order of their turns.
    keyless_turns: VecDeque<u32>,
    keyless_queued: usize,
    /// Lanes of keyless messages whose retry is due.
    keyless_ready: VecDeque<LaneId>,
    keyless_turn: bool,
    keyless_running: usize,
    /// Waiting lanes by due time. The first is never gone.
    due: BinaryHeap<Reverse<(u64, LaneId)>>,
    /// Idle lanes, longest idle first: see `life.rs`.
    idle: BinaryHeap<Reverse<(u64, LaneId)>>,
    /// Entries of all these lists whose lanes are gone.
    stale: usize,
    /// Lanes by state.
    tally: [usize; 5],
    stuck: usize,
    /// Lanes ever made.
    born: u64,
    #[cfg(feature = "flaws")]
    flaws: Flaws,
}

impl Engine {
    /// An engine without lanes.
    pub fn new(mut settings: Settings) -> Engine {
        settings.lanes_max = settings.lanes_max.clamp(1, LANES_CAP);
        settings.lane_capacity = settings.lane_capacity.max(1);
        settings.keyless_max = match settings.order {
            Order::None => usize::MAX,
            Order::Key | Order::Partition => settings.keyless_max.max(1),
        };
        Engine {
            settings,
            hasher: FixedState::with_seed(settings.seed),
            lanes: Slab::new(),
            table: Table::new(),
            queues: Queues::new(),
            failures: Slab::new(),
            sides: Vec::new(),
            held: 0,
            ready: VecDeque::new(),
            hot: None,
            burst: 0,
            keyless_turns: VecDeque::new(),
            keyless_queued: 0,
            keyless_ready: VecDeque::new(),
            keyless_turn: false,
            keyless_running: 0,
            due: BinaryHeap::new(),
            idle: BinaryHeap::new(),
            stale: 0,
            tally: [0; 5],
            stuck: 0,
            born: 0,
            #[cfg(feature = "flaws")]
            flaws: Flaws::default(),
        }
    }

    /// An engine that does some things wrong, for tests of tests.
    #[cfg(feature = "flaws")]
    pub fn with_flaws(settings: Settings, flaws: Flaws) -> Engine {
        Engine { flaws, ..Engine::new(settings) }
    }

    /// The lane of a message.
    #[inline]
    pub fn lane_key(&self, partition: u32, key: Option<&[u8]>) -> LaneKey {
        let Some(key) = self.settings.order.ordered_by(key) else {
            return LaneKey::Unordered;
        };
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        // Equal keys of two partitions only need to lie apart: they are told apart by the partition itself.
        let apart = u64::from(partition).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        LaneKey::Ordered(LaneHash { hash: hasher.finish() ^ apart, partition })
    }

    /// True once a lane that was full has emptied to half, so that reading does not stop and go with every message.
    pub fn has_room(&self, lane: LaneKey) -> bool {
        let half = self.settings.lane_capacity / 2;
        match lane {
            LaneKey::Unordered => self.anonymous() < LANES_CAP,
            LaneKey::Ordered(hash) => match self.find(hash) {
                Some(lane) => lane.queue.depth <= half,
                None => self.lane_can_be_made(),
            },
        }
    }

    /// An attempt that was allowed to `Run` did not end as done at its first poll: from here on it has a lane, and
    /// the lane is busy.
    #[inline]
    pub fn began(&mut self, lane: LaneKey, partition: u32, now: u64) -> LaneId {
        let number = self.lane_for(lane, partition, now);
        let lane = self.lanes.get(number).expect("just found or made");
        assert_eq!(lane.state(), LaneState::Idle, "a second attempt began in a lane");
        self.enter(number, LaneState::Busy, now)
    }

    /// Queues a delivery behind what its lane has. Not after `Full`.
    #[inline]
    pub fn queue(&mut self, lane: LaneKey, delivery: Delivery, now: u64) {
        if lane == LaneKey::Unordered {
            return self.queue_keyless(delivery);
        }
        let number = self.lane_for(lane, delivery.partition(), now);
        let lane = self.lanes.get_mut(number).expect("just found or made");
        self.queues.push_back(&mut lane.queue, delivery);
        if lane.state() == LaneState::Idle {
            let id = self.enter(number, LaneState::Ready, now);
            self.ready.push_back(id);
        }
    }
}
