//! Reads messages of a topic without a group, for people who look into it.

use std::future::poll_fn;
use std::task::Poll;

use keylane_broker::{Broker, BrokerError};
use keylane_core::Delivery;

use crate::Error;

/// Bytes asked for at a time: enough for a page of ordinary messages.
const PAGE_BYTES: usize = 256 * 1024;

/// Up to `limit` messages from position `from` on. If `from` was deleted already, begins at the first message kept.
pub(crate) async fn peek(
    broker: &dyn Broker,
    topic: &str,
    partition: u32,
    from: u64,
    limit: usize,
) -> Result<Vec<Delivery>, Error> {
    let ends = broker.ends(topic).await?;
    let Some(ends) = ends.get(partition as usize) else {
        return Err(BrokerError::Invalid(format!("topic {topic} has no partition {partition}")).into());
    };
    let mut found = Vec::new();
    let mut at = from.max(ends.start);
    if at >= ends.end {
        return Ok(found);
    }
    let mut reader = broker.reader(topic, partition, at).await?;
    while found.len() < limit && at < ends.end {
        let batch = poll_fn(|cx| match reader.poll_batch(cx, PAGE_BYTES) {
            Poll::Ready(batch) => Poll::Ready(batch),
            Poll::Pending => Poll::Pending,
        })
        .await?;
        at = batch.next;
        for delivery in batch.cursor(0) {
            let delivery = delivery.map_err(|error| BrokerError::Damaged(error.to_string()))?;
            if delivery.position() >= from && found.len() < limit {
                found.push(delivery);
            }
        }
    }
    Ok(found)
}
