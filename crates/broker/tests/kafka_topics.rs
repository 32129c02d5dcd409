//! What only topics of a Kafka cluster have: limits of batches, settings of an operator's own, codecs.
#![cfg(feature = "kafka")]

use keylane_broker::testing::conformance::client::{journal_name, produce};
use keylane_broker::{Broker, BrokerError, Compression, Kafka, KafkaOptions, LogKind, TopicSpec, Weakness};
use keylane_core::{Draft, Frames};
use keylane_tests::Cluster;

fn open(cluster: &Cluster) -> Kafka {
    Kafka::open(KafkaOptions::new(&cluster.bootstrap)).expect("it opens")
}

/// Bytes that do not become fewer when they are compressed.
fn noise() -> impl Iterator<Item = u8> {
    let mut state = 1u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as u8
    })
}

/// BRK-2, P1: Kafka bounds batches, we bound messages: many small ones that go together are not too large.
#[tokio::test]
async fn small_messages_of_a_topic_with_a_small_limit_are_not_refused_together() {
    let broker = open(&Cluster::shared());
    let spec = TopicSpec { partitions: 1, message_bytes_max: 2000, ..TopicSpec::default() };
    broker.create_topic("small", &spec).await.expect("it is made");
    let mut frames = Frames::default();
    let mut noise = noise();
    for number in 0..2_000 {
        let payload: Vec<u8> = noise.by_ref().take(500).collect();
        let id = number.to_string();
        frames
            .push(0, &Draft { id: &id, payload: Some(&payload), ..Draft::default() })
            .expect("a valid draft");
    }
    let results = broker.produce("small", frames).await;
    let refused = results.iter().find(|result| result.is_err());
    assert_eq!(refused, None, "each message is below the limit");
    let again = open(&Cluster::shared());
    let there = again.create_topic("small", &spec).await.expect("it is there");
    assert_eq!(there.spec, spec, "its limit is the one that was declared");
}

/// MSG-4: a topic that is there gets the config's limits, and keeps what an operator set beside them.
#[tokio::test]
async fn limits_are_changed_and_an_operators_own_settings_stay() {
    let cluster = Cluster::shared();
    let broker = open(&cluster);
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    let made = broker.create_topic("own", &spec).await.expect("it is made");
    assert_eq!(made.spec.compression, Compression::AsProduced, "nobody asked for a codec");
    let kept = ["segment.bytes=123456789", "cleanup.policy=compact", "message.timestamp.type=CreateTime"];
    kept.iter().for_each(|setting| cluster.set("own", setting));
    let other = TopicSpec { compression: Compression::Zstd, retention_ms: Some(86_400_000), ..spec };
    assert_eq!(broker.create_topic("own", &other).await.expect("it is changed").spec, other);
    let told = cluster.tool(&["TopicCommand", "--describe", "--topic", "own"]);
    for setting in kept.into_iter().chain(["compression.type=zstd", "retention.ms=86400000"]) {
        assert!(told.contains(setting), "{setting} is not there: {told}");
    }
    produce(&broker, "own", 0, &["a", "b"]).await;
}

/// MSG-4: a broker that has not heard yet of a change which the cluster accepted is not believed.
#[tokio::test]
async fn what_was_just_changed_is_what_is_described() {
    let broker = open(&Cluster::shared());
    let mut spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    broker.create_topic("changed", &spec).await.expect("it is made");
    for day in 1..60 {
        spec.retention_ms = Some(day * 86_400_000);
        assert_eq!(broker.create_topic("changed", &spec).await.expect("it is changed").spec, spec);
        assert_eq!(broker.create_topic("changed", &spec).await.expect("it is there").spec, spec);
    }
}

/// BRK-9: what weakens a promise is told by the broker, and nothing of a topic that is well kept but for its one copy.
#[tokio::test]
async fn weak_settings_are_told() {
    let cluster = Cluster::shared();
    let broker = open(&cluster);
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    broker.create_topic("strong", &spec).await.expect("it is made");
    let short = TopicSpec { retention_ms: Some(3_600_000), ..spec };
    broker.create_topic("fragile", &short).await.expect("it is made");
    cluster.set("fragile", "unclean.leader.election.enable=true");
    cluster.set("fragile", "message.timestamp.type=CreateTime");
    let topics = ["strong", "fragile", "nowhere"].map(str::to_owned);
    let warnings = broker.warnings(&topics).await.expect("it tells");
    let of = |topic: &str| -> Vec<Weakness> {
        warnings.iter().filter(|warning| warning.topic == topic).map(|warning| warning.weakness).collect()
    };
    assert_eq!(of("strong"), [Weakness::OneCopy]);
    let all =
        [Weakness::OneCopy, Weakness::UncleanElection, Weakness::ProducersTime, Weakness::ShortRetention];
    assert_eq!(of("fragile"), all);
    assert!(warnings.iter().all(|warning| warning.remedy.contains("set ")), "{warnings:?}");
}

/// BRK-9, P10: a group is not joined while one of its journals would forget.
#[tokio::test]
async fn a_group_whose_journal_is_compacted_is_not_joined() {
    let cluster = Cluster::shared();
    let broker = open(&cluster);
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    broker.create_topic("journaled", &spec).await.expect("it is made");
    for (kind, topic) in
        [(LogKind::Journal, "_keylane.journal.g.journaled"), (LogKind::Hold, "_keylane.hold.g.journaled")]
    {
        let journal = broker.journal(&journal_name("g", "journaled", kind)).await.expect("it opens");
        journal.append("record".into(), None).await.expect("it lands");
        cluster.set(topic, "cleanup.policy=compact");
        let refused = broker.join("g", "journaled", "n").await.err().expect("it would be lost");
        assert!(matches!(&refused, BrokerError::NotKept { topic: named, .. } if named == topic), "{refused}");
        cluster.set(topic, "cleanup.policy=delete");
    }
    broker.join("g", "journaled", "n").await.expect("it is kept whole again").leave().await;
}

/// MSG-4: the error says how many brokers there are.
#[tokio::test]
async fn more_replicas_than_brokers_are_refused() {
    let broker = open(&Cluster::shared());
    let spec = TopicSpec { partitions: 1, replicas: 2, ..TopicSpec::default() };
    let refused = broker.create_topic("copies", &spec).await.expect_err("there is one broker");
    assert_eq!(refused, BrokerError::Replicas { topic: "copies".to_owned(), asked: 2, brokers: 1 });
    assert_eq!(broker.topic("copies").await, Ok(None));
}

/// PRD-1, P2: calls that come while a topic is not known yet keep their order, and those that come later stay behind
/// them.
#[tokio::test]
async fn calls_for_a_topic_that_is_not_known_yet_keep_their_order() {
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    open(&Cluster::shared()).create_topic("unheard", &spec).await.expect("it is made");
    for round in 0..5 {
        let broker = open(&Cluster::shared());
        let call = |number: u32| {
            let (mut frames, id) = (Frames::default(), format!("{round}-{number}"));
            frames.push(0, &Draft { id: &id, ..Draft::default() }).expect("a valid draft");
            broker.produce("unheard", frames)
        };
        let looked = async {
            broker.topic("unheard").await.expect("it answers");
            // It is known now, and those before may still be asking.
            futures_util::future::join_all((20..40).map(call)).await
        };
        let first = futures_util::future::join_all((0..20).map(call));
        let (first, second) = futures_util::future::join(first, looked).await;
        let positions: Vec<u64> =
            first.into_iter().chain(second).map(|mut one| one.remove(0).expect("it is taken")).collect();
        assert!(positions.is_sorted(), "{positions:?}");
    }
}

/// BRK-6, MSG-4: a journal takes bodies as large as its topic does by now.
#[tokio::test]
async fn a_journal_follows_a_raised_limit() {
    let broker = open(&Cluster::shared());
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    broker.create_topic("grown", &spec).await.expect("it is made");
    let journal = broker.journal(&journal_name("g", "grown", LogKind::Hold)).await.expect("it opens");
    journal.append("small".into(), None).await.expect("it lands");
    let large = TopicSpec { message_bytes_max: 8 << 20, ..spec };
    broker.create_topic("grown", &large).await.expect("it is changed");
    let body: Vec<u8> = noise().take(7 << 20).collect();
    journal.append(body.into(), None).await.expect("it lands");
}

/// BRK-6, MSG-4, P1: who raised a topic's limit may die before its journals have followed; whoever comes next has them
/// follow, as it does if an operator raised it.
#[tokio::test]
async fn a_journal_follows_a_limit_that_was_raised_by_one_that_died() {
    let cluster = Cluster::shared();
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    let large = TopicSpec { message_bytes_max: 8 << 20, ..spec.clone() };
    for (topic, by_config) in [("outgrown", true), ("enlarged", false)] {
        let before = open(&cluster);
        before.create_topic(topic, &spec).await.expect("it is made");
        for kind in [LogKind::Journal, LogKind::Hold] {
            let journal = before.journal(&journal_name("g", topic, kind)).await.expect("it opens");
            journal.append("small".into(), None).await.expect("it lands");
        }
        match by_config {
            true => drop(before.create_topic(topic, &large).await.expect("it is changed")),
            false => cluster.set(topic, "max.message.bytes=8400000"),
        }
        drop(before);
        let after = open(&cluster);
        match by_config {
            true => drop(after.create_topic(topic, &large).await.expect("it is there")),
            // Somebody else's topic: it is looked at, and not made.
            false => drop(after.topic(topic).await.expect("it answers")),
        }
        for kind in [LogKind::Journal, LogKind::Hold] {
            let journal = after.journal(&journal_name("g", topic, kind)).await.expect("it opens");
            let body: Vec<u8> = noise().take(7 << 20).collect();
            assert_eq!(journal.append(body.into(), None).await, Ok(1), "{topic} {kind:?}");
        }
    }
}

/// BRK-6, P1: whoever makes a journal's topic may die before its first record; the next one finds an empty journal.
#[tokio::test]
async fn a_journal_whose_maker_died_before_its_first_record_is_empty() {
    let cluster = Cluster::shared();
    let maker = open(&cluster);
    let spec = TopicSpec { partitions: 2, ..TopicSpec::default() };
    maker.create_topic("begun", &spec).await.expect("it is made");
    for (kind, topic) in
        [(LogKind::Journal, "_keylane.journal.g.begun"), (LogKind::Hold, "_keylane.hold.g.begun")]
    {
        let journal = maker.journal(&journal_name("g", "begun", kind)).await.expect("it opens");
        // Whoever waits for a first record makes the topic, and writes nothing.
        tokio::select! {
            landed = journal.beyond(0) => panic!("nobody wrote: {landed:?}"),
            () = async { while maker.topic(topic).await.expect("it answers").is_none() {} } => {}
        }
    }
    drop(maker);
    let next = open(&cluster);
    for kind in [LogKind::Journal, LogKind::Hold] {
        let journal = next.journal(&journal_name("g", "begun", kind)).await.expect("it opens");
        let page = journal.read(0, 1 << 20).await.expect("it can be read");
        assert_eq!((page.start, page.end, page.records.len()), (0, 0, 0));
        assert_eq!(journal.append("first".into(), None).await, Ok(0));
        assert_eq!(journal.read(0, 1 << 20).await.expect("it can be read").records, [(0, "first".into())]);
    }
    next.join("g", "begun", "n").await.expect("what was made is kept whole").leave().await;
}
