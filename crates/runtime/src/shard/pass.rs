//! One shard's loop, which owns whole partitions, their lanes, and the attempts on them.
//!
//! One pass of the loop carries out commands; polls attempts that woke up; starts retries that are due and heads of
//! free lanes; then, where there is room, reads the next messages and polls each at once. A message whose handler is
//! ready at once is settled on the spot, without a lane or a task. The clock is read once a pass. A pass ends after
//! [`POLLS_MAX`] polls, so that the runtime's other tasks get their turn. Within a pass the shard also looks whether
//! the process was paused (ORD-12), and breaks off a pass that lasts [`PASS_MS`], so that it hears its commands. Only
//! partitions whose reader reported data are looked at, so a pass costs what happened, not what is owned.
//!
//! The loop is cut at the polls: `next` chooses the attempt, `task.rs` polls it while nothing touches the shard, and
//! `polled` carries out the result (`settle.rs`).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use keylane_core::{Engine, Intake, LaneKey, Load};
use tokio::sync::mpsc;

use super::attempts::Attempts;
use super::handover::{HandOver, Pace};
use super::mailbox::{Pauses, ShardCommand};
use super::partitions::Partitions;
use super::pause::LooksForPause;
use super::permits::{Permits, ShardPermits};
use super::slot::Polled;
use super::wake::Wakes;
use crate::clock::Clock;
use crate::flaws::Flaws;
use crate::pipeline::ShardStats;
use crate::seldom::Seldom;
use crate::tasks::Tasks;

/// The most polls in one pass. A hot key drains within these; with more, the runtime's other tasks would wait too long.
const POLLS_MAX: u32 = 4096;
/// How long a pass lasts at most while handlers compute. So a revocation is heard, and completions are handed over,
/// after that time at the latest (ORD-9, COM-2).
pub(super) const PASS_MS: u64 = 10;
/// A shard that owns a partition wakes at least this often, so that it notices a pause of the process (ORD-12).
pub(super) const TICK_MS: u64 = 500;
/// Idle lanes looked at in one tick: a million are removed within a minute, and a tick takes a millisecond or so.
pub(super) const SWEEP_MAX: usize = 8_192;
/// Attempts that may share their batch's buffer. More could keep that many buffers in memory, beyond the bounds.
pub(super) const PINNED_MAX: usize = 64;
/// After a first poll that was not ready, this many ready first polls make the handler count as quick again.
const QUICK_AFTER: u8 = 64;

/// The next step of a shard.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Poll the attempt in this seat.
    Poll(u32),
    /// Let other tasks run, then go on.
    Yield,
    /// Nothing to do until a waker or the alarm wakes the shard.
    Sleep,
}

/// The stages of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Woken,
    Ready,
    Read,
}

impl Stage {
    fn next(self) -> Stage {
        match self {
            Stage::Woken => Stage::Ready,
            Stage::Ready => Stage::Read,
            Stage::Read => Stage::Woken,
        }
    }
}

/// Which poll of an attempt this is.
#[derive(Debug, Clone, Copy)]
pub(super) enum PollKind {
    /// The first poll, right after the message was read. The attempt has no lane yet; if it waits, it gets this one.
    First(LaneKey),
    /// A later poll, or the first poll of an attempt that waited in its lane.
    Again,
}

/// The attempt that is being polled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Current {
    pub(super) seat: u32,
    pub(super) kind: PollKind,
    /// Its delivery shares its batch's buffer.
    pub(super) pinned: bool,
}

/// A shard's state. Only the holder of the shard's baton touches it.
pub(crate) struct Shard<F> {
    pub(super) engine: Engine,
    pub(super) attempts: Attempts<F>,
    pub(super) partitions: Partitions,
    pub(super) permits: ShardPermits,
    pub(super) stats: Arc<ShardStats>,
    pub(super) now_ms: u64,
    pub(super) timeout_ms: u64,
    pub(super) flaws: Flaws,
    pub(super) current: Current,
    pub(super) hand_over: HandOver,
    pub(super) wakes: Arc<Wakes>,
    pub(super) pauses: Arc<Pauses>,
    /// The length of the last pause, in ms.
    pub(super) paused_ms: u64,
    pub(super) clock: Clock,
    pub(super) tasks: Tasks,
    pub(super) pipeline: Arc<str>,
    /// The messages that were read and are not finished.
    pub(super) load: Load,
    pub(super) looks_for_pause: LooksForPause,
    pub(super) ticked_ms: u64,
    /// Limits how often stuck messages are logged.
    pub(super) stuck_told: Seldom,
    pub(super) woken: VecDeque<u32>,
    /// Attempts whose unfinished futures are to be dropped.
    pub(super) ending: VecDeque<u32>,
    /// The shard is no longer needed.
    pub(super) ended: bool,
    pub(super) intake: Intake,
    pub(super) commands: mpsc::Receiver<ShardCommand>,
    stage: Stage,
    pub(super) polls: u32,
    /// The stage with which this pass began. After a pass that was broken off, the next begins a stage further:
    /// otherwise attempts that compute and wake again and again, or heads of lanes that compute, would keep the other
    /// stages waiting for ever.
    begins: Stage,
    /// Partitions that may have something to read. The first has its turn; `turn_used` says if it has read its batch.
    pub(super) turns: VecDeque<u32>,
    pub(super) turn_used: bool,
    /// How many partitions were looked at so far.
    #[cfg(test)]
    pub(super) looks: usize,
    pub(super) quick_in: u8,
    pub(super) worked: bool,
    pub(super) sleep: Pin<Box<tokio::time::Sleep>>,
}

/// The parts from which a shard is made.
pub(crate) struct Setup {
    pub(crate) pipeline: Arc<str>,
    pub(crate) engine: Engine,
    pub(crate) intake: Intake,
    pub(crate) partitions: u32,
    pub(crate) permits: Arc<Permits>,
    pub(crate) stats: Arc<ShardStats>,
    pub(crate) commands: mpsc::Receiver<ShardCommand>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) pauses: Arc<Pauses>,
    pub(crate) clock: Clock,
    pub(crate) pace: Arc<Pace>,
    pub(crate) tasks: Tasks,
    pub(crate) timeout_ms: u64,
    pub(crate) flaws: Flaws,
}

impl<F> Shard<F> {
    pub(crate) fn new(setup: Setup) -> Shard<F> {
        let now_ms = setup.clock.now_ms();
        Shard {
            engine: setup.engine,
            attempts: Attempts::new(Arc::clone(&setup.wakes)),
            partitions: Partitions::of_topic(setup.partitions),
            permits: ShardPermits::new(setup.permits),
            stats: setup.stats,
            now_ms,
            timeout_ms: setup.timeout_ms,
            flaws: setup.flaws,
            current: Current { seat: 0, kind: PollKind::Again, pinned: false },
            hand_over: HandOver::at(setup.pace),
            wakes: setup.wakes,
            pauses: setup.pauses,
            paused_ms: 0,
            clock: setup.clock,
            pipeline: setup.pipeline,
            intake: setup.intake,
            commands: setup.commands,
            woken: VecDeque::new(),
            ending: VecDeque::new(),
            stage: Stage::Woken,
            polls: 0,
            begins: Stage::Woken,
            turns: VecDeque::new(),
            turn_used: false,
            #[cfg(test)]
            looks: 0,
            quick_in: 0,
            load: Load::default(),
            looks_for_pause: LooksForPause::new(setup.clock, &setup.tasks),
            tasks: setup.tasks,
            ended: false,
            ticked_ms: now_ms,
            stuck_told: Seldom::default(),
            worked: false,
            sleep: Box::pin(tokio::time::sleep_until(setup.clock.instant(now_ms))),
        }
    }

    /// Begins a pass. False: the shard is no longer needed.
    pub(super) fn begin_pass(&mut self, cx: &mut Context<'_>) -> bool {
        self.now_ms = self.clock.now_ms();
        self.permits.new_pass(self.now_ms);
        self.stage = self.begins;
        self.polls = 0;
        self.worked = false;
        self.wakes.awake();
        self.wakes.take_seats(&mut self.woken);
        while let Some(partition) = self.wakes.take_partition() {
            self.take_turns(partition);
        }
        self.notice_pause();
        self.looks_for_pause.pass_begins();
        if self.now_ms >= self.ticked_ms + TICK_MS {
            self.tick();
        }
        loop {
            match self.commands.poll_recv(cx) {
                Poll::Ready(Some(command)) => self.carry_out(command),
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => break,
            }
            if self.ended {
                // Attempts that wait for a thread keep the shard alive, and must not begin any more.
                self.partitions.clear();
                return false;
            }
        }
        while let Some(seat) = self.attempts.overdue(self.now_ms) {
            self.end_early(seat);
        }
        self.engine.wake_due(self.now_ms);
        true
    }

    /// The attempt to poll now, or what to do instead.
    #[inline]
    pub(super) fn next(&mut self, cx: &mut Context<'_>) -> Next {
        if self.polls >= POLLS_MAX {
            return self.end_pass(cx);
        }
        // A pass can start 4,096 attempts, and none of them may start once the partition may be another process's.
        if self.looks_for_pause.due(self.pauses.beats(), self.polls) && !self.flaws.blind_within_a_pass() {
            self.notice_pause();
            if self.worked && self.looks_for_pause.pass_lasts() {
                return self.break_off(cx);
            }
        }
        self.polls += 1;
        loop {
            let found = match self.stage {
                Stage::Woken => self.next_woken(),
                Stage::Ready => self.next_ready(),
                Stage::Read => self.next_read(),
            };
            if let Some(seat) = found {
                self.worked = true;
                return Next::Poll(seat);
            }
            self.stage = self.stage.next();
            if self.stage == self.begins {
                return self.end_pass(cx);
            }
        }
    }

    /// Breaks off a pass that lasts too long, and ends the current turn: the next pass begins with the other work.
    #[cold]
    fn break_off(&mut self, cx: &mut Context<'_>) -> Next {
        match self.stage {
            Stage::Woken => {}
            Stage::Ready => self.engine.end_burst(),
            Stage::Read => {
                // The rest of the partition's batch waits for its next turn.
                self.turn_used = false;
                if !self.turns.is_empty() {
                    self.turns.rotate_left(1);
                }
            }
        }
        let begins = self.stage.next();
        let next = self.end_pass(cx);
        self.begins = begins;
        next
    }

    /// The next attempt whose future is to be dropped now.
    pub(super) fn next_ending(&mut self) -> Option<u32> {
        let seat = self.ending.pop_front()?;
        self.current = Current { seat, kind: PollKind::Again, pinned: false };
        Some(seat)
    }

    /// Carries out the result of polling the current attempt.
    #[inline]
    pub(super) fn polled(&mut self, polled: Polled) {
        // Read field by field: `current` was just written field by field, and a read of the whole would stall the CPU.
        let seat = self.current.seat;
        if let PollKind::First(_) = self.current.kind {
            self.quick_in = match polled {
                Polled::Waits => QUICK_AFTER,
                Polled::Done | Polled::Ended(_) => self.quick_in.saturating_sub(1),
            };
        }
        match polled {
            Polled::Done => self.done(seat),
            Polled::Ended(outcome) => self.ended(seat, self.current.kind, *outcome),
            Polled::Waits => self.waits(seat, self.current.kind),
        }
    }

    /// An estimate of how many attempts would be polled now if each had a thread.
    pub(super) fn wants_threads(&self) -> usize {
        let counts = self.engine.counts();
        self.ending.len() + self.woken.len() + counts.ready + counts.keyless_queued + self.turns.len()
    }

    /// Ends a pass: hands over completions, and sleeps if the pass found nothing to do.
    pub(super) fn end_pass(&mut self, cx: &mut Context<'_>) -> Next {
        self.begins = Stage::Woken;
        match self.worked {
            true => {
                self.say_what_is_done();
                Next::Yield
            }
            false => self.rest(cx),
        }
    }

    fn say_what_is_done(&mut self) {
        self.hand_over_due();
        self.stats.publish(self.engine.counts(), self.attempts.in_flight(), self.load);
    }

    /// Ends a pass and sleeps even if there is work: without a free thread none of it can be done.
    pub(super) fn rest(&mut self, cx: &mut Context<'_>) -> Next {
        self.say_what_is_done();
        self.permits.give_back();
        let wake_ms = self.wake_ms();
        self.sleep.as_mut().reset(self.clock.instant(wake_ms));
        if self.sleep.as_mut().poll(cx).is_ready() {
            return Next::Yield;
        }
        self.wakes.sleep(cx.waker());
        if self.wakes.any() || self.permits.came_free() {
            return Next::Yield;
        }
        Next::Sleep
    }

    /// When the shard must wake even if nothing happens before.
    fn wake_ms(&self) -> u64 {
        let tick_ms = self.ticked_ms + TICK_MS;
        [self.engine.next_due(), self.attempts.next_deadline(), self.hand_over.due_ms()]
            .into_iter()
            .flatten()
            .fold(tick_ms, u64::min)
            .max(self.now_ms + 1)
    }
}
