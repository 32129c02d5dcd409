//! Carries out the commands that partition owners, status queries and the pipeline's end send to a shard; and the
//! shard's own tick.

use keylane_core::{Delivery, Load};

use super::mailbox::{ShardCommand, Start};
use super::partition::{Part, PartState};
use super::pass::{SWEEP_MAX, Shard};
use super::wake::LIST_KEPT;

impl<F> Shard<F> {
    pub(crate) fn carry_out(&mut self, command: ShardCommand) {
        match command {
            ShardCommand::Start(start) => self.start(*start),
            ShardCommand::Counted { partition, epoch, dead } => self.counted(partition, epoch, &dead),
            ShardCommand::Verified { partition, epoch, pauses } => {
                let sure = pauses == self.pauses.count();
                if self
                    .partitions
                    .under(partition, epoch)
                    .is_some_and(|part| part.state == PartState::Verifying)
                    && sure
                {
                    self.enter(partition, PartState::Running);
                }
            }
            ShardCommand::Suspend { partition, epoch } => {
                if self
                    .partitions
                    .under(partition, epoch)
                    .is_some_and(|part| part.state == PartState::Running)
                {
                    self.enter(partition, PartState::Verifying);
                }
            }
            ShardCommand::Drain { partition, epoch } => self.drain(partition, epoch),
            ShardCommand::Drop { partition, epoch } => {
                if self.partitions.under(partition, epoch).is_some() {
                    self.drop_part(partition);
                }
            }
            ShardCommand::Forget { partition } => self.drop_part(partition),
            ShardCommand::End => self.ended = true,
            ShardCommand::Lanes { sort, limit, reply, turn } => {
                drop(turn);
                if !reply.is_closed() {
                    let _ = reply.send(self.lanes(sort, limit));
                }
            }
        }
    }

    fn start(&mut self, start: Start) {
        let (partition, pauses) = (start.partition, start.pauses);
        self.drop_part(partition);
        self.partitions.add(Part::new(start, self.flaws, &self.wakes, self.now_ms));
        self.keep_late_lanes_busy(partition);
        self.take_turns(partition);
        if pauses != self.pauses.count() {
            // The process was paused after the owner read its fence, so another process may own the partition by now.
            self.verify(partition, self.paused_ms);
        }
    }

    /// Starts no attempt of a partition until its owner has read the journal to its end. Other partitions go on: each
    /// waits for its own journal only (ORD-12, P3).
    pub(crate) fn verify(&mut self, partition: u32, paused_ms: u64) {
        self.enter(partition, PartState::Verifying);
        if let Some(part) = self.partitions.get(partition) {
            part.ask_to_verify(paused_ms);
        }
    }

    fn counted(&mut self, partition: u32, epoch: u64, dead: &[u64]) {
        let now_ms = self.now_ms;
        let Some(part) = self.partitions.under(partition, epoch) else {
            return;
        };
        part.ledger.counted();
        self.hand_over.counted(part, now_ms);
        let mut lanes = Vec::with_capacity(dead.len());
        for position in dead {
            if let Some((lane, bytes)) = part.burying.remove(position) {
                part.ledger.recorded(*position);
                part.forget(&mut self.load, bytes);
                lanes.push(lane);
            }
        }
        for lane in lanes {
            self.stats.dead();
            self.engine.buried(lane, now_ms);
        }
    }

    /// Starts nothing more of the partition. Messages that were read and not begun are left to the next owner (ORD-9).
    fn drain(&mut self, partition: u32, epoch: u64) {
        let Some(part) = self.partitions.under(partition, epoch) else {
            return;
        };
        part.stop_reading();
        self.enter(partition, PartState::Draining);
        self.engine.drain_partition(partition);
        let running: usize = self.attempts.of(partition, epoch).map(Delivery::size).sum();
        let part = self.partitions.get_mut(partition).expect("just found");
        self.load.sub(part.load.messages, part.load.bytes);
        let burying: usize = part.burying.values().map(|(_, bytes)| bytes).sum();
        part.load = Load { messages: part.running + part.burying.len(), bytes: running + burying };
        self.load.add(part.load.messages, part.load.bytes);
        self.hand_over.list(part);
        self.hand_over_due();
    }

    /// Twice a second: shows the owners that the shard is alive, and removes idle lanes.
    pub(crate) fn tick(&mut self) {
        self.ticked_ms = self.now_ms;
        self.tell_stuck_rest();
        for part in self.partitions.iter() {
            part.link.tick(self.now_ms);
        }
        self.engine.sweep(self.now_ms, SWEEP_MAX);
        self.attempts.shrink();
        if self.woken.len() < LIST_KEPT {
            self.woken.shrink_to(LIST_KEPT);
        }
    }
}
