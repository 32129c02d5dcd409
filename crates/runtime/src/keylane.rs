//! One opened broker and the pipelines that run on it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use keylane_broker::{Broker, TopicSpec};
use keylane_core::Delivery;

use crate::clock::Clock;
use crate::pipeline::{Pipeline, PipelineBuilder};
use crate::produce::Producer;
use crate::spawn::Tasks;
use crate::status::{LaneSort, LaneStatus, PipelineStatus, TopicEnds, TopicStatus};
use crate::subscription::Subscription;
use crate::{Error, Message, Receipt};

/// How Keylane is opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Folder of the embedded broker.
    pub data: PathBuf,
    /// Whether a topic is created by its first use. Without it, an unknown topic is an error.
    pub create_topics: bool,
}

impl Config {
    /// The embedded broker in `data`; topics are created by first use.
    pub fn embedded(data: impl Into<PathBuf>) -> Config {
        Config { data: data.into(), create_topics: true }
    }

    /// Whether topics are created by their first use.
    pub fn create_topics(mut self, create_topics: bool) -> Config {
        self.create_topics = create_topics;
        self
    }
}

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
    claims: Arc<Mutex<Claims>>,
}

impl Keylane {
    /// Opens the embedded broker in a folder, which is made if it is not there. One process at a time.
    pub async fn open_embedded(folder: impl Into<PathBuf>) -> Result<Keylane, Error> {
        Keylane::open(Config::embedded(folder)).await
    }

    /// Opens what `config` says.
    pub async fn open(config: Config) -> Result<Keylane, Error> {
        let broker = crate::open::broker(&config).await?;
        Ok(Keylane::with_broker(broker, Clock::system(), Tasks::default(), config.create_topics))
    }

    /// On a broker that is open already; for tests and for brokers of one's own.
    pub fn with_broker(broker: Arc<dyn Broker>, clock: Clock, tasks: Tasks, create_topics: bool) -> Keylane {
        let producer = Producer::new(Arc::clone(&broker), clock, tasks.clone(), create_topics);
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
            claims: Arc::default(),
        };
        Keylane { inner: Arc::new(inner) }
    }

    /// `embedded`, `kafka` …
    pub fn broker_kind(&self) -> &'static str {
        self.inner.broker.kind()
    }

    /// Sends a message and waits until it is durable. [`Keylane::producer`] has the other ways.
    pub async fn produce(&self, message: Message) -> Result<Receipt, Error> {
        self.inner.producer.produce(message).await
    }

    /// The producer.
    pub fn producer(&self) -> &Producer {
        &self.inner.producer
    }

    /// Makes sure a topic is there. One with another partition count is an error (BRK-10).
    pub async fn ensure_topic(&self, name: &str, spec: &TopicSpec) -> Result<(), Error> {
        self.inner.broker.create_topic(name, spec).await?;
        Ok(())
    }

    /// Why messages cannot be taken or kept now, if so.
    pub async fn health(&self) -> Result<(), Error> {
        Ok(self.inner.broker.health().await?)
    }

    /// All topics.
    pub async fn topics(&self) -> Result<Vec<TopicStatus>, Error> {
        let mut topics = Vec::new();
        for topic in self.inner.broker.topics().await? {
            let ends = self.inner.broker.ends(&topic.name).await?;
            topics.push(TopicStatus {
                name: topic.name,
                partitions: topic.partitions,
                messages: ends.iter().map(|ends| ends.end - ends.start).sum(),
                ends: (0..)
                    .zip(ends)
                    .map(|(partition, ends)| TopicEnds { partition, start: ends.start, end: ends.end })
                    .collect(),
            });
        }
        Ok(topics)
    }

    /// Up to `limit` messages of a partition from position `from` on, without a group. Ends at the end of the log.
    pub async fn peek(
        &self,
        topic: &str,
        partition: u32,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Delivery>, Error> {
        crate::peek::peek(&*self.inner.broker, topic, partition, from, limit).await
    }

    /// Begins a pipeline: `name` is its topic and its group unless told otherwise.
    pub fn pipeline(&self, name: &str) -> PipelineBuilder {
        PipelineBuilder::new(self.clone(), name)
    }

    /// How each pipeline is, by name.
    pub async fn pipelines(&self) -> Result<Vec<PipelineStatus>, Error> {
        let running: Vec<Pipeline> =
            self.inner.pipelines.lock().expect("no holder panics").values().cloned().collect();
        let mut all = Vec::new();
        for pipeline in running {
            all.push(pipeline.status().await?);
        }
        Ok(all)
    }

    /// Lanes of one pipeline, or of all, the first `limit` by `sort`.
    pub async fn lanes(
        &self,
        pipeline: Option<&str>,
        sort: LaneSort,
        limit: usize,
    ) -> Result<Vec<LaneStatus>, Error> {
        let running: Vec<Pipeline> = {
            let pipelines = self.inner.pipelines.lock().expect("no holder panics");
            match pipeline {
                None => pipelines.values().cloned().collect(),
                Some(name) => vec![
                    pipelines.get(name).cloned().ok_or_else(|| Error::UnknownPipeline(name.to_owned()))?,
                ],
            }
        };
        let mut lanes = Vec::new();
        for pipeline in running {
            lanes.extend(pipeline.lanes(sort, limit).await);
        }
        crate::pipeline::sort_lanes(&mut lanes, sort, limit);
        Ok(lanes)
    }
}

impl Inner {
    /// A name is used once, and a group reads a topic once in a process: two would wait for each other for ever.
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
        let (claims, pipelines) = (Arc::clone(&self.claims), Arc::clone(&self.pipelines));
        Ok(Claimed { claims, pipelines, name, pair })
    }
}

/// Names in use, and groups with the topics they read.
#[derive(Default)]
struct Claims {
    names: BTreeSet<String>,
    groups: BTreeSet<(String, String)>,
}

/// A pipeline's name and group, until dropped; then it is no longer listed either.
pub(crate) struct Claimed {
    claims: Arc<Mutex<Claims>>,
    pipelines: Arc<Mutex<BTreeMap<String, Pipeline>>>,
    name: String,
    pair: (String, String),
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let gone = self.pipelines.lock().expect("no holder panics").remove(&self.name);
        let mut claims = self.claims.lock().expect("no holder panics");
        claims.names.remove(&self.name);
        claims.groups.remove(&self.pair);
        drop(claims);
        drop(gone);
    }
}

/// This machine's name, for people who read a journal.
fn node_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "node".to_owned(), |name| name.trim().to_owned())
}
