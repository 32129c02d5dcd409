//! The options with which a program opens Keylane: the broker, the spill, and whether topics are created by first use.

use std::path::PathBuf;

use keylane_broker::TopicSpec;

#[cfg(feature = "kafka")]
use super::KafkaOptions;
pub use super::open::BrokerChoice;
use crate::produce::spill::SpillOptions;

/// How Keylane is opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The folder of the embedded broker; with any other broker, the folder of the spill.
    pub data: PathBuf,
    /// The broker, where topics live.
    pub broker: BrokerChoice,
    /// How messages are kept while a broker on another machine is away.
    pub spill: SpillOptions,
    /// Whether a topic is created by its first use. Without it, an unknown topic is an error.
    pub create_topics: bool,
    /// The partitions and limits of a topic that is created like that.
    pub new_topic: TopicSpec,
}

impl Config {
    /// The embedded broker in `data`; topics are created by first use.
    pub fn embedded(data: impl Into<PathBuf>) -> Config {
        Config::on(BrokerChoice::Embedded, data)
    }

    /// Keylane on `broker`, with `data` as this process's own folder; topics are created by first use.
    pub fn on(broker: BrokerChoice, data: impl Into<PathBuf>) -> Config {
        Config {
            data: data.into(),
            broker,
            spill: SpillOptions::default(),
            create_topics: true,
            new_topic: TopicSpec::default(),
        }
    }

    /// A Kafka cluster; topics are created by first use. While it is away, produced messages are kept in `data`.
    #[cfg(feature = "kafka")]
    pub fn kafka(options: KafkaOptions, data: impl Into<PathBuf>) -> Config {
        Config::on(BrokerChoice::Kafka(Box::new(options)), data)
    }

    /// How messages are kept while a broker on another machine is away.
    pub fn spill(mut self, spill: SpillOptions) -> Config {
        self.spill = spill;
        self
    }

    /// Whether topics are created by their first use.
    pub fn create_topics(mut self, create_topics: bool) -> Config {
        self.create_topics = create_topics;
        self
    }

    /// The partitions and limits of topics that are created by their first use.
    pub fn new_topic(mut self, new_topic: TopicSpec) -> Config {
        self.new_topic = new_topic;
        self
    }
}
