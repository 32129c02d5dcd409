//! A shard as a task, and the one place where handlers are polled.
//!
//! The shard's state lies in a cell that whoever holds the baton may touch. While a handler is polled nobody touches
//! it, so that a watchdog can take the baton from a poll that blocks its thread and have the shard run on in a new
//! task (`watched.rs`); the late poll reports back through [`ShardTask::late`].
#![allow(unsafe_code, reason = "the shard's state moves between threads with the baton; see above")]

use std::cell::UnsafeCell;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use keylane_core::Outcome;
use tokio::sync::mpsc;

use super::blocking::{Baton, Blocked, Thread, ThreadPool};
use super::leave::Leave;
use super::mailbox::{Pauses, ShardCommand};
use super::pass::{Next, Shard};
use super::slot::{Begin, Late, Polled, Slot};
use super::wake::Wakes;
use crate::tasks::{TaskKind, Tasks};

/// A shard, its baton, and what its handlers need.
pub(crate) struct ShardTask<F, B> {
    // Before `begin` and `topic`, which its futures borrow: fields are dropped in this order.
    pub(super) shard: UnsafeCell<Shard<F>>,
    pub(super) baton: Baton,
    /// What other threads came to.
    pub(super) late: Mutex<Vec<(u32, Late)>>,
    pub(super) wakes: Arc<Wakes>,
    pub(super) pauses: Arc<Pauses>,
    /// Which thread polls it: what the watchdog asks the kernel about.
    pub(super) thread: AtomicU32,
    /// The process was frozen in the middle of a pass, which goes on when it is thawed.
    #[cfg(feature = "testing")]
    pub(super) within_a_pass: std::sync::atomic::AtomicBool,
    pub(super) topic: Arc<str>,
    pub(super) begin: B,
    pub(super) tasks: Tasks,
    pub(super) blocked: Arc<Blocked>,
    pub(super) pool: Arc<ThreadPool>,
    /// Of the runtime.
    pub(super) workers: usize,
    pub(super) successor: Arc<dyn Successor>,
}

/// Puts another shard in the place of one that ended.
pub(crate) trait Successor: Send + Sync {
    /// The other one is told what was on its way to the first.
    fn succeed(self: Arc<Self>, commands: mpsc::Receiver<ShardCommand>);
}

// SAFETY: `shard` is touched only by the holder of the baton, who got it through the baton's atomics or the runtime's
// own hand-over of a task between threads; everything else is Sync.
unsafe impl<F: Send, B: Sync + Send> Sync for ShardTask<F, B> {}
// SAFETY: nothing in it is tied to a thread.
unsafe impl<F: Send, B: Send> Send for ShardTask<F, B> {}

impl<F, B> ShardTask<F, B>
where
    F: Future<Output = Outcome> + Send + 'static,
    B: Begin<F>,
{
    pub(crate) fn new(
        shard: Shard<F>,
        begin: B,
        topic: Arc<str>,
        tasks: Tasks,
        blocked: Arc<Blocked>,
        pool: Arc<ThreadPool>,
        successor: Arc<dyn Successor>,
    ) -> Arc<ShardTask<F, B>> {
        let (wakes, pauses) = (Arc::clone(&shard.wakes), Arc::clone(&shard.pauses));
        Arc::new(ShardTask {
            shard: UnsafeCell::new(shard),
            baton: Baton::new(),
            late: Mutex::default(),
            wakes,
            pauses,
            thread: AtomicU32::new(0),
            #[cfg(feature = "testing")]
            within_a_pass: Default::default(),
            topic,
            begin,
            tasks,
            blocked,
            pool,
            workers: crate::tasks::workers(),
            successor,
        })
    }

    /// Runs the shard as a task until nobody needs it, or until its baton is taken away. The caller has the baton.
    pub(crate) fn go(self: Arc<Self>) {
        let tasks = self.tasks.clone();
        tasks.spawn(async move {
            // Many handlers in one task would use up tokio's budget for one task; the shard yields by itself.
            let run = tokio::task::unconstrained(poll_fn(|cx| self.poll(cx)));
            if let Err(why) = self.tasks.supervise(TaskKind::Shard, run).await {
                // Handlers' panics are caught where they are polled, so this task had the baton when it panicked; it
                // gives it to nobody, and does not come back.
                self.fall(&why);
            }
        });
    }

    /// The shard's loop panicked. The caller has the baton, and keeps it. Whatever becomes of what the shard had, somebody
    /// takes its place: its owners would else wait for it for ever.
    pub(super) fn fall(&self, why: &str) {
        // SAFETY: the caller has the baton.
        let shard = unsafe { &mut *self.shard.get() };
        let commands = shard.take_commands();
        // A panic there is noted, like the first.
        let _ = self.tasks.supervise_now(TaskKind::Shard, || crate::tasks::may_block(|| shard.fall(why)));
        Arc::clone(&self.successor).succeed(commands);
    }

    fn poll(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.thread.store(super::blocking::current(), Ordering::Relaxed);
        // SAFETY: this task has the baton: it was spawned with it, and returns as soon as it has lost it. The
        // reference is made anew after each handler's poll, during which somebody else may use the shard.
        let shard = || unsafe { &mut *self.shard.get() };
        let late = std::mem::take(&mut *self.late.lock().expect("no holder panics"));
        for (seat, late) in late {
            shard().came_back(seat, late);
        }
        if !self.goes_on_within_a_pass() && !shard().begin_pass(cx) {
            // Handlers' destructors may block.
            crate::tasks::may_block(|| shard().attempts.end_all());
            return Poll::Ready(());
        }
        if self.blocked.elsewhere(self.workers) {
            // Nothing of a handler runs on this thread, so nothing can block it.
            return self.poll_all_elsewhere(cx);
        }
        if !shard().ending.is_empty() && !crate::tasks::may_block(|| self.drop_futures()) {
            return Poll::Ready(());
        }
        match self.next(cx) {
            // A handler may block the thread. Whoever needs the runtime must not wait for it.
            Ok(seat) => crate::tasks::may_block(|| self.poll_handlers(seat, cx)),
            Err(ends) => ends,
        }
    }

    /// The next attempt to be polled, or what the task does instead.
    #[inline]
    fn next(&self, cx: &mut Context<'_>) -> Result<u32, Poll<()>> {
        #[cfg(feature = "testing")]
        if self.tasks.frozen() {
            self.within_a_pass.store(true, Ordering::Relaxed);
            return Err(Poll::Pending);
        }
        // SAFETY: the caller has the baton.
        match unsafe { &mut *self.shard.get() }.next(cx) {
            Next::Poll(seat) => return Ok(seat),
            next => self.sleep_or_yield(&next, cx),
        }
        Err(Poll::Pending)
    }

    #[inline]
    fn sleep_or_yield(&self, next: &Next, cx: &mut Context<'_>) {
        if *next != Next::Sleep || !self.late.lock().expect("no holder panics").is_empty() {
            cx.waker().wake_by_ref();
        }
    }

    /// Polls each attempt on a thread of its own. A thread is had before an attempt is chosen: one that waited for a thread
    /// would count as running, though it may have to start never.
    fn poll_all_elsewhere(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: as in `poll`.
        let shard = || unsafe { &mut *self.shard.get() };
        loop {
            let wants = shard().wants_threads();
            let Some(thread) = self.pool.reserve(wants, &self.wakes) else {
                let next = if wants == 0 { shard().end_pass(cx) } else { shard().rest(cx) };
                self.sleep_or_yield(&next, cx);
                if wants > 0 && self.pool.any_free() {
                    // It came free before this shard slept.
                    cx.waker().wake_by_ref();
                }
                return Poll::Pending;
            };
            if let Some(seat) = shard().next_ending() {
                self.drop_future_elsewhere(seat, thread);
                continue;
            }
            match self.next(cx) {
                Ok(seat) => self.poll_elsewhere(seat, thread),
                Err(ends) => return ends,
            }
        }
    }

    fn poll_handlers(&self, mut seat: u32, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: as in `poll`.
        let shard = || unsafe { &mut *self.shard.get() };
        let mut polls = 0;
        loop {
            polls += 1;
            let slot = shard().attempts.slot(seat);
            let polling = self.baton.enter();
            // SAFETY: the seat stays filled until this poll was reported, and with it its waker.
            let waker = unsafe { (*slot).waker() };
            let polled = self.poll_slot(slot, &mut Context::from_waker(&waker));
            if !self.baton.leave(polling) {
                self.blocked.returned();
                self.post(seat, Late::Polled(polled));
                return Poll::Ready(());
            }
            shard().polled(polled);
            seat = match self.next(cx) {
                Ok(seat) => seat,
                Err(ends) => {
                    self.blocked.forgive(polls);
                    return ends;
                }
            };
        }
    }

    fn goes_on_within_a_pass(&self) -> bool {
        #[cfg(feature = "testing")]
        return self.within_a_pass.swap(false, Ordering::Relaxed);
        #[cfg(not(feature = "testing"))]
        false
    }

    #[inline]
    fn poll_slot(&self, slot: *const Slot<F>, cx: &mut Context<'_>) -> Polled {
        // SAFETY: the seat is filled and stays so until this poll was reported; nobody else polls it; the cell, which
        // the slot's future borrows `begin` and `topic` from, outlives its shard's slots (see the order of fields),
        // and this call holds the cell.
        unsafe {
            let topic: &'static Arc<str> = &*std::ptr::from_ref(&self.topic);
            (*slot).poll(&self.begin, topic, cx)
        }
    }

    /// Reports to the shard, wherever it runs now.
    pub(super) fn post(&self, seat: u32, late: Late) {
        self.late.lock().expect("no holder panics").push((seat, late));
        self.wakes.wake();
    }

    /// Polls an attempt once on a thread of its own, where it may block; its lane is busy until that poll is reported.
    fn poll_elsewhere(self: &Arc<Self>, seat: u32, thread: Thread) {
        // SAFETY: as in `poll`.
        let shard = unsafe { &mut *self.shard.get() };
        let slot = SendPointer(shard.attempts.slot(seat));
        let part = shard.partitions.of(shard.attempts.delivery(seat));
        let standing = part.map(|part| Arc::clone(&part.standing)).expect("only owned partitions are polled");
        let leave = Leave { standing, clock: shard.clock, given_ms: shard.clock.passed_ms() };
        shard.current_went_elsewhere();
        let cell = Arc::clone(self);
        thread.run(&self.tasks, move || {
            let slot = slot;
            cell.poll_there(seat, slot.0, &leave);
        });
    }

    /// On that thread: polls the attempt, if its partition still allows it. The thread may have waited for a core.
    pub(super) fn poll_there(&self, seat: u32, slot: *const Slot<F>, leave: &Leave) {
        // SAFETY: the seat stays filled until this poll was reported, and with it its waker; nobody else polls it.
        let (begun, waker) = unsafe { ((*slot).begun(), (*slot).waker()) };
        let late = match leave.allows(begun) {
            true => Late::Polled(self.poll_slot(slot, &mut Context::from_waker(&waker))),
            false => {
                // SAFETY: as above.
                unsafe { (*slot).end() };
                Late::NotBegun
            }
        };
        self.post(seat, late);
    }
}

/// A slot that one other thread polls.
pub(super) struct SendPointer<F>(pub(super) *const Slot<F>);

// SAFETY: the slot is Sync, and the cell that owns it goes with the pointer.
unsafe impl<F: Send> Send for SendPointer<F> {}
