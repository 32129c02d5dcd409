//! The attempts of one shard that are in flight: a seat for each, and the list of their deadlines.
//!
//! A delivery comes in when its lane's turn has come, and goes out with its outcome when the attempt has ended. Seats
//! are reused: an attempt that is ready at its first poll allocates nothing and arms no timer. Only an attempt that
//! waits gets a deadline. All attempts of a pipeline have the same time-out, so a list in the order of arrival is a
//! list in the order of deadlines.

mod deadlines;

use std::collections::HashMap;
use std::sync::Arc;

use keylane_core::{Delivery, LaneId};

use super::slot::Slot;
use super::wake::{ListWaker, Wakes};

const NONE: u32 = u32::MAX;
/// Free seats kept for reuse. [`Attempts::shrink`] gives back free seats beyond these and twice the seats in use.
const SPARE_SEATS: usize = 1024;

/// The place of one attempt in flight.
struct Seat<F> {
    slot: Box<Slot<F>>,
    lane: Option<LaneId>,
    deadline_ms: u64,
    before: u32,
    behind: u32,
    state: SeatState,
    /// The attempt waits, and its delivery keeps a whole batch's buffer in memory.
    pinned: bool,
}

/// The states of a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeatState {
    /// No attempt is in this seat.
    Free,
    /// This shard polls the attempt.
    Here {
        /// The attempt waits and is in the list of deadlines.
        armed: bool,
    },
    /// The attempt is polled no more. Its future is to be dropped.
    Ending,
    /// Another thread polls the attempt or drops its future. The shard must not touch the slot meanwhile.
    Elsewhere {
        /// The attempt was woken meanwhile, and must be polled when it comes back; or the wake would be lost.
        woken: bool,
    },
}

/// All attempts of one shard that are in flight.
pub(crate) struct Attempts<F> {
    seats: Vec<Seat<F>>,
    free: Vec<u32>,
    first: u32,
    last: u32,
    in_flight: usize,
    pinned: usize,
    wakes: Arc<Wakes>,
}

impl<F> Attempts<F> {
    pub(crate) fn new(wakes: Arc<Wakes>) -> Attempts<F> {
        Attempts {
            seats: Vec::new(),
            free: Vec::new(),
            first: NONE,
            last: NONE,
            in_flight: 0,
            pinned: 0,
            wakes,
        }
    }

    /// Puts a delivery into a seat, for the attempt `number` on it.
    #[inline(always)]
    pub(crate) fn place(
        &mut self,
        number: u32,
        lane: Option<LaneId>,
        delivery: impl FnOnce() -> Delivery,
    ) -> u32 {
        let seat = self.free.pop().unwrap_or_else(|| self.add_seat());
        let at = &mut self.seats[seat as usize];
        at.slot.fill(number, delivery);
        at.lane = lane;
        at.state = SeatState::Here { armed: false };
        self.in_flight += 1;
        seat
    }

    fn add_seat(&mut self) -> u32 {
        let seat = self.seats.len() as u32;
        assert!(seat < NONE, "fewer than 2^32 attempts are in flight");
        self.seats.push(Seat {
            slot: Slot::empty(ListWaker::seat(&self.wakes, seat)),
            lane: None,
            deadline_ms: 0,
            before: NONE,
            behind: NONE,
            state: SeatState::Free,
            pinned: false,
        });
        seat
    }

    /// The seat's slot, for a poll. The slot does not move while the seat is taken.
    #[inline]
    pub(crate) fn slot(&self, seat: u32) -> *const Slot<F> {
        &raw const *self.seats[seat as usize].slot
    }

    /// The attempt ended: drops its future, frees the seat, and returns the delivery with its lane and its number.
    #[inline]
    pub(crate) fn leave(&mut self, seat: u32) -> (Delivery, Option<LaneId>, u32) {
        self.disarm(seat);
        let at = &mut self.seats[seat as usize];
        at.state = SeatState::Free;
        self.pinned -= usize::from(std::mem::take(&mut at.pinned));
        let number = at.slot.number();
        let lane = at.lane.take();
        let delivery = at.slot.empty_out();
        self.free.push(seat);
        self.in_flight -= 1;
        (delivery, lane, number)
    }

    /// The attempt ended and its delivery is not needed: drops both in place, without moving the delivery.
    #[inline]
    pub(crate) fn clear(&mut self, seat: u32) {
        self.disarm(seat);
        let at = &mut self.seats[seat as usize];
        at.state = SeatState::Free;
        self.pinned -= usize::from(std::mem::take(&mut at.pinned));
        at.lane = None;
        at.slot.clear();
        self.free.push(seat);
        self.in_flight -= 1;
    }

    /// The attempt waits, and its delivery shares its batch's buffer.
    pub(crate) fn pin(&mut self, seat: u32) {
        let pinned = std::mem::replace(&mut self.seats[seat as usize].pinned, true);
        self.pinned += usize::from(!pinned);
    }

    /// The number of waiting attempts that each keep a whole batch in memory.
    #[inline]
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    /// The attempt is polled no more, and its future is to be dropped.
    pub(crate) fn ends(&mut self, seat: u32) {
        self.disarm(seat);
        self.seats[seat as usize].state = SeatState::Ending;
    }

    /// Another thread polls this seat from here on.
    pub(crate) fn went_elsewhere(&mut self, seat: u32) {
        self.disarm(seat);
        self.seats[seat as usize].state = SeatState::Elsewhere { woken: false };
    }

    /// Another thread polls this seat. Used after a panic of the shard: the seat's links in the list of deadlines may
    /// be wrong by then, so they are left alone.
    pub(crate) fn is_elsewhere(&mut self, seat: u32) {
        self.seats[seat as usize].state = SeatState::Elsewhere { woken: false };
    }

    /// The thread that polled the seat reported back. Returns true if the attempt was woken meanwhile.
    pub(crate) fn came_back(&mut self, seat: u32) -> bool {
        let at = &mut self.seats[seat as usize];
        let woken = at.state == (SeatState::Elsewhere { woken: true });
        at.state = SeatState::Here { armed: false };
        woken
    }

    /// The waker of the seat was called. Returns true if the shard is to poll the attempt now.
    #[inline]
    pub(crate) fn woken(&mut self, seat: u32) -> bool {
        let Some(at) = self.seats.get_mut(seat as usize) else {
            return false;
        };
        match &mut at.state {
            SeatState::Free | SeatState::Ending => false,
            SeatState::Here { .. } => true,
            SeatState::Elsewhere { woken } => {
                *woken = true;
                false
            }
        }
    }

    /// The number of attempts in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The delivery in a seat that is taken.
    #[inline]
    pub(crate) fn delivery(&self, seat: u32) -> &Delivery {
        self.seats[seat as usize].slot.delivery().expect("the seat is taken")
    }

    /// The lane of the attempt; none before its first wait, if the attempt began without waiting in a lane.
    #[inline]
    pub(crate) fn lane(&self, seat: u32) -> Option<LaneId> {
        self.seats[seat as usize].lane
    }

    /// The deliveries in flight that were read from `partition` under `epoch`.
    pub(crate) fn of(&self, partition: u32, epoch: u64) -> impl Iterator<Item = &Delivery> {
        let of = move |delivery: &&Delivery| delivery.partition() == partition && delivery.epoch() == epoch;
        self.seats.iter().filter_map(|seat| seat.slot.delivery()).filter(of)
    }

    /// The seats of a partition's attempts that this shard polls itself.
    pub(crate) fn here_of(&self, partition: u32) -> impl Iterator<Item = u32> {
        (0..).zip(&self.seats).filter_map(move |(index, seat)| {
            let here = matches!(seat.state, SeatState::Here { .. });
            (here && seat.slot.delivery()?.partition() == partition).then_some(index)
        })
    }

    /// The seats and deliveries of a partition's attempts that other threads poll.
    pub(crate) fn elsewhere_of(&self, partition: u32) -> impl Iterator<Item = (u32, &Delivery)> {
        (0..).zip(&self.seats).filter_map(move |(index, seat)| {
            let elsewhere = matches!(seat.state, SeatState::Elsewhere { .. });
            let delivery = seat.slot.delivery().filter(|delivery| delivery.partition() == partition)?;
            elsewhere.then_some((index, delivery))
        })
    }

    /// Gives the attempt in that seat this lane from here on.
    pub(crate) fn has_lane(&mut self, seat: u32, lane: LaneId) {
        self.seats[seat as usize].lane = Some(lane);
    }

    /// For each lane with an attempt: the delivery and the state of its seat.
    pub(crate) fn by_lane(&self) -> HashMap<LaneId, (&Delivery, SeatState)> {
        let seats = self.seats.iter();
        seats.filter_map(|seat| Some((seat.lane?, (seat.slot.delivery()?, seat.state)))).collect()
    }

    /// Ends all attempts that this shard polls itself. An attempt that another thread polls ends when that poll
    /// returns. Returns the number of attempts of both kinds. The caller uses nothing of `self` afterwards.
    pub(crate) fn end_all(&mut self) -> usize {
        let here = |seat: &&mut Seat<F>| matches!(seat.state, SeatState::Here { .. } | SeatState::Ending);
        self.seats.iter_mut().filter(here).for_each(|seat| seat.slot.clear());
        self.in_flight
    }

    /// Frees the seats that a burst of attempts left behind.
    pub(crate) fn shrink(&mut self) {
        if self.free.len() <= SPARE_SEATS + 2 * self.in_flight {
            return;
        }
        let used = self.seats.iter().rposition(|seat| seat.state != SeatState::Free).map_or(0, |at| at + 1);
        self.seats.truncate(used.max(SPARE_SEATS));
        self.seats.shrink_to(SPARE_SEATS);
        let kept = self.seats.len() as u32;
        self.free.retain(|seat| *seat < kept);
        self.free.shrink_to(SPARE_SEATS);
    }
}
