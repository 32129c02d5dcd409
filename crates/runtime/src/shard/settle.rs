//! Turns the end of an attempt into the next step of its message: done, another attempt, or on its way to be dead.
//!
//! An attempt that ends after its partition was lost changes nothing: its delivery carries an older epoch (P9).

use std::borrow::Cow;

use keylane_core::{Candidate, Delivery, End, LaneId, LaneKey, Outcome, Settlement, Verdict, settle};

use super::mailbox::{Rejection, cut};
use super::pass::{Current, PollKind, Shard};
use super::slot::{Late, Polled};
use crate::pipeline::beginning;

/// How much of a failure's text is kept while its lane waits, in bytes: a line or two for people. Each waiting lane
/// keeps one text, and there may be a million of them (P5).
const FAILURE_BYTES_MAX: usize = 2 << 10;

impl<F> Shard<F> {
    /// The attempt in `seat` is done. The delivery is dropped, not moved: most messages end here, at their first poll.
    #[inline]
    pub(super) fn done(&mut self, seat: u32) {
        let delivery = self.attempts.delivery(seat);
        let (position, size) = (delivery.position(), delivery.size());
        let part = self.partitions.of(delivery);
        self.permits.give();
        let lane = self.attempts.lane(seat);
        self.attempts.clear(seat);
        let Some(part) = part else {
            return self.ended_late(lane);
        };
        part.running -= 1;
        part.ledger.finish(position);
        part.forget(&mut self.load, size);
        self.hand_over.finished(part, self.now_ms);
        if let Some(lane) = lane {
            self.engine.done(lane, self.now_ms);
        }
    }

    /// The attempt in `seat` ended with an outcome.
    pub(super) fn ended(&mut self, seat: u32, kind: PollKind, outcome: Outcome) {
        self.finish_attempt(seat, kind, End::Said(outcome));
    }

    /// The attempt waits: from here on it has a lane and, from its first wait on, a deadline.
    pub(super) fn waits(&mut self, seat: u32, kind: PollKind) {
        let lane = match kind {
            PollKind::First(lane) => {
                if self.current.pinned {
                    self.attempts.pin(seat);
                }
                let partition = self.attempts.delivery(seat).partition();
                self.engine.began(lane, partition, self.now_ms)
            }
            PollKind::Again => self.attempts.lane(seat).expect("only a first poll has no lane yet"),
        };
        self.attempts.waits(seat, lane, self.now_ms + self.timeout_ms);
    }

    /// The attempt took too long (ORD-7), or its partition is lost. Its future is dropped where polls run, since a
    /// destructor of the handler may block its thread. Until then its lane stays busy.
    pub(super) fn end_early(&mut self, seat: u32) {
        self.attempts.ends(seat);
        self.ending.push_back(seat);
    }

    /// The attempt's future was dropped. The attempt counts as timed out, if its partition is still there.
    pub(super) fn ended_early(&mut self, seat: u32) {
        self.finish_attempt(seat, PollKind::Again, End::TimedOut { after_ms: self.timeout_ms });
    }

    fn finish_attempt(&mut self, seat: u32, kind: PollKind, end: End) {
        let settlement = settle(end);
        if settlement == Settlement::Done {
            return self.done(seat);
        }
        let (delivery, lane, attempt) = self.attempts.leave(seat);
        self.permits.give();
        let Some(part) = self.partitions.of(&delivery) else {
            return self.ended_late(lane);
        };
        part.running -= 1;
        let lane = match kind {
            PollKind::First(key) => self.engine.began(key, delivery.partition(), self.now_ms),
            PollKind::Again => lane.expect("only a first poll has no lane yet"),
        };
        match settlement {
            Settlement::Done => unreachable!("dealt with above"),
            Settlement::Again { error, retry_after_ms } => self.again(lane, delivery, error, retry_after_ms),
            Settlement::Dead { error } => self.dead(lane, delivery, attempt, error),
        }
    }

    /// The attempt's partition was lost meanwhile, and its lanes with it. If this shard has the partition again, the
    /// lane of the attempt's key has waited for this end and goes on.
    #[cold]
    fn ended_late(&mut self, lane: Option<LaneId>) {
        if let Some(lane) = lane {
            self.engine.done(lane, self.now_ms);
        }
    }

    /// A partition starts again while other threads may still run attempts from before it was lost. The lanes of these
    /// attempts stay busy until they end, or two attempts of one key would run beside each other (ORD-2, ORD-4).
    pub(super) fn keep_late_lanes_busy(&mut self, partition: u32) {
        let late: Vec<(u32, LaneKey)> = self
            .attempts
            .elsewhere_of(partition)
            .map(|(seat, delivery)| (seat, self.engine.lane_key(partition, delivery.key())))
            .collect();
        for (seat, key) in late {
            if key != LaneKey::Unordered && self.engine.judge(Candidate::Read(key)) == Verdict::Run {
                let lane = self.engine.began(key, partition, self.now_ms);
                self.attempts.has_lane(seat, lane);
            }
        }
    }

    fn again(
        &mut self,
        lane: LaneId,
        delivery: Delivery,
        error: Cow<'static, str>,
        retry_after_ms: Option<u64>,
    ) {
        self.stats.failed();
        let (partition, position, size) = (delivery.partition(), delivery.position(), delivery.size());
        let error = cut(error, FAILURE_BYTES_MAX);
        // Logged once per message: it is tried again until it succeeds, and each attempt may fail like the one before.
        let was_stuck = self.engine.view(lane).is_some_and(|view| view.stuck);
        let retry = self.engine.failed(lane, delivery, error, retry_after_ms, self.now_ms);
        match retry {
            Some(retry) if retry.stuck && !was_stuck => self.tell_stuck(lane, position, retry.attempt - 1),
            Some(_) => {}
            None => {
                // The partition is given up, so the message is left to the next owner.
                if let Some(part) = self.partitions.get_mut(partition) {
                    part.forget(&mut self.load, size);
                }
            }
        }
    }

    /// Logs which key does not go on, and why, so that an operator need not search for either.
    fn tell_stuck(&mut self, lane: LaneId, offset: u64, attempt: u32) {
        if !self.stuck_told.may_tell(self.now_ms) {
            return;
        }
        let view = self.engine.view(lane).expect("its message was just put back");
        let key = view.key.map(|key| beginning(&crate::percent::encode(key)));
        tracing::warn!(
            pipeline = &*self.pipeline,
            partition = view.partition,
            offset,
            key = key.as_deref().unwrap_or("(none)"),
            attempt,
            why = beginning(view.why.unwrap_or_default()),
            "a message is stuck: its retries are spent. It is tried again until it succeeds, and later messages of its key wait"
        );
    }

    /// Logs, once a minute is over, how many lines were left out.
    pub(crate) fn tell_stuck_rest(&mut self) {
        if let Some(left_out) = self.stuck_told.left_out(self.now_ms) {
            tracing::warn!(
                pipeline = &*self.pipeline,
                left_out,
                "further messages got stuck within a minute, and had no line of their own here; `keylane lanes --sort waiting` shows them"
            );
        }
    }

    /// The handler rejected the message. Nothing of its lane runs until the dead letter is on record and counts;
    /// otherwise a successor could run first, and after a take-over the message again behind it.
    fn dead(&mut self, lane: LaneId, mut delivery: Delivery, attempt: u32, error: Cow<'static, str>) {
        // The delivery waits until its body is stored, and would keep its whole batch in memory.
        delivery.detach();
        self.engine.rejected(lane, self.now_ms);
        let part = self.partitions.of(&delivery).expect("found by the caller");
        part.burying.insert(delivery.position(), (lane, delivery.size()));
        let rejection = Rejection::new(delivery, attempt, &error);
        part.link.leave(|mail| mail.rejected.push(rejection));
    }

    /// Forgets a partition and ends its attempts: none of them can settle a message any more.
    pub(super) fn drop_part(&mut self, partition: u32) {
        let Some(part) = self.partitions.take(partition) else {
            return;
        };
        self.load.sub(part.load.messages, part.load.bytes);
        self.hand_over.forget(&part, self.now_ms);
        self.turns.retain(|turn| *turn != partition);
        self.engine.drop_partition(partition);
        let dropped: Vec<u32> = self.attempts.here_of(partition).collect();
        for seat in dropped {
            self.end_early(seat);
        }
    }
}

impl<F> Shard<F> {
    /// The watchdog took the shard from the poll of the current attempt: another thread goes on with that attempt, so
    /// its lane is busy.
    pub(super) fn current_went_elsewhere(&mut self) {
        let Current { seat, kind, .. } = self.current;
        self.waits(seat, kind);
        self.attempts.went_elsewhere(seat);
    }

    /// The thread that had the attempt in `seat` reports back.
    pub(super) fn came_back(&mut self, seat: u32, late: Late) {
        let woken = self.attempts.came_back(seat);
        match late {
            Late::NotBegun => self.not_begun(seat),
            Late::Dropped => self.ended_early(seat),
            Late::Polled(Polled::Done) => self.done(seat),
            Late::Polled(Polled::Ended(outcome)) => self.ended(seat, PollKind::Again, *outcome),
            Late::Polled(Polled::Waits) if self.partitions.of(self.attempts.delivery(seat)).is_none() => {
                self.end_early(seat);
            }
            Late::Polled(Polled::Waits) => {
                let lane = self.attempts.lane(seat).expect("an attempt that went elsewhere has a lane");
                let deadline_ms = self.attempts.deadline(seat);
                if deadline_ms <= self.now_ms {
                    return self.end_early(seat);
                }
                self.attempts.waits(seat, lane, deadline_ms);
                if woken {
                    self.woken.push_back(seat);
                }
            }
        }
    }
}

impl<F> Shard<F> {
    /// The attempt waited for a thread, and its partition stopped starting attempts before it began. Its message
    /// becomes the head of its lane again, or is left to the next owner.
    fn not_begun(&mut self, seat: u32) {
        let (delivery, lane, _) = self.attempts.leave(seat);
        self.permits.give();
        let Some(part) = self.partitions.of(&delivery) else {
            return self.ended_late(lane);
        };
        part.running -= 1;
        let (partition, size) = (delivery.partition(), delivery.size());
        let lane = lane.expect("an attempt that went elsewhere has a lane");
        if !self.engine.not_begun(lane, delivery, self.now_ms)
            && let Some(part) = self.partitions.get_mut(partition)
        {
            part.forget(&mut self.load, size);
        }
    }
}
