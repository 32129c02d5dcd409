//! How Keylane is opened: on which broker, with which spill, and what becomes of topics that are not there.

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
    /// Folder of the embedded broker, and of the spill of any other.
    pub data: PathBuf,
    /// Where topics live.
    pub broker: BrokerChoice,
    /// How the absence of a broker on another machine is bridged.
    pub spill: SpillOptions,
    /// Whether a topic is created by its first use. Without it, an unknown topic is an error.
    pub create_topics: bool,
    /// As what such a topic is created.
    pub new_topic: TopicSpec,
}

impl Config {
    /// The embedded broker in `data`; topics are created by first use.
    pub fn embedded(data: impl Into<PathBuf>) -> Config {
        Config::on(BrokerChoice::Embedded, data)
    }

    /// That broker, with `data` as the folder of what this process keeps itself; topics are created by first use.
    pub fn on(broker: BrokerChoice, data: impl Into<PathBuf>) -> Config {
        Config {
            data: data.into(),
            broker,
            spill: SpillOptions::default(),
            create_topics: true,
            new_topic: TopicSpec::default(),
        }
    }

    /// A Kafka cluster; topics are created by first use. What is produced while it is away is kept in `data`.
    #[cfg(feature = "kafka")]
    pub fn kafka(options: KafkaOptions, data: impl Into<PathBuf>) -> Config {
        Config::on(BrokerChoice::Kafka(Box::new(options)), data)
    }

    /// How the absence of a broker on another machine is bridged.
    pub fn spill(mut self, spill: SpillOptions) -> Config {
        self.spill = spill;
        self
    }

    /// Whether topics are created by their first use.
    pub fn create_topics(mut self, create_topics: bool) -> Config {
        self.create_topics = create_topics;
        self
    }

    /// As what topics are created by their first use.
    pub fn new_topic(mut self, new_topic: TopicSpec) -> Config {
        self.new_topic = new_topic;
        self
    }
}
