//! How lanes come and go (ORD-5).
//!
//! The idle are kept in a heap by the time since which they have rested. A lane has at most one entry there, which may
//! be older than the truth: it is corrected when it comes up, so that the thousands of times in between at which a lane
//! goes to work and rests again cost nothing. An idle lane always has an entry.
//!
//! A lane goes only while it is idle and empty, within one call, so a message that arrives at that moment finds either
//! the lane or none, and nothing can be queued in a lane that is gone.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;

use super::Engine;
use super::lane::{LANES_CAP, Lane, LaneId, LaneKey, LaneState};

/// Lists no longer than this are not worth giving back.
pub(super) const LIST_KEPT: usize = 1024;

enum Look {
    Gone,
    Corrected,
    Nothing,
}

impl Engine {
    /// Lets go of lanes that have been idle for `lane_idle_ms`, the longest idle first. Looks at `max` at most, so
    /// that a shard is never held up. Returns how many went.
    pub fn sweep(&mut self, now: u64, max: usize) -> usize {
        let Some(until) = now.checked_sub(self.settings.lane_idle_ms) else {
            return 0;
        };
        let mut gone = 0;
        for _ in 0..max {
            match self.look_at_longest_idle(until) {
                Look::Gone => gone += 1,
                Look::Corrected => {}
                Look::Nothing => break,
            }
        }
        self.give_back_memory();
        gone
    }

    /// The number of the lane with that key, made if need be; for keyless messages always a new one.
    #[inline]
    pub(super) fn lane_for(&mut self, key: LaneKey, partition: u32, now: u64) -> u32 {
        let found = match key {
            LaneKey::Ordered(hash) => self.number_of(hash),
            LaneKey::Unordered => None,
        };
        found.unwrap_or_else(|| self.make(key, partition, now))
    }

    fn make(&mut self, key: LaneKey, partition: u32, now: u64) -> u32 {
        let hash = match key {
            LaneKey::Ordered(hash) => Some(hash.hash),
            LaneKey::Unordered => None,
        };
        if hash.is_some() {
            while self.table.len() >= self.settings.lanes_max {
                match self.look_at_longest_idle(u64::MAX) {
                    Look::Gone | Look::Corrected => {}
                    Look::Nothing => panic!("a lane was asked for after the verdict Full"),
                }
            }
        } else {
            assert!(self.anonymous() < LANES_CAP, "a lane was asked for after the verdict Full");
        }
        let number = self.lanes.next_index();
        self.born += 1;
        let id = LaneId::new(self.born, number);
        self.lanes.insert(Lane::new(id, hash.unwrap_or(0), partition, hash.is_some(), now));
        self.link(number, partition);
        self.tally[LaneState::Idle as usize] += 1;
        if let Some(hash) = hash {
            self.table.insert(hash, number);
        }
        number
    }

    fn look_at_longest_idle(&mut self, until: u64) -> Look {
        let Some(mut entry) = self.idle.peek_mut() else {
            return Look::Nothing;
        };
        let Reverse((since, id)) = *entry;
        if since > until {
            return Look::Nothing;
        }
        let number = id.number();
        let Some(lane) = self.lanes.get_mut(number).filter(|lane| lane.is(id)) else {
            PeekMut::pop(entry);
            self.stale -= 1;
            return Look::Corrected;
        };
        let gone = lane.state() == LaneState::Idle && lane.since() <= since;
        #[cfg(feature = "flaws")]
        let gone = gone
            || (self.flaws.idle_drops_queue
                && matches!(lane.state(), LaneState::Ready | LaneState::Waiting)
                && lane.since() <= until);
        if gone {
            PeekMut::pop(entry);
            #[cfg(feature = "flaws")]
            self.forget_queue_of(number);
            self.remove(number);
            return Look::Gone;
        }
        if lane.state() == LaneState::Idle {
            entry.0.0 = lane.since();
        } else {
            lane.set_listed(false);
            PeekMut::pop(entry);
        }
        Look::Corrected
    }

    #[cfg(feature = "flaws")]
    fn forget_queue_of(&mut self, number: u32) {
        let lane = self.lanes.get_mut(number).expect("found by the caller");
        let id = lane.id(number);
        self.queues.clear(&mut lane.queue);
        self.ready.retain(|ready| *ready != id);
        self.hot = self.hot.filter(|hot| *hot != id);
        self.due.retain(|Reverse((_, due))| *due != id);
    }

    /// Takes a lane out. Its queue is empty, and its entries in lists are counted by the caller.
    pub(super) fn remove(&mut self, number: u32) {
        self.forget_failure(number);
        self.unlink(number);
        let lane = self.lanes.remove(number);
        debug_assert_eq!(lane.queue.depth, 0, "a lane that goes has nothing queued");
        self.tally[lane.state() as usize] -= 1;
        if lane.keyed() {
            self.table.remove(lane.hash, number);
        } else {
            self.keyless_running -= usize::from(lane.state() == LaneState::Busy);
        }
    }

    /// Removing frees nothing by itself (PRF-5).
    pub(super) fn give_back_memory(&mut self) {
        self.table.shrink();
        if mostly_empty(self.idle.len(), self.idle.capacity()) {
            self.idle.shrink_to(LIST_KEPT);
        }
        if mostly_empty(self.due.len(), self.due.capacity()) {
            self.due.shrink_to(LIST_KEPT);
        }
        if mostly_empty(self.ready.len(), self.ready.capacity()) {
            self.ready.shrink_to(LIST_KEPT);
        }
        if mostly_empty(self.keyless_ready.len(), self.keyless_ready.capacity()) {
            self.keyless_ready.shrink_to(LIST_KEPT);
        }
    }
}

fn mostly_empty(len: usize, capacity: usize) -> bool {
    capacity > 2 * LIST_KEPT && len < capacity / 8
}
