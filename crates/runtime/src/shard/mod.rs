//! A shard: a loop that owns whole partitions, their lanes, and the attempts on them.
//!
//! `pass` is the loop, `pick` says which attempt is polled next, `task` polls it, `settle` says what becomes of it, and
//! `handover` hands on what was finished. Owners of partitions talk to a shard through its mailbox ([`ShardCommand`],
//! [`Link`]), readers and handlers wake it ([`Wakes`]); nobody else touches what a shard has.

mod attempts;
mod batch_times;
mod blocking;
mod commands;
mod drops;
mod handover;
mod lane_view;
mod leave;
mod mailbox;
mod partition;
mod partitions;
mod pass;
mod pause;
mod permits;
mod pick;
mod settle;
mod slot;
mod task;
#[cfg(test)]
mod tests;
mod wake;
mod watched;

pub(crate) use blocking::{AllWatched, Blocked, ThreadPool, Watched, watch};
pub(crate) use handover::Pace;
pub(crate) use mailbox::{COMMANDS_MAX, Link, Mail, Pauses, Rejection, ShardCommand, Start};
pub(crate) use partition::BATCH_BYTES;
pub(crate) use pass::{Setup, Shard};
pub(crate) use permits::Permits;
pub(crate) use slot::lend;
pub(crate) use task::{ShardTask, Successor};
pub(crate) use wake::Wakes;
