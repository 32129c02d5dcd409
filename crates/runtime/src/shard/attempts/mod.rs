//! Handlers at work: a seat for each attempt in flight, and the list of their deadlines.
//!
//! Comes in: a delivery whose turn it is. Goes out: its outcome. A seat is used again and again; one whose attempt is
//! ready at its first poll costs no allocation and no timer. The time-out is armed only once an attempt waits, and
//! since it is the same for all attempts of a pipeline, the armed ones form a list in the order of their deadlines.

mod deadlines;

use std::collections::HashMap;
use std::sync::Arc;

use keylane_core::{Delivery, LaneId};

use super::slot::Slot;
use super::wake::{ListWaker, Wakes};

const NONE: u32 = u32::MAX;
/// Free seats kept for reuse; beyond that, and twice what is in use, they are given back.
const SPARE_SEATS: usize = 1024;

/// Where an attempt sits.
struct Seat<F> {
    slot: Box<Slot<F>>,
    lane: Option<LaneId>,
    deadline_ms: u64,
    before: u32,
    behind: u32,
    state: SeatState,
    /// It waits, and keeps its whole batch in memory.
    pinned: bool,
}

/// What a seat is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeatState {
    /// Nobody sits there.
    Free,
    /// An attempt of this shard; whether its time-out is armed.
    Here {
        /// In the list of deadlines.
        armed: bool,
    },
    /// An attempt of this shard that is polled no more: its future is to be dropped.
    Ending,
    /// Another thread polls it, or drops its future; whether it was woken meanwhile.
    Elsewhere {
        /// To be polled again when it comes back.
        woken: bool,
    },
}

/// All attempts in flight of one shard.
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

    /// Seats a delivery for its attempt `number`.
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

    /// The seat's slot, to be polled. It stays where it is until the seat is free.
    #[inline]
    pub(crate) fn slot(&self, seat: u32) -> *const Slot<F> {
        &raw const *self.seats[seat as usize].slot
    }

    /// The attempt ended: its future is dropped, its delivery comes back, its seat is free.
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

    /// The attempt ended, and nobody needs its delivery: all is dropped where it is.
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

    /// The attempt that waits shares its batch's buffer.
    pub(crate) fn pin(&mut self, seat: u32) {
        let pinned = std::mem::replace(&mut self.seats[seat as usize].pinned, true);
        self.pinned += usize::from(!pinned);
    }

    /// Attempts that wait and keep a whole batch in memory.
    #[inline]
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    /// The attempt is polled no more: its future is to be dropped.
    pub(crate) fn ends(&mut self, seat: u32) {
        self.disarm(seat);
        self.seats[seat as usize].state = SeatState::Ending;
    }

    /// Another thread polls this seat now.
    pub(crate) fn went_elsewhere(&mut self, seat: u32) {
        self.disarm(seat);
        self.seats[seat as usize].state = SeatState::Elsewhere { woken: false };
    }

    /// Another thread polls this seat, and nothing else that is known of it counts any more.
    pub(crate) fn is_elsewhere(&mut self, seat: u32) {
        self.seats[seat as usize].state = SeatState::Elsewhere { woken: false };
    }

    /// The thread that polled it reported back. True if it was woken meanwhile.
    pub(crate) fn came_back(&mut self, seat: u32) -> bool {
        let at = &mut self.seats[seat as usize];
        let woken = at.state == (SeatState::Elsewhere { woken: true });
        at.state = SeatState::Here { armed: false };
        woken
    }

    /// The seat was woken. True if it is to be polled now.
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

    /// Attempts in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The delivery in a seat that is taken.
    #[inline]
    pub(crate) fn delivery(&self, seat: u32) -> &Delivery {
        self.seats[seat as usize].slot.delivery().expect("the seat is taken")
    }

    /// The lane of an attempt.
    #[inline]
    pub(crate) fn lane(&self, seat: u32) -> Option<LaneId> {
        self.seats[seat as usize].lane
    }

    /// Deliveries of a partition in flight, read under `epoch`.
    pub(crate) fn of(&self, partition: u32, epoch: u64) -> impl Iterator<Item = &Delivery> {
        let of = move |delivery: &&Delivery| delivery.partition() == partition && delivery.epoch() == epoch;
        self.seats.iter().filter_map(|seat| seat.slot.delivery()).filter(of)
    }

    /// Seats of a partition that this shard polls itself.
    pub(crate) fn here_of(&self, partition: u32) -> impl Iterator<Item = u32> {
        (0..).zip(&self.seats).filter_map(move |(index, seat)| {
            let here = matches!(seat.state, SeatState::Here { .. });
            (here && seat.slot.delivery()?.partition() == partition).then_some(index)
        })
    }

    /// Attempts on messages of a partition that other threads poll: seat and delivery.
    pub(crate) fn elsewhere_of(&self, partition: u32) -> impl Iterator<Item = (u32, &Delivery)> {
        (0..).zip(&self.seats).filter_map(move |(index, seat)| {
            let elsewhere = matches!(seat.state, SeatState::Elsewhere { .. });
            let delivery = seat.slot.delivery().filter(|delivery| delivery.partition() == partition)?;
            elsewhere.then_some((index, delivery))
        })
    }

    /// The attempt in that seat has this lane from here on.
    pub(crate) fn has_lane(&mut self, seat: u32, lane: LaneId) {
        self.seats[seat as usize].lane = Some(lane);
    }

    /// What runs in these lanes: the delivery, and whether another thread polls it.
    pub(crate) fn by_lane(&self) -> HashMap<LaneId, (&Delivery, SeatState)> {
        let seats = self.seats.iter();
        seats.filter_map(|seat| Some((seat.lane?, (seat.slot.delivery()?, seat.state)))).collect()
    }

    /// Ends all attempts that this shard polls itself; those that another thread polls end when that returns. Returns how
    /// many there were in all. Nothing else may be asked after it.
    pub(crate) fn end_all(&mut self) -> usize {
        let here = |seat: &&mut Seat<F>| matches!(seat.state, SeatState::Here { .. } | SeatState::Ending);
        self.seats.iter_mut().filter(here).for_each(|seat| seat.slot.clear());
        self.in_flight
    }

    /// Gives seats back that a burst left behind.
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
