//! One shard's lanes: decides which message may run now and which must wait.
//!
//! In come deliveries of the partitions that the shard owns, how attempts ended, and the time; out come a [`Verdict`]
//! for each delivery and the heads of free lanes. The engine runs no handler and shares nothing with other shards.
//!
//! Invariants:
//! - of each lane one message at a time is in its handler, in the order of the source; a failed message returns to the
//!   head;
//! - `next_ready` hands out each queued message exactly once, unless its partition is dropped;
//! - lanes do not wait for each other; messages without a key in flight never exceed their share (MSG-2);
//! - nothing of a held partition is handed out, and other partitions do not wait for it (ORD-12);
//! - a [`LaneId`] whose lane is gone is recognised and changes nothing.
//!
//! No call allocates per message: queues, lanes and lists grow to what is live, and their places are used again.

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

/// A message whose turn it is; its lane is already busy with it.
#[derive(Debug)]
pub struct Ready {
    /// The lane, which must be told how the attempt ended.
    pub lane: LaneId,
    /// The message.
    pub delivery: Delivery,
    /// The number of this attempt, counted from 1.
    pub attempt: u32,
}

/// One shard's lanes; see the head of `lanes/mod.rs`.
pub struct Engine {
    settings: Settings,
    hasher: FixedState,
    lanes: Slab<Lane>,
    table: Table,
    queues: Queues,
    failures: Slab<Failure>,
    /// For each partition, its lanes and its queued messages without a key.
    sides: Vec<Side>,
    /// How many partitions are held.
    held: usize,
    /// Free lanes with something queued, except the hot one. This list and the ones below may name lanes that are gone.
    ready: VecDeque<LaneId>,
    /// The lane that ended last. It goes on first, while its memory is still in the cache.
    hot: Option<LaneId>,
    burst: u32,
    /// Partitions with messages without a key that found no place in flight, in the order of their turns.
    keyless_turns: VecDeque<u32>,
    keyless_queued: usize,
    /// Lanes of messages without a key whose retry is due.
    keyless_ready: VecDeque<LaneId>,
    keyless_turn: bool,
    keyless_running: usize,
    /// Waiting lanes by due time. The first is never a lane that is gone.
    due: BinaryHeap<Reverse<(u64, LaneId)>>,
    /// Idle lanes, the longest idle first; see `idle.rs`.
    idle: BinaryHeap<Reverse<(u64, LaneId)>>,
    /// How many entries of all these lists name lanes that are gone.
    stale: usize,
    /// How many lanes are in each state.
    tally: [usize; 5],
    stuck: usize,
    /// How many lanes were ever made.
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

    /// An engine with flaws put back, to test that tests find them.
    #[cfg(feature = "flaws")]
    pub fn with_flaws(settings: Settings, flaws: Flaws) -> Engine {
        Engine { flaws, ..Engine::new(settings) }
    }

    /// The lane that a message with this key belongs to.
    #[inline]
    pub fn lane_key(&self, partition: u32, key: Option<&[u8]>) -> LaneKey {
        let Some(key) = self.settings.order.ordered_by(key) else {
            return LaneKey::Unordered;
        };
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        // Equal keys of two partitions need different hashes only to keep the table's chains short: lookups compare the
        // partition too.
        let apart = u64::from(partition).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        LaneKey::Ordered(LaneHash { hash: hasher.finish() ^ apart, partition })
    }

    /// True once a full lane has emptied to half. Waiting for half keeps reading from stopping and starting with every
    /// message.
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

    /// An attempt after the verdict `Run` was not done at its first poll: the message gets a lane, which is busy from
    /// here on.
    #[inline]
    pub fn began(&mut self, lane: LaneKey, partition: u32, now: u64) -> LaneId {
        let number = self.lane_for(lane, partition, now);
        let lane = self.lanes.get(number).expect("just found or made");
        assert_eq!(lane.state(), LaneState::Idle, "a second attempt began in a lane");
        self.enter(number, LaneState::Busy, now)
    }

    /// Queues a delivery behind what its lane already has. Not to be called after the verdict `Full`.
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
