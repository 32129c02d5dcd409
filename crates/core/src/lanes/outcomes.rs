//! Tells the engine how an attempt ended, and moves the lane on.
//!
//! Each call names a lane by its id. If that lane is gone, the call changes nothing and its result says so.

use std::borrow::Cow;
use std::cmp::Reverse;

use super::Engine;
use super::lane::{LaneId, LaneState};
use super::retry::Retry;
use super::slab::NONE;
use crate::message::Delivery;

impl Engine {
    /// The attempt ended and its message is finished. False if the lane is gone.
    #[inline]
    pub fn done(&mut self, lane: LaneId, now: u64) -> bool {
        if self.in_state(lane, LaneState::Busy).is_none() {
            return false;
        }
        self.go_on(lane, now);
        true
    }

    /// The attempt failed: its message is the head of its lane again, and the lane waits. `None` if the lane is gone or
    /// its partition is being given up; the next owner then runs the message.
    pub fn failed(
        &mut self,
        id: LaneId,
        mut delivery: Delivery,
        error: Cow<'static, str>,
        retry_after_ms: Option<u64>,
        now: u64,
    ) -> Option<Retry> {
        let lane = self.in_state(id, LaneState::Busy)?;
        if lane.draining() {
            self.go_on(id, now);
            return None;
        }
        let known = lane.failure;
        let failures = self.failures.get(known).map_or(0, |failure| failure.failures) + 1;
        if known == NONE {
            // The message may wait for long, and would keep its whole batch in memory.
            delivery.detach();
        }
        let salt = self.settings.seed ^ delivery.position() ^ u64::from(delivery.partition()).rotate_left(32);
        let retry = self.settings.retry.after(failures, retry_after_ms, salt, now);
        self.note_failure(id.number(), retry, failures, error);
        let lane = self.lanes.get_mut(id.number()).expect("found above");
        #[cfg(feature = "flaws")]
        if self.flaws.retry_at_tail {
            self.queues.push_back(&mut lane.queue, delivery);
            self.enter(id.number(), LaneState::Waiting, now);
            self.due.push(Reverse((retry.at_ms, id)));
            return Some(retry);
        }
        self.queues.push_front(&mut lane.queue, delivery);
        self.enter(id.number(), LaneState::Waiting, now);
        self.due.push(Reverse((retry.at_ms, id)));
        Some(retry)
    }

    /// The attempt did not begin after all: its message is the head of its lane again, and the lane is ready. False if
    /// the lane is gone or its partition is being given up; the next owner then runs the message.
    pub fn not_begun(&mut self, id: LaneId, mut delivery: Delivery, now: u64) -> bool {
        let Some(lane) = self.in_state(id, LaneState::Busy) else {
            return false;
        };
        if lane.draining() {
            self.go_on(id, now);
            return false;
        }
        // The message may wait for long, and would keep its whole batch in memory.
        delivery.detach();
        let lane = self.lanes.get_mut(id.number()).expect("found above");
        self.queues.push_front(&mut lane.queue, delivery);
        self.enter(id.number(), LaneState::Ready, now);
        self.list_ready(id);
        true
    }

    /// The handler rejected the message. Nothing of its lane runs until `buried` is called. False if the lane is gone.
    pub fn rejected(&mut self, lane: LaneId, now: u64) -> bool {
        if self.in_state(lane, LaneState::Busy).is_none() {
            return false;
        }
        self.forget_failure(lane.number());
        self.enter(lane.number(), LaneState::Burying, now);
        true
    }

    /// A record that counts says that the rejected message is dead: its lane goes on. False if the lane is gone.
    pub fn buried(&mut self, lane: LaneId, now: u64) -> bool {
        if self.in_state(lane, LaneState::Burying).is_none() {
            return false;
        }
        self.go_on(lane, now);
        true
    }
}
