//! The time-outs of a shard's attempts: a list of the attempts that wait, in the order of their deadlines.

use keylane_core::LaneId;

use super::{Attempts, NONE, SeatState};

impl<F> Attempts<F> {
    /// The attempt in `seat` was polled and is not ready: from here on it has a lane and a deadline.
    pub(crate) fn waits(&mut self, seat: u32, lane: LaneId, deadline_ms: u64) {
        self.seats[seat as usize].lane = Some(lane);
        if self.seats[seat as usize].state != (SeatState::Here { armed: false }) {
            return;
        }
        // All attempts of a pipeline have the same time-out, so a new attempt has the latest deadline and goes to the
        // end. An attempt that comes back from another thread has kept its deadline, and goes before those that began
        // later.
        let mut before = self.last;
        while before != NONE && self.seats[before as usize].deadline_ms > deadline_ms {
            before = self.seats[before as usize].before;
        }
        let behind = match before {
            NONE => std::mem::replace(&mut self.first, seat),
            before => std::mem::replace(&mut self.seats[before as usize].behind, seat),
        };
        match behind {
            NONE => self.last = seat,
            behind => self.seats[behind as usize].before = seat,
        }
        let at = &mut self.seats[seat as usize];
        at.state = SeatState::Here { armed: true };
        (at.deadline_ms, at.before, at.behind) = (deadline_ms, before, behind);
    }

    #[inline]
    pub(super) fn disarm(&mut self, seat: u32) {
        let at = &mut self.seats[seat as usize];
        if at.state != (SeatState::Here { armed: true }) {
            return;
        }
        at.state = SeatState::Here { armed: false };
        let (before, behind) = (at.before, at.behind);
        match before {
            NONE => self.first = behind,
            before => self.seats[before as usize].behind = behind,
        }
        match behind {
            NONE => self.last = before,
            behind => self.seats[behind as usize].before = before,
        }
    }

    /// The deadline of an attempt that has waited before.
    pub(crate) fn deadline(&self, seat: u32) -> u64 {
        self.seats[seat as usize].deadline_ms
    }

    /// A seat whose deadline has passed. The seat leaves the list, so it is reported once.
    pub(crate) fn overdue(&mut self, now_ms: u64) -> Option<u32> {
        let first = self.first;
        (first != NONE && self.seats[first as usize].deadline_ms <= now_ms).then(|| {
            self.disarm(first);
            first
        })
    }

    /// The earliest deadline in the list, for which the shard sets its alarm.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        (self.first != NONE).then(|| self.seats[self.first as usize].deadline_ms)
    }
}

#[cfg(test)]
mod tests {
    use keylane_core::{Engine, Frames, LaneKey, Settings};
    use proptest::prelude::*;

    use std::sync::Arc;

    use keylane_core::Delivery;

    use super::*;

    fn delivery() -> Delivery {
        let mut frames = Frames::default();
        frames.push(0, &keylane_core::Draft { id: "m", ..Default::default() }).expect("a valid draft");
        frames.messages().next().expect("just pushed").expect("just encoded")
    }

    proptest! {
        /// ORD-7: whichever attempts went to other threads and came back, in any order, each times out in its turn.
        #[test]
        fn attempts_that_come_back_keep_their_deadlines_in_order(
            away in proptest::collection::vec(any::<bool>(), 1..40),
            order in any::<u64>(),
        ) {
            let mut engine = Engine::new(Settings::default());
            let mut attempts: Attempts<std::future::Ready<()>> = Attempts::new(Arc::default());
            let mut elsewhere = Vec::new();
            for (at, away) in away.iter().enumerate() {
                let lane = engine.began(LaneKey::Unordered, 0, 0);
                let (seat, deadline_ms) = (attempts.place(1, None, delivery), 100 + at as u64);
                attempts.waits(seat, lane, deadline_ms);
                if *away {
                    attempts.went_elsewhere(seat);
                    elsewhere.push((seat, lane));
                }
            }
            elsewhere.sort_by_key(|(seat, _)| u64::from(*seat).wrapping_mul(order | 1));
            for (seat, lane) in elsewhere {
                attempts.came_back(seat);
                let deadline_ms = attempts.deadline(seat);
                attempts.waits(seat, lane, deadline_ms);
            }
            for at in 0..away.len() as u64 {
                prop_assert_eq!(attempts.next_deadline(), Some(100 + at));
                prop_assert!(attempts.overdue(99 + at).is_none());
                let seat = attempts.overdue(100 + at).expect("its time is over");
                attempts.clear(seat);
            }
            prop_assert_eq!((attempts.next_deadline(), attempts.in_flight()), (None, 0));
        }
    }
}
