//! Producing to Kafka: each message with a result, in the order of the calls.
//!
//! The client batches, retries and keeps the order of each partition by itself, for as long as it takes; nothing is
//! given up here unless it is called back. A call's messages are with the client when its future is first polled, so
//! that no later call can overtake it. What the client reports comes on a thread of its own, and is counted into the
//! call that it belongs to. A client that cannot go on is replaced when what it had was called back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use keylane_core::{Delivery, Frames};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, PurgeConfig, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext, Message};
use tokio::sync::{oneshot, watch};

use super::admin::{Learn, partitions_of};
use super::context::Context;
use super::errors::{broker_error, produce_error};
use super::wire::{headers_of, reserved};
use super::{lock, read_lock, write_lock};
use crate::contract::{BrokerError, NO_POSITION, ProduceError, Topic};

/// How long the reports of a client that is replaced are waited for.
const FLUSH: Duration = Duration::from_secs(10);
/// Bits of a report's number that say which message of its call it is about.
const INDEX_BITS: u32 = 24;

/// A result for each message of a call.
pub(crate) type Results = Vec<Result<u64, ProduceError>>;

/// The client that produces.
pub(crate) struct KafkaProducer {
    config: ClientConfig,
    context: Context,
    /// Held for reading while messages are handed over, so that calling back leaves out none.
    client: RwLock<Arc<ThreadedProducer<Reports>>>,
    calls: AtomicU64,
    /// How often everything was called back.
    recalls: watch::Sender<u64>,
}

impl KafkaProducer {
    pub(crate) fn new(config: &ClientConfig, context: Context) -> Result<KafkaProducer, BrokerError> {
        let client = RwLock::new(Arc::new(client(config, &context)?));
        let (config, calls) = (config.clone(), AtomicU64::new(1));
        Ok(KafkaProducer { config, context, client, calls, recalls: watch::Sender::new(0) })
    }

    /// How often everything was called back.
    pub(crate) fn recalls(&self) -> u64 {
        *self.recalls.borrow()
    }

    /// Hands messages to the client. The answer comes once each is durable or refused. Nothing is sent if everything
    /// was called back since the call began.
    pub(crate) fn produce(&self, topic: &Topic, frames: &Frames, recalls: u64) -> oneshot::Receiver<Results> {
        let (done, answer) = oneshot::channel();
        let client = read_lock(&self.client);
        if self.recalls() != recalls {
            let _nobody_waits = done.send(vec![Err(called_back()); frames.len()]);
            return answer;
        }
        let call = self.begin(&client, frames.len(), &topic.name, done);
        for (index, message) in frames.messages().enumerate() {
            let number = call << INDEX_BITS | index as u64;
            let message = message.map_err(|error| ProduceError::Invalid(error.to_string()));
            if let Err(error) = message.and_then(|message| hand_over(&client, topic, &message, number)) {
                client.client().context().ended(call, index, Err(error));
            }
        }
        answer
    }

    /// Waits for what a call needs before its messages can be handed over.
    pub(crate) async fn unless_recalled<T>(
        &self,
        work: impl Future<Output = Result<T, BrokerError>>,
    ) -> Result<T, BrokerError> {
        let mut recalls = self.recalls.subscribe();
        tokio::select! {
            biased;
            _ = recalls.changed() => Err(BrokerError::Unavailable(called_back().to_string())),
            done = work => done,
        }
    }

    /// Gives up all that was not acknowledged: its calls end soon.
    pub(crate) fn recall(&self) {
        let mut client = write_lock(&self.client);
        self.recalls.send_modify(|recalls| *recalls += 1);
        client.purge(PurgeConfig::default().queue().inflight());
        self.renew(&mut client);
    }

    /// Replaces a client that has failed for good.
    fn renew(&self, there: &mut Arc<ThreadedProducer<Reports>>) {
        let Some((code, why)) = there.client().fatal_error() else { return };
        tracing::error!(%code, why, "kafka: a producer cannot go on and is made anew");
        match client(&self.config, &self.context) {
            Err(error) => tracing::error!(%error, "kafka: a producer could not be made"),
            Ok(made) => {
                let gone = std::mem::replace(there, Arc::new(made));
                // Its reports are still to come, and ending it waits for them.
                drop(crate::tasks::blocking(move || {
                    let _ = gone.flush(FLUSH);
                }));
            }
        }
    }

    /// Appends one record, without a key or headers.
    pub(crate) fn append(&self, topic: &str, partition: u32, record: &Bytes) -> oneshot::Receiver<Results> {
        let (done, answer) = oneshot::channel();
        let failed = read_lock(&self.client).client().fatal_error().is_some();
        if failed {
            // Who appends to a journal reads back what counts, so that nothing has to be called back first.
            self.renew(&mut write_lock(&self.client));
        }
        let client = read_lock(&self.client);
        let call = self.begin(&client, 1, topic, done);
        let record = BaseRecord::<(), [u8], usize>::with_opaque_to(topic, (call << INDEX_BITS) as usize)
            .partition(partition as i32)
            .payload(&record[..]);
        if let Err((error, _)) = client.send(record) {
            client.client().context().ended(call, 0, Err(refused(topic, &error)));
        }
        answer
    }

    fn begin(
        &self,
        client: &ThreadedProducer<Reports>,
        messages: usize,
        topic: &str,
        done: oneshot::Sender<Results>,
    ) -> u64 {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let unknown = Err(ProduceError::Unavailable("it was not reported".to_owned()));
        let open = Open {
            topic: topic.to_owned(),
            results: vec![unknown; messages],
            left: messages,
            done: Some(done),
        };
        lock(&client.client().context().calls).insert(call, open);
        call
    }
}

impl Learn for KafkaProducer {
    fn learn(&self, topic: &str, timeout: Duration) -> Result<u32, KafkaError> {
        let client = Arc::clone(&read_lock(&self.client));
        Ok(partitions_of(&client.client().fetch_metadata(Some(topic), timeout)?))
    }
}

fn client(config: &ClientConfig, context: &Context) -> Result<ThreadedProducer<Reports>, BrokerError> {
    let reports = Reports { context: context.clone(), calls: Mutex::default() };
    config.create_with_context(reports).map_err(|error| broker_error("the cluster", &error))
}

fn hand_over(
    client: &ThreadedProducer<Reports>,
    topic: &Topic,
    message: &Delivery,
    number: u64,
) -> Result<(), ProduceError> {
    let (name, partition, bytes) = (&topic.name, message.partition(), message.size());
    if partition >= topic.partitions {
        return Err(ProduceError::UnknownTopic(format!("{name}/{partition}")));
    }
    let bytes_max = topic.spec.message_bytes_max;
    if bytes > bytes_max {
        return Err(ProduceError::TooLarge { topic: name.clone(), bytes, bytes_max });
    }
    if let Some(header) = reserved(message) {
        return Err(ProduceError::Invalid(format!(
            "the header {header:?} cannot be used: names that begin with keylane- are taken"
        )));
    }
    let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(name, number as usize)
        .partition(partition as i32)
        .headers(headers_of(message));
    record.key = message.key();
    record.payload = message.payload();
    client.send(record).map_err(|(error, _)| match error.rdkafka_error_code() {
        // It is there: the client has not heard of it.
        Some(RDKafkaErrorCode::UnknownPartition) => {
            ProduceError::Unavailable(format!("the client does not know {name}/{partition} yet"))
        }
        _ => refused(name, &error),
    })
}

fn called_back() -> ProduceError {
    ProduceError::Unavailable("it was called back before it was sent".to_owned())
}

fn refused(topic: &str, error: &KafkaError) -> ProduceError {
    produce_error(topic, error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail))
}

/// A call whose messages are not all reported.
struct Open {
    topic: String,
    results: Results,
    left: usize,
    done: Option<oneshot::Sender<Results>>,
}

/// Counts what the client reports.
pub(crate) struct Reports {
    context: Context,
    calls: Mutex<HashMap<u64, Open>>,
}

impl Reports {
    fn ended(&self, call: u64, index: usize, result: Result<u64, ProduceError>) {
        let mut calls = lock(&self.calls);
        let Some(open) = calls.get_mut(&call) else {
            return;
        };
        open.results[index] = result;
        open.left -= 1;
        if open.left == 0
            && let Some(Open { results, done: Some(done), .. }) = calls.remove(&call)
        {
            drop(calls);
            let _nobody_waits = done.send(results);
        }
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.context.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let (call, index) = (number as u64 >> INDEX_BITS, number & ((1 << INDEX_BITS) - 1));
        let result = match result {
            Ok(message) => {
                self.context.reached();
                // One that was acknowledged by an answer to a later one has none.
                Ok(u64::try_from(message.offset()).unwrap_or(NO_POSITION))
            }
            Err((error, _)) => {
                let topic = lock(&self.calls).get(&call).map(|open| open.topic.clone());
                Err(refused(&topic.unwrap_or_default(), error))
            }
        };
        self.ended(call, index, result);
    }
}
