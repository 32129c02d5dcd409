//! Where an attempt lives while it runs: a delivery and the handler's future that borrows it, in one place that does
//! not move.
//!
//! A slot is filled, its future is made and polled in place, and when the attempt ended both are taken out and the
//! slot is used again: an attempt that is ready at its first poll allocates nothing. The future borrows the delivery
//! beside it, which Rust cannot express; this is the one file that promises it by hand.
//!
//! Invariants: a slot never moves (it is boxed) and is never freed while filled; the future is dropped before the
//! delivery; whoever holds the baton (`blocking/baton.rs`), and nobody else, touches a slot, except that the one thread that
//! polls a slot may go on polling that slot after it lost the baton, until it reports back.
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

/// Makes the future of an attempt. What it borrows lives as long as the shard that calls it.
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

/// What one poll of an attempt came to. Small, so that it travels in registers: most polls end with `Done`.
pub(super) enum Polled {
    /// The attempt ended, and its message is handled.
    Done,
    /// It ended in another way.
    Ended(Box<Outcome>),
    /// It waits.
    Waits,
}

/// What another thread came to with an attempt.
pub(super) enum Late {
    /// It polled it.
    Polled(Polled),
    /// It did not, since the partition does not allow it any more.
    NotBegun,
    /// It dropped its future, which had not ended.
    Dropped,
}

/// One attempt's place.
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

    /// Puts a delivery in; its attempt begins with the first [`Slot::poll`].
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

    /// Lends the waker that lists this seat at its shard, armed for the poll to come.
    #[inline]
    pub(super) fn waker(&self) -> WakerRef<'_> {
        self.waker.rearm();
        waker_ref(&self.waker)
    }

    /// True if the attempt was polled before.
    ///
    /// # Safety
    /// The slot is polled by no other thread.
    pub(super) unsafe fn begun(&self) -> bool {
        // SAFETY: the caller is the only one here.
        unsafe { *self.begun.get() }
    }

    /// Which attempt this is.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Drops the future, if it was made, and takes the delivery out.
    pub(super) fn empty_out(&mut self) -> Delivery {
        assert!(self.filled, "only a filled slot has something to take out");
        self.drop_future();
        self.filled = false;
        // SAFETY: it was filled, and is not any more, so nobody reads the delivery again.
        unsafe { self.delivery.get_mut().assume_init_read() }
    }

    /// Drops the future, if it was made, and the delivery.
    #[inline]
    pub(super) fn clear(&mut self) {
        assert!(self.filled, "only a filled slot has something to drop");
        self.drop_future();
        self.filled = false;
        // SAFETY: it was filled, and is not any more, so nobody reads the delivery again.
        unsafe { self.delivery.get_mut().assume_init_drop() }
    }

    #[inline]
    fn drop_future(&mut self) {
        // SAFETY: nobody else has the slot.
        unsafe { self.end() }
    }

    /// Drops the future, if it was made. That runs destructors of the handler, which may block as its polls may.
    ///
    /// # Safety
    /// The slot is polled by no other thread.
    #[inline]
    pub(super) unsafe fn end(&self) {
        // SAFETY: the caller is the only one here. `begun` says that the future was written and not dropped. A panic in
        // its drop must not stop the loop; the handler's own destructor is the handler's affair.
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
    /// Polls the attempt, and makes its future first if this is its first poll. A panic of the handler is a failure
    /// (ORD-7).
    ///
    /// # Safety
    /// The slot is filled, it is polled by no other thread, and what `begin` and `topic` refer to outlives the slot.
    #[inline]
    pub(super) unsafe fn poll(
        &self,
        begin: &impl Begin<F>,
        topic: &'static Arc<str>,
        cx: &mut Context<'_>,
    ) -> Polled {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the caller is the only one here; the slot is boxed, so the future stays where it is until it is
            // dropped, and the delivery is dropped after the future.
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
