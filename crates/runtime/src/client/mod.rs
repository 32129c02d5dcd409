//! The handle of a program that opened Keylane: one broker, its producer, and the pipelines that run on it.

mod config;
mod open;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use futures_util::future::join_all;
use keylane_broker::{Broker, BrokerError, ClientFigures, TopicSpec};
use keylane_core::Delivery;

use crate::clock::Clock;
use crate::pipeline::{Pipeline, PipelineBuilder, Subscription};
use crate::produce::spill::{Spill, SpillEntry, SpillEntryState, SpillOptions, SpillStatus};
use crate::produce::{Producer, Target};
use crate::shard::Pace;
use crate::status::{LaneSort, Lanes, PipelineStatus, TopicStatus, TopicWarning};
use crate::tasks::Tasks;
use crate::{Error, NewMessage, Receipt};

pub use config::{BrokerChoice, Config};
use open::Opened;
#[cfg(feature = "kafka")]
pub use open::{KafkaJournals, KafkaOptions};
pub(crate) use read::peek;

/// How many topics are asked for their ends at once: some clusters have thousands, and a slow one must not delay all.
const TOPICS_AT_ONCE: usize = 16;

/// An opened broker, its producer, and the pipelines on it. Cheap to clone.
#[derive(Clone)]
pub struct Keylane {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) clock: Clock,
    pub(crate) tasks: Tasks,
    pub(crate) node: String,
    producer: Producer,
    pub(crate) pipelines: Arc<Mutex<BTreeMap<String, Pipeline>>>,
    /// Pipelines that could not start and are shown all the same, by name.
    pub(crate) apart: Mutex<BTreeMap<String, PipelineStatus>>,
    claims: Arc<Mutex<Claims>>,
    /// Spreads over time when completions of all pipelines go on record.
    pub(crate) pace: Arc<Pace>,
}

impl Keylane {
    /// Opens the embedded broker in a folder, and creates the folder if needed. One process at a time can have it open.
    pub async fn open_embedded(folder: impl Into<PathBuf>) -> Result<Keylane, Error> {
        Keylane::open(Config::embedded(folder)).await
    }

    /// Opens Keylane with the broker and the spill that `config` names.
    pub async fn open(config: Config) -> Result<Keylane, Error> {
        let (clock, tasks) = (Clock::system(), Tasks::default());
        let Opened { broker, spill: log } = config.broker.open(&config.data).await?;
        let spill = match log {
            None => None,
            Some(log) => {
                Some(Spill::open(Arc::clone(&broker), log, config.spill, clock, tasks.clone()).await?)
            }
        };
        let new_topic = config.create_topics.then_some(config.new_topic);
        Ok(Keylane::build(broker, spill, clock, tasks, new_topic))
    }

    /// Uses a broker on another machine that is open already; `log` here keeps the messages that it does not take.
    pub async fn with_spill(
        broker: Arc<dyn Broker>,
        log: Arc<dyn Broker>,
        options: SpillOptions,
        clock: Clock,
        tasks: Tasks,
        create_topics: bool,
    ) -> Result<Keylane, Error> {
        let spill = Spill::open(Arc::clone(&broker), log, options, clock, tasks.clone()).await?;
        Ok(Keylane::build(broker, Some(spill), clock, tasks, create_topics.then(TopicSpec::default)))
    }

    /// Uses a broker that is open already; for tests, and for brokers that a program brings along.
    pub fn with_broker(broker: Arc<dyn Broker>, clock: Clock, tasks: Tasks, create_topics: bool) -> Keylane {
        Keylane::build(broker, None, clock, tasks, create_topics.then(TopicSpec::default))
    }

    fn build(
        broker: Arc<dyn Broker>,
        spill: Option<Arc<Spill>>,
        clock: Clock,
        tasks: Tasks,
        new_topic: Option<TopicSpec>,
    ) -> Keylane {
        let producer = Producer::new(Arc::clone(&broker), spill, clock, tasks.clone(), new_topic);
        let inner = Inner {
            broker,
            clock,
            tasks,
            node: match clock.seed() {
                // A record's size must not depend on the machine that repeats a simulation.
                Some(_) => "simulated".to_owned(),
                None => node_name(),
            },
            producer,
            pipelines: Arc::default(),
            apart: Mutex::default(),
            claims: Arc::default(),
            pace: Arc::default(),
        };
        Keylane { inner: Arc::new(inner) }
    }

    /// How often a background task or a thread of the broker ended unasked, by its kind; the broker's threads count under
    /// the broker's kind. A count above 0 is a bug from which Keylane has recovered; the log says more.
    pub fn tasks_ended(&self) -> Vec<(&'static str, u64)> {
        let of = |broker: &dyn Broker| (broker.kind(), broker.threads_ended());
        let mut ended: Vec<_> = self.inner.tasks.ended().map(|(kind, ended)| (kind.name(), ended)).collect();
        ended.push(of(&*self.inner.broker));
        ended.extend(self.inner.producer.spill().map(|spill| of(spill.log())));
        ended
    }

    /// The broker's kind: `embedded`, `kafka` …
    pub fn broker_kind(&self) -> &'static str {
        self.inner.broker.kind()
    }

    /// Sends a message and waits until it is durable. [`Keylane::producer`] has the other ways.
    pub async fn produce(&self, message: NewMessage) -> Result<Receipt, Error> {
        self.inner.producer.produce(message).await
    }

    /// The producer.
    pub fn producer(&self) -> &Producer {
        &self.inner.producer
    }

    /// Creates a topic with these limits, unless it exists. An existing topic with another partition count is an error
    /// (BRK-10); the number of its replicas is not changed.
    pub async fn ensure_topic(&self, name: &str, spec: &TopicSpec) -> Result<(), Error> {
        self.inner.broker.create_topic(name, spec).await?;
        Ok(())
    }

    /// Says what a topic looks like before the broker was ever reached, so that its messages are accepted and kept on
    /// this machine. If the broker later reports more partitions than declared, the kept messages are not sent.
    pub fn declare_topic(&self, name: &str, spec: &TopicSpec) {
        // Messages here that were spread over more partitions were produced when the topic had more.
        let here = self.inner.producer.spill().and_then(|spill| spill.number_of(name)).unwrap_or(0);
        let target = Target::new(name, spec.partitions.max(here), spec.message_bytes_max, spec.ids);
        self.inner.producer.targets().know(target, self.inner.clock.now_ms());
    }

    /// The messages that wait on this machine for the broker (PRD-4).
    pub fn spill(&self) -> SpillStatus {
        self.inner.producer.spill().map_or_else(SpillStatus::off, |spill| spill.status())
    }

    /// Messages of the spill: at most `limit` of those in `state`, or of all.
    pub async fn spill_entries(
        &self,
        state: Option<SpillEntryState>,
        limit: usize,
    ) -> Result<Vec<SpillEntry>, Error> {
        match self.inner.producer.spill() {
            Some(spill) => spill.entries(state, limit).await,
            None => Ok(Vec::new()),
        }
    }

    /// Sends everything in the spill to the broker now, including messages that the broker had refused for good.
    pub fn drain_spill(&self) {
        if let Some(spill) = self.inner.producer.spill() {
            spill.drain_now();
        }
    }

    /// The partitions and limits of a topic, if it exists.
    pub async fn topic_spec(&self, name: &str) -> Result<Option<TopicSpec>, Error> {
        Ok(self.inner.broker.topic(name).await?.map(|topic| topic.spec))
    }

    /// Waits until every message that was sent is durable or refused, for 10 s at most. Messages that were sent without
    /// waiting for the acknowledgement would otherwise be lost with the process. False if a message was still under
    /// way.
    pub async fn close(&self) -> bool {
        self.inner.producer.flush().await
    }

    /// Why messages cannot be accepted or kept now, if that is so.
    pub async fn health(&self) -> Result<(), Error> {
        Ok(self.inner.broker.health().await?)
    }

    /// How much of its data the broker has read again since it was opened, to find damage early.
    pub fn scrubbed(&self) -> keylane_broker::Scrubbed {
        self.inner.broker.scrubbed()
    }

    /// The parts of the broker that do not work while the rest does.
    pub async fn troubles(&self) -> Vec<Error> {
        self.inner.broker.troubles().await.into_iter().map(Error::from).collect()
    }

    /// The figures of the broker's client library, if it has any. Calls no broker.
    pub fn client_figures(&self) -> Option<ClientFigures> {
        self.inner.broker.client_figures()
    }

    /// Settings of these topics that weaken a promise (BRK-9).
    pub async fn warnings(&self, topics: &[String]) -> Result<Vec<TopicWarning>, Error> {
        let warnings = self.inner.broker.warnings(topics).await?;
        Ok(warnings.into_iter().map(TopicWarning::from).collect())
    }

    /// All topics.
    pub async fn topics(&self) -> Result<Vec<TopicStatus>, Error> {
        let there = self.inner.broker.topics().await?;
        let names: Vec<String> = there.iter().map(|topic| topic.name.clone()).collect();
        let warnings = self.warnings(&names).await?;
        let mut topics: Vec<TopicStatus> = Vec::new();
        for some in there.chunks(TOPICS_AT_ONCE) {
            let ends = join_all(some.iter().map(|topic| self.inner.broker.ends(&topic.name))).await;
            for (topic, ends) in some.iter().zip(ends) {
                let held_back = self.inner.broker.held_back(&topic.name).await.unwrap_or_default();
                match ends {
                    Ok(ends) => topics.push(TopicStatus::of(topic, ends, &warnings).held_back(held_back)),
                    // A topic without a leader must not hide the others.
                    Err(BrokerError::Unavailable(_)) => {
                        topics.push(TopicStatus::of(topic, Vec::new(), &warnings));
                    }
                    Err(BrokerError::UnknownTopic(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        for topic in &mut topics {
            topic.pipelines = self.readers(&topic.name);
        }
        Ok(topics)
    }

    /// Names of the pipelines of this process that read a topic.
    pub fn readers(&self, topic: &str) -> Vec<String> {
        let pipelines = self.pipelines_seen();
        pipelines.into_iter().filter(|seen| seen.topic == topic).map(|seen| seen.name).collect()
    }

    /// One topic, if it exists.
    pub async fn topic(&self, name: &str) -> Result<Option<TopicStatus>, Error> {
        let Some(topic) = self.inner.broker.topic(name).await? else {
            return Ok(None);
        };
        let warnings = self.warnings(&[name.to_owned()]).await?;
        let ends = self.inner.broker.ends(name).await?;
        let held_back = self.inner.broker.held_back(name).await?;
        let mut status = TopicStatus::of(&topic, ends, &warnings).held_back(held_back);
        status.pipelines = self.readers(name);
        Ok(Some(status))
    }

    /// Tells the embedded broker for which groups pipelines are configured, each with its topic. For other groups the
    /// broker keeps unsettled messages for one more day. Without this call, and for pipelines started here, it keeps
    /// all of them.
    pub async fn configured(&self, groups: &[(String, String)]) -> Result<(), Error> {
        Ok(self.inner.broker.configured(groups).await?)
    }

    /// Forgets a group's position and journals of a topic. Messages that only this group has not settled may be deleted
    /// from now on, and a pipeline that uses the group later begins anew.
    pub async fn forget_group(&self, topic: &str, group: &str) -> Result<(), Error> {
        let pair = (group.to_owned(), topic.to_owned());
        let uses = |pipeline: &Pipeline| {
            let at = pipeline.subscription();
            (&at.group, &*at.topic) == (&pair.0, pair.1.as_str())
        };
        if let Some(pipeline) = self.running().iter().find(|pipeline| uses(pipeline)) {
            let (group, topic) = pair;
            return Err(Error::GroupInUse { group, topic, pipeline: pipeline.name().to_owned() });
        }
        match self.inner.broker.forget_group(group, topic).await? {
            true => Ok(()),
            false => Err(Error::UnknownGroup(pair.0, pair.1)),
        }
    }

    /// Copies all topics and journals, while everything runs, to a folder of this machine that is empty or does not
    /// exist. [`crate::data::restore`] makes a data folder of the copy.
    pub async fn backup(&self, folder: &std::path::Path) -> Result<keylane_broker::Backup, Error> {
        Ok(self.inner.broker.backup(folder).await?)
    }

    /// Up to `limit` messages of a partition from position `from` on, without a group. Ends at the end of the log.
    pub async fn peek(
        &self,
        topic: &str,
        partition: u32,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Delivery>, Error> {
        read::peek(&*self.inner.broker, topic, partition, from, limit).await
    }

    /// Begins a pipeline: `name` is its topic and its group unless the builder is told otherwise.
    pub fn pipeline(&self, name: &str) -> PipelineBuilder {
        PipelineBuilder::new(self.clone(), name)
    }

    pub(crate) fn running(&self) -> Vec<Pipeline> {
        self.inner.pipelines.lock().expect("no holder panics").values().cloned().collect()
    }

    /// The status of each pipeline, by name, from memory and at once; [`Pipeline::seen`] says how old each figure is.
    pub fn pipelines_seen(&self) -> Vec<PipelineStatus> {
        self.with_those_apart(self.running().iter().map(Pipeline::seen).collect())
    }

    /// Asks the broker for the figures that [`Keylane::pipelines_seen`] shows.
    pub async fn look(&self) {
        // The status of a pipeline that the broker does not answer for says so at its partitions.
        let _seen_so_far = join_all(self.running().iter().map(Pipeline::look)).await;
    }

    /// Shows a pipeline that could not start among the others, as stopped, until a pipeline of that name starts.
    pub fn show_stopped(&self, name: &str, topic: &str, group: &str, partitions: u32, why: &str) {
        let stopped = PipelineStatus::stopped(name, topic, group, partitions, why);
        self.inner.apart.lock().expect("no holder panics").insert(name.to_owned(), stopped);
    }

    fn with_those_apart(&self, mut all: Vec<PipelineStatus>) -> Vec<PipelineStatus> {
        let apart = self.inner.apart.lock().expect("no holder panics");
        if !apart.is_empty() {
            all.extend(apart.values().cloned());
            all.sort_by(|a, b| a.name.cmp(&b.name));
        }
        all
    }

    /// The status of each pipeline, by name.
    pub async fn pipelines(&self) -> Result<Vec<PipelineStatus>, Error> {
        let running = self.running();
        // All at once: while a broker is away, each call waits a moment for it.
        let all = join_all(running.iter().map(Pipeline::status)).await;
        Ok(self.with_those_apart(all.into_iter().collect::<Result<Vec<_>, _>>()?))
    }

    /// Lanes of one pipeline, or of all, the first `limit` by `sort`. Shards that do not answer in some seconds are
    /// named.
    pub async fn lanes(&self, pipeline: Option<&str>, sort: LaneSort, limit: usize) -> Result<Lanes, Error> {
        let running: Vec<Pipeline> = {
            let pipelines = self.inner.pipelines.lock().expect("no holder panics");
            match pipeline {
                None => pipelines.values().cloned().collect(),
                Some(name) if self.inner.apart.lock().expect("no holder panics").contains_key(name) => {
                    Vec::new()
                }
                Some(name) => vec![
                    pipelines.get(name).cloned().ok_or_else(|| Error::UnknownPipeline(name.to_owned()))?,
                ],
            }
        };
        let asked = running.iter().map(|pipeline| pipeline.lanes(sort, limit));
        Ok(Lanes::of(join_all(asked).await, sort, limit))
    }
}

impl Inner {
    /// Reserves a pipeline's name, and its group for its topic: two pipelines of one process with the same group and
    /// topic would wait for each other for ever.
    pub(crate) fn claim(&self, at: &Subscription) -> Result<Claimed, Error> {
        let (name, pair) = (at.pipeline.to_string(), (at.group.clone(), at.topic.to_string()));
        let mut claims = self.claims.lock().expect("no holder panics");
        if claims.names.contains(&name) {
            return Err(Error::Pipeline(name, "one of that name runs already".to_owned()));
        }
        if claims.groups.contains(&pair) {
            let why = format!("group {} reads topic {} here already; give it another group", pair.0, pair.1);
            return Err(Error::Pipeline(name, why));
        }
        claims.names.insert(name.clone());
        claims.groups.insert(pair.clone());
        let (claims, pipelines) = (Arc::clone(&self.claims), Arc::downgrade(&self.pipelines));
        Ok(Claimed { claims, pipelines, name, pair })
    }
}

/// Names in use, and groups with the topics that they read.
#[derive(Default)]
struct Claims {
    names: BTreeSet<String>,
    groups: BTreeSet<(String, String)>,
}

/// A reserved name and group. When dropped, they are free again and the pipeline is no longer listed.
pub(crate) struct Claimed {
    claims: Arc<Mutex<Claims>>,
    /// Weak, since the pipelines in the list hold this: a pipeline that is never drained would otherwise stay for ever.
    pipelines: Weak<Mutex<BTreeMap<String, Pipeline>>>,
    name: String,
    pair: (String, String),
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let pipelines = self.pipelines.upgrade();
        let gone = pipelines.and_then(|listed| listed.lock().expect("no holder panics").remove(&self.name));
        let mut claims = self.claims.lock().expect("no holder panics");
        claims.names.remove(&self.name);
        claims.groups.remove(&self.pair);
        drop(claims);
        drop(gone);
    }
}

/// This machine's name, for people who read a journal.
pub(crate) fn node_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "node".to_owned(), |name| name.trim().to_owned())
}
