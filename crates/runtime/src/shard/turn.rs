//! Which attempt is polled next: one that woke, the head of a free lane, or a message that was just read.
//!
//! A message that is read and may run is placed at once; one that may not is queued in its lane; one whose lane is full
//! stays with its partition, which is not read any further. Partitions take turns, a batch each.

use std::task::Context;

use keylane_broker::BrokerError;
use keylane_core::{Delivery, Feed, LaneHash, Verdict};

use super::{Current, PINNED_MAX, Shard};
use crate::poll::{Part, PartState, Read};
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
        if self.verifying > 0 {
            self.permits.wants_none();
            return None;
        }
        if !self.permits.any() {
            return None;
        }
        let ready = self.engine.next_ready(self.now_ms)?;
        let part = part_of(&mut self.parts, &ready.delivery).expect("only owned partitions have lanes");
        part.running += 1;
        self.permits.take();
        let seat = self.attempts.place(ready.attempt, Some(ready.lane), || ready.delivery);
        self.current = Current { seat, first: None, pinned: false };
        Some(seat)
    }

    /// The next message of a partition that may run at once. On its way it queues those that may not.
    pub(super) fn next_read(&mut self, cx: &mut Context<'_>) -> Option<u32> {
        // Without a permit nothing can run: what is read would only be queued.
        if self.verifying > 0 || !self.permits.any() {
            return None;
        }
        for _ in 0..=self.parts.len() {
            if let Some(seat) = self.next_of_turn(cx) {
                return Some(seat);
            }
            self.turn = (self.turn + 1) % self.parts.len();
            self.turn_used = false;
        }
        None
    }

    /// The next message of the partition whose turn it is.
    #[inline(always)]
    fn next_of_turn(&mut self, cx: &mut Context<'_>) -> Option<u32> {
        loop {
            let part = self.parts[self.turn].as_mut().filter(|part| part.state == PartState::Running)?;
            if let Some(lane) = part.stalled_on() {
                if !self.engine.has_room(lane) {
                    return None;
                }
                match self.judge(lane, |part| part.unstall().expect("just seen")) {
                    Some(seat) => return Some(seat),
                    None => continue,
                }
            }
            match part.next_found() {
                Read::Found(found) => {
                    let lane = self.engine.lane_hash(part.partition, part.batch().key(&found));
                    if let Some(seat) = self.judge(lane, |part| part.batch().delivery(&found)) {
                        return Some(seat);
                    }
                }
                Read::BatchEnd => {
                    self.hand_over.passed(part, self.now_ms);
                    // One batch a turn: a partition that always has more must not keep the others waiting. It is read
                    // when it is looked at: read ahead, the batches of all partitions would push each other out of
                    // the cache.
                    if self.turn_used || !self.read_on(cx) {
                        return None;
                    }
                    self.turn_used = true;
                }
                Read::Broken(error) => {
                    self.give_up(error);
                    return None;
                }
            }
        }
    }

    /// Runs, queues or keeps a message that was just read. There is a permit. The delivery is made where it stays.
    #[inline(always)]
    fn judge(&mut self, lane: Option<LaneHash>, delivery: impl FnOnce(&mut Part) -> Delivery) -> Option<u32> {
        let part = self.parts[self.turn].as_mut().expect("its turn");
        match self.engine.verdict(lane) {
            Verdict::Run => {
                // It may wait, and would keep its whole batch in memory.
                let detached = self.quick_in > 0 || self.attempts.pinned() >= PINNED_MAX;
                part.running += 1;
                self.permits.take();
                let seat = self.attempts.place(1, None, || {
                    let mut delivery = delivery(part);
                    if detached {
                        delivery.detach();
                    }
                    delivery
                });
                self.current = Current { seat, first: Some(lane), pinned: !detached };
                Some(seat)
            }
            Verdict::Queue => {
                let mut delivery = delivery(part);
                delivery.detach();
                self.engine.queue(lane, delivery, self.now_ms);
                None
            }
            Verdict::Full => {
                let delivery = delivery(part);
                part.stall(delivery, lane);
                None
            }
        }
    }

    /// One more batch of the partition whose turn it is, if there is one and the bounds allow it (BPR-2).
    fn read_on(&mut self, cx: &mut Context<'_>) -> bool {
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
            return false;
        }
        match part.poll_batch(cx, bytes_max) {
            Ok(there) => {
                // Also if all of it is only queued: the reader must be asked until it has nothing more, and only then
                // wakes the shard.
                self.worked |= there;
                there
            }
            Err(error) => {
                self.give_up(error);
                false
            }
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
