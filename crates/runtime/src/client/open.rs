//! The one place that knows brokers by name.

use std::sync::Arc;

use keylane_broker::{Broker, Embedded, embedded};

#[cfg(feature = "kafka")]
pub use keylane_broker::{KafkaJournals, KafkaOptions};

use super::Config;
use crate::Error;

/// The folder of what waits for a broker on another machine, in the data folder.
#[cfg(feature = "kafka")]
const SPILL: &str = "spill";

/// Opens the broker that `config` names, and a log of our own for what it does not take, if it is on another machine.
pub(crate) async fn broker(config: &Config) -> Result<(Arc<dyn Broker>, Option<Arc<dyn Broker>>), Error> {
    #[cfg(feature = "kafka")]
    if let Some(options) = &config.kafka {
        let mut small = embedded::Options::default();
        // Little is kept, and for a short time: what is drained is to be freed soon.
        (small.segment_bytes, small.journal_segment_bytes, small.tail_bytes) = (16 << 20, 1 << 20, 1 << 20);
        let options = KafkaOptions { node: super::node_name(), ..options.clone() };
        let kafka = keylane_broker::Kafka::open(options)?;
        return Ok((Arc::new(kafka), Some(embedded(&config.data.join(SPILL), small).await?)));
    }
    Ok((embedded(&config.data, embedded::Options::default()).await?, None))
}

async fn embedded(folder: &std::path::Path, options: embedded::Options) -> Result<Arc<dyn Broker>, Error> {
    // Reading a large log takes seconds: whoever else has this thread answers meanwhile.
    let opened = Embedded::open_elsewhere(folder.to_owned(), options).await;
    let why = |error: embedded::OpenError| Error::Open { folder: folder.to_owned(), why: error.to_string() };
    Ok(Arc::new(opened.map_err(why)?))
}
