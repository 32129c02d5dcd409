//! Finds lanes, and moves them from state to state.
//!
//! Every change of a lane's state goes through `enter`, which keeps the counts by state and the heap of idle lanes
//! right.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::mem;

use super::Engine;
use super::lane::{Failure, Lane, LaneHash, LaneId, LaneState};
use super::retry::Retry;
use super::slab::NONE;

/// How many messages in a row the hot lane runs before other lanes have their turn. Going on in the hot lane costs half
/// of a turn of another lane; beyond a hundred in a row nothing more is gained.
const BURST_MAX: u32 = 128;

impl Engine {
    #[inline]
    pub(super) fn find(&self, lane: LaneHash) -> Option<&Lane> {
        self.lanes.get(self.number_of(lane)?)
    }

    #[inline]
    pub(super) fn number_of(&self, hash: LaneHash) -> Option<u32> {
        self.table.find(hash.hash, |number| {
            let lane = self.lanes.get(number).expect("the table names live lanes only");
            lane.hash == hash.hash && lane.partition == hash.partition
        })
    }

    #[inline]
    pub(super) fn in_state(&self, id: LaneId, state: LaneState) -> Option<&Lane> {
        self.lanes.get(id.number()).filter(|lane| lane.is(id) && lane.state() == state)
    }

    #[inline]
    pub(super) fn lane_can_be_made(&self) -> bool {
        self.table.len() < self.settings.lanes_max || self.tally[LaneState::Idle as usize] > 0
    }

    /// How many lanes belong to messages without a key.
    #[inline]
    pub(super) fn anonymous(&self) -> usize {
        self.lanes.len() - self.table.len()
    }

    /// Moves a lane to a state and updates every count that depends on it.
    #[inline]
    pub(super) fn enter(&mut self, number: u32, state: LaneState, now: u64) -> LaneId {
        let lane = self.lanes.get_mut(number).expect("only live lanes move");
        let before = lane.state();
        self.tally[before as usize] -= 1;
        self.tally[state as usize] += 1;
        if !lane.keyed() {
            self.keyless_running += usize::from(state == LaneState::Busy);
            self.keyless_running -= usize::from(before == LaneState::Busy);
        }
        lane.enter(state, now);
        let id = lane.id(number);
        if state == LaneState::Idle && !lane.listed() {
            lane.set_listed(true);
            self.idle.push(Reverse((now, id)));
        }
        id
    }

    /// The head of a lane is decided: the lane becomes ready if something is queued, and idle if not.
    #[inline]
    pub(super) fn go_on(&mut self, id: LaneId, now: u64) {
        let number = id.number();
        self.forget_failure(number);
        let lane = self.lanes.get_mut(number).expect("found by the caller");
        lane.set_draining(false);
        if !lane.keyed() {
            self.remove(number);
        } else if lane.queue.depth == 0 {
            self.enter(number, LaneState::Idle, now);
        } else {
            self.enter(number, LaneState::Ready, now);
            if self.hot.is_none() && self.burst < BURST_MAX {
                self.burst += 1;
                self.hot = Some(id);
            } else {
                self.ready.push_back(id);
            }
        }
    }

    pub(super) fn note_failure(
        &mut self,
        number: u32,
        retry: Retry,
        failures: u32,
        error: Cow<'static, str>,
    ) {
        self.forget_failure(number);
        self.stuck += usize::from(retry.stuck);
        let failure =
            self.failures.insert(Failure { failures, stuck: retry.stuck, at_ms: retry.at_ms, error });
        self.lanes.get_mut(number).expect("found by the caller").failure = failure;
    }

    #[inline]
    pub(super) fn forget_failure(&mut self, number: u32) {
        let lane = self.lanes.get_mut(number).expect("found by the caller");
        if lane.failure != NONE {
            let failure = self.failures.remove(mem::replace(&mut lane.failure, NONE));
            self.stuck -= usize::from(failure.stuck);
        }
    }
}
