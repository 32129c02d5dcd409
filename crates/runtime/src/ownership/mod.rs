//! Owning partitions: a pipeline's part in its group, and one task for each partition that it owns.
//!
//! [`Follow`] keeps the pipeline in its group; `group` starts and ends the owners as partitions come and go; `task` is
//! one owner, which does what `keylane_core::Owner` decides. `bodies` stores what is dead, [`Committer`] mirrors the
//! commits. `growth` and `upgrade` decide with all nodes together: more partitions, a newer format.

mod assignment;
mod bodies;
mod commands;
mod committer;
mod epoch;
mod event;
mod follow;
mod group;
mod growth;
mod hold;
mod journal;
mod journal_client;
mod mail;
mod mirror;
mod task;
#[cfg(test)]
mod tests;
mod upgrade;

pub(crate) use committer::{Committer, keep_committing};
pub(crate) use follow::Follow;
pub(crate) use group::{ShardDoor, Stopping};
pub use growth::Accepted;
pub(crate) use growth::ReadLimits;
pub use upgrade::Upgraded;
