//! Reading partitions: a client's queue emptied in batches, records copied once.
//!
//! [`KafkaReader`] is a topic's partition as the contract has it. [`Feed`] is what it and journals read from; `headers`
//! reads a record's headers where the client has them.

mod feed;
mod headers;
mod reader;

pub(super) use feed::{Feed, Item, Stopping};
pub(super) use reader::KafkaReader;
