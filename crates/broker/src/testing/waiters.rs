//! Who waits for something, in the order they came.
//!
//! A waiter listens under a ticket of its own; [`Waiters::take_all`] hands out every waker once. Waking is left
//! to the caller, who does it without holding a lock: what is woken may run at once.

use std::collections::BTreeMap;
use std::task::Waker;

/// The waiters of one place. Keyed by ticket, so that the order of waking depends on nothing but the order of coming.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: BTreeMap<u64, Waker>,
}

impl Waiters {
    /// Wakes `waker` at the next change; a ticket that listens already is renewed.
    pub(crate) fn listen(&mut self, ticket: u64, waker: &Waker) {
        self.waiting.insert(ticket, waker.clone());
    }

    /// A waiter that was cancelled leaves nothing behind.
    pub(crate) fn forget(&mut self, ticket: u64) {
        self.waiting.remove(&ticket);
    }

    /// Moves every waker to `to_wake`.
    pub(crate) fn take_all(&mut self, to_wake: &mut Vec<Waker>) {
        to_wake.extend(std::mem::take(&mut self.waiting).into_values());
    }
}

/// Runs a closure when dropped: a cancelled wait takes its waker back.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
