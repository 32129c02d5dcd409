//! The memory of one running attempt: a delivery and, beside it, the handler's future that borrows it.
//!
//! A slot is filled, its future is made and polled in place, and both are taken out when the attempt has ended; then
//! the slot is reused. So an attempt that is ready at its first poll allocates nothing. The future borrows the delivery
//! beside it, which Rust cannot express; this is the one file that upholds it by hand.
//!
//! Invariants: a slot never moves (it is boxed) and is never freed while filled; the future is dropped before the
//! delivery; only the holder of the baton (`blocking/baton.rs`) touches a slot, with one exception: the one thread that
//! polls a slot may go on polling it after it lost the baton, until it reports back.
#![allow(unsafe_code, reason = "a future that borrows its neighbour; see above")]

use std::cell::UnsafeCell;
use std::future::Future;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::task::{WakerRef, waker_ref};
use keylane_core::{Delivery, Outcome};

use super::wake::ListWaker;
use crate::handlers::Attempt;

/// Makes the future of an attempt. What the future borrows lives as long as the shard that calls this.
pub(crate) trait Begin<F>: Send + Sync + 'static {
    /// Calls the handler.
    fn begin(&self, attempt: Attempt<'static>) -> F;
}

impl<F, M: Fn(Attempt<'static>) -> F + Send + Sync + 'static> Begin<F> for M {
    fn begin(&self, attempt: Attempt<'static>) -> F {
        self(attempt)
    }
}

/// Lends a handler for as long as the shards run.
///
/// # Safety
/// The caller keeps `handler` alive until every future made from the reference is dropped.
pub(crate) unsafe fn lend<H>(handler: &Arc<H>) -> &'static H {
    // SAFETY: as above; the pointer is the Arc's own, so it stays valid while any clone of it does.
    unsafe { &*Arc::as_ptr(handler) }
}

/// The result of one poll of an attempt. Small, so that it travels in registers: most polls end with `Done`.
pub(super) enum Polled {
    /// The attempt ended, and its message is handled.
    Done,
    /// The attempt ended with another outcome.
    Ended(Box<Outcome>),
    /// The attempt waits.
    Waits,
}

/// The result of an attempt that was given to another thread.
pub(super) enum Late {
    /// The thread polled the attempt.
    Polled(Polled),
    /// The thread did not poll it, because the partition no longer allows it.
    NotBegun,
    /// The thread dropped the attempt's future, which had not ended.
    Dropped,
}

/// The place of one attempt.
pub(super) struct Slot<F> {
    delivery: UnsafeCell<MaybeUninit<Delivery>>,
    future: UnsafeCell<MaybeUninit<F>>,
    number: u32,
    filled: bool,
    begun: UnsafeCell<bool>,
    waker: Arc<ListWaker>,
}

// SAFETY: a slot is used by one thread at a time: by the holder of the shard's baton, or by the one thread that polls
// it while its shard runs elsewhere. Both hand it over through the baton's atomics or a mutex.
unsafe impl<F: Send> Sync for Slot<F> {}

impl<F> Slot<F> {
    /// An empty slot, woken through `waker`.
    pub(super) fn empty(waker: Arc<ListWaker>) -> Box<Slot<F>> {
        Box::new(Slot {
            delivery: UnsafeCell::new(MaybeUninit::uninit()),
            future: UnsafeCell::new(MaybeUninit::uninit()),
            number: 0,
            filled: false,
            begun: UnsafeCell::new(false),
            waker,
        })
    }

    /// Puts a delivery in. Its attempt begins with the first [`Slot::poll`].
    #[inline(always)]
    pub(super) fn fill(&mut self, number: u32, delivery: impl FnOnce() -> Delivery) {
        debug_assert!(!self.filled, "a slot is emptied before it is filled again");
        self.delivery.get_mut().write(delivery());
        self.number = number;
        self.filled = true;
    }

    /// The delivery, while the slot is filled.
    #[inline]
    pub(super) fn delivery(&self) -> Option<&Delivery> {
        // SAFETY: `filled` is only changed through `&mut self`, together with the delivery.
        self.filled.then(|| unsafe { (*self.delivery.get()).assume_init_ref() })
    }

    /// Lends the waker that puts this seat on its shard's list, armed for the poll that follows.
    #[inline]
    pub(super) fn waker(&self) -> WakerRef<'_> {
        self.waker.rearm();
        waker_ref(&self.waker)
    }

    /// True if the attempt was polled before.
    ///
    /// # Safety
    /// No other thread polls the slot.
    pub(super) unsafe fn begun(&self) -> bool {
        // SAFETY: the caller is the only user of the slot.
        unsafe { *self.begun.get() }
    }

    /// The number of the attempt on its message.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Drops the future, if it was made, and takes the delivery out.
    pub(super) fn empty_out(&mut self) -> Delivery {
        assert!(self.filled, "only a filled slot has something to take out");
        self.drop_future();
        self.filled = false;
        // SAFETY: the slot was filled and no longer counts as filled, so the delivery is not read again.
        unsafe { self.delivery.get_mut().assume_init_read() }
    }

    /// Drops the future, if it was made, and the delivery.
    #[inline]
    pub(super) fn clear(&mut self) {
        assert!(self.filled, "only a filled slot has something to drop");
        self.drop_future();
        self.filled = false;
        // SAFETY: the slot was filled and no longer counts as filled, so the delivery is not read again.
        unsafe { self.delivery.get_mut().assume_init_drop() }
    }

    #[inline]
    fn drop_future(&mut self) {
        // SAFETY: `&mut self` proves that no other thread uses the slot.
        unsafe { self.end() }
    }

    /// Drops the future, if it was made. This runs destructors of the handler, which may block just as its polls may.
    ///
    /// # Safety
    /// No other thread polls the slot.
    #[inline]
    pub(super) unsafe fn end(&self) {
        // SAFETY: the caller is the only user of the slot. `begun` says that the future was written and not dropped. A
        // panic in its drop must not stop the shard's loop; the rest of the handler's destructor is the handler's
        // affair.
        let dropped = unsafe {
            if !std::mem::take(&mut *self.begun.get()) {
                return;
            }
            catch_unwind(AssertUnwindSafe(|| (*self.future.get()).assume_init_drop()))
        };
        if dropped.is_err() {
            tracing::error!("a handler's future panicked while it was dropped");
        }
    }
}

impl<F: Future<Output = Outcome>> Slot<F> {
    /// Polls the attempt; the first poll makes its future before that. A panic of the handler is a failure (ORD-7).
    ///
    /// # Safety
    /// The slot is filled, no other thread polls it, and what `begin` and `topic` refer to outlives the slot.
    #[inline]
    pub(super) unsafe fn poll(
        &self,
        begin: &impl Begin<F>,
        topic: &'static Arc<str>,
        cx: &mut Context<'_>,
    ) -> Polled {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the caller is the only user of the slot; the slot is boxed, so the future does not move until it
            // is dropped, and the delivery is dropped after the future.
            unsafe {
                if !*self.begun.get() {
                    let delivery: &'static Delivery = &*(self.delivery.get().cast::<Delivery>().cast_const());
                    let future = begin.begin(Attempt { delivery, topic, number: self.number });
                    (*self.future.get()).write(future);
                    *self.begun.get() = true;
                }
                match Pin::new_unchecked((*self.future.get()).assume_init_mut()).poll(cx) {
                    Poll::Ready(Outcome::Done) => Polled::Done,
                    Poll::Ready(outcome) => Polled::Ended(Box::new(outcome)),
                    Poll::Pending => Polled::Waits,
                }
            }
        }));
        polled.unwrap_or_else(|panic| Polled::Ended(Box::new(Outcome::failed(panic_text(&*panic)))))
    }
}

impl<F> Drop for Slot<F> {
    fn drop(&mut self) {
        if self.filled {
            self.clear();
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    format!("the handler panicked: {}", crate::tasks::panic_said(panic))
}
