//! The one place that knows brokers by name.

use std::sync::Arc;

use keylane_broker::{Broker, Embedded, embedded};

use crate::Error;
use crate::keylane::Config;

/// Opens the broker that `config` names.
pub(crate) async fn broker(config: &Config) -> Result<Arc<dyn Broker>, Error> {
    let embedded = Embedded::open(&config.data, embedded::Options::default())
        .map_err(|error| Error::Open { folder: config.data.clone(), why: error.to_string() })?;
    Ok(Arc::new(embedded))
}
