//! The interface that Keylane demands of a message broker, and the brokers that provide it.
//!
//! [`contract`] defines the interface: a partitioned log that is read from a position, journals beside that log, and
//! the ownership of partitions. [`embedded`] implements it in a local folder, without any other software; `kafka`
//! implements it on a Kafka cluster. Every broker must pass the same conformance suite, also while faults are
//! injected (`testing`).

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
