//! How Keylane talks to Kafka: the settings of each client that it opens (BRK-2).
//!
//! Four kinds of clients: one that produces, those that read topics, those that read journals, and one member for each
//! group and topic. What a user sets goes to all of them, but for how records of journals are put together; what
//! a promise rests on cannot be set.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use super::errors::not_made;
use crate::contract::BrokerError;

/// Settings that a promise rests on, and why they cannot be changed.
const FIXED: [(&str, &str); 14] = [
    ("bootstrap.servers", "it is broker.kafka.brokers"),
    ("metadata.broker.list", "it is broker.kafka.brokers"),
    ("group.id", "it is the pipeline's group"),
    ("enable.auto.commit", "a position is committed once it is settled"),
    ("enable.auto.offset.store", "a position is committed once it is settled"),
    ("auto.offset.reset", "a position that is gone stops the partition; nothing is skipped in silence"),
    ("enable.idempotence", "without it a retry could put messages out of order"),
    ("acks", "a message is acknowledged once all replicas in sync have it"),
    ("message.timeout.ms", "a message that timed out would be overtaken by the next"),
    ("delivery.timeout.ms", "a message that timed out would be overtaken by the next"),
    ("retries", "a message that was given up would be overtaken by the next"),
    ("message.send.max.retries", "a message that was given up would be overtaken by the next"),
    ("enable.gapless.guarantee", "a message that was given up would be overtaken by the next"),
    ("partition.assignment.strategy", "partitions that stay must not stop for those that move"),
];

/// The largest batch that is sent, but for one of a single larger message.
pub(crate) const BATCH_BYTES: usize = 256 << 10;

/// How to reach a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KafkaOptions {
    /// Addresses to begin with: `host:port`, separated by commas.
    pub brokers: String,
    /// Any setting of librdkafka, such as `security.protocol`.
    pub settings: BTreeMap<String, String>,
}

impl KafkaOptions {
    /// A cluster, with nothing else set.
    pub fn new(brokers: impl Into<String>) -> KafkaOptions {
        KafkaOptions { brokers: brokers.into(), settings: BTreeMap::new() }
    }

    /// Refuses what cannot be set.
    pub fn check(&self) -> Result<(), BrokerError> {
        if self.brokers.trim().is_empty() {
            let text = "broker.kafka.brokers is empty; give at least one host:port";
            return Err(BrokerError::Invalid(text.to_owned()));
        }
        for (name, why) in FIXED {
            if self.settings.contains_key(name) {
                let text = format!("broker.kafka.settings.{name} cannot be set: {why}; take it out");
                return Err(BrokerError::Invalid(text));
            }
        }
        // Names and values are looked at by the client itself, without connecting anywhere.
        for client in [self.producer(), self.member("group")] {
            client.create_native_config().map_err(|error| BrokerError::Invalid(not_made(&error)))?;
        }
        Ok(())
    }

    /// The client that produces.
    pub fn producer(&self) -> ClientConfig {
        self.client(&[
            ("compression.type", "lz4"),
            ("linger.ms", "10"),
            ("batch.size", &BATCH_BYTES.to_string()),
            ("batch.num.messages", "100000"),
            ("max.in.flight.requests.per.connection", "5"),
            ("request.timeout.ms", "30000"),
            // Topics have their own limit, which is checked before; this one is the client's alone.
            ("message.max.bytes", "134217728"),
            // The producer's own bounds are smaller.
            ("queue.buffering.max.messages", "0"),
            ("queue.buffering.max.kbytes", "2097151"),
        ])
        .fixed(&[
            ("enable.idempotence", "true"),
            // The client stops at what it does not get over, so that nothing overtakes it, and is replaced.
            ("enable.gapless.guarantee", "true"),
            ("acks", "all"),
            ("message.timeout.ms", "0"),
            ("retries", "2147483647"),
        ])
        .0
    }

    /// The client that appends to journals: each record is waited for, but not so much that those of other partitions
    /// could not go with it. They are small and packed already.
    pub(crate) fn journal_producer(&self) -> ClientConfig {
        let mut config = self.producer();
        config.set("linger.ms", "2").set("compression.type", "none");
        // One record that fails is no reason to give up those of other journals: who appends reads back what counts.
        config.set("enable.gapless.guarantee", "false");
        config
    }

    /// A client that reads topics.
    pub fn reader(&self) -> ClientConfig {
        self.client(&[
            ("fetch.min.bytes", "1024"),
            ("fetch.wait.max.ms", "500"),
            ("isolation.level", "read_committed"),
            // By partition, on top of what pipelines have buffered: what is not read here waits at the broker.
            ("queued.max.messages.kbytes", "1024"),
            ("queued.min.messages", "1000"),
            // How long a partition whose queue was full is not asked for: by default a second, in which so little
            // as is queued here is used up many times.
            ("fetch.queue.backoff.ms", "10"),
            ("fetch.message.max.bytes", "1048576"),
        ])
        .fixed(&READING)
        .0
    }

    /// A client that reads journals: what was appended is wanted at once.
    pub(crate) fn journal_reader(&self) -> ClientConfig {
        let mut config = self.reader();
        config.set("fetch.min.bytes", "1").set("isolation.level", "read_uncommitted");
        config
    }

    /// A member of a group that reads `topic`, under a name of its own if the process has one: a process may have a
    /// member for each of several topics.
    pub(crate) fn joining(&self, group: &str, topic: &str) -> ClientConfig {
        let mut config = self.member(group);
        if let Some(process) = self.settings.get("group.instance.id") {
            config.set("group.instance.id", format!("{process}.{topic}"));
        }
        config
    }

    /// A member of a group. It reads nothing: it is told what is assigned, and commits.
    pub(crate) fn member(&self, group: &str) -> ClientConfig {
        self.client(&[
            ("session.timeout.ms", "30000"),
            ("heartbeat.interval.ms", "3000"),
            ("max.poll.interval.ms", "300000"),
        ])
        .fixed(&READING)
        .fixed(&[("group.id", group), ("partition.assignment.strategy", "cooperative-sticky")])
        .0
    }

    /// The client that asks about topics, and makes them.
    pub(crate) fn admin(&self) -> ClientConfig {
        self.client(&[("request.timeout.ms", "30000")]).0
    }

    fn client(&self, defaults: &[(&str, &str)]) -> Config {
        let mut config = ClientConfig::new();
        config.set("client.id", "keylane");
        config.set("reconnect.backoff.ms", "100").set("reconnect.backoff.max.ms", "2000");
        config.set("retry.backoff.ms", "100");
        // Who does not answer by then is away; the default would leave an operator in the dark for half a minute.
        config.set("socket.connection.setup.timeout.ms", "10000");
        for (name, value) in defaults {
            config.set(*name, *value);
        }
        for (name, value) in &self.settings {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers);
        config.set_log_level(RDKafkaLogLevel::Warning);
        Config(config)
    }
}

/// What every client that reads has.
const READING: [(&str, &str); 4] = [
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("auto.offset.reset", "error"),
    ("enable.partition.eof", "true"),
];

struct Config(ClientConfig);

impl Config {
    fn fixed(mut self, settings: &[(&str, &str)]) -> Config {
        for (name, value) in settings {
            self.0.set(*name, *value);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BRK-2.
    #[test]
    fn a_setting_that_a_promise_rests_on_cannot_be_set() {
        for (name, _) in FIXED {
            let mut options = KafkaOptions::new("localhost:9092");
            options.settings.insert(name.to_owned(), "1".to_owned());
            let refused = options.check().expect_err("it is fixed").to_string();
            assert!(refused.contains(name) && refused.contains("take it out"), "{refused}");
        }
        assert_eq!(KafkaOptions::new("localhost:9092").check(), Ok(()));
        assert!(KafkaOptions::new(" ").check().is_err());
    }

    /// BRK-2: a slip in a setting's name or value is found before anything is connected.
    #[test]
    fn a_setting_that_the_client_does_not_know_is_refused() {
        for (name, value) in
            [("sasl.mechanims", "PLAIN"), ("security.protocol", "SASL"), ("linger.ms", "soon")]
        {
            let mut options = KafkaOptions::new("localhost:9092");
            options.settings.insert(name.to_owned(), value.to_owned());
            let refused = options.check().expect_err("it is wrong").to_string();
            assert!(refused.contains(name) && !refused.contains(value), "{refused}");
        }
    }

    /// BRK-2: what `docs/kafka.md` lists is what the client takes.
    #[test]
    fn settings_for_tls_and_every_log_in_are_taken() {
        let tls = "security.protocol=SSL ssl.ca.location=/ca.pem ssl.certificate.location=/c.pem \
                   ssl.key.location=/k.pem ssl.key.password=p";
        let log_in = "security.protocol=SASL_SSL sasl.username=u sasl.password=p";
        let bearer = "security.protocol=SASL_SSL sasl.mechanism=OAUTHBEARER \
                      enable.sasl.oauthbearer.unsecure.jwt=true sasl.oauthbearer.config=principal=u";
        let mut all = vec![tls.to_owned(), bearer.to_owned()];
        for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
            all.push(format!("{log_in} sasl.mechanism={mechanism}"));
        }
        for settings in all {
            let mut options = KafkaOptions::new("localhost:9092");
            for (name, value) in settings.split_whitespace().filter_map(|setting| setting.split_once('=')) {
                options.settings.insert(name.to_owned(), value.to_owned());
            }
            assert_eq!(options.check(), Ok(()), "{settings}");
        }
    }

    /// BRK-2: what a user sets is passed on, and replaces a default.
    #[test]
    fn other_settings_reach_every_client() {
        let mut options = KafkaOptions::new("localhost:9092");
        options.settings.insert("security.protocol".to_owned(), "SASL_SSL".to_owned());
        options.settings.insert("session.timeout.ms".to_owned(), "6000".to_owned());
        for config in [options.producer(), options.reader(), options.member("g"), options.admin()] {
            assert_eq!(config.get("security.protocol"), Some("SASL_SSL"));
        }
        assert_eq!(options.member("g").get("session.timeout.ms"), Some("6000"));
        assert_eq!(options.member("g").get("group.id"), Some("g"));
    }
}
