//! Where topics live.
//!
//! [`contract`] says what a broker gives: a partitioned log that is read from a position, journals beside it, and
//! ownership of partitions. [`embedded`] is the one that needs nothing but a folder. Every broker passes the
//! same conformance suite, also with faults injected.

pub mod contract;
pub mod embedded;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "testing")]
pub mod testing;
mod threads;
pub mod tls;

pub use contract::{
    AppendError, Backup, Broker, BrokerError, Change, ClientBroker, ClientFigures, Commit, Compression, Ends,
    HeldBack, Ids, Journal, JournalName, JournalPage, LogKind, Membership, NO_POSITION, ProduceError, Reader,
    Scrubbed, Topic, TopicSpec, Warning, Weakness,
};
pub use embedded::Embedded;
#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaJournals, KafkaOptions};
#[cfg(feature = "testing")]
pub use testing::faults::{FaultCounts, Faulty, Hang, Rates};
#[cfg(feature = "testing")]
pub use testing::memory::MemoryBroker;
