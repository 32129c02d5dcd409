//! How Keylane talks to Kafka: the settings of each client that it opens (BRK-2).
//!
//! Four kinds of clients: one that produces, those that read topics, those that read journals, and one member for each
//! group and topic. What a user sets goes to all of them, but for how records of journals are put together; what
//! a promise rests on cannot be set.

use std::collections::BTreeMap;
use std::fmt;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use super::errors::not_made;
use super::tokens;
use super::topics::{check_name, topic_name};
use crate::contract::{BrokerError, LogKind};

/// Settings that a promise rests on, and why they cannot be changed.
const FIXED: [(&str, &str); 19] = [
    ("bootstrap.servers", "it is broker.kafka.brokers"),
    ("metadata.broker.list", "it is broker.kafka.brokers"),
    ("group.id", "it is the pipeline's group"),
    ("enable.auto.commit", "a position is committed once it is settled"),
    ("enable.auto.offset.store", "a position is committed once it is settled"),
    ("auto.offset.reset", "a position that is gone stops the partition; nothing is skipped in silence"),
    ("enable.idempotence", "without it a retry could put messages out of order"),
    ("acks", "a message is acknowledged once all replicas in sync have it"),
    ("request.required.acks", "a message is acknowledged once all replicas in sync have it"),
    ("message.timeout.ms", "a message that timed out would be overtaken by the next"),
    ("delivery.timeout.ms", "a message that timed out would be overtaken by the next"),
    ("retries", "a message that was given up would be overtaken by the next"),
    ("message.send.max.retries", "a message that was given up would be overtaken by the next"),
    ("enable.gapless.guarantee", "a message that was given up would be overtaken by the next"),
    ("partition.assignment.strategy", "partitions that stay must not stop for those that move"),
    ("queue.buffering.max.messages", "a message that finds no room would be overtaken by the next"),
    ("queue.buffering.max.kbytes", "a message that finds no room would be overtaken by the next"),
    ("delivery.report.only.error", "a message is acknowledged once the cluster says so"),
    ("transactional.id", "a message is there for its readers once it is acknowledged"),
];

/// Other names that the client has for settings which Keylane sets itself, and the names that Keylane uses. With both
/// set, the client takes the one that it happens to be given last.
const SAME: [(&str, &str); 5] = [
    ("compression.codec", "compression.type"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("max.partition.fetch.bytes", "fetch.message.max.bytes"),
    ("sasl.mechanisms", "sasl.mechanism"),
];

/// The name that Keylane uses for a setting.
fn own_name(name: &str) -> &str {
    SAME.iter().find(|(other, _)| *other == name).map_or(name, |(_, own)| own)
}

/// The largest record that a producing client takes.
const RECORD: &str = "message.max.bytes";
/// The largest answer to a fetch without what is around it, and with that.
const FETCH: &str = "fetch.max.bytes";
const RECEIVE: &str = "receive.message.max.bytes";
/// The client's own default of the first, of which it wants a reader's `fetch.max.bytes` to be no smaller.
const RECORD_BYTES: u64 = 1_000_000;
/// The least that it takes for it.
const RECORD_BYTES_MIN: u64 = 1_000;
/// The client's own default of the second.
const FETCH_BYTES: u64 = 50 << 20;
/// How much larger than `fetch.max.bytes` the client wants the third to be.
const FETCH_ROOM: u64 = 512;

/// How often clients tell their figures.
const INTERVAL: &str = "statistics.interval.ms";
const INTERVAL_MS: i64 = 15_000;

/// What a journal's reader may use for each partition: most have nothing to read, and a take-over reads one snapshot.
const JOURNAL_AHEAD_BYTES: usize = 1 << 20;

/// Settings that say whose certificates are trusted.
const AUTHORITIES: [&str; 2] = ["ssl.ca.location", "ssl.ca.pem"];

/// The largest batch that is sent, but for one of a single larger message.
pub(crate) const BATCH_BYTES: usize = 256 << 10;

/// The most messages of a batch, in whose bytes there is no room for so many.
const BATCH_MESSAGES: &str = "100000";

/// The largest record that a producing client takes: larger than any topic does.
const RECORD_MAX: &str = "134217728";

/// How to reach a cluster.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KafkaOptions {
    /// Addresses to begin with: `host:port`, separated by commas.
    pub brokers: String,
    /// Any setting of librdkafka, such as `security.protocol`.
    pub settings: BTreeMap<String, String>,
    /// Topics that keep Keylane's own state.
    pub journals: KafkaJournals,
    /// The name of this process, which the cluster's logs and quotas show; may be empty.
    pub node: String,
}

/// Without the values of settings: any of them may be a secret (SEC-5).
impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings: Vec<&String> = self.settings.keys().collect();
        f.debug_struct("KafkaOptions")
            .field("brokers", &self.brokers)
            .field("settings", &settings)
            .field("journals", &self.journals)
            .field("node", &self.node)
            .finish()
    }
}

/// Topics that keep Keylane's own state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaJournals {
    /// What their names begin with.
    pub prefix: String,
    /// Whether Keylane makes them.
    pub create: bool,
    /// Settings that they are made with, beside or instead of Keylane's own.
    pub settings: BTreeMap<String, String>,
}

impl Default for KafkaJournals {
    fn default() -> KafkaJournals {
        KafkaJournals { prefix: "_keylane".to_owned(), create: true, settings: BTreeMap::new() }
    }
}

/// Settings of such topics without which they would lose records: they may only be what they are.
const KEPT_WHOLE: [(&str, &str); 3] =
    [("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")];

/// The largest prefix: names of groups and topics stand behind it.
const PREFIX_BYTES_MAX: usize = 64;

/// What a record of a journal may need, whatever the size of messages: the largest facts, and a report.
const JOURNAL_BYTES_MIN: usize = 256 << 10;

impl KafkaJournals {
    /// The longest name of those that stand beside a topic.
    pub fn topic_name(&self, group: &str, topic: &str) -> String {
        topic_name(&self.prefix, LogKind::Journal, group, topic)
    }

    fn check(&self) -> Result<(), BrokerError> {
        let invalid = |text: String| Err(BrokerError::Invalid(text));
        if check_name(&self.prefix).is_err()
            || self.prefix.starts_with("__")
            || self.prefix.len() > PREFIX_BYTES_MAX
        {
            return invalid(format!(
                "broker.kafka.journals.prefix is {:?}; it takes letters, digits, `.`, `_` and `-`, at most {PREFIX_BYTES_MAX} of them, and does not begin with `__`, which is Kafka's own",
                self.prefix
            ));
        }
        for (name, wanted) in KEPT_WHOLE {
            if self.settings.get(name).is_some_and(|set| set != wanted) {
                return invalid(format!(
                    "broker.kafka.journals.settings.{name} can only be {wanted}: a journal that forgets by itself loses what Keylane knows; take it out"
                ));
            }
        }
        let bytes = self.settings.get("max.message.bytes");
        if bytes.is_some_and(|set| !set.parse().is_ok_and(|bytes: usize| bytes >= JOURNAL_BYTES_MIN)) {
            return invalid(format!(
                "broker.kafka.journals.settings.max.message.bytes must be {JOURNAL_BYTES_MIN} or more, and at least twice the largest max_message of your topics"
            ));
        }
        Ok(())
    }
}

impl KafkaOptions {
    /// A cluster, with nothing else set.
    pub fn new(brokers: impl Into<String>) -> KafkaOptions {
        KafkaOptions { brokers: brokers.into(), ..KafkaOptions::default() }
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
        for (name, own) in SAME {
            if self.settings.contains_key(name) && self.settings.contains_key(own) {
                let text = format!(
                    "broker.kafka.settings has {name} and {own}, which are one setting; take one out"
                );
                return Err(BrokerError::Invalid(text));
            }
        }
        self.journals.check()?;
        tokens::Endpoint::of(&self.settings)?;
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
            ("batch.num.messages", BATCH_MESSAGES),
            ("max.in.flight.requests.per.connection", "5"),
            ("request.timeout.ms", "30000"),
            // Topics have their own limit, which is checked before; this one is the client's alone.
            (RECORD, RECORD_MAX),
        ])
        .fixed(&[
            // The producer's own bounds are smaller.
            ("queue.buffering.max.messages", "0"),
            ("queue.buffering.max.kbytes", "2097151"),
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
        // A batch that is larger than a journal takes stops its partition, and so does a record for which this client
        // has no room.
        config.set("batch.size", BATCH_BYTES.to_string()).set("batch.num.messages", BATCH_MESSAGES);
        config.set(RECORD, RECORD_MAX);
        // One record that fails is no reason to give up those of other journals: who appends reads back what counts.
        config.set("enable.gapless.guarantee", "false");
        config
    }

    /// A client that reads topics, and may use `ahead_bytes` of memory for each partition that it reads.
    ///
    /// A quarter of them is what waits in a partition's queue, and another what one more answer may bring before its
    /// fetching stops. The rest is what the client needs around messages: some 350 bytes each.
    pub fn reader(&self, ahead_bytes: usize) -> ClientConfig {
        let share = (ahead_bytes / 4).max(1 << 10);
        self.client(&[
            // From the first byte on, or a lone message would wait; and not for long, since a client has one request
            // under way to a broker, and an empty partition would have a full one wait.
            ("fetch.min.bytes", "1"),
            ("fetch.wait.max.ms", "100"),
            ("isolation.level", "read_committed"),
            // By partition: what is not read here waits at the broker. Bytes are the bound, not messages.
            ("queued.max.messages.kbytes", &(share >> 10).to_string()),
            ("queued.min.messages", "100000"),
            // How long a partition whose queue was full is not asked for: by default a second, in which so little
            // as is queued here is used up many times.
            ("fetch.queue.backoff.ms", "10"),
            ("fetch.message.max.bytes", &share.to_string()),
            // Of all partitions in one answer, which is in memory as a whole.
            ("fetch.max.bytes", &(4 * ahead_bytes).clamp(1 << 20, 16 << 20).to_string()),
        ])
        .fixed(&READING)
        .reading()
    }

    /// A client that reads journals: what was appended is wanted at once, and whoever begins to read one waits until
    /// the request that is under way ends.
    pub(crate) fn journal_reader(&self) -> ClientConfig {
        let mut config = self.reader(JOURNAL_AHEAD_BYTES);
        config.set("fetch.min.bytes", "1").set("fetch.wait.max.ms", "50");
        config.set("isolation.level", "read_uncommitted");
        config
    }

    /// How often clients tell their figures, in ms.
    pub(crate) fn interval_ms(&self) -> i64 {
        let set = self.settings.get(INTERVAL).and_then(|set| set.parse().ok());
        set.unwrap_or(INTERVAL_MS)
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
        .reading()
    }

    /// The client that asks about topics, and makes them.
    pub(crate) fn admin(&self) -> ClientConfig {
        self.client(&[("request.timeout.ms", "30000")]).reading()
    }

    /// How the cluster's logs and quotas name this process.
    fn client_id(&self) -> String {
        let fine = |letter: char| {
            if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '-' }
        };
        match self.node.is_empty() {
            true => "keylane".to_owned(),
            false => format!("keylane-{}", self.node.chars().map(fine).collect::<String>()),
        }
    }

    fn client(&self, defaults: &[(&str, &str)]) -> Config {
        let mut config = ClientConfig::new();
        config.set("client.id", self.client_id());
        config.set(INTERVAL, INTERVAL_MS.to_string());
        config.set("reconnect.backoff.ms", "100").set("reconnect.backoff.max.ms", "2000");
        config.set("retry.backoff.ms", "100");
        // Who does not answer by then is away; the default would leave an operator in the dark for half a minute.
        config.set("socket.connection.setup.timeout.ms", "10000");
        for (name, value) in defaults {
            config.set(*name, *value);
        }
        for (name, value) in self.settings.iter().filter(|(name, _)| !tokens::OURS.contains(&name.as_str())) {
            config.set(own_name(name), value);
        }
        // The client brings its own TLS library, which by itself looks for authorities where no system has any.
        let tls = self.settings.get("security.protocol").is_some_and(|it| it.to_lowercase().contains("ssl"));
        if tls && !AUTHORITIES.iter().any(|name| self.settings.contains_key(*name)) {
            config.set("ssl.ca.location", "probe");
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

    /// Of a client that reads. It takes no records, but would not be made if it were told of one that is larger than an
    /// answer to a fetch, nor if such an answer with what is around it were too large for it.
    fn reading(mut self) -> ClientConfig {
        let bytes_of = |name: &str| self.0.get(name).and_then(|set| set.parse::<u64>().ok());
        let (fetch, receive) = (bytes_of(FETCH).unwrap_or(FETCH_BYTES), bytes_of(RECEIVE));
        if self.0.get(RECORD).is_some() || fetch < RECORD_BYTES {
            self.0.set(RECORD, fetch.clamp(RECORD_BYTES_MIN, RECORD_BYTES).to_string());
        }
        if let Some(receive) = receive {
            self.0.set(RECEIVE, receive.max(fetch + FETCH_ROOM).to_string());
        }
        self.0
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::consumer::BaseConsumer;
    use rdkafka::producer::BaseProducer;

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

    /// BRK-2: what a user sets under another of its names replaces what Keylane sets, whatever order the client is given
    /// both in; two names of one setting are refused.
    #[test]
    fn a_setting_under_another_of_its_names_reaches_the_client_once() {
        for (name, own, value) in [
            ("compression.codec", "compression.type", "zstd"),
            ("queue.buffering.max.ms", "linger.ms", "3"),
            ("max.in.flight", "max.in.flight.requests.per.connection", "2"),
            ("max.partition.fetch.bytes", "fetch.message.max.bytes", "5000"),
            ("sasl.mechanisms", "sasl.mechanism", "PLAIN"),
        ] {
            let mut options = KafkaOptions::new("localhost:9092");
            options.settings.insert(name.to_owned(), value.to_owned());
            assert_eq!(options.check(), Ok(()), "{name}");
            for client in [options.producer(), options.reader(1 << 20)] {
                assert_eq!((client.get(own), client.get(name)), (Some(value), None), "{name}");
            }
            options.settings.insert(own.to_owned(), value.to_owned());
            let refused = options.check().expect_err("it is set twice").to_string();
            assert!(refused.contains(name) && refused.contains(own), "{refused}");
        }
    }

    /// BRK-2: sizes that a user gives to producers do not keep readers from being made, nor do small ones of answers.
    #[test]
    fn sizes_under_settings_leave_every_client_possible() {
        for settings in [
            &[("message.max.bytes", "8388608")][..],
            &[("message.max.bytes", "100000000"), ("receive.message.max.bytes", "1000000")],
            &[("receive.message.max.bytes", "20000000")],
            &[("fetch.max.bytes", "500000"), ("receive.message.max.bytes", "500000")],
            &[("fetch.max.bytes", "200000000")],
        ] {
            let mut options = KafkaOptions::new("127.0.0.1:1");
            let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            options.settings.extend(settings);
            assert_eq!(options.check(), Ok(()));
            for ahead_bytes in [64 << 10, 1 << 20, 4 << 20] {
                let made = options.reader(ahead_bytes).create::<BaseConsumer>();
                assert!(made.is_ok(), "{:?}: {:?}", options.settings, made.err());
            }
            for config in [options.journal_reader(), options.member("g"), options.admin()] {
                assert!(config.create::<BaseConsumer>().is_ok(), "{:?}", options.settings);
            }
            for config in [options.producer(), options.journal_producer()] {
                assert!(config.create::<BaseProducer>().is_ok(), "{:?}", options.settings);
            }
            let told = options.settings.get("message.max.bytes").map_or(RECORD_MAX, String::as_str);
            assert_eq!(options.producer().get("message.max.bytes"), Some(told));
        }
    }

    /// BRK-6, BRK-2: what a user sets for batches of messages does not change those of journals, which a journal might
    /// not take.
    #[test]
    fn batches_of_journals_are_not_those_of_messages() {
        let set = [
            ("batch.size", "1048576"),
            ("batch.num.messages", "7"),
            ("message.max.bytes", "100000"),
            ("compression.codec", "zstd"),
            ("queue.buffering.max.ms", "900"),
        ];
        let mut options = KafkaOptions::new("localhost:9092");
        options.settings.extend(set.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let (messages, journals) = (options.producer(), options.journal_producer());
        for (name, of_messages, of_journals) in [
            ("batch.size", "1048576", "262144"),
            ("batch.num.messages", "7", BATCH_MESSAGES),
            ("message.max.bytes", "100000", RECORD_MAX),
            ("compression.type", "zstd", "none"),
            ("linger.ms", "900", "2"),
        ] {
            assert_eq!(
                (messages.get(name), journals.get(name)),
                (Some(of_messages), Some(of_journals)),
                "{name}"
            );
        }
        assert_eq!(journals.get("compression.codec").or(journals.get("queue.buffering.max.ms")), None);
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

    /// BRK-2: authorities of the system are found, unless others are named.
    #[test]
    fn authorities_of_the_system_are_looked_for_where_none_are_named() {
        let location = |settings: &[(&str, &str)]| {
            let mut options = KafkaOptions::new("localhost:9092");
            let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            options.settings.extend(settings);
            let member = options.member("g").get("ssl.ca.location").map(str::to_owned);
            for client in [options.producer(), options.reader(1 << 20), options.admin()] {
                assert_eq!(client.get("ssl.ca.location").map(str::to_owned), member);
            }
            member
        };
        let probe = Some("probe".to_owned());
        assert_eq!(location(&[("security.protocol", "SASL_SSL")]), probe);
        assert_eq!(location(&[("security.protocol", "ssl")]), probe);
        assert_eq!(location(&[("security.protocol", "PLAINTEXT")]), None);
        assert_eq!(location(&[]), None);
        let own = [("security.protocol", "SSL"), ("ssl.ca.location", "/ca.pem")];
        assert_eq!(location(&own), Some("/ca.pem".to_owned()));
        assert_eq!(location(&[("security.protocol", "SSL"), ("ssl.ca.pem", "PEM")]), None);
    }

    /// SEC-5: debug output names settings, and has no value of any.
    #[test]
    fn values_of_settings_are_not_in_debug_output() {
        let mut options = KafkaOptions::new("localhost:9092");
        options.settings.insert("sasl.password".to_owned(), "hush".to_owned());
        let shown = format!("{options:?}");
        assert!(shown.contains("sasl.password") && !shown.contains("hush"), "{shown}");
    }

    /// BRK-2, BRK-6.
    #[test]
    fn journals_that_would_forget_are_refused_before_anything_is_made() {
        let with = |prefix: &str, name: &str, value: &str| {
            let mut options = KafkaOptions::new("localhost:9092");
            options.journals.prefix = prefix.to_owned();
            options.journals.settings.insert(name.to_owned(), value.to_owned());
            options.check()
        };
        assert_eq!(with("team.keylane", "segment.bytes", "52428800"), Ok(()));
        assert_eq!(with("team.keylane", "cleanup.policy", "delete"), Ok(()));
        for (prefix, name, value) in [
            ("_keylane", "cleanup.policy", "compact"),
            ("_keylane", "retention.ms", "86400000"),
            ("_keylane", "retention.bytes", "1000"),
            ("_keylane", "max.message.bytes", "1000"),
            ("_keylane", "max.message.bytes", "large"),
            ("", "segment.bytes", "52428800"),
            ("__kafka", "segment.bytes", "52428800"),
            ("a/b", "segment.bytes", "52428800"),
        ] {
            let refused = with(prefix, name, value).expect_err("it is wrong").to_string();
            assert!(refused.contains("broker.kafka.journals"), "{refused}");
        }
    }

    /// BRK-2: what a user sets is passed on, and replaces a default.
    #[test]
    fn other_settings_reach_every_client() {
        let mut options = KafkaOptions::new("localhost:9092");
        options.settings.insert("security.protocol".to_owned(), "SASL_SSL".to_owned());
        options.settings.insert("session.timeout.ms".to_owned(), "6000".to_owned());
        for config in [options.producer(), options.reader(1 << 20), options.member("g"), options.admin()] {
            assert_eq!(config.get("security.protocol"), Some("SASL_SSL"));
        }
        assert_eq!(options.member("g").get("session.timeout.ms"), Some("6000"));
        assert_eq!(options.member("g").get("group.id"), Some("g"));
    }
}
