//! Opens the broker that a config names. The only file that names broker adapters.

use std::path::Path;
use std::sync::Arc;

use keylane_broker::{Broker, Embedded, embedded};

#[cfg(feature = "kafka")]
pub use keylane_broker::{KafkaJournals, KafkaOptions};

use crate::Error;

/// The folder, inside the data folder, of messages that wait for a broker on another machine.
#[cfg(feature = "kafka")]
const SPILL: &str = "spill";

/// Where topics live.
#[derive(Debug, Clone, PartialEq)]
pub enum BrokerChoice {
    /// In the data folder of this process.
    Embedded,
    /// On a Kafka cluster.
    #[cfg(feature = "kafka")]
    Kafka(Box<KafkaOptions>),
}

/// A broker that was opened.
pub(crate) struct Opened {
    pub(crate) broker: Arc<dyn Broker>,
    /// A log in the data folder for messages that a broker on another machine does not take.
    pub(crate) spill: Option<Arc<dyn Broker>>,
}

impl BrokerChoice {
    /// Opens the broker. `data` is this process's own folder.
    pub(crate) async fn open(&self, data: &Path) -> Result<Opened, Error> {
        match self {
            BrokerChoice::Embedded => {
                let broker = embedded(data, embedded::Options::default()).await?;
                Ok(Opened { broker, spill: None })
            }
            #[cfg(feature = "kafka")]
            BrokerChoice::Kafka(options) => {
                let options = KafkaOptions { node: super::node_name(), ..KafkaOptions::clone(options) };
                let broker = Arc::new(keylane_broker::Kafka::open(options)?);
                let mut small = embedded::Options::default();
                // The spill keeps little, for a short time, and what was drained must soon free its disk space.
                (small.segment_bytes, small.journal_segment_bytes, small.tail_bytes) =
                    (16 << 20, 1 << 20, 1 << 20);
                Ok(Opened { broker, spill: Some(embedded(&data.join(SPILL), small).await?) })
            }
        }
    }
}

async fn embedded(folder: &Path, options: embedded::Options) -> Result<Arc<dyn Broker>, Error> {
    // Reading a large log takes seconds; on a thread of its own it blocks no other task.
    let opened = Embedded::open_elsewhere(folder.to_owned(), options).await;
    let why = |error: embedded::OpenError| Error::Open { folder: folder.to_owned(), why: error.to_string() };
    Ok(Arc::new(opened.map_err(why)?))
}
