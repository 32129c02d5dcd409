//! Noticing that the whole process was paused (ORD-12): nothing starts after it until journals were read to their ends.

use super::partition::{Part, PartState};
use super::pass::{PASS_MS, Shard};
use crate::clock::Clock;
use crate::tasks::Tasks;

/// The process was paused if a look comes this long after the one before (ORD-12).
pub(super) const PAUSE_MS: u64 = 1000;
/// Within a pass a shard looks whenever its watchdog was awake, and before each of so many polls: right after a pause the
/// watchdog may not have a core yet. Looking before each poll would cost a tenth of a message and more.
pub(super) const PAUSE_POLLS: u32 = 16;

/// When it was looked last.
pub(super) struct LooksForPause {
    clock: Clock,
    looked_ms: u64,
    /// What that was when the pass began.
    pass_ms: u64,
    /// What the clock's beat was then.
    beat: u64,
    /// How often the watchdog had been awake then.
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

    /// True if it is to be looked before this poll of a pass. `beats`: how often the watchdog was awake.
    #[inline]
    pub(super) fn due(&mut self, beats: u64, poll: u32) -> bool {
        let awake = std::mem::replace(&mut self.beats, beats) != beats;
        awake || poll.is_multiple_of(self.every)
    }

    pub(super) fn pass_begins(&mut self) {
        self.pass_ms = self.looked_ms;
    }

    /// True if the pass has lasted long enough, as of the last look.
    pub(super) fn pass_lasts(&self) -> bool {
        self.looked_ms >= self.pass_ms + PASS_MS
    }

    /// For how long the process was paused since the last look, if it was.
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
    /// Looks, and has each partition verified if there was a pause.
    pub(super) fn notice_pause(&mut self) {
        if let Some(paused_ms) = self.looks_for_pause.paused_ms() {
            self.was_paused(paused_ms);
        }
    }

    /// The process was paused for so long (ORD-12).
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
