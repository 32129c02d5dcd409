//! The one decision that every message passes before it may run: when it is first read, and again when it is the head of
//! its lane.
//!
//! In comes a [`Candidate`], out comes a [`Verdict`]. Judging changes nothing; whoever asked carries the verdict out. A
//! rule that keeps messages from running is one more question in [`Engine::judge`], and nowhere else: a message that
//! could run past one of these rules could overtake another message of its key.

use super::Engine;
use super::lane::{LANES_CAP, LaneHash, LaneKey, LaneState};

/// A message that might run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate {
    /// It was just read, and belongs to this lane.
    Read(LaneKey),
    /// It is the head of a free lane of this partition.
    Head(u32),
}

/// What is to be done with a [`Candidate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its attempt may begin now. If the attempt is done at once, nothing need be said; if it ends or goes on in any other
    /// way, [`Engine::began`] comes first.
    Run,
    /// It waits behind others of its lane: [`Engine::queue`] it. Only for a message that was just read.
    Queue,
    /// There is no room for it: keep it, and read no more of its partition until [`Engine::has_room`]. Only for a message
    /// that was just read.
    Full,
    /// It stays where it is, until its partition is released. Only for a head.
    Wait,
}

impl Engine {
    /// Whether a message may run now. Messages that were just read are not asked for while their partition is held.
    #[inline]
    pub fn judge(&self, candidate: Candidate) -> Verdict {
        match candidate {
            Candidate::Read(LaneKey::Ordered(lane)) => self.judge_ordered(lane),
            Candidate::Read(LaneKey::Unordered) => self.judge_unordered(),
            Candidate::Head(partition) => self.judge_head(partition),
        }
    }

    #[inline]
    fn judge_ordered(&self, lane: LaneHash) -> Verdict {
        match self.find(lane) {
            None if self.lane_can_be_made() => Verdict::Run,
            None => Verdict::Full,
            Some(lane) if lane.state() == LaneState::Idle => Verdict::Run,
            Some(lane) if lane.queue.depth < self.settings.lane_capacity => Verdict::Queue,
            Some(_) => Verdict::Full,
        }
    }

    fn judge_unordered(&self) -> Verdict {
        // The buffer bounds these messages, not a lane: what stands behind them in their partition is still read (MSG-2).
        if self.anonymous() >= LANES_CAP {
            Verdict::Full
        } else if self.keyless_turns.is_empty() && self.keyless_running < self.settings.keyless_max {
            Verdict::Run
        } else {
            Verdict::Queue
        }
    }

    #[inline]
    fn judge_head(&self, partition: u32) -> Verdict {
        // Nothing of a partition that is held starts until its owner has read the journal to its end (ORD-12).
        match self.held > 0 && self.is_held(partition) {
            true => Verdict::Wait,
            false => Verdict::Run,
        }
    }
}
