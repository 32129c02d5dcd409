//! The topics in which Keylane keeps its own state: their sizes, names and settings, on clusters with rules of their own.
#![cfg(feature = "kafka")]

use bytes::Bytes;
use futures_util::future::join_all;
use keylane_broker::testing::conformance::client::journal_name;
use keylane_broker::{
    AppendError, Broker, BrokerError, Compression, Kafka, KafkaOptions, LogKind, TopicSpec,
};
use keylane_core::journal::{Claim, Fence, Source};
use keylane_core::{Record, owner};
use keylane_tests::Cluster;

fn open(cluster: &Cluster) -> Kafka {
    Kafka::open(KafkaOptions::new(&cluster.bootstrap)).expect("it opens")
}

/// Bytes that do not become fewer when they are compressed.
fn noise(bytes: usize) -> Bytes {
    let mut state = 1u64;
    let next = std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as u8
    });
    next.take(bytes).collect()
}

fn small() -> TopicSpec {
    TopicSpec { partitions: 1, message_bytes_max: 2000, ..TopicSpec::default() }
}

fn setting(cluster: &Cluster, topic: &str, name: &str) -> Option<String> {
    let told = cluster.tool(&["TopicCommand", "--describe", "--topic", topic]);
    let found = told.split(&format!("{name}=")).nth(1)?;
    Some(found.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '-').collect())
}

/// BRK-6, P10: a burst of dead letters of a topic with a small limit goes in one batch, which Kafka bounds.
#[tokio::test]
async fn a_burst_of_bodies_of_a_topic_with_a_small_limit_is_not_refused_together() {
    let broker = open(&Cluster::shared());
    broker.create_topic("burst", &small()).await.expect("it is made");
    let hold = broker.journal(&journal_name("g", "burst", LogKind::Hold)).await.expect("it opens");
    let body = noise(1900);
    let landed = join_all((0..300).map(|_| hold.append(body.clone(), None))).await;
    let refused = landed.iter().find(|result| result.is_err());
    assert_eq!(refused, None, "each body is below the limit");
}

/// BRK-6, P10: the largest snapshot that an owner writes is taken, however small the topic's messages are.
#[tokio::test]
async fn a_snapshot_fits_beside_a_topic_with_a_small_limit() {
    let broker = open(&Cluster::shared());
    broker.create_topic("snapshots", &small()).await.expect("it is made");
    let journal = broker.journal(&journal_name("g", "snapshots", LogKind::Journal)).await.expect("it opens");
    let bounds = owner::Bounds::default().within(journal.bytes_max());
    let whole = owner::Bounds { record_bytes_max: bounds.record_bytes_max, ..owner::Bounds::default() };
    assert_eq!(bounds, whole, "nothing has to be smaller");
    assert_eq!(journal.append(noise(bounds.snapshot_bytes_max), None).await, Ok(0));
}

/// BRK-6, P10: a journal that was made with a smaller limit, and that nobody may raise, takes what it takes, one record
/// at a time.
#[tokio::test]
async fn a_journal_with_a_smaller_limit_takes_records_up_to_it() {
    let cluster = Cluster::shared();
    let mut options = KafkaOptions::new(&cluster.bootstrap);
    options.journals.settings.insert("max.message.bytes".to_owned(), (256 << 10).to_string());
    let broker = Kafka::open(options).expect("it opens");
    broker.create_topic("tight", &small()).await.expect("it is made");
    let hold = broker.journal(&journal_name("g", "tight", LogKind::Hold)).await.expect("it opens");
    hold.append(noise(10), None).await.expect("it lands");
    let most = hold.bytes_max();
    assert!((200 << 10..256 << 10).contains(&most), "{most}");
    let body = noise(most / 2 + 1000);
    let landed = join_all((0..20).map(|_| hold.append(body.clone(), None))).await;
    assert_eq!(landed.iter().find(|result| result.is_err()), None, "two of them do not fit into one batch");
    assert!(owner::Bounds::default().within(most).snapshot_bytes_max <= most);
    let refused = hold.append(noise(most + 1), None).await;
    assert!(
        matches!(&refused, Err(AppendError::Stopped(why)) if why.contains("max.message.bytes")),
        "{refused:?}"
    );
}

/// BRK-6, P1: groups and topics whose names read the same in a row have journals of their own.
#[tokio::test]
async fn pairs_whose_names_read_the_same_have_journals_of_their_own() {
    let broker = open(&Cluster::shared());
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    for topic in ["alike", "b.alike"] {
        broker.create_topic(topic, &spec).await.expect("it is made");
    }
    for (group, topic) in [("a.b", "alike"), ("a", "b.alike"), ("a_b", "alike")] {
        for kind in [LogKind::Journal, LogKind::Hold] {
            let journal = broker.journal(&journal_name(group, topic, kind)).await.expect("it opens");
            let record = Bytes::from(format!("{group}/{topic}"));
            assert_eq!(journal.append(record.clone(), None).await, Ok(0), "{group}/{topic}");
            let page = journal.read(0, 1 << 20).await.expect("it can be read");
            assert_eq!(page.records, [(0, record)], "{group}/{topic}");
        }
    }
}

/// A journal as an earlier version left it: made under its old name, and owned once.
async fn former(cluster: &Cluster, broker: &Kafka, group: &str, topic: &str) {
    let name = format!("_keylane.journal.{group}.{topic}");
    let source = broker.topic(topic).await.expect("it answers").expect("it is there");
    let config = ["cleanup.policy=delete", "retention.ms=-1", "retention.bytes=-1"];
    let mut create = vec!["TopicCommand", "--create", "--topic", &name, "--partitions", "1"];
    config.iter().for_each(|setting| create.extend(["--config", setting]));
    cluster.tool(&create);
    let (incarnation, partitions) = (source.incarnation, source.partitions);
    let claim = Claim { id: 7, instance: 1, node: "n".to_owned(), format: 1 };
    let source = Source { incarnation, partitions };
    for record in [
        Record::Identity { journal: 9 },
        Record::Claim(claim),
        Record::Fence(Fence { claim: 7, claim_position: 1, journal: 9, source, format: None, order: None }),
    ] {
        assert!(broker.append_raw(&name, 0, record.encode()).await, "it lands");
    }
}

/// BRK-6, P4: journals that an earlier version made are used on, by the pair whose they are, and by no other.
#[tokio::test]
async fn journals_with_an_old_name_are_used_on_by_whose_they_are() {
    let cluster = Cluster::shared();
    let broker = open(&cluster);
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    for topic in ["older", "y.older", "lonely.older"] {
        broker.create_topic(topic, &spec).await.expect("it is made");
    }
    former(&cluster, &broker, "x.y", "older").await;
    former(&cluster, &broker, "x", "lonely.older").await;
    let again = open(&cluster);
    for (group, topic, records) in [("x", "y.older", 0), ("x.y", "older", 3), ("x", "lonely.older", 3)] {
        let journal = again.journal(&journal_name(group, topic, LogKind::Journal)).await.expect("it opens");
        let page = journal.read(0, 1 << 20).await.expect("it can be read");
        assert_eq!(page.records.len(), records, "{group}/{topic}");
        let made = again.journals(group, topic).await.expect("it answers");
        assert_eq!(made, Some(1), "{group}/{topic}");
        again.join(group, topic, "n").await.expect("what it keeps is kept whole").leave().await;
    }
}

/// BRK-2, BRK-6: topics of Keylane's own are made where small segments and codecs of topics are refused, as managed
/// clusters do; what nobody can have is refused in the cluster's own words.
#[tokio::test]
async fn a_cluster_that_refuses_small_segments_and_codecs_is_used() {
    let cluster = Cluster::with(&["--policy"]);
    let broker = open(&cluster);
    let spec = TopicSpec { partitions: 2, ..TopicSpec::default() };
    broker.create_topic("managed", &spec).await.expect("nobody asked for a codec");
    for (kind, topic) in
        [(LogKind::Journal, "_keylane.journal.g.managed"), (LogKind::Hold, "_keylane.hold.g.managed")]
    {
        let journal = broker.journal(&journal_name("g", "managed", kind)).await.expect("it opens");
        assert_eq!(journal.append("record".into(), None).await, Ok(0));
        assert_eq!(setting(&cluster, topic, "segment.bytes").as_deref(), Some("52428800"));
        assert_eq!(setting(&cluster, topic, "retention.ms").as_deref(), Some("-1"));
    }
    broker.join("g", "managed", "n").await.expect("what it keeps is kept whole").leave().await;
    // Its limits are raised all the same.
    let large = TopicSpec { message_bytes_max: 4 << 20, ..spec.clone() };
    broker.create_topic("managed", &large).await.expect("it is changed");
    let hold = broker.journal(&journal_name("g", "managed", LogKind::Hold)).await.expect("it opens");
    assert_eq!(hold.append(noise(3 << 20), None).await, Ok(1));
    let zstd = TopicSpec { compression: Compression::Zstd, ..spec.clone() };
    let refused = broker.create_topic("codec", &zstd).await.expect_err("a policy refuses it");
    assert!(
        matches!(&refused, BrokerError::Refused { topic, why } if topic == "codec" && why.contains("compression.type cannot be set")),
        "{refused}"
    );
    let mut options = KafkaOptions::new(&cluster.bootstrap);
    options.journals.settings.insert("segment.bytes".to_owned(), "2000000".to_owned());
    let strict = Kafka::open(options).expect("it opens");
    broker.create_topic("strict", &spec).await.expect("it is made");
    let refused = strict
        .journal(&journal_name("g", "strict", LogKind::Journal))
        .await
        .err()
        .expect("a policy refuses it");
    assert!(refused.to_string().contains("segment.bytes must be at least 52428800"), "{refused}");
    assert!(refused.to_string().contains("broker.kafka.journals.settings"), "{refused}");
}

/// BRK-2, BRK-6: where Keylane may not make its topics, it says which are missing and how they are made; and then uses
/// them, under the prefix that was chosen.
#[tokio::test]
async fn topics_that_others_make_are_asked_for_and_used() {
    let cluster = Cluster::shared();
    let mut options = KafkaOptions::new(&cluster.bootstrap);
    options.journals.prefix = "team.keylane".to_owned();
    options.journals.create = false;
    let broker = Kafka::open(options).expect("it opens");
    let spec = TopicSpec { partitions: 3, ..TopicSpec::default() };
    broker.create_topic("given", &spec).await.expect("a topic of the config's is made");
    let refused =
        broker.journal(&journal_name("g", "given", LogKind::Journal)).await.err().expect("it is not there");
    let BrokerError::NotMade { topic, command } = &refused else { panic!("{refused}") };
    assert_eq!(topic, "team.keylane.journal.g.given");
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    cluster.tool(&[&["TopicCommand"], &words[..]].concat());
    let journal = broker.journal(&journal_name("g", "given", LogKind::Journal)).await.expect("it opens");
    assert_eq!(journal.append("record".into(), None).await, Ok(0));
    broker.join("g", "given", "n").await.expect("it is kept whole").leave().await;
    assert_eq!(broker.journals("g", "given").await, Ok(Some(3)));
}

/// MSG-4: a setting that somebody changes at the same moment is not taken back.
#[tokio::test]
async fn settings_of_others_stay_while_limits_are_changed() {
    let cluster = Cluster::shared();
    let broker = open(&cluster);
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    broker.create_topic("shared-settings", &spec).await.expect("it is made");
    let changing = async {
        for round in 0..20u64 {
            let retention_ms = Some(86_400_000 + round);
            let spec = TopicSpec { retention_ms, ..spec.clone() };
            broker.create_topic("shared-settings", &spec).await.expect("it is changed");
        }
    };
    let setting_others = tokio::task::spawn_blocking({
        let cluster = Cluster::shared();
        move || {
            for name in ["segment.bytes=123456789", "flush.messages=1000", "file.delete.delay.ms=7000"] {
                cluster.set("shared-settings", name);
            }
        }
    });
    let (_, set) = tokio::join!(changing, setting_others);
    set.expect("it ends");
    let told = cluster.tool(&["TopicCommand", "--describe", "--topic", "shared-settings"]);
    for kept in ["segment.bytes=123456789", "flush.messages=1000", "file.delete.delay.ms=7000"] {
        assert!(told.contains(kept), "{kept} is not there: {told}");
    }
}

/// BRK-2, BRK-8, ADM-3: a quota makes journals slow; nothing fails because of it, and the figures tell how long it makes
/// clients wait.
#[tokio::test]
async fn a_quota_makes_journals_slow_and_nothing_fails() {
    let cluster = Cluster::start(1);
    let quota = ["--entity-default", "--add-config", "producer_byte_rate=100000,consumer_byte_rate=100000"];
    let change = ["kafka.admin.ConfigCommand", "--alter", "--entity-type", "clients"];
    cluster.tool(&[&change[..], &quota[..]].concat());
    let mut options = KafkaOptions::new(&cluster.bootstrap);
    options.settings.insert("statistics.interval.ms".to_owned(), "2000".to_owned());
    let broker = Kafka::open(options).expect("it opens");
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    broker.create_topic("slow", &spec).await.expect("it is made");
    let journal = broker.journal(&journal_name("g", "slow", LogKind::Journal)).await.expect("it opens");
    let record = noise(10 << 10);
    let mut throttled_ms = 0;
    // Some seconds' worth is let through before the quota bites.
    let mut appended = 0;
    while throttled_ms == 0 || appended < 50 {
        assert_eq!(journal.append(record.clone(), None).await, Ok(appended), "it is only slow");
        appended += 1;
        let figures = broker.client_figures().expect("it tells");
        throttled_ms =
            figures.brokers.iter().map(|broker| broker.throttled_ms).max().unwrap_or(0).max(throttled_ms);
        assert!(appended < 2_000, "the quota does not bite");
    }
    assert_eq!(broker.health().await, Ok(()), "slow is not away");
    // Whoever reads tries again, as an owner does, and gets to the end.
    let mut tries = 0;
    let page = loop {
        match journal.read(0, usize::MAX).await {
            Ok(page) => break page,
            Err(error) => assert!(tries < 5 && matches!(error, BrokerError::Unavailable(_)), "{error}"),
        }
        tries += 1;
    };
    assert_eq!(page.records.len() as u64, appended);
}
