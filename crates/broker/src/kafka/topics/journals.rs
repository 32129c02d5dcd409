//! The topics that keep Keylane's own state: one for the journals and one for the holds of each group and source topic
//! (BRK-6). Their names, how they are made, and how they follow what their source has become.
//!
//! Kept: two pairs of group and topic never share a name, also where Kafka takes `.` and `_` for the same. Journals
//! that an earlier version named ambiguously are found under their old name, and used on. What a cluster refuses of
//! their settings is left out, but for what they would lose records without.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use keylane_core::Record;
use keylane_core::journal::{Snapshot, SnapshotBody, key_hash};

use super::admin::Admin;
use super::spec::check_name;
use crate::contract::{BrokerError, Journal, JournalName, LogKind, Topic, TopicSpec};
use crate::kafka::clients::Clients;
use crate::kafka::journal::KafkaJournal;
use crate::kafka::lock;
use crate::kafka::options::KafkaJournals;
use crate::kafka::produce::KafkaProducer;
use crate::kafka::wire::AROUND;

/// How much larger a record may be than the message in it.
const BODY: usize = 2;
/// What such a topic takes at least, however small the messages of its source are: a whole batch of the producer, and
/// the largest snapshot.
pub(crate) const RECORD_BYTES_MIN: usize = 1 << 20;
/// Segments are small, so that what was cut is freed soon; where the cluster's policy has none so small, of the
/// smallest size that large vendors take.
const SEGMENT_BYTES: [&str; 2] = ["16777216", "52428800"];
/// How much of each old journal is read to learn whose it is: its first records or its snapshot say so.
const ORIGIN_BYTES: usize = 4 << 20;

/// All of them, on one cluster.
pub(crate) struct Journals {
    pub(crate) admin: Arc<Admin>,
    pub(crate) producer: Arc<KafkaProducer>,
    pub(crate) clients: Arc<Clients>,
    options: KafkaJournals,
    /// By group and topic: true if their journals have their old name.
    former: Mutex<HashMap<(String, String), bool>>,
    /// Held by who makes a topic: all partitions of a pipeline ask for it at once.
    making: tokio::sync::Mutex<()>,
    /// How often in a row a journal was not read in time, by topic and partition; those that were are left out.
    slow: Mutex<HashMap<(String, u32), u32>>,
    /// What topics could not be given, so that it is not tried at each record: copies in sync, and bytes.
    refused: Mutex<HashMap<String, (u32, usize)>>,
}

impl Journals {
    pub(crate) fn new(
        admin: &Arc<Admin>,
        producer: &Arc<KafkaProducer>,
        clients: &Arc<Clients>,
        options: &KafkaJournals,
    ) -> Arc<Journals> {
        Arc::new(Journals {
            admin: Arc::clone(admin),
            producer: Arc::clone(producer),
            clients: Arc::clone(clients),
            options: options.clone(),
            former: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            slow: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// How often in a row a journal was not read in time.
    pub(crate) fn slow(&self, topic: &str, partition: u32) -> u32 {
        lock(&self.slow).get(&(topic.to_owned(), partition)).copied().unwrap_or(0)
    }

    pub(crate) fn set_slow(&self, topic: &str, partition: u32, times: u32) {
        let key = (topic.to_owned(), partition);
        match times {
            0 => drop(lock(&self.slow).remove(&key)),
            times => drop(lock(&self.slow).insert(key, times)),
        }
    }

    /// The topics of a group's holds and journals.
    pub(crate) async fn topics_of(
        self: &Arc<Self>,
        group: &str,
        topic: &str,
    ) -> Result<[String; 2], BrokerError> {
        let name =
            |kind| JournalName { group: group.to_owned(), topic: topic.to_owned(), partition: 0, kind };
        Ok([self.topic_of(&name(LogKind::Hold)).await?, self.topic_of(&name(LogKind::Journal)).await?])
    }

    /// A journal's topic.
    pub(crate) async fn topic_of(self: &Arc<Self>, name: &JournalName) -> Result<String, BrokerError> {
        let (group, topic) = (&name.group, &name.topic);
        let made = topic_name(&self.options.prefix, name.kind, group, topic);
        check_name(&made)?;
        if is_plain(group) && is_plain(topic) {
            return Ok(made);
        }
        let pair = (group.clone(), topic.clone());
        let known = lock(&self.former).get(&pair).copied();
        let is_former = match known {
            Some(known) => known,
            None => {
                let found = self.has_former(group, topic).await?;
                lock(&self.former).insert(pair, found);
                found
            }
        };
        Ok(if is_former { former(&self.options.prefix, name.kind, group, topic) } else { made })
    }

    /// True if journals of this pair lie under their old name. Another pair may have had the same: then the source that
    /// their fences name decides.
    async fn has_former(self: &Arc<Self>, group: &str, topic: &str) -> Result<bool, BrokerError> {
        let old = former(&self.options.prefix, LogKind::Journal, group, topic);
        let Some(there) = self.admin.topic(&old).await? else {
            return Ok(false);
        };
        let others = self.admin.describe(others(group, topic)).await?;
        let mut ours = others.is_empty();
        for partition in (0..there.partitions).take_while(|_| !others.is_empty()) {
            let (group, topic) = (group.to_owned(), topic.to_owned());
            let name = JournalName { group, topic, partition, kind: LogKind::Journal };
            if let Some(source) = source_of(&KafkaJournal::new(self, name, old.clone())).await? {
                ours = others.iter().all(|other| other.id != source);
                break;
            }
        }
        if ours {
            tracing::info!(topic = old, "a group's journals have the name that an earlier version gave them");
        }
        Ok(ours)
    }

    /// Makes a topic beside `source`, with as many partitions and copies; one that is there follows its source.
    pub(crate) async fn make(&self, topic: &str, source: &str) -> Result<(), BrokerError> {
        if self.admin.known(topic).is_none() {
            let _one = self.making.lock().await;
            if self.admin.known(topic).is_none() {
                self.create(topic, &self.admin.existing(source).await?).await?;
            }
        }
        // Also one that another made before.
        match self.admin.known(topic) {
            Some(there) => self.follow(&there, source).await,
            None => Ok(()),
        }
    }

    /// Without some settings, if the cluster has a rule against them: a policy, or a limit of its vendor's.
    async fn create(&self, topic: &str, source: &Topic) -> Result<(), BrokerError> {
        let spec = &source.spec;
        if !self.options.create {
            let settings = self.settings(spec, Some(SEGMENT_BYTES[0]));
            let (topic, partitions, replicas) = (topic.to_owned(), source.partitions, spec.replicas);
            return match self.admin.topic(&topic).await? {
                Some(_) => Ok(()),
                None => {
                    let command = command(&topic, partitions, replicas, &settings);
                    Err(BrokerError::NotMade { topic, command })
                }
            };
        }
        let mut first = None;
        for segment_bytes in [Some(SEGMENT_BYTES[0]), Some(SEGMENT_BYTES[1]), None] {
            let settings = self.settings(spec, segment_bytes);
            match self.admin.make(topic, source.partitions, spec.replicas, &settings).await {
                Err(refused @ BrokerError::Refused { .. }) => {
                    tracing::info!(topic, %refused, "a topic of Keylane's own is asked for with fewer settings");
                    first = first.or(Some(refused));
                }
                other => return other,
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Settings beside a topic like this. Without `segment_bytes` only those that records would be lost without.
    fn settings(&self, source: &TopicSpec, segment_bytes: Option<&str>) -> Vec<(String, String)> {
        let forever = || "-1".to_owned();
        let mut settings = vec![
            ("cleanup.policy", "delete".to_owned()),
            ("retention.ms", forever()),
            ("retention.bytes", forever()),
            ("min.insync.replicas", source.min_insync.to_string()),
            ("max.message.bytes", (self.bytes_wanted(source) + AROUND).to_string()),
        ];
        if let Some(segment_bytes) = segment_bytes {
            settings.push(("segment.bytes", segment_bytes.to_owned()));
            settings.push(("message.timestamp.type", "LogAppendTime".to_owned()));
        }
        let own = &self.options.settings;
        settings.retain(|(name, _)| !own.contains_key(*name));
        let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value));
        settings.chain(own.clone()).collect()
    }

    /// What a record may have, if the topic was made as it should be.
    fn bytes_wanted(&self, source: &TopicSpec) -> usize {
        let set = self.options.settings.get("max.message.bytes").and_then(|set| set.parse::<usize>().ok());
        set.map_or((BODY * source.message_bytes_max).max(RECORD_BYTES_MIN), |set| set.saturating_sub(AROUND))
    }

    /// What a record of a topic may have.
    pub(crate) fn bytes_max(&self, topic: &str, source: &str) -> usize {
        match (self.admin.known(topic), self.admin.known(source)) {
            (Some(there), _) => there.spec.message_bytes_max,
            (None, Some(source)) => self.bytes_wanted(&source.spec),
            (None, None) => RECORD_BYTES_MIN,
        }
    }

    /// One that is there is kept as safe as its source has become since, and takes messages as large: whoever went from
    /// one broker to a cluster, or raised a limit, did so by config. Not above the copies that there are, or nothing
    /// could be appended any more.
    async fn follow(&self, there: &Topic, source: &str) -> Result<(), BrokerError> {
        let Some(source) = self.admin.known(source) else {
            return Ok(());
        };
        let (name, has) = (&there.name, &there.spec);
        let set = |name: &str| self.options.settings.contains_key(name);
        let copies = match set("min.insync.replicas") {
            true => has.min_insync,
            false => source.spec.min_insync.min(has.replicas).max(has.min_insync),
        };
        let bytes = self.bytes_wanted(&source.spec).max(has.message_bytes_max);
        let wanted = (copies, bytes);
        if (has.min_insync, has.message_bytes_max) == wanted || lock(&self.refused).get(name) == Some(&wanted)
        {
            return Ok(());
        }
        let settings = [
            ("min.insync.replicas".to_owned(), copies.to_string()),
            ("max.message.bytes".to_owned(), (bytes + AROUND).to_string()),
        ];
        match self.admin.alter(name, &settings).await {
            Ok(true) => {
                self.admin.altered(name, &settings).await?;
                tracing::info!(topic = name, copies, bytes, "a journal follows its topic's limits");
                Ok(())
            }
            Ok(false) => self.admin.topic(name).await.map(drop),
            // What it has served until now; whoever may not change it is not stopped by that.
            Err(
                error @ (BrokerError::Denied { .. } | BrokerError::Refused { .. } | BrokerError::Invalid(_)),
            ) => {
                tracing::warn!(topic = name, %error, "a journal does not follow its topic's limits");
                lock(&self.refused).insert(name.clone(), wanted);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// The name of a topic that keeps state. Group and topic stand in it as they are; where one of them has a `.` or `_`,
/// which also separate the parts of the name, a hash of both tells it from that of every other pair.
pub(crate) fn topic_name(prefix: &str, kind: LogKind, group: &str, topic: &str) -> String {
    let plain = former(prefix, kind, group, topic);
    match is_plain(group) && is_plain(topic) {
        true => plain,
        false => format!("{plain}-{:016x}", key_hash(0, format!("{group}/{topic}").as_bytes())),
    }
}

/// What an earlier version called it. For most names it is the same.
fn former(prefix: &str, kind: LogKind, group: &str, topic: &str) -> String {
    let kind = match kind {
        LogKind::Journal => "journal",
        LogKind::Hold => "hold",
    };
    format!("{prefix}.{kind}.{group}.{topic}")
}

fn is_plain(name: &str) -> bool {
    !name.contains(['.', '_'])
}

/// Topics of other pairs that had the same old name.
fn others(group: &str, topic: &str) -> Vec<String> {
    let both = format!("{group}.{topic}");
    let splits = both.match_indices('.').map(|(at, _)| (&both[..at], &both[at + 1..]));
    let splits = splits.filter(|(one, other)| *one != group && check_name(other).is_ok());
    splits.map(|(_, topic)| topic.to_owned()).collect()
}

/// The incarnation of the topic that a journal is about, if it says so.
async fn source_of(journal: &KafkaJournal) -> Result<Option<u128>, BrokerError> {
    let page = journal.read(0, ORIGIN_BYTES).await?;
    let records = page.records.iter().filter_map(|(_, bytes)| Record::decode(bytes).ok());
    let incarnation = |record| match record {
        Record::Fence(fence) => Some(fence.source.incarnation),
        Record::Snapshot(Snapshot { body: SnapshotBody::State(state), .. }) => {
            state.source.map(|source| source.incarnation)
        }
        _ => None,
    };
    Ok(records.filter_map(incarnation).next())
}

/// What makes a topic where Keylane may not.
fn command(topic: &str, partitions: u32, replicas: u32, settings: &[(String, String)]) -> String {
    let settings: Vec<String> =
        settings.iter().map(|(name, value)| format!("--config {name}={value}")).collect();
    let settings = settings.join(" ");
    format!(
        "kafka-topics.sh --create --topic {topic} --partitions {partitions} --replication-factor {replicas} {settings}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(group: &str, topic: &str) -> String {
        topic_name("_keylane", LogKind::Journal, group, topic)
    }

    /// BRK-6.
    #[test]
    fn no_two_pairs_of_group_and_topic_share_a_name() {
        let parts = ["a", "b", "c", "a.b", "b.c", "a_b", "b_c", "a.b.c", "a-b", "a.", ".a", "c-0"];
        let mut seen = HashMap::new();
        for group in parts {
            for topic in parts {
                // Kafka takes both for the same where names must differ.
                let folded = name(group, topic).replace('.', "_");
                assert_eq!(seen.insert(folded, (group, topic)), None, "{group} {topic}");
            }
        }
    }

    /// BRK-6: journals of most groups keep their name; that of others does not change any more.
    #[test]
    fn names_stay_as_they_are() {
        assert_eq!(name("orders", "orders-v2"), "_keylane.journal.orders.orders-v2");
        assert_eq!(name("a.b", "c"), "_keylane.journal.a.b.c-0f55eecdd02537cc");
        assert_eq!(others("a.b", "c"), ["b.c"]);
        assert_eq!(others("a", "b"), [] as [&str; 0]);
    }
}
