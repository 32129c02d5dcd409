//! Decides whose turn it is: hands out the heads of free lanes.
//!
//! Lanes take turns in the order in which they became free, except the one that ended last, which goes on for a burst.
//! Messages without a key have every other turn while they have a place in flight, so that neither kind waits for the
//! other.

use std::cmp::Reverse;

use super::lane::{LANES_CAP, LaneId, LaneKey, LaneState};
use super::{Candidate, Engine, Ready, Verdict};

impl Engine {
    /// Takes the head of a free lane, if there is one; its lane is busy from here on.
    #[inline]
    pub fn next_ready(&mut self, now: u64) -> Option<Ready> {
        let keyless_wait = !self.keyless_turns.is_empty() || !self.keyless_ready.is_empty();
        self.keyless_turn = !self.keyless_turn && keyless_wait;
        if self.keyless_turn
            && let Some(ready) = self.next_keyless(now)
        {
            return Some(ready);
        }
        loop {
            let id = match self.hot.take() {
                Some(hot) => hot,
                None => {
                    self.burst = 0;
                    match self.ready.pop_front() {
                        Some(id) => id,
                        None => return self.next_keyless(now),
                    }
                }
            };
            if self.may_start(id) {
                return Some(self.start(id, now));
            }
        }
    }

    /// Ends the hot lane's burst: its messages take long to compute, so other lanes go first.
    pub fn end_burst(&mut self) {
        if let Some(hot) = self.hot.take() {
            self.ready.push_back(hot);
        }
    }

    fn next_keyless(&mut self, now: u64) -> Option<Ready> {
        if self.keyless_running >= self.settings.keyless_max {
            return None;
        }
        while let Some(id) = self.keyless_ready.pop_front() {
            if self.may_start(id) {
                return Some(self.start(id, now));
            }
        }
        if self.anonymous() >= LANES_CAP {
            return None;
        }
        let delivery = self.unqueue_keyless()?;
        let lane = self.began(LaneKey::Unordered, delivery.partition(), now);
        Some(Ready { lane, delivery, attempt: 1 })
    }

    /// True if the head of a lane that was taken from a list may start now. A lane whose head must wait is set aside
    /// instead; an entry whose lane is gone is dropped.
    #[inline]
    fn may_start(&mut self, id: LaneId) -> bool {
        let Some(lane) = self.lanes.get(id.number()).filter(|lane| lane.is(id)) else {
            self.stale -= 1;
            return false;
        };
        let partition = lane.partition;
        let runs = self.judge(Candidate::Head(partition)) == Verdict::Run;
        if !runs {
            self.set_aside(partition, id);
        }
        runs
    }

    fn start(&mut self, id: LaneId, now: u64) -> Ready {
        let lane = self.lanes.get_mut(id.number()).expect("seen by the caller");
        let delivery = self.queues.pop_front(&mut lane.queue).expect("a ready lane has a head");
        let attempt = self.failures.get(lane.failure).map_or(0, |failure| failure.failures) + 1;
        self.enter(id.number(), LaneState::Busy, now);
        Ready { lane: id, delivery, attempt }
    }

    /// Makes the lanes ready whose retry is due. Returns how many.
    pub fn wake_due(&mut self, now: u64) -> usize {
        let mut woken = 0;
        while self.next_due().is_some_and(|at_ms| at_ms <= now) {
            let Some(Reverse((_, id))) = self.due.pop() else {
                break;
            };
            self.forget_stale_due();
            self.enter(id.number(), LaneState::Ready, now);
            self.list_ready(id);
            woken += 1;
        }
        woken
    }

    /// Puts a lane that just became ready behind the other ready lanes.
    pub(super) fn list_ready(&mut self, id: LaneId) {
        if self.lanes.get(id.number()).expect("only live lanes become ready").keyed() {
            self.ready.push_back(id);
        } else {
            self.keyless_ready.push_back(id);
        }
    }

    /// The time at which the next retry is due.
    pub fn next_due(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((at_ms, _))| *at_ms)
    }
}
