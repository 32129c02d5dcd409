//! Which attempt is polled next: one that woke, the head of a free lane, or a message that was just read.
//!
//! A message that is read and may run is placed at once; one that may not is queued in its lane; one whose lane is full
//! stays with its partition, which is not read any further. Partitions take turns, a batch each.

use std::task::Context;

use keylane_broker::BrokerError;
use keylane_core::{Delivery, Feed, LaneHash, Verdict};

use super::{Current, PINNED_MAX, Shard};
use crate::poll::{PartState, Read};
use crate::settle::part_of;

impl<F> Shard<F> {
    pub(super) fn next_woken(&mut self) -> Option<u32> {
        // The longest woken first, or under load the last would wait for ever.
        while let Some(seat) = self.woken.pop_front() {
            if self.attempts.woken(seat) {
                self.current = Current { seat, first: None, pinned: false };
                return Some(seat);
            }
        }
        None
    }

    pub(super) fn next_ready(&mut self) -> Option<u32> {
        if self.verifying > 0 || !self.permits.any() {
            return None;
        }
        let ready = self.engine.next_ready(self.now_ms)?;
        let part = part_of(&mut self.parts, &ready.delivery).expect("only owned partitions have lanes");
        part.running += 1;
        self.permits.take();
        let seat = self.attempts.place(ready.delivery, ready.attempt, Some(ready.lane));
        self.current = Current { seat, first: None, pinned: false };
        Some(seat)
    }

    /// The next message of a partition that may run at once. On its way it queues those that may not.
    pub(super) fn next_read(&mut self, cx: &mut Context<'_>) -> Option<u32> {
        // Without a permit nothing can run: what is read would only be queued.
        if self.verifying > 0 || !self.permits.any() {
            return None;
        }
        // Twice round: a batch that one turn brought is looked at in the next.
        for _ in 0..2 * self.parts.len() {
            if let Some(seat) = self.next_of_turn(cx) {
                return Some(seat);
            }
            self.turn = (self.turn + 1) % self.parts.len();
        }
        None
    }

    /// The next message of the partition whose turn it is.
    #[inline]
    fn next_of_turn(&mut self, cx: &mut Context<'_>) -> Option<u32> {
        loop {
            let part = self.parts[self.turn].as_mut().filter(|part| part.state == PartState::Running)?;
            if let Some(lane) = part.stalled_on() {
                if !self.engine.has_room(lane) {
                    return None;
                }
                let delivery = part.unstall().expect("just seen");
                match self.judge(delivery, lane) {
                    Some(seat) => return Some(seat),
                    None => continue,
                }
            }
            match part.next_delivery() {
                Read::Delivery(delivery) => {
                    let lane = self.engine.lane_hash(&delivery);
                    if let Some(seat) = self.judge(delivery, lane) {
                        return Some(seat);
                    }
                }
                Read::BatchEnd => {
                    // One batch a turn: a partition that always has more must not keep the others waiting.
                    self.read_on(cx);
                    return None;
                }
                Read::Broken(error) => {
                    self.give_up(error);
                    return None;
                }
            }
        }
    }

    /// Runs, queues or keeps a message that was just read. There is a permit.
    #[inline]
    fn judge(&mut self, mut delivery: Delivery, lane: Option<LaneHash>) -> Option<u32> {
        let part = self.parts[self.turn].as_mut().expect("its turn");
        match self.engine.verdict(lane) {
            Verdict::Run => {
                // It may wait, and would keep its whole batch in memory.
                let detached = self.quick_in > 0 || self.attempts.pinned() >= PINNED_MAX;
                if detached {
                    delivery.detach();
                }
                part.running += 1;
                self.permits.take();
                let seat = self.attempts.place(delivery, 1, None);
                self.current = Current { seat, first: Some(lane), pinned: !detached };
                Some(seat)
            }
            Verdict::Queue => {
                delivery.detach();
                self.engine.queue(lane, delivery, self.now_ms);
                None
            }
            Verdict::Full => {
                part.stall(delivery, lane);
                None
            }
        }
    }

    /// One more batch of the partition whose turn it is, if the bounds allow it (BPR-2).
    fn read_on(&mut self, cx: &mut Context<'_>) {
        self.feeds.clear();
        self.feeds.extend(self.parts.iter().map(|part| {
            part.as_ref().map_or(Feed::default(), |part| Feed {
                messages: part.messages,
                bytes: part.bytes,
                stopped: part.stopped,
            })
        }));
        let bytes_max = self.intake.cycle(&mut self.feeds);
        for (part, feed) in self.parts.iter_mut().zip(&self.feeds) {
            part.iter_mut().for_each(|part| part.stopped = feed.stopped);
        }
        let part = self.parts[self.turn].as_mut().expect("its turn");
        if part.stopped || bytes_max == 0 {
            return;
        }
        if let Err(error) = part.poll_batch(cx, bytes_max) {
            self.give_up(error);
        }
    }

    /// The partition whose turn it is cannot be read. Nothing more of it starts, or what is queued might after a pause
    /// of the process (ORD-12); its owner puts what runs on record, and ends with the error.
    fn give_up(&mut self, error: BrokerError) {
        let part = self.parts[self.turn].as_mut().expect("its turn");
        part.state = PartState::Broken;
        part.link.leave(|mail| mail.broken = Some(error));
        let partition = part.partition;
        self.engine.drain_partition(partition);
    }
}
