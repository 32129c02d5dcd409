//! Clients that read, shared by all readers of a broker.
//!
//! A client reads a partition once; a second reader of the same partition gets the next client. One thread serves what
//! the clients have to say and ends partitions that are no longer read, which may take a while.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;

use super::context::Context;
use super::errors::broker_error;
use super::lock;
use super::options::{BATCH_BYTES, KafkaOptions};
use super::read::Stopping;
use super::topics::{Learn, partitions_of};
use crate::contract::BrokerError;
use crate::threads::{self, Apart};

/// How often the clients' events are looked at: they are reports, and nobody waits for them.
const SERVE: Duration = Duration::from_millis(50);

/// The thread that looks at them.
const SERVING: &str = "kafka-clients";

/// A client and what it reads.
pub(crate) struct Client {
    pub(crate) consumer: Apart<BaseConsumer<Context>>,
    reading: Mutex<HashSet<(String, u32)>>,
}

impl Client {
    /// The partition is no longer read, and may be read anew.
    pub(crate) fn free(&self, topic: &str, partition: u32) {
        lock(&self.reading).remove(&(topic.to_owned(), partition));
    }
}

/// Clients that read topics: those that may use as much memory for a partition are shared by all pipelines.
pub(crate) struct Readers {
    options: KafkaOptions,
    context: Context,
    by_ahead: Mutex<BTreeMap<usize, Arc<Clients>>>,
}

/// The least and the most that is used for what is read ahead of one partition.
const AHEAD_BYTES: RangeInclusive<usize> = 64 << 10..=4 << 20;

/// What is kept of one partition, at most, if `ahead_bytes` are asked for: Kafka gives out whole batches, and the next is
/// fetched before the last one is used up.
pub(crate) fn kept_ahead(ahead_bytes: usize) -> usize {
    ahead_bytes.clamp(*AHEAD_BYTES.start(), *AHEAD_BYTES.end()).max(2 * BATCH_BYTES)
}

impl Readers {
    pub(crate) fn new(options: &KafkaOptions, context: Context) -> Arc<Readers> {
        Arc::new(Readers { options: options.clone(), context, by_ahead: Mutex::default() })
    }

    /// Those that use at most `ahead_bytes` for a partition, or the least that is possible.
    pub(crate) fn within(&self, ahead_bytes: usize) -> Arc<Clients> {
        let bounded = ahead_bytes.clamp(*AHEAD_BYTES.start(), *AHEAD_BYTES.end());
        // A power of two, so that pipelines of about the same size share clients.
        let ahead_bytes = 1 << bounded.ilog2();
        let mut all = lock(&self.by_ahead);
        let made = || Clients::new(self.options.reader(ahead_bytes), self.context.clone());
        Arc::clone(all.entry(ahead_bytes).or_insert_with(made))
    }
}

impl Learn for Readers {
    fn learn(&self, topic: &str, timeout: Duration) -> Result<u32, KafkaError> {
        let all: Vec<Arc<Clients>> = lock(&self.by_ahead).values().cloned().collect();
        all.iter().try_fold(u32::MAX, |least, clients| Ok(least.min(clients.learn(topic, timeout)?)))
    }
}

/// All clients of one kind.
pub(crate) struct Clients {
    config: ClientConfig,
    context: Context,
    clients: Mutex<Vec<Arc<Client>>>,
    /// Held while one is made, so that all who wait for one share it.
    making: Arc<tokio::sync::Mutex<()>>,
    stopping: Mutex<Vec<Stopping>>,
    serving: OnceLock<()>,
}

impl Clients {
    pub(crate) fn new(config: ClientConfig, context: Context) -> Arc<Clients> {
        Arc::new(Clients {
            config,
            context,
            clients: Mutex::default(),
            making: Arc::default(),
            stopping: Mutex::default(),
            serving: OnceLock::new(),
        })
    }

    /// Makes sure that there is a client for whoever begins to read this partition, apart from those who must not wait:
    /// making one starts threads, and reads certificates from disk.
    pub(crate) async fn make_room(self: &Arc<Self>, topic: &str, partition: u32) -> Result<(), BrokerError> {
        let (clients, wanted) = (Arc::clone(self), (topic.to_owned(), partition));
        if clients.has_room(&wanted) {
            return Ok(());
        }
        let turn = Arc::clone(&self.making).lock_owned().await;
        let making = threads::blocking(move || {
            let made = if clients.has_room(&wanted) { Ok(()) } else { clients.make(&wanted.0) };
            drop(turn);
            made
        });
        making.await.map_err(|error| BrokerError::Stopped(format!("a client was not made: {error}")))?
    }

    /// Whether one of the clients does not read this partition.
    fn has_room(&self, wanted: &(String, u32)) -> bool {
        lock(&self.clients).iter().any(|client| !lock(&client.reading).contains(wanted))
    }

    /// A client that does not read this partition yet, and from now on does.
    pub(crate) fn client_for(
        self: &Arc<Self>,
        topic: &str,
        partition: u32,
    ) -> Result<Arc<Client>, BrokerError> {
        let wanted = (topic.to_owned(), partition);
        loop {
            let there = lock(&self.clients).clone();
            if let Some(client) = there.iter().find(|client| lock(&client.reading).insert(wanted.clone())) {
                return Ok(Arc::clone(client));
            }
            // Somebody else was quicker to take the one for which room was made.
            self.make(topic)?;
        }
    }

    /// Makes a client that reads nothing yet. It may take a while, and no lock is held meanwhile.
    fn make(self: &Arc<Self>, topic: &str) -> Result<(), BrokerError> {
        let consumer = self.config.create_with_context(self.context.clone());
        let consumer = consumer.map_err(|error| broker_error(topic, &error))?;
        let client = Arc::new(Client { consumer: Apart::new(consumer), reading: Mutex::default() });
        self.context.serve(client.clone());
        lock(&self.clients).push(client);
        self.serve()
    }

    /// Ends the reading of a partition, soon.
    pub(crate) fn stop(&self, stopping: Stopping) {
        lock(&self.stopping).push(stopping);
    }

    fn serve(self: &Arc<Self>) -> Result<(), BrokerError> {
        if self.serving.set(()).is_err() {
            return Ok(());
        }
        let clients = Arc::downgrade(self);
        // Nothing is lost with it: what it was about to end is queued, or ends as it is dropped.
        let started = self.context.threads.keep(SERVING, move || serve(&clients), |_| {});
        started.map_err(|error| BrokerError::Unavailable(error.to_string()))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let queued = std::mem::take(&mut *lock(&self.stopping));
        if !queued.is_empty() {
            // Whoever was the last to read must not wait for the clients' threads.
            let _ended = threads::thread("kafka-ending", move || drop(queued));
        }
    }
}

/// Takes what is queued, for each to be dealt with. Nobody who queues more meanwhile waits for that.
fn take_each<T>(queue: &Mutex<Vec<T>>, deal: impl FnMut(T)) {
    let queued = std::mem::take(&mut *lock(queue));
    queued.into_iter().for_each(deal);
}

impl Learn for Clients {
    fn learn(&self, topic: &str, timeout: Duration) -> Result<u32, KafkaError> {
        let all = lock(&self.clients).clone();
        all.iter().try_fold(u32::MAX, |least, client| {
            Ok(least.min(partitions_of(&client.consumer.fetch_metadata(Some(topic), timeout)?)))
        })
    }
}

#[allow(clippy::disallowed_methods, reason = "sleeps on a thread of its own")]
fn serve(clients: &Weak<Clients>) {
    while let Some(clients) = clients.upgrade() {
        clients.context.threads.may_be_struck(SERVING);
        // Each ends as it is dropped, which may take a while.
        take_each(&clients.stopping, drop);
        let all = lock(&clients.clients).clone();
        for client in all {
            while client.consumer.poll(Duration::ZERO).is_some() {}
        }
        drop(clients);
        std::thread::sleep(SERVE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::read::Feed;

    /// BPR-1: whoever stops reading never waits for those who stopped before.
    #[test]
    fn the_queue_is_free_while_what_was_queued_is_ended() {
        let queue = Mutex::new(vec![1, 2]);
        let mut ended = Vec::new();
        take_each(&queue, |one| {
            assert!(queue.try_lock().is_ok(), "somebody else may queue meanwhile");
            ended.push(one);
        });
        assert_eq!(ended, [1, 2]);
    }

    /// P5, BPR-1: a partition's client keeps two batches at least, whatever it is asked for, and not more than it may.
    #[test]
    fn what_is_kept_ahead_of_a_partition_is_told() {
        assert_eq!(kept_ahead(1), 2 * BATCH_BYTES);
        assert_eq!(kept_ahead(1 << 20), 1 << 20);
        assert_eq!(kept_ahead(1 << 30), *AHEAD_BYTES.end());
    }

    /// BPR-1, BRK-2: readers that begin at once wait for one client, which all share; a second reader of a partition has
    /// another made, before it reads.
    #[tokio::test]
    async fn readers_that_begin_at_once_share_a_client() {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1");
        let clients = Clients::new(config, Context::default());
        let rooms = (0..12).map(|partition| clients.make_room("t", partition));
        futures_util::future::try_join_all(rooms).await.expect("one is made");
        let made = || lock(&clients.clients).len();
        assert_eq!(made(), 1);
        for partition in 0..12 {
            clients.client_for("t", partition).expect("there is room");
        }
        assert_eq!(made(), 1);
        clients.make_room("t", 3).await.expect("another is made");
        assert_eq!(made(), 2);
        let second = clients.client_for("t", 3).expect("there is room");
        assert!(lock(&second.reading).contains(&("t".to_owned(), 3)) && made() == 2);
    }

    /// P5: what was read when a broker is closed is given back, all of it.
    #[test]
    fn what_is_queued_when_the_clients_go_is_given_back() {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1");
        let clients = Clients::new(config, Context::default());
        // Nobody serves them, as in the moment before the thread comes round.
        clients.serving.set(()).expect("nobody has");
        let feed = Feed::start(&clients, "t", 0, 0).expect("it starts");
        let bell = feed.bell();
        drop(feed);
        assert!(bell.upgrade().is_some(), "it is queued");
        drop(clients);
        while bell.upgrade().is_some() {
            std::thread::yield_now();
        }
    }
}
