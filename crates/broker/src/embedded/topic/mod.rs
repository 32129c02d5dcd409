//! A topic's log: messages taken in, group commits, what is kept in memory, readers, retention.
//!
//! [`TopicLog`] is the topic; `waiting` gathers what producers hand over, `group_commit` writes it, [`PartitionReader`]
//! reads it from memory (`stored`) or from the disk (`index`), `retention` and `age` say what may go.

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
