//! The tasks that wait for one thing, in the order in which they came.
//!
//! Each waiter listens under its own ticket; [`Waiters::take_all`] hands out every waker once. The caller wakes them,
//! and does so without holding a lock, because a woken task may run at once.

use std::collections::BTreeMap;
use std::task::Waker;

/// The waiters for one thing. Keyed by ticket, so that they are woken in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: BTreeMap<u64, Waker>,
}

impl Waiters {
    /// Wakes `waker` at the next change. A ticket that already listens gets the new waker.
    pub(crate) fn listen(&mut self, ticket: u64, waker: &Waker) {
        self.waiting.insert(ticket, waker.clone());
    }

    /// Removes the waker of a ticket, such as that of a cancelled waiter.
    pub(crate) fn forget(&mut self, ticket: u64) {
        self.waiting.remove(&ticket);
    }

    /// Moves every waker into `to_wake`.
    pub(crate) fn take_all(&mut self, to_wake: &mut Vec<Waker>) {
        to_wake.extend(std::mem::take(&mut self.waiting).into_values());
    }
}

/// Runs a closure when it is dropped: with it a cancelled waiter removes its waker.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
