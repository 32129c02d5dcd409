//! Chooses the attempt that a shard polls next: one that woke, the head of a free lane, or a message just read.
//!
//! A message that was just read and may run is placed in a seat at once. One that may not run yet is queued in its
//! lane. One whose lane is full stays with its partition, and nothing more of that partition is read. Partitions take
//! turns of one batch each. A partition whose reader has no data gets no turn until the reader reports data.

use keylane_broker::BrokerError;
use keylane_core::{Candidate, Delivery, LaneKey, Verdict};

use super::partition::{Part, PartState, Read};
use super::pass::{Current, PINNED_MAX, PollKind, Shard};

/// The result of looking at the partition whose turn it is.
enum Turn {
    /// Poll this attempt; the partition's turn goes on.
    Polls(u32),
    /// The partition may have more, and has another turn after the other partitions.
    Again,
    /// The partition has nothing to read until its reader reports data.
    Over,
}

impl<F> Shard<F> {
    pub(super) fn next_woken(&mut self) -> Option<u32> {
        // The attempt that woke first goes first, or under load the last would wait for ever.
        while let Some(seat) = self.woken.pop_front() {
            if self.attempts.woken(seat) {
                self.current = Current { seat, kind: PollKind::Again, pinned: false };
                return Some(seat);
            }
        }
        None
    }

    pub(super) fn next_ready(&mut self) -> Option<u32> {
        if !self.partitions.any_runs() {
            // No partition may start anything, so other shards need not leave this one any permits.
            self.permits.wants_none();
            return None;
        }
        if !self.permits.any() {
            return None;
        }
        let ready = self.engine.next_ready(self.now_ms)?;
        let part = self.partitions.of(&ready.delivery).expect("only owned partitions have lanes");
        part.running += 1;
        self.permits.take();
        let seat = self.attempts.place(ready.attempt, Some(ready.lane), || ready.delivery);
        self.current = Current { seat, kind: PollKind::Again, pinned: false };
        Some(seat)
    }

    /// The next message of a partition that may run at once. Messages in front of it that may not run are queued.
    pub(super) fn next_read(&mut self) -> Option<u32> {
        // Without a permit nothing can run, and what is read would only be queued.
        if !self.partitions.any_runs() || !self.permits.any() {
            return None;
        }
        for _ in 0..=self.turns.len() {
            let partition = *self.turns.front()?;
            match self.next_of_turn(partition) {
                Turn::Polls(seat) => return Some(seat),
                Turn::Again => self.turns.rotate_left(1),
                Turn::Over => {
                    self.turns.pop_front();
                    if let Some(part) = self.partitions.get_mut(partition) {
                        part.has_turn = false;
                    }
                }
            }
            self.turn_used = false;
        }
        None
    }

    /// The next message of the partition whose turn it is.
    #[inline(always)]
    fn next_of_turn(&mut self, partition: u32) -> Turn {
        #[cfg(test)]
        (self.looks += 1);
        loop {
            let Some(part) = self.partitions.get_mut(partition) else {
                return Turn::Over;
            };
            if part.state != PartState::Running {
                return Turn::Over;
            }
            if let Some(lane) = part.stalled_on() {
                if !self.engine.has_room(lane) {
                    part.show_pause();
                    return Turn::Again;
                }
                match self.judge(partition, lane, |part| part.unstall().expect("just seen")) {
                    Some(seat) => return Turn::Polls(seat),
                    None => continue,
                }
            }
            match part.next_found(&mut self.load) {
                Read::Found(found) => {
                    let lane = self.engine.lane_key(part.partition, part.batch().key(&found));
                    if let Some(seat) = self.judge(partition, lane, |part| part.batch().delivery(&found)) {
                        return Turn::Polls(seat);
                    }
                }
                Read::BatchEnd => {
                    self.hand_over.passed(part, self.now_ms);
                    // One batch a turn: a partition that always has more must not keep the others waiting. A batch is
                    // read only when its messages are looked at next; read ahead, the batches of all partitions would
                    // push each other out of the CPU's cache.
                    if self.turn_used {
                        return Turn::Again;
                    }
                    if let Some(over) = self.read_on(partition) {
                        return over;
                    }
                    self.turn_used = true;
                }
                Read::Broken(error) => {
                    self.give_up(partition, error);
                    return Turn::Over;
                }
            }
        }
    }

    /// Runs, queues or stalls a message that was just read. The caller has a permit. `delivery` is built in its place.
    #[inline(always)]
    fn judge(
        &mut self,
        partition: u32,
        lane: LaneKey,
        delivery: impl FnOnce(&mut Part) -> Delivery,
    ) -> Option<u32> {
        let part = self.partitions.get_mut(partition).expect("its turn");
        match self.engine.judge(Candidate::Read(lane)) {
            Verdict::Run => {
                // The attempt may wait, and its delivery would keep the whole batch in memory.
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
                self.current = Current { seat, kind: PollKind::First(lane), pinned: !detached };
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
            Verdict::Wait => unreachable!("only heads of lanes wait"),
        }
    }

    /// Reads one more batch of the partition whose turn it is. Returns what becomes of its turn if there is none or the
    /// bounds do not allow one (BPR-2).
    fn read_on(&mut self, partition: u32) -> Option<Turn> {
        let owned = self.partitions.owned();
        let part = self.partitions.get_mut(partition).expect("its turn");
        let bytes_max = self.intake.may_read(self.load, part.load, owned, part.stopped);
        part.stopped = bytes_max.is_none();
        part.show_pause();
        // The bounds do not allow it. Each attempt that ends makes room and is followed by another look.
        let Some(bytes_max) = bytes_max else {
            return Some(Turn::Again);
        };
        match part.poll_batch(&self.tasks, &mut self.load, bytes_max) {
            Ok(true) => {
                // Also if every message of the batch is only queued: the reader must be asked again until it has no
                // data, since only then it wakes the shard for more.
                self.worked = true;
                None
            }
            Ok(false) => Some(Turn::Over),
            Err(error) => {
                self.give_up(partition, error);
                Some(Turn::Over)
            }
        }
    }

    /// A partition cannot be read. Its queued messages are dropped, or they might start after a pause of the process
    /// (ORD-12). The owner puts on record what still runs, and ends with the error.
    fn give_up(&mut self, partition: u32, error: BrokerError) {
        self.enter(partition, PartState::Broken);
        let part = self.partitions.get_mut(partition).expect("its turn");
        part.link.leave(|mail| mail.broken = Some(error));
        self.engine.drain_partition(partition);
    }
}
