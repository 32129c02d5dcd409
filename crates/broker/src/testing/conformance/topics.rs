//! Conformance cases: topics are made and described, and never change under their keys.

use super::client::{journal_name, spec};
use super::rig::{Rig, with_topic};
use crate::contract::{BrokerError, Commit, LogKind, TopicSpec};

/// BRK-5.
pub async fn a_created_topic_is_described_and_listed_by_name(rig: &mut dyn Rig) {
    let broker = rig.broker().await;
    let names = [rig.name("b"), rig.name("a"), rig.name("c")];
    assert_eq!(broker.topic(&names[0]).await, Ok(None));
    let mut made = Vec::new();
    for (name, partitions) in names.iter().zip([3, 1, 12]) {
        let topic = broker.create_topic(name, &spec(partitions)).await;
        let topic = topic.expect("a new topic is made");
        assert_eq!((&topic.name, topic.partitions), (name, partitions));
        assert_eq!(topic.spec.message_bytes_max, TopicSpec::default().message_bytes_max);
        assert_eq!(broker.topic(name).await, Ok(Some(topic.clone())));
        made.push(topic);
    }
    made.sort_by(|one, other| one.name.cmp(&other.name));
    let listed = broker.topics().await.expect("topics can be listed");
    let ours: Vec<_> = listed.into_iter().filter(|topic| names.contains(&topic.name)).collect();
    assert_eq!(ours, made);
}

/// BRK-5.
pub async fn a_topic_that_is_there_is_returned_as_it_is(rig: &mut dyn Rig) {
    let (broker, name) = with_topic(rig, 4).await;
    let made = broker.topic(&name).await.expect("asked").expect("it is there");
    let again = broker.create_topic(&name, &spec(4)).await;
    assert_eq!(again.map(|topic| topic.incarnation), Ok(made.incarnation));
    let elsewhere = rig.broker().await;
    let again = elsewhere.create_topic(&name, &spec(4)).await;
    assert_eq!(again.map(|topic| topic.incarnation), Ok(made.incarnation));
}

/// BRK-10.
pub async fn every_topic_has_an_incarnation_of_its_own(rig: &mut dyn Rig) {
    let broker = rig.broker().await;
    let mut incarnations = Vec::new();
    for base in ["a", "b", "c"] {
        let topic = broker.create_topic(&rig.name(base), &spec(1)).await;
        incarnations.push(topic.expect("a new topic is made").incarnation);
    }
    incarnations.sort_unstable();
    incarnations.dedup();
    assert_eq!(incarnations.len(), 3);
    assert_ne!(incarnations[0], 0, "an incarnation is random");
}

/// BRK-10: creating an existing topic with another number of partitions is refused, because its keys would move.
pub async fn another_partition_count_is_refused(rig: &mut dyn Rig) {
    let (broker, name) = with_topic(rig, 4).await;
    for asked in [3, 5] {
        let refused = broker.create_topic(&name, &spec(asked)).await;
        let expected = BrokerError::Partitions { topic: name.clone(), there: 4, asked };
        assert_eq!(refused, Err(expected));
    }
    let kept = broker.topic(&name).await.expect("asked").expect("it is there");
    assert_eq!(kept.partitions, 4);
}

/// BRK-10.
pub async fn a_recreated_topic_has_another_incarnation(rig: &mut dyn Rig) {
    let (broker, name) = with_topic(rig, 2).await;
    let before = broker.topic(&name).await.expect("asked").expect("it is there");
    drop(broker);
    rig.recreate_topic(&name).await;
    let after = rig.broker().await.topic(&name).await.expect("asked").expect("it is there");
    assert_ne!(before.incarnation, after.incarnation);
    assert_eq!(before.partitions, after.partitions);
}

/// BRK-5.
pub async fn an_unknown_topic_is_an_error_everywhere(rig: &mut dyn Rig) {
    let broker = rig.broker().await;
    let name = rig.name("missing");
    let unknown = BrokerError::UnknownTopic(name.clone());
    let commit = Commit { position: 0, metadata: bytes::Bytes::new() };
    assert_eq!(broker.ends(&name).await, Err(unknown.clone()));
    assert_eq!(broker.reader(&name, 0, 0).await.err(), Some(unknown.clone()));
    assert_eq!(broker.join("group", &name, "node").await.err(), Some(unknown.clone()));
    assert_eq!(broker.commit("group", &name, 0, commit).await, Err(unknown));
    let journal = broker
        .journal(&journal_name("group", &name, LogKind::Journal))
        .await
        .expect("a journal does not need its topic: it outlives it");
    assert_eq!(journal.read(0, 1).await.map(|page| page.end), Ok(0));
}
