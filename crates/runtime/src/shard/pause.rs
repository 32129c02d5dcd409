//! Notices that the whole process was paused (ORD-12). After a pause no attempt starts until the journals were read to
//! their ends, since another process may own the partitions by now.

use super::partition::{Part, PartState};
use super::pass::{PASS_MS, Shard};
use crate::clock::Clock;
use crate::tasks::Tasks;

/// A time between two looks that means that the process was paused (ORD-12).
pub(super) const PAUSE_MS: u64 = 1000;
/// Within a pass a shard looks after each time its watchdog was awake, and before every 16th poll, since right after a
/// pause the watchdog may have no core yet. A look before each poll would cost a tenth of a message's time or more.
pub(super) const PAUSE_POLLS: u32 = 16;

/// When a shard looked last, and whether it must look again.
pub(super) struct LooksForPause {
    clock: Clock,
    looked_ms: u64,
    /// The last look before the current pass.
    pass_ms: u64,
    /// The clock's beat at the last look.
    beat: u64,
    /// How often the watchdog had been awake at the last look.
    beats: u64,
    every: u32,
}

impl LooksForPause {
    pub(super) fn new(clock: Clock, tasks: &Tasks) -> LooksForPause {
        // A simulated process has no watchdog.
        let every = if tasks.watches() { PAUSE_POLLS } else { 1 };
        let looked_ms = clock.passed_ms();
        LooksForPause { clock, looked_ms, pass_ms: looked_ms, beat: clock.beat(), beats: 0, every }
    }

    /// True if the shard must look before this poll of the pass. `beats` is how often the watchdog was awake.
    #[inline]
    pub(super) fn due(&mut self, beats: u64, poll: u32) -> bool {
        let awake = std::mem::replace(&mut self.beats, beats) != beats;
        awake || poll.is_multiple_of(self.every)
    }

    pub(super) fn pass_begins(&mut self) {
        self.pass_ms = self.looked_ms;
    }

    /// True if the pass has lasted [`PASS_MS`], as of the last look.
    pub(super) fn pass_lasts(&self) -> bool {
        self.looked_ms >= self.pass_ms + PASS_MS
    }

    /// How long the process was paused since the last look, if it was.
    fn paused_ms(&mut self) -> Option<u64> {
        let beat = self.clock.beat();
        if std::mem::replace(&mut self.beat, beat) == beat {
            return None;
        }
        let passed_ms = self.clock.passed_ms();
        let since_ms = passed_ms.saturating_sub(std::mem::replace(&mut self.looked_ms, passed_ms));
        (since_ms > PAUSE_MS).then_some(since_ms)
    }
}

impl<F> Shard<F> {
    /// Looks, and if the process was paused, has each partition verified by its owner.
    pub(super) fn notice_pause(&mut self) {
        if let Some(paused_ms) = self.looks_for_pause.paused_ms() {
            self.was_paused(paused_ms);
        }
    }

    /// The process was paused for this many ms (ORD-12).
    #[cold]
    fn was_paused(&mut self, since_ms: u64) {
        self.paused_ms = since_ms;
        self.pauses.noticed();
        let may_start = |part: &&Part| matches!(part.state, PartState::Running | PartState::Verifying);
        let concerned: Vec<u32> =
            self.partitions.iter().filter(may_start).map(|part| part.partition).collect();
        for partition in concerned {
            self.verify(partition, since_ms);
        }
    }
}
