//! Owning partitions: a pipeline's part in its group, and one task for each partition that the pipeline owns.
//!
//! [`Follow`] keeps the pipeline in its group; `group` starts and ends owners as partitions come and go; `task` is one
//! owner, which carries out what `keylane_core::Owner` decides. `bodies` stores dead letters, and [`Committer`] makes
//! the broker's commits. `growth` and `upgrade` change something for all nodes of a group together: more partitions, a
//! newer journal format.

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
