//! Producing to Kafka: each message with a result, in the order of the calls.
//!
//! The client batches and retries by itself, for as long as it takes; nothing is given up here unless it is called back.
//! A call's messages are with the client when its future is first polled, so that no later call can overtake it.
//!
//! What the client does not get over would let later messages of a partition overtake (a record that the cluster
//! refuses, an error that it calls permanent). So it is told to stop there (`enable.gapless.guarantee`), and is
//! replaced: `mend.rs` takes back what it had, and hands it to a new one in the same order. Who is to blame for a refused batch
//! is found on the way, and alone hears of it. A new client sends one message of a partition first, and more once that
//! was acknowledged: `primed.rs` says why. `under_way.rs` has the calls, `held.rs` what of them waits, `client.rs` the
//! client, `leaders.rs` who answers and who throttles.

mod client;
mod held;
mod leaders;
mod mend;
mod primed;
mod send;
mod shut;
mod under_way;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use keylane_core::Frames;
use rdkafka::ClientConfig;
use rdkafka::bindings::rd_kafka_t;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::sync::{oneshot, watch};

use self::client::{Native, Outgoing, ProducerContext};
use self::leaders::Leaders;
use self::under_way::{Answer, Open, UnderWay, number};
use super::context::Context;
use super::errors::{broker_error, produce_error};
use super::tokens::Bearer;
use super::topics::{Learn, partitions_of};
use super::{lock, read_lock, write_lock};
use crate::contract::{BrokerError, ProduceError, Topic};
use crate::threads::Apart;

/// A result for each message of a call.
pub(crate) type Results = Vec<Result<u64, ProduceError>>;

/// The client that produces.
pub(crate) struct KafkaProducer(Arc<Shared>);

struct Shared {
    name: &'static str,
    config: ClientConfig,
    context: Context,
    leaders: Arc<Leaders>,
    /// Held for reading while messages are handed over, so that calling back and mending leave out none. Nothing
    /// waits for the network while it is held.
    client: RwLock<Arc<Running>>,
    calls: AtomicU64,
    /// How often everything was called back.
    recalls: watch::Sender<u64>,
    /// Never held while something is waited for.
    under_way: Mutex<UnderWay>,
}

/// A client. It is ended by a thread of its own: one of the client's may be looking up a name meanwhile, and whoever
/// takes the next client's reports must not wait for it.
struct Running {
    native: Apart<Native>,
    /// It gets nothing more, and is replaced once all that it has is back.
    is_over: AtomicBool,
    /// What it has on its way is not waited for.
    called_back: AtomicBool,
}

/// What a topic does not take, as far as is known before it is asked.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    /// It keeps the last message of each key, and takes none without one.
    pub(crate) compacted: bool,
}

impl KafkaProducer {
    /// Begins to produce. `name` is that of the thread that takes reports.
    pub(crate) fn new(
        name: &'static str,
        config: &ClientConfig,
        context: Context,
    ) -> Result<KafkaProducer, BrokerError> {
        let leaders = Arc::<Leaders>::default();
        let client = Running::new(config, &context, &leaders)?;
        let shared = Arc::new(Shared {
            name,
            config: config.clone(),
            context,
            leaders,
            client: RwLock::new(client),
            calls: AtomicU64::new(1),
            recalls: watch::Sender::new(0),
            under_way: Mutex::default(),
        });
        Shared::serve(&shared)?;
        Ok(KafkaProducer(shared))
    }

    /// How often everything was called back.
    pub(crate) fn recalls(&self) -> u64 {
        *self.0.recalls.borrow()
    }

    /// Hands messages to the client. The answer comes once each is durable or refused. Nothing is sent if everything
    /// was called back since the call began.
    pub(crate) fn produce(
        &self,
        topic: &Topic,
        rules: Rules,
        mut frames: Frames,
        recalls: u64,
    ) -> oneshot::Receiver<Results> {
        let (done, answer) = oneshot::channel();
        frames.share();
        let client = read_lock(&self.0.client);
        if self.recalls() != recalls {
            let _nobody_waits = done.send(vec![Err(called_back()); frames.len()]);
            return answer;
        }
        let call = self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.0.hand_over(&client, topic, rules, call, &frames, done);
        answer
    }

    /// Whether a partition takes nothing, since a message failed there whose call is not answered.
    #[cfg(feature = "testing")]
    pub(crate) fn is_shut(&self, topic: &str, partition: u32) -> bool {
        lock(&self.0.under_way).is_shut(&(topic.into(), partition))
    }

    /// Waits for what a call needs before its messages can be handed over.
    pub(crate) async fn unless_recalled<T>(
        &self,
        work: impl Future<Output = Result<T, BrokerError>>,
    ) -> Result<T, BrokerError> {
        let mut recalls = self.0.recalls.subscribe();
        tokio::select! {
            biased;
            _ = recalls.changed() => Err(BrokerError::Unavailable(called_back().to_string())),
            done = work => done,
        }
    }

    /// Gives up all that was not acknowledged: its calls end soon. Waits for nobody: one of the client's threads may be
    /// looking up a name for as long as it likes.
    pub(crate) fn recall(&self) {
        self.0.recall();
    }

    /// Appends one record, without a key or headers. Whoever appends to a journal reads back what counts, so that it
    /// is not sent again.
    pub(crate) fn append(&self, topic: &str, partition: u32, record: &Bytes) -> oneshot::Receiver<Results> {
        let (done, answer) = oneshot::channel();
        let (topic, client): (Arc<str>, _) = (topic.into(), read_lock(&self.0.client));
        let number = number(self.0.calls.fetch_add(1, Ordering::Relaxed), 0);
        lock(&self.0.under_way)
            .begin(number >> under_way::INDEX_BITS, Open::new(Arc::clone(&topic), None, 1, done));
        let outgoing = Outgoing { partition, key: None, payload: Some(record), number };
        let sent = match client.is_over.load(Ordering::SeqCst) {
            true => Err(RDKafkaErrorCode::Fatal),
            false => client.native.send(&topic, &outgoing, std::iter::empty()),
        };
        if let Err(code) = sent {
            let ended = lock(&self.0.under_way).refuse(number, produce_error(&topic, code));
            ended.into_iter().for_each(Answer::give);
        }
        answer
    }

    /// For how long the leaders of partitions have acknowledged nothing at all, the time apart for which they throttled
    /// us; none for one that was never heard of, or has fewer replicas in sync than are `needed`: it refuses
    /// everything, however much it takes for others. Waits for the network, a little, to learn who leads.
    pub(crate) fn silence(
        &self,
        topic: &str,
        partitions: &[u32],
        needed: u32,
        wait: Duration,
    ) -> Vec<Option<Duration>> {
        let client = Arc::clone(&read_lock(&self.0.client));
        let mut lacking = Vec::new();
        // While it throttles us, the only broker there is does not answer this either.
        if let Ok(metadata) = client.native.client().fetch_metadata(Some(topic), wait) {
            let found = metadata.topics().iter().flat_map(|topic| topic.partitions());
            let mut leaders = Vec::new();
            for partition in found {
                let id = partition.id().max(0) as u32;
                leaders.push((id, partition.leader()));
                if partition.leader() < 0 || partition.isr().len() < needed as usize {
                    lacking.push(id);
                }
            }
            self.0.leaders.looked(&topic.into(), leaders.into_iter());
        }
        let silence = |partition: &u32| match lacking.contains(partition) {
            true => None,
            false => self.0.leaders.silence(topic, *partition),
        };
        partitions.iter().map(silence).collect()
    }
}

impl Running {
    fn new(
        config: &ClientConfig,
        context: &Context,
        leaders: &Arc<Leaders>,
    ) -> Result<Arc<Running>, BrokerError> {
        let told = ProducerContext { context: context.clone(), leaders: Arc::clone(leaders) };
        let native = Native::new(config, told).map_err(|error| broker_error("the cluster", &error))?;
        let (is_over, called_back) = (AtomicBool::new(false), AtomicBool::new(false));
        let running = Arc::new(Running { native: Apart::new(native), is_over, called_back });
        context.serve(running.clone());
        Ok(running)
    }
}

impl Bearer for Running {
    fn native(&self) -> *mut rd_kafka_t {
        self.native.client().native_ptr()
    }
}

impl Shared {
    /// Starts the thread that takes the clients' reports, and mends them.
    fn serve(shared: &Arc<Shared>) -> Result<(), BrokerError> {
        let (served, ended) = (Arc::downgrade(shared), Arc::downgrade(shared));
        // Nobody knows which reports it had taken: what is open ends, and the next client begins with nothing.
        let ended = move |_: &str| ended.upgrade().iter().for_each(|shared| shared.recall());
        let started = shared.context.threads.keep(shared.name, move || mend::serve(&served), ended);
        started.map_err(|error| BrokerError::Unavailable(error.to_string()))
    }

    fn recall(&self) {
        let client = write_lock(&self.client);
        self.recalls.send_modify(|recalls| *recalls += 1);
        let answers = lock(&self.under_way).call_back();
        client.called_back.store(true, Ordering::SeqCst);
        client.is_over.store(true, Ordering::SeqCst);
        client.native.purge(true);
        drop(client);
        answers.into_iter().for_each(Answer::give);
    }
}

impl Learn for KafkaProducer {
    fn learn(&self, topic: &str, timeout: Duration) -> Result<u32, KafkaError> {
        let client = Arc::clone(&read_lock(&self.0.client));
        Ok(partitions_of(&client.native.client().fetch_metadata(Some(topic), timeout)?))
    }
}

fn called_back() -> ProduceError {
    ProduceError::Unavailable("it was called back before it was sent".to_owned())
}
