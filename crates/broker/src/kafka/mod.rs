//! Apache Kafka: topics of a cluster, read far beyond one handler a partition (BRK-2).
//!
//! Reading, producing, membership and journals each have clients of their own: readers fetch from where the journal
//! says, a member only hears what is assigned and commits, and a question never waits behind a fetch. A commit mirrors
//! the journal, and is no fence: a member can commit what it no longer owns. What makes an owner is the journal
//! (`keylane_core::owner`); the group only says who should try.

mod clients;
mod clock;
mod context;
mod errors;
mod figures;
mod journal;
mod member;
mod offsets;
mod options;
mod produce;
mod read;
mod tokens;
mod topics;
mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use async_trait::async_trait;
use keylane_core::Frames;
use rdkafka::consumer::BaseConsumer;
use rdkafka::{ClientConfig, Offset};

use self::clients::{Clients, Readers};
use self::context::Context;
use self::errors::{broker_error, not_produced};
use self::journal::KafkaJournal;
use self::member::{Member, commit_alone, committed, join};
use self::produce::{KafkaProducer, Rules};
use self::read::KafkaReader;
use self::tokens::{Endpoint, Tokens};
use self::topics::{Admin, Journals, Learn, check_name};
use crate::contract::{
    Broker, BrokerError, ClientFigures, Commit, Ends, Journal, JournalName, LogKind, Membership,
    ProduceError, Reader, Topic, TopicSpec, Warning,
};
use crate::threads::{self, Apart};

pub use self::options::{KafkaJournals, KafkaOptions};

/// How long a cluster that was away has to answer whether it is there again.
const PROBE: Duration = Duration::from_secs(1);

/// How long a cluster has to answer the first question of all.
const FIRST: Duration = Duration::from_secs(10);

/// What a reader may use that looks at a few messages.
const GLANCE_BYTES: usize = 256 << 10;

/// A client that never reads: it asks where partitions end, or commits for a group that nobody here is a member of.
type AskingClient = Apart<BaseConsumer<Context>>;

/// A Kafka cluster.
pub struct Kafka {
    options: KafkaOptions,
    context: Context,
    /// Random: what this process's claims carry.
    instance: u128,
    admin: Arc<Admin>,
    producer: Arc<KafkaProducer>,
    readers: Arc<Readers>,
    journals: Arc<Journals>,
    members: Mutex<HashMap<(String, String), Weak<Member>>>,
    /// Clients of groups that nobody here is a member of.
    groups: Mutex<HashMap<String, Arc<AskingClient>>>,
    /// Asks where partitions end for those who read what is not committed, too. Made by the first.
    asker: Mutex<Option<Arc<AskingClient>>>,
}

impl Kafka {
    /// Connects to a cluster. It need not be there yet.
    pub fn open(options: KafkaOptions) -> Result<Kafka, BrokerError> {
        options.check()?;
        let tokens = Endpoint::of(&options.settings)?.map(Tokens::start).transpose()?;
        let context = Context::new(&options.brokers, options.interval_ms(), tokens);
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).map_err(|error| BrokerError::Unavailable(error.to_string()))?;
        let producer = Arc::new(KafkaProducer::new("kafka-producer", &options.producer(), context.clone())?);
        let journal_producer =
            Arc::new(KafkaProducer::new("kafka-journals", &options.journal_producer(), context.clone())?);
        let readers = Readers::new(&options, context.clone());
        let journal_readers = Clients::new(options.journal_reader(), context.clone());
        let learners: Vec<Arc<dyn Learn>> =
            vec![producer.clone(), journal_producer.clone(), readers.clone(), journal_readers.clone()];
        let admin = Arc::new(Admin::new(&options, context.clone(), learners)?);
        Ok(Kafka {
            instance: u128::from_le_bytes(instance),
            journals: Journals::new(&admin, &journal_producer, &journal_readers, &options.journals),
            admin,
            producer,
            readers,
            members: Mutex::default(),
            groups: Mutex::default(),
            asker: Mutex::default(),
            context,
            options,
        })
    }

    fn member(&self, group: &str, topic: &str) -> Option<Arc<Member>> {
        lock(&self.members).get(&(group.to_owned(), topic.to_owned())).and_then(Weak::upgrade)
    }

    async fn group(&self, group: &str) -> Result<Arc<AskingClient>, BrokerError> {
        if let Some(there) = lock(&self.groups).get(group) {
            return Ok(Arc::clone(there));
        }
        let made = self.make_client(group, self.options.member(group)).await?;
        let made = Arc::new(AskingClient::new(made));
        self.context.serve(made.clone());
        Ok(Arc::clone(lock(&self.groups).entry(group.to_owned()).or_insert(made)))
    }

    /// Makes a client, apart from those who must not wait: it starts threads, and reads certificates from disk.
    async fn make_client(
        &self,
        of: &str,
        config: ClientConfig,
    ) -> Result<BaseConsumer<Context>, BrokerError> {
        let context = self.context.clone();
        let made = threads::blocking(move || config.create_with_context(context)).await;
        let made = made.map_err(|error| BrokerError::Stopped(format!("a client was not made: {error}")))?;
        made.map_err(|error| broker_error(of, &error))
    }

    /// Deletes a topic and makes it anew, as an operator might.
    #[cfg(feature = "testing")]
    pub async fn recreate(&self, topic: &str) -> Result<Topic, BrokerError> {
        let there = self.admin.existing(topic).await?;
        self.admin.delete(topic).await?;
        while self.admin.topic(topic).await?.is_some() {}
        self.admin.create(topic, &there.spec).await
    }

    /// Takes a topic for known, on a cluster that cannot be asked about it.
    #[cfg(feature = "testing")]
    pub fn suppose(&self, topic: Topic) {
        self.admin.suppose(topic);
    }

    /// Appends a record to a topic, whatever it is.
    #[cfg(feature = "testing")]
    pub async fn append_raw(&self, topic: &str, partition: u32, record: bytes::Bytes) -> bool {
        let answer = self.journals.producer.append(topic, partition, &record).await;
        answer.is_ok_and(|mut results| results.pop().is_some_and(|result| result.is_ok()))
    }

    /// Has a thread that serves Kafka's client library panic: `kafka-producer`, `kafka-journals`, `kafka-member`,
    /// `kafka-clients` or `kafka-tokens`.
    #[cfg(feature = "testing")]
    pub fn strike(&self, thread: &str) {
        self.context.threads.strike(thread);
    }

    /// While `is` is true, a producer's thread for the broker of this number does not come back once it connects, as if
    /// it looked up a name.
    #[cfg(feature = "testing")]
    pub fn stick(&self, broker: i32, is: bool) {
        let (mut stuck, thread) = (lock(&self.context.stuck), format!("rdk:broker{broker}"));
        let _was = if is { stuck.insert(thread, 0) } else { stuck.remove(&thread) };
    }

    /// Whether one is stuck there by now.
    #[cfg(feature = "testing")]
    pub fn is_stuck(&self, broker: i32) -> bool {
        lock(&self.context.stuck).get(&format!("rdk:broker{broker}")).is_some_and(|times| *times > 1)
    }

    /// Whether a partition takes nothing, since a message failed there of a call that is not answered.
    #[cfg(feature = "testing")]
    pub fn is_shut(&self, topic: &str, partition: u32) -> bool {
        self.producer.is_shut(topic, partition)
    }

    /// Deletes messages below a position, as retention does.
    #[cfg(feature = "testing")]
    pub async fn delete_below(&self, topic: &str, partition: u32, position: u64) -> Result<(), BrokerError> {
        self.admin.cut(topic, partition, position).await
    }
}

impl Kafka {
    /// Commits for a group that nobody here is a member of.
    async fn commit_alone(
        &self,
        group: &str,
        topic: &str,
        commits: Vec<(u32, Commit)>,
    ) -> Result<(), BrokerError> {
        self.admin.existing(topic).await?;
        commit_alone(self.group(group).await?, topic, commits).await
    }
}

#[async_trait]
impl Broker for Kafka {
    fn kind(&self) -> &'static str {
        "kafka"
    }

    async fn health(&self) -> Result<(), BrokerError> {
        match self.context.trouble() {
            // Nobody knows yet.
            None if self.context.is_new() => self.admin.cluster(FIRST).await.map(drop),
            None => Ok(()),
            // It may be there again, and nobody have asked since.
            Some(trouble) => self.admin.cluster(PROBE).await.map(drop).map_err(|_| trouble),
        }
    }

    async fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        self.admin.create(name, spec).await
    }

    async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError> {
        self.admin.topic(name).await
    }

    async fn warnings(&self, topics: &[String]) -> Result<Vec<Warning>, BrokerError> {
        topics::warnings(&self.admin, topics).await
    }

    async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        self.admin.topics().await
    }

    async fn produce(&self, topic: &str, frames: Frames) -> Vec<Result<u64, ProduceError>> {
        let count = frames.len();
        if count == 0 {
            return Vec::new();
        }
        let recalls = self.producer.recalls();
        let found = self.producer.unless_recalled(self.admin.in_turn(topic)).await;
        let (found, turn) = match found {
            Ok(found) => found,
            Err(error) => return vec![Err(not_produced(error)); count],
        };
        let rules = Rules { compacted: self.admin.is_compacted(topic) };
        let answer = self.producer.produce(&found, rules, frames, recalls);
        drop(turn);
        let ended = || ProduceError::Unavailable(BrokerError::Closed.to_string());
        answer.await.unwrap_or_else(|_| vec![Err(ended()); count])
    }

    async fn recall(&self) {
        self.producer.recall();
    }

    async fn silence(&self, topic: &str, partitions: &[u32]) -> Vec<Option<Duration>> {
        let (producer, name) = (Arc::clone(&self.producer), topic.to_owned());
        let needed = self.admin.known(topic).map_or(1, |known| known.spec.min_insync);
        let asked = partitions.to_vec();
        // Not behind calls that wait for the same cluster.
        let silence = threads::blocking(move || producer.silence(&name, &asked, needed, PROBE)).await;
        silence.unwrap_or_else(|_| vec![None; partitions.len()])
    }

    async fn takes(&self, topic: &str, partition: u32) -> Result<(), BrokerError> {
        self.admin.takes(topic, partition).await
    }

    async fn reader(&self, topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError> {
        self.reader_ahead(topic, partition, from, GLANCE_BYTES).await
    }

    fn reads_ahead(&self, ahead_bytes: usize) -> usize {
        clients::kept_ahead(ahead_bytes)
    }

    async fn reader_ahead(
        &self,
        topic: &str,
        partition: u32,
        from: u64,
        ahead_bytes: usize,
    ) -> Result<Box<dyn Reader>, BrokerError> {
        // Not asked for anew: one broker that does not answer would keep the partitions of all others from starting.
        let found = match self.admin.known(topic) {
            Some(known) if partition < known.partitions => known,
            _ => self.admin.existing(topic).await?,
        };
        let ends = match partition < found.partitions {
            true => self.admin.ends(topic, vec![partition]).await?,
            false => return Err(BrokerError::UnknownTopic(format!("{topic}/{partition}"))),
        };
        let Ends { start, end } = ends[0];
        if !(start..=end).contains(&from) {
            let topic = topic.to_owned();
            return Err(BrokerError::OutOfRange { topic, partition, position: from, start, end });
        }
        let clients = self.readers.within(ahead_bytes);
        Ok(Box::new(KafkaReader::start(&self.admin, &clients, topic, partition, from).await?))
    }

    fn client_figures(&self) -> Option<ClientFigures> {
        Some(self.context.figures())
    }

    async fn ends(&self, topic: &str) -> Result<Vec<Ends>, BrokerError> {
        let found = self.admin.existing(topic).await?;
        self.admin.ends(topic, (0..found.partitions).collect()).await
    }

    async fn tails(&self, topic: &str) -> Result<Vec<u64>, BrokerError> {
        let found = self.admin.existing(topic).await?;
        let there = lock(&self.asker).clone();
        let asker = match there {
            Some(there) => there,
            None => {
                let made = self.make_client(topic, self.options.journal_reader()).await?;
                let made = Arc::new(AskingClient::new(made));
                self.context.serve(made.clone());
                // Somebody else may have been quicker; then this one is not kept.
                Arc::clone(lock(&self.asker).get_or_insert(made))
            }
        };
        self.admin.ask(&asker, topic, (0..found.partitions).collect(), Offset::End).await
    }

    async fn commit_all(
        &self,
        group: &str,
        topic: &str,
        commits: Vec<(u32, Commit)>,
    ) -> Vec<Result<(), BrokerError>> {
        let count = commits.len();
        // One call for all; the client says of one error only whose it is not, so that all have it, and are tried again.
        let made = match self.member(group, topic) {
            Some(member) => member.commit_all(commits).await,
            None => self.commit_alone(group, topic, commits).await,
        };
        vec![made; count]
    }

    async fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError> {
        if let Some(member) = self.member(group, topic) {
            return self.context.answer(member.committed(partition)).await;
        }
        let consumer = self.group(group).await?;
        let asked = committed(Arc::clone(&consumer), topic, partition);
        let found = self.context.answer(asked).await;
        // A group that does not let us in says so once, beside the call, which only times out.
        let beside = consumer.poll(Duration::ZERO).and_then(Result::err);
        let refused = beside.map(|error| broker_error(topic, &error));
        let refused = refused.filter(|error| matches!(error, BrokerError::Denied { .. }));
        let found = found.map_err(|error| refused.unwrap_or(error));
        if matches!(found, Err(BrokerError::Denied { .. })) {
            lock(&self.groups).remove(group);
        }
        found
    }

    async fn join(&self, group: &str, topic: &str, _node: &str) -> Result<Box<dyn Membership>, BrokerError> {
        check_name(group)?;
        let joined = self.admin.existing(topic).await?;
        topics::kept_whole(&self.journals, group, topic).await?;
        let (options, context) = (self.options.clone(), self.context.clone());
        let (admin, group_name, instance) = (Arc::clone(&self.admin), group.to_owned(), self.instance);
        // A client is made, which starts threads and reads certificates from disk.
        let joining =
            threads::blocking(move || join(&options, &context, &admin, &group_name, joined, instance)).await;
        let (member, membership) =
            joining.map_err(|error| BrokerError::Stopped(format!("a client was not made: {error}")))??;
        lock(&self.members).insert((group.to_owned(), topic.to_owned()), Arc::downgrade(&member));
        Ok(Box::new(membership))
    }

    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError> {
        let topic = self.journals.topic_of(name).await?;
        let journal = KafkaJournal::new(&self.journals, name.clone(), topic);
        if name.kind == LogKind::Journal {
            // Here, where the error keeps its code. What may pass is met, and waited for, by who appends.
            match journal.make().await {
                Err(
                    BrokerError::Unavailable(_) | BrokerError::UnknownTopic(_) | BrokerError::Replicas { .. },
                ) => {}
                made => made?,
            }
        }
        journal.check_partition().await?;
        Ok(Arc::new(journal))
    }

    async fn journals(&self, group: &str, topic: &str) -> Result<Option<u32>, BrokerError> {
        let mut made = None;
        for name in self.journals.topics_of(group, topic).await? {
            let there = self.admin.topic(&name).await?.map(|there| there.partitions);
            made = there.map(|there| made.map_or(there, |made: u32| made.min(there))).or(made);
        }
        Ok(made)
    }

    async fn grow_journals(&self, group: &str, topic: &str, partitions: u32) -> Result<(), BrokerError> {
        // The journal last: it is what tells whether the group goes on.
        for name in self.journals.topics_of(group, topic).await? {
            if self.admin.topic(&name).await?.is_some_and(|there| there.partitions < partitions) {
                self.admin.grow(&name, partitions).await?;
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_lock<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write_lock<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
