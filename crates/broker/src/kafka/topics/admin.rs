//! Topics of a cluster: made, described and changed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, NewPartitions, ResourceSpecifier};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore};

use super::native::{self, Described, Native, Refusal};
use super::spec::{changes, check_name, settings_of, to_topic, value};
use crate::contract::{BrokerError, Ids, Topic, TopicSpec};
use crate::kafka::context::Context;
use crate::kafka::errors::{broker_error, broker_error_of, lacking};
use crate::kafka::options::KafkaOptions;
use crate::kafka::{AskingClient, clock, lock, read_lock, write_lock};
use crate::threads::{self, Apart};

/// How long a question may take before the cluster counts as away.
pub(in crate::kafka) const ASK: Duration = Duration::from_secs(30);
/// How long a question waits before it is looked where the brokers are by now, and how long that may take.
const METADATA_WAIT: Duration = Duration::from_secs(1);
/// So many answers in a row must say that a topic is gone which was there ...
const GONE_ANSWERS: u32 = 10;
/// ... with this between them.
const GONE_WAIT: Duration = Duration::from_millis(50);
/// How often, and how long between, clients look for partitions that were added.
const TEACH_TRIES: u32 = 50;
const TEACH_WAIT: Duration = Duration::from_millis(100);

/// What is asked of a cluster about its topics.
pub(crate) struct Admin {
    pub(in crate::kafka) client: Arc<Apart<AdminClient<Context>>>,
    /// Asks where partitions begin and end. Never reads, so that nothing waits behind a fetch.
    pub(in crate::kafka) asker: Arc<AskingClient>,
    pub(in crate::kafka) context: Context,
    /// Held by who looks where the brokers are: one at a time is enough for all.
    looking: Mutex<()>,
    known: RwLock<HashMap<String, Topic>>,
    /// Topics that calls wait to know, each with a queue.
    unknown: std::sync::Mutex<HashMap<String, Arc<Mutex<()>>>>,
    /// Topics that keep the last message of each key.
    compacted: RwLock<HashSet<String>>,
    /// What the cluster does not keep of topics that were declared here: the largest message, and who gives ids.
    declared: RwLock<HashMap<String, (usize, Ids)>>,
    /// What members looked at last.
    glances: Mutex<Glances>,
    /// Clients that must hear of added partitions before anybody uses those.
    learners: Vec<Arc<dyn Learn>>,
}

/// Topics that members look at: described together, so that many pipelines ask no more than one.
#[derive(Default)]
struct Glances {
    wanted: BTreeSet<String>,
    /// When it was asked last, and what.
    asked: Option<(Instant, BTreeSet<String>)>,
    seen: HashMap<String, Described>,
}

/// A client, or several, that by itself would look at its topics again in some minutes.
pub(crate) trait Learn: Send + Sync {
    /// Looks at a topic now. Waits for the network.
    fn learn(&self, topic: &str, timeout: Duration) -> Result<u32, KafkaError>;
}

/// A call's turn to hand over its messages.
pub(crate) struct Turn<'a> {
    admin: &'a Admin,
    name: String,
    _held: OwnedMutexGuard<()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut unknown = lock(&self.admin.unknown);
        // Held by the map and by this turn: nobody waits.
        if unknown.get(&self.name).is_some_and(|queue| Arc::strong_count(queue) <= 2) {
            unknown.remove(&self.name);
        }
    }
}

/// A topic, and its settings or why they may not be looked at.
type Settings = (Described, Result<ConfigResource, BrokerError>);

impl Admin {
    pub(crate) fn new(
        options: &KafkaOptions,
        context: Context,
        learners: Vec<Arc<dyn Learn>>,
    ) -> Result<Admin, BrokerError> {
        let failed = |error: KafkaError| broker_error("the cluster", &error);
        let client = options.admin().create_with_context(context.clone()).map_err(failed)?;
        // As a reader of topics: they end for us where an open transaction begins. Who waits for more than that waits
        // for somebody else.
        let asker = options.reader(1 << 20).create_with_context(context.clone()).map_err(failed)?;
        let (client, asker) = (Apart::<AdminClient<Context>>::new(client), AskingClient::new(asker));
        let (client, asker) = (Arc::new(client), Arc::new(asker));
        context.serve(client.clone());
        context.serve(asker.clone());
        Ok(Admin {
            client,
            asker,
            context,
            looking: Mutex::default(),
            known: RwLock::default(),
            unknown: std::sync::Mutex::default(),
            declared: RwLock::default(),
            compacted: RwLock::default(),
            glances: Mutex::default(),
            learners,
        })
    }

    /// A topic as it was seen last, without asking.
    pub(crate) fn known(&self, name: &str) -> Option<Topic> {
        read_lock(&self.known).get(name).cloned()
    }

    /// True if a topic takes no message without a key, as far as was seen.
    pub(crate) fn is_compacted(&self, name: &str) -> bool {
        read_lock(&self.compacted).contains(name)
    }

    /// Takes a topic for known, on a cluster that cannot be asked about it.
    #[cfg(feature = "testing")]
    pub(crate) fn suppose(&self, topic: Topic) {
        write_lock(&self.known).insert(topic.name.clone(), topic);
    }

    /// Describes one topic. One that was there is believed to be gone only if several answers say so: a broker that has
    /// not yet heard of a new topic answers as if there were none.
    #[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
    pub(crate) async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError> {
        let mut asked = 1;
        loop {
            let found = self.described(vec![name.to_owned()]).await?.pop();
            if found.is_some() || self.known(name).is_none() || asked >= GONE_ANSWERS {
                return Ok(found);
            }
            asked += 1;
            tokio::time::sleep(GONE_WAIT).await;
        }
    }

    /// A topic that messages are produced to, and the turn to hand them over: calls that came while it was not known
    /// keep their order, and none that comes later overtakes them.
    pub(crate) async fn in_turn(&self, name: &str) -> Result<(Topic, Option<Turn<'_>>), BrokerError> {
        let queue = match (self.known(name), &mut *lock(&self.unknown)) {
            (Some(known), unknown) if !unknown.contains_key(name) => return Ok((known, None)),
            (_, unknown) => Arc::clone(unknown.entry(name.to_owned()).or_default()),
        };
        let turn = Turn { admin: self, name: name.to_owned(), _held: queue.lock_owned().await };
        let topic = match self.known(name) {
            Some(known) => known,
            None => self.existing(name).await?,
        };
        Ok((topic, Some(turn)))
    }

    /// One that must be there.
    pub(crate) async fn existing(&self, name: &str) -> Result<Topic, BrokerError> {
        let found = self.topic(name).await?;
        found.ok_or_else(|| BrokerError::UnknownTopic(name.to_owned()))
    }

    /// All topics that this user may look at, by name, but for Kafka's own.
    pub(crate) async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        let (names, _) = self.cluster(ASK).await?;
        let names = names.into_iter().filter(|name| !name.starts_with("__")).collect();
        let described = self.with_settings(names).await?;
        // Somebody else's topic, which we may see and not look at, is none of ours.
        let mut topics = self.know(described.into_iter().filter(|(_, config)| config.is_ok())).await?;
        topics.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(topics)
    }

    /// Names of all topics that this user may see, and how many brokers there are. An answer shows that the cluster
    /// is there.
    pub(crate) async fn cluster(&self, timeout: Duration) -> Result<(Vec<String>, u32), BrokerError> {
        let asker = Arc::clone(&self.asker);
        let asked = blocking(self.context.noting(move || {
            let metadata = asker.fetch_metadata(None, timeout)?;
            let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
            Ok((names.collect(), metadata.brokers().len() as u32))
        }));
        let answered: Result<_, KafkaError> = self.context.answer(asked).await?;
        answered.map_err(|error| self.told(broker_error("the cluster", &error)))
    }

    /// What clients told says more than that a question timed out.
    pub(in crate::kafka) fn told(&self, error: BrokerError) -> BrokerError {
        match error {
            BrokerError::Unavailable(_) => self.context.trouble().unwrap_or(error),
            other => other,
        }
    }

    async fn described(&self, names: Vec<String>) -> Result<Vec<Topic>, BrokerError> {
        let described = self.with_settings(names).await?;
        self.know(described.into_iter()).await
    }

    /// Has all clients hear of partitions that were added.
    #[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
    async fn teach(&self, topic: &str, partitions: u32) -> Result<(), BrokerError> {
        let mut tries = 0;
        let mut ignorant = self.learners.clone();
        loop {
            let (asked, name) = (ignorant.clone(), topic.to_owned());
            // One that asked a broker which does not answer asks another the next time.
            let knows = move |one: &Arc<dyn Learn>| {
                one.learn(&name, METADATA_WAIT).is_ok_and(|seen| seen >= partitions)
            };
            let knowing = blocking(move || asked.iter().map(knows).collect::<Vec<bool>>()).await?;
            let mut knowing = knowing.into_iter();
            ignorant.retain(|_| knowing.next() == Some(false));
            if ignorant.is_empty() {
                return Ok(());
            }
            tries += 1;
            if tries > TEACH_TRIES {
                let text = format!("not all clients hear of the {partitions} partitions of {topic}");
                return Err(self.told(BrokerError::Unavailable(text)));
            }
            tokio::time::sleep(TEACH_WAIT).await;
        }
    }

    /// Topics of what was described, remembered.
    pub(super) async fn know(
        &self,
        described: impl Iterator<Item = Settings>,
    ) -> Result<Vec<Topic>, BrokerError> {
        let mut topics = Vec::new();
        for (topic, config) in described {
            let config = config?;
            if self.known(&topic.name).is_some_and(|known| known.partitions < topic.partitions) {
                self.teach(&topic.name, topic.partitions).await?;
            }
            let mut topic = to_topic(&topic, |name| value(&config, name));
            // The cluster's limit leaves room for a batch; a message's own is kept here.
            if let Some((limit, ids)) = read_lock(&self.declared).get(&topic.name) {
                topic.spec.message_bytes_max = topic.spec.message_bytes_max.min(*limit);
                topic.spec.ids = *ids;
            }
            let policy = value(&config, "cleanup.policy").unwrap_or_default();
            match policy.split(',').any(|one| one.trim() == "compact") {
                true => write_lock(&self.compacted).insert(topic.name.clone()),
                false => write_lock(&self.compacted).remove(&topic.name),
            };
            write_lock(&self.known).insert(topic.name.clone(), topic.clone());
            topics.push(topic);
        }
        Ok(topics)
    }

    /// Topics and all their settings, those of the brokers included where the topic has none of its own; or why they
    /// may not be looked at. What is not there is left out.
    pub(crate) async fn with_settings(&self, names: Vec<String>) -> Result<Vec<Settings>, BrokerError> {
        let described = self.describe(names).await?;
        let resources: Vec<_> = described.iter().map(|topic| ResourceSpecifier::Topic(&topic.name)).collect();
        if resources.is_empty() {
            return Ok(Vec::new());
        }
        let asked = self.client.describe_configs(&resources, &options());
        let configs = self.asked(asked, &described[0].name).await?;
        let denied = |name: &str, code| lacking(broker_error_of(name, code), "DESCRIBE_CONFIGS on the topic");
        let both = described.iter().zip(configs);
        Ok(both
            .map(|(topic, config)| (topic.clone(), config.map_err(|code| denied(&topic.name, code))))
            .collect())
    }

    /// A topic as it was within the last `fresh`, without its settings; none if it is not there.
    pub(crate) async fn glance(&self, name: &str, fresh: Duration) -> Result<Option<Described>, BrokerError> {
        let mut glances = self.glances.lock().await;
        glances.wanted.insert(name.to_owned());
        let is_fresh =
            glances.asked.as_ref().is_some_and(|(at, names)| at.elapsed() < fresh && names.contains(name));
        if !is_fresh {
            let wanted = glances.wanted.clone();
            let seen = self.describe(wanted.iter().cloned().collect()).await;
            // One that we may not look at must not hide the others.
            let Ok(seen) = seen else { return Ok(self.describe(vec![name.to_owned()]).await?.pop()) };
            glances.seen = seen.into_iter().map(|topic| (topic.name.clone(), topic)).collect();
            glances.asked = Some((clock::now(), wanted));
        }
        Ok(glances.seen.get(name).cloned())
    }

    /// The answer to a question about a topic.
    pub(in crate::kafka) async fn asked<T>(
        &self,
        question: impl Future<Output = Result<T, KafkaError>>,
        topic: &str,
    ) -> Result<T, BrokerError> {
        let question = async {
            let answer = question.await.inspect(|_| self.context.reached());
            answer.map_err(|error| broker_error(topic, &error))
        };
        self.answer(question).await
    }

    /// The answer to a question of the admin client, which goes to the broker that was the controller when the client
    /// last looked. If that one is gone, the client would wait for it to come back, and look again after five minutes.
    #[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
    async fn answer<T>(
        &self,
        question: impl Future<Output = Result<T, BrokerError>>,
    ) -> Result<T, BrokerError> {
        let looking = async {
            loop {
                tokio::time::sleep(METADATA_WAIT).await;
                if let Ok(_one) = self.looking.try_lock() {
                    self.look().await;
                }
            }
        };
        tokio::select! {
            biased;
            answered = self.context.answer(question) => answered,
            () = looking => unreachable!("it looks for ever"),
        }
    }

    /// Has the admin client look where the brokers are, and which of them is the controller.
    async fn look(&self) {
        let client = Arc::clone(&self.client);
        let look = self.context.noting(move || client.inner().fetch_metadata(None, METADATA_WAIT));
        // What is wrong is told by the question that is under way.
        let _seen = blocking(look).await;
    }

    /// Makes a topic, or gives the one that is there the limits of `spec`.
    pub(crate) async fn create(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        check_name(name)?;
        write_lock(&self.declared).insert(name.to_owned(), (spec.message_bytes_max, spec.ids));
        if self.topic(name).await?.is_none() {
            self.make(name, spec.partitions, spec.replicas, &settings_of(spec)).await?;
        }
        let there = self.existing(name).await?;
        if there.partitions != spec.partitions {
            let topic = name.to_owned();
            return Err(BrokerError::Partitions { topic, there: there.partitions, asked: spec.partitions });
        }
        let changes = changes(&there.spec, spec);
        if changes.is_empty() {
            return Ok(there);
        }
        self.alter(name, &changes).await?;
        self.altered(name, &changes).await
    }

    /// Makes a topic with these settings. One that is there is left as it is.
    pub(crate) async fn make(
        &self,
        name: &str,
        partitions: u32,
        replicas: u32,
        settings: &[(String, String)],
    ) -> Result<(), BrokerError> {
        let (topic, settings) = (name.to_owned(), settings.to_vec());
        let made = self
            .natively(move |client| native::create(client, &topic, partitions, replicas, &settings, ASK))
            .await?;
        match made {
            Ok(()) | Err(Refusal { code: RDKafkaErrorCode::TopicAlreadyExists, .. }) => {}
            Err(Refusal { code: RDKafkaErrorCode::InvalidReplicationFactor, .. }) => {
                let (_, brokers) = self.cluster(ASK).await?;
                let topic = name.to_owned();
                return Err(BrokerError::Replicas { topic, asked: replicas, brokers });
            }
            Err(refusal) => {
                return Err(lacking(refused(name, refusal), "CREATE on the topic or on the cluster"));
            }
        }
        // Until each partition has its leader: a first batch that met none could be overtaken by the second, and an
        // idempotent producer would not get over it.
        self.settled(name).await?;
        self.ends(name, (0..partitions).collect()).await.map(drop)
    }

    /// The answer to a question that the Rust wrapper does not ask.
    pub(super) async fn natively<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Native) -> Result<T, BrokerError> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let client = Arc::clone(&self.client);
        let ask = self.context.noting(move || ask(&Native(client.inner().native_ptr())));
        let asked = async { blocking(ask).await? };
        self.answer(asked).await.map_err(|error| self.told(error))
    }

    /// Topics as they are now, without their settings. Those that are not there are left out.
    pub(crate) async fn describe(&self, names: Vec<String>) -> Result<Vec<Described>, BrokerError> {
        self.natively(move |client| native::describe(client, &names, ASK)).await
    }

    /// Gives a topic more partitions.
    pub(crate) async fn grow(&self, name: &str, partitions: u32) -> Result<(), BrokerError> {
        let more = NewPartitions::new(name, partitions as usize);
        for result in self.asked(self.client.create_partitions([&more], &options()), name).await? {
            match result {
                // Somebody else was quicker.
                Ok(_) | Err((_, RDKafkaErrorCode::InvalidPartitions)) => {}
                Err((_, code)) => return Err(lacking(broker_error_of(name, code), "ALTER on the topic")),
            }
        }
        self.ends(name, (0..partitions).collect()).await.map(drop)
    }

    /// A topic that was just made: other brokers may not have heard of it yet.
    #[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
    async fn settled(&self, name: &str) -> Result<Topic, BrokerError> {
        let mut tries = 0;
        loop {
            if let Some(topic) = self.topic(name).await? {
                return Ok(topic);
            }
            tries += 1;
            if tries > 100 {
                return Err(BrokerError::UnknownTopic(name.to_owned()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Deletes a topic.
    #[cfg(feature = "testing")]
    pub(crate) async fn delete(&self, topic: &str) -> Result<(), BrokerError> {
        let deleted = self.client.delete_topics(&[topic], &options()).await;
        for result in deleted.map_err(|error| broker_error(topic, &error))? {
            result.map_err(|(_, code)| broker_error_of(topic, code))?;
        }
        Ok(())
    }
}

/// What the cluster said, in its own words where it has a rule of its own.
pub(super) fn refused(topic: &str, Refusal { code, why }: Refusal) -> BrokerError {
    match code {
        RDKafkaErrorCode::PolicyViolation | RDKafkaErrorCode::InvalidConfig => {
            BrokerError::Refused { topic: topic.to_owned(), why }
        }
        code => broker_error_of(topic, code),
    }
}

/// How many partitions the one topic of an answer has.
pub(crate) fn partitions_of(metadata: &Metadata) -> u32 {
    metadata.topics().first().map_or(0, |topic| topic.partitions().len() as u32)
}

pub(in crate::kafka) fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ASK)).operation_timeout(Some(ASK))
}

/// Calls that wait for the network at the same time, at most: each has a thread, and the runtime has 512 for all that
/// waits. While a cluster is away many calls wait for it, and the disk's must not wait behind them.
const CALLS_MAX: usize = 128;

static CALLS: Semaphore = Semaphore::const_new(CALLS_MAX);

/// Runs a call that waits for the network. It keeps its place until it ends, though nobody waits for it any more.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BrokerError> {
    let place = CALLS.acquire().await.map_err(|_| BrokerError::Closed)?;
    let called = threads::blocking(move || {
        let done = work();
        drop(place);
        done
    });
    called.await.map_err(|error| BrokerError::Stopped(format!("a call to Kafka panicked: {error}")))
}
