//! One shard: a loop that owns whole partitions, their lanes, and the attempts on them.
//!
//! A pass: what others say; attempts that woke up or ran out of time; retries that are due and heads of free lanes;
//! then, where there is room, the next messages of each partition, their first poll inline. What is ready at once is
//! settled on the spot, without a lane or a task. The clock is read once a pass, and a pass ends after
//! [`POLLS_MAX`] polls, so that the runtime's other tasks have their turn. Within it too it is looked whether the
//! process was paused (ORD-12), and whether it lasts: after [`PASS_MS`] it is broken off, so that what others say is heard.
//! A pass costs what happened, not what is owned: only partitions whose reader said that it
//! has something are looked at.
//!
//! The loop is cut at the polls: `next` decides which attempt is polled, `task.rs` polls it while nobody touches the
//! shard, and `polled` says what came of it (`settle.rs`).

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

/// Polls in one pass. A hot key drains within one; beyond this the runtime's other tasks would wait too long.
const POLLS_MAX: u32 = 4096;
/// How long a pass lasts, where handlers compute: a revocation is heard after so long, and what is done is handed over
/// (ORD-9, COM-2).
pub(super) const PASS_MS: u64 = 10;
/// A shard that owns something looks around at least this often, so that a pause of the process is noticed (ORD-12).
pub(super) const TICK_MS: u64 = 500;
/// Idle lanes looked at in one tick: a million go within a minute, and a tick stays below a millisecond or so.
pub(super) const SWEEP_MAX: usize = 8_192;
/// Attempts that may share their batch's buffer: more could keep that many buffers in memory, beyond the bounds.
pub(super) const PINNED_MAX: usize = 64;
/// After a first poll that was not ready, so many that were make the handler count as quick again.
const QUICK_AFTER: u8 = 64;

/// What a shard wants next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Poll the attempt in this seat.
    Poll(u32),
    /// Let others run, then go on.
    Yield,
    /// Nothing to do until somebody wakes it.
    Sleep,
}

/// Where in a pass the loop is.
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
    /// Its first, inline: it has no lane yet, but this is the one it would get.
    First(LaneKey),
    /// A later one, or the first of one that waited in its lane.
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

/// A shard's state. Touched only by who holds its baton.
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
    /// The last of them, in ms.
    pub(super) paused_ms: u64,
    pub(super) clock: Clock,
    pub(super) tasks: Tasks,
    pub(super) pipeline: Arc<str>,
    /// What was read and is not finished.
    pub(super) load: Load,
    pub(super) looks_for_pause: LooksForPause,
    pub(super) ticked_ms: u64,
    /// What the log says of messages that are stuck.
    pub(super) stuck_told: Seldom,
    pub(super) woken: VecDeque<u32>,
    /// Attempts whose futures are to be dropped, unfinished.
    pub(super) ending: VecDeque<u32>,
    /// Nobody needs it any more.
    pub(super) ended: bool,
    pub(super) intake: Intake,
    pub(super) commands: mpsc::Receiver<ShardCommand>,
    stage: Stage,
    pub(super) polls: u32,
    /// Where this pass began. One that was broken off is followed by one that begins a stage further: attempts that compute
    /// and wake again and again, or heads of lanes that compute, must not keep the others waiting.
    begins: Stage,
    /// Partitions that may have something to read. It is the first one's turn; whether that has read its batch.
    pub(super) turns: VecDeque<u32>,
    pub(super) turn_used: bool,
    /// Partitions looked at so far.
    #[cfg(test)]
    pub(super) looks: usize,
    pub(super) quick_in: u8,
    pub(super) worked: bool,
    pub(super) sleep: Pin<Box<tokio::time::Sleep>>,
}

/// What a shard is made of.
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

    /// A pass begins. False: the shard is no longer needed.
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
                // Attempts that wait for a thread keep the shard, and must not begin any more.
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

    /// Which attempt is to be polled now, or what to do instead.
    #[inline]
    pub(super) fn next(&mut self, cx: &mut Context<'_>) -> Next {
        if self.polls >= POLLS_MAX {
            return self.end_pass(cx);
        }
        // A pass can last: 4,096 attempts, which must not start once the partition may be another's.
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

    /// Ends a pass that lasts, and with it the turn of what it was at: the next one begins with the others.
    #[cold]
    fn break_off(&mut self, cx: &mut Context<'_>) -> Next {
        match self.stage {
            Stage::Woken => {}
            Stage::Ready => self.engine.end_burst(),
            Stage::Read => {
                // What is left of its batch is for its next turn.
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

    /// An attempt whose future is to be dropped now.
    pub(super) fn next_ending(&mut self) -> Option<u32> {
        let seat = self.ending.pop_front()?;
        self.current = Current { seat, kind: PollKind::Again, pinned: false };
        Some(seat)
    }

    /// What the poll of the current attempt came to.
    #[inline]
    pub(super) fn polled(&mut self, polled: Polled) {
        // Looked at piece by piece: `current` was just written so, and read as a whole it would have to be waited for.
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

    /// Attempts that would be polled if there were a thread for them, as far as is known.
    pub(super) fn wants_threads(&self) -> usize {
        let counts = self.engine.counts();
        self.ending.len() + self.woken.len() + counts.ready + counts.keyless_queued + self.turns.len()
    }

    /// Ends a pass: hands over what was finished, and sleeps if there was nothing to do.
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

    /// Ends a pass, and sleeps whatever there is to do: without a thread nothing of it can be done.
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

    /// When there is something to do, if nothing happens before.
    fn wake_ms(&self) -> u64 {
        let tick_ms = self.ticked_ms + TICK_MS;
        [self.engine.next_due(), self.attempts.next_deadline(), self.hand_over.due_ms()]
            .into_iter()
            .flatten()
            .fold(tick_ms, u64::min)
            .max(self.now_ms + 1)
    }
}
