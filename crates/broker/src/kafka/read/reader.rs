//! Reading a topic's partition: records from the client's queue, copied into one arena a batch.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use keylane_core::Batch;

use super::feed::{Feed, Item, Raw};
use crate::contract::{BrokerError, Reader};
use crate::kafka::clients::Clients;
use crate::kafka::topics::Admin;
use crate::kafka::wire::{Place, Record, put_record};

/// Messages of a batch, at most: where batches stop getting cheaper.
const MESSAGES_MAX: u32 = 1024;

type Asking = Pin<Box<dyn Future<Output = BrokerError> + Send>>;

/// Reads one partition.
pub(crate) struct KafkaReader {
    admin: Arc<Admin>,
    feed: Feed,
    topic: Arc<str>,
    partition: u32,
    place: Place,
    next: u64,
    warned: bool,
    /// Why nothing more comes, once what came before it is handed out.
    failed: Option<BrokerError>,
    /// Where the partition begins and ends, once it was found that `next` is outside.
    asking: Option<Asking>,
}

impl KafkaReader {
    /// Starts at `from`, which is within the log.
    pub(crate) async fn start(
        admin: &Arc<Admin>,
        clients: &Arc<Clients>,
        topic: &str,
        partition: u32,
        from: u64,
    ) -> Result<KafkaReader, BrokerError> {
        clients.make_room(topic, partition).await?;
        Ok(KafkaReader {
            admin: Arc::clone(admin),
            feed: Feed::start(clients, topic, partition, from)?,
            topic: topic.into(),
            partition,
            place: Place::new(topic, partition),
            next: from,
            warned: false,
            failed: None,
            asking: None,
        })
    }

    fn fill(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>> {
        if let Some(failed) = &self.failed {
            return Poll::Ready(Err(failed.clone()));
        }
        let base = self.next;
        let mut batch = Filling { frames: BytesMut::new(), count: 0, base, appended_ms: 0 };
        loop {
            let item = match batch.count {
                0 => match self.feed.poll_next(cx) {
                    Poll::Pending if self.next > base => break,
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(item) => item,
                },
                _ => match self.feed.next_now() {
                    None => break,
                    Some(item) => item,
                },
            };
            match item {
                Ok(Item::End(offset)) => self.next = self.next.max(offset),
                // Fetched before a seek, or twice.
                Ok(Item::Record(record)) if record.offset() < self.next => {}
                Ok(Item::Record(record)) => {
                    let (appended_ms, by_broker) = record.time();
                    if !by_broker {
                        warn_once(&mut self.warned, &self.topic);
                    }
                    let (offset, fits) = (record.offset(), batch.frames.len());
                    match batch.put(&mut self.place, &record, appended_ms) {
                        Ok(()) if batch.count > 1 && batch.frames.len() > bytes_max => {
                            batch.frames.truncate(fits);
                            batch.count -= 1;
                            self.feed.unread();
                            break;
                        }
                        Ok(()) => {
                            self.next = offset + 1;
                            if batch.count == 1 {
                                // What is there is about as large each: room for it all at once.
                                let rest = self.feed.ready() * batch.frames.len();
                                batch.frames.reserve(rest.min(bytes_max));
                            }
                        }
                        Err(error) => {
                            self.failed = Some(error);
                            break;
                        }
                    }
                }
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
            if batch.count >= MESSAGES_MAX || batch.frames.len() >= bytes_max {
                break;
            }
        }
        if let Some(failed) = self.failed.as_ref().filter(|_| self.next == base) {
            return Poll::Ready(Err(failed.clone()));
        }
        Poll::Ready(Ok(Batch {
            partition: self.partition,
            base,
            next: self.next,
            appended_ms: batch.appended_ms,
            count: batch.count,
            frames: batch.frames.freeze(),
        }))
    }
}

/// Says once that a topic's records have no append time.
fn warn_once(warned: &mut bool, topic: &str) {
    if !std::mem::replace(warned, true) {
        tracing::warn!(
            topic,
            "records carry the time of their making, not of their appending; set message.timestamp.type=LogAppendTime on the topic"
        );
    }
}

struct Filling {
    frames: BytesMut,
    count: u32,
    base: u64,
    appended_ms: u64,
}

impl Filling {
    fn put(&mut self, place: &mut Place, raw: &Raw<'_>, appended_ms: u64) -> Result<(), BrokerError> {
        if self.count == 0 {
            self.appended_ms = appended_ms;
        }
        let (offset, key, payload) = (raw.offset(), raw.key(), raw.payload());
        let record = Record { offset, key, payload, appended_ms };
        let delta = u32::try_from(offset - self.base).map_err(|_| {
            let at = place.at(self.base).to_owned();
            BrokerError::Damaged(format!("there is a gap of 2^32 offsets behind {at}"))
        })?;
        let put = put_record(&mut self.frames, &record, place, raw.headers(), self.appended_ms, delta);
        put.map_err(|error| {
            BrokerError::Foreign(format!("the record at {} cannot be taken: {error}", place.at(offset)))
        })?;
        self.count += 1;
        Ok(())
    }
}

impl Reader for KafkaReader {
    fn poll_batch(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>> {
        if let Some(asking) = &mut self.asking {
            return asking.as_mut().poll(cx).map(Err);
        }
        match self.fill(cx, bytes_max) {
            Poll::Ready(Err(BrokerError::OutOfRange { .. })) => {
                self.asking = Some(Box::pin(out_of_range(
                    Arc::clone(&self.admin),
                    Arc::clone(&self.topic),
                    self.partition,
                    self.next,
                )));
                self.poll_batch(cx, bytes_max)
            }
            other => other,
        }
    }
}

/// The error of a position that is not there, with what is.
async fn out_of_range(admin: Arc<Admin>, topic: Arc<str>, partition: u32, position: u64) -> BrokerError {
    match admin.ends(&topic, vec![partition]).await {
        Err(error) => error,
        Ok(ends) => BrokerError::OutOfRange {
            topic: topic.to_string(),
            partition,
            position,
            start: ends.first().map_or(0, |ends| ends.start),
            end: ends.first().map_or(0, |ends| ends.end),
        },
    }
}
