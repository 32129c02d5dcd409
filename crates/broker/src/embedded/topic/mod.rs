//! The log of one topic: takes messages in, commits them in groups, keeps the newest in memory, serves readers, and
//! deletes old messages.
//!
//! [`TopicLog`] is the topic. `waiting` gathers what producers hand over and `group_commit` writes it.
//! [`PartitionReader`] reads from memory (`stored`) or from the disk (`index`). `retention` and `age` decide which
//! segments may be deleted.

mod age;
mod group_commit;
mod index;
mod log;
mod reader;
mod retention;
mod stored;
mod waiting;

pub(super) use log::TopicLog;
pub(super) use reader::PartitionReader;
