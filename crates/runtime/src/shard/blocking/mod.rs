//! Handlers that block their thread, and how a shard goes on while one of its handlers does (ORD-4).
//!
//! A watchdog finds a poll that blocks (`watchdog`, `thread_state`) and takes the shard's [`Baton`] away from it
//! (`shard/watched.rs`); then the shard runs on in another task. If a pipeline's handlers block often, they are polled
//! on the threads of a [`ThreadPool`].

mod baton;
mod thread_state;
mod threads;
mod watchdog;

pub(crate) use baton::Blocked;
pub(super) use baton::{Baton, Polling};
pub(super) use thread_state::current;
pub(super) use threads::Thread;
pub(crate) use threads::ThreadPool;
pub(super) use watchdog::Blocking;
pub(crate) use watchdog::{AllWatched, Watched, watch};
