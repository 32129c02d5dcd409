//! Makes lanes and removes idle ones (ORD-5).
//!
//! Idle lanes stand in a heap, sorted by when they became idle. Each lane has at most one entry there, and an idle lane
//! always has one. An entry may show too early a time; it is corrected only when it comes to the top, so a lane that
//! goes to work and rests again thousands of times in between does not touch the heap.
//!
//! A lane is removed only while it is idle and its queue is empty, within one call. A message that arrives then finds
//! either the lane or no lane, and no message can be queued in a lane that is gone.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;

use super::Engine;
use super::lane::{LANES_CAP, Lane, LaneId, LaneKey, LaneState};

/// How many places a list keeps when it is shrunk. Giving fewer places back is not worth the work.
pub(super) const LIST_KEPT: usize = 1024;

enum Look {
    Gone,
    Corrected,
    Nothing,
}

impl Engine {
    /// Removes lanes that have been idle for `lane_idle_ms`, the longest idle first. Looks at no more than `max`
    /// entries, so that a sweep never holds the shard up. Returns how many lanes were removed.
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

    /// The number of the key's lane, which is made if it does not exist; a message without a key always gets a new
    /// lane.
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

    /// Removes a lane. Its queue must be empty, and the caller counts the lane's entries in lists as stale.
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

    /// Shrinks lists that are mostly empty: removing items alone gives no memory back (PRF-5).
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
