//! Handlers that block their thread, and how their shard goes on without them (ORD-4).
//!
//! A watchdog finds a poll that blocks (`watchdog`, `thread_state`), takes the [`Baton`] from it (`shard/watched.rs`),
//! and the shard runs on in another task. A pipeline whose handlers block often polls them on a [`ThreadPool`].

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
