//! Measures figures on a real Kafka cluster that the caller names, on topics that it makes and deletes.
//!
//! CPU time is that of this process alone: the cluster runs in other processes. Where the table speaks of one core,
//! everything that a figure starts is bound to one core, Keylane and its raw limit alike.

pub(crate) mod bare;
pub(crate) mod consume;
pub(crate) mod peer;
pub(crate) mod produce;
pub(crate) mod share;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use keylane::{Config, KafkaOptions, Keylane, TopicSpec};
use keylane_core::partition_of;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use tempfile::TempDir;

use self::bare::BareProducer;
use crate::machine::runtime;
use crate::source::{Draw, drawn};
use crate::{Error, Options};

/// Partitions of every topic here.
pub(crate) const PARTITIONS: u32 = 32;
/// Bytes that a client may read ahead of a partition, as a pipeline's client of a topic with this many partitions.
pub(crate) const AHEAD_BYTES: usize = (256 << 20) / 4 / PARTITIONS as usize;
/// How long the cluster may take to answer a question.
const ASK: Duration = Duration::from_secs(30);
/// The most messages that are handed to a client and not reported yet, for Keylane and its raw limit alike.
pub(crate) const IN_FLIGHT: usize = 64_000;

/// The part of a run that is measured: behind message `from`, up to message `to`. Clients read ahead, so both ends must
/// lie where they read ahead; at the very start or end, that work would be counted on one side only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Slice {
    /// The slice of a run of this many messages.
    pub(crate) fn of(messages: u64) -> Slice {
        Slice { from: messages / 5, to: messages / 10 * 9 }
    }

    pub(crate) fn messages(self) -> u64 {
        self.to - self.from
    }
}

/// The cluster, and what the benchmark made on it.
pub(crate) struct Cluster {
    options: KafkaOptions,
    /// A tag that all names of this run contain, and no other name on the cluster.
    tag: String,
    groups: Mutex<Vec<String>>,
    /// A folder for the spill, with a subfolder for each time that Keylane is opened.
    folder: TempDir,
    opened: AtomicU32,
}

/// Measures on the cluster that the options name. Deletes what was made there, even if measuring fails.
pub(crate) fn on_cluster(
    options: &Options,
    measure: impl FnOnce(&Cluster) -> Result<(), Error>,
) -> Result<(), Error> {
    let brokers = options.brokers.clone().ok_or(Error::NoCluster)?;
    let random = RandomState::new().build_hasher().finish();
    let tag = format!("keylane-bench-{random:016x}");
    let cluster = Cluster {
        options: KafkaOptions::new(brokers),
        tag,
        groups: Mutex::default(),
        folder: tempfile::tempdir()?,
        opened: AtomicU32::new(0),
    };
    let measured = measure(&cluster);
    let deleted = cluster.delete_all().map_err(|error| Error::Broker(format!("cleaning up: {error}")));
    measured.and(deleted)
}

impl Cluster {
    /// Makes a topic.
    pub(crate) fn topic(&self, name: &str) -> Result<String, Error> {
        let topic = format!("{}-{name}", self.tag);
        let spec = TopicSpec { partitions: PARTITIONS, ..TopicSpec::default() };
        runtime("admin")?.block_on(async { self.open().await?.ensure_topic(&topic, &spec).await })?;
        Ok(topic)
    }

    /// A name for a group that reads from the start.
    pub(crate) fn group(&self) -> String {
        let mut groups = self.groups.lock().expect("no holder panics");
        let group = format!("{}-{}", self.tag, groups.len());
        groups.push(group.clone());
        group
    }

    pub(crate) fn options(&self) -> &KafkaOptions {
        &self.options
    }

    /// Opens Keylane on the cluster.
    pub(crate) async fn open(&self) -> Result<Keylane, keylane::Error> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.path().join(number.to_string());
        Keylane::open(Config::kafka(self.options.clone(), folder)).await
    }

    /// Fills a topic as another system's producer would: with key and payload, without headers.
    pub(crate) fn fill(&self, topic: &str, deck: &Deck, messages: u64) -> Result<(), Error> {
        let mut cards = deck.endless();
        BareProducer::new(&produce::settings(&self.options), topic)?.produce(messages, &[], || {
            let card = cards.next().expect("endless");
            (card.partition, &card.key, &card.payload)
        })
    }

    fn delete_all(&self) -> Result<(), Error> {
        let failed = |error: KafkaError| Error::Broker(error.to_string());
        let config = self.options.reader(AHEAD_BYTES);
        let asker: BaseConsumer = config.create().map_err(failed)?;
        let metadata = asker.fetch_metadata(None, ASK).map_err(failed)?;
        let topics: Vec<&str> = metadata
            .topics()
            .iter()
            .map(|topic| topic.name())
            .filter(|name| name.contains(&self.tag))
            .collect();
        let groups = self.groups.lock().expect("no holder panics");
        let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
        let admin: AdminClient<DefaultClientContext> = config.create().map_err(failed)?;
        let options = AdminOptions::new().operation_timeout(Some(ASK));
        runtime("admin")?.block_on(async {
            if !groups.is_empty() {
                // A group whose process has just left may not be empty yet; nothing that it committed matters.
                let _not_yet_empty = admin.delete_groups(&groups, &options).await.map_err(failed)?;
            }
            if !topics.is_empty() {
                for deleted in admin.delete_topics(&topics, &options).await.map_err(failed)? {
                    deleted.map_err(|(topic, code)| Error::Broker(format!("{topic}: {code}")))?;
                }
            }
            Ok(())
        })
    }
}

/// A message that is ready to be sent.
pub(crate) struct Card {
    pub(crate) partition: u32,
    pub(crate) key: [u8; 16],
    pub(crate) payload: [u8; 200],
}

/// Messages that were drawn before the clock starts; they are used again and again.
pub(crate) struct Deck(Vec<Card>);

impl Deck {
    /// Messages of `keys` keys. Half of a payload repeats and half does not, so that lz4 halves it about.
    pub(crate) fn new(keys: u32, draw: Draw) -> Deck {
        let mut random = crate::source::Random(0xdeca);
        let cards = drawn(keys, draw, 0).into_iter().map(|key| {
            let mut card = Card { partition: 0, key: [0; 16], payload: [b'x'; 200] };
            card.key.copy_from_slice(format!("{key:016}").as_bytes());
            card.partition = partition_of(&card.key, PARTITIONS);
            for bytes in card.payload[..100].chunks_mut(8) {
                bytes.copy_from_slice(&random.next().to_le_bytes()[..bytes.len()]);
            }
            card
        });
        Deck(cards.collect())
    }

    pub(crate) fn endless(&self) -> impl Iterator<Item = &Card> {
        self.0.iter().cycle()
    }
}
