//! Conformance cases: producing in batches, with a result for each message.

use keylane_core::{Draft, Frames};

use super::client::{frames, positions, produce, read_from, texts};
use super::rig::{Rig, with_spec, with_topic};
use crate::contract::{ProduceError, TopicSpec};

/// BRK-5, MSG-3.
pub async fn every_message_has_its_own_result_and_positions_rise(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    let mut placed = produce(&*broker, &topic, 1, &["a", "b", "c"]).await;
    placed.extend(produce(&*broker, &topic, 1, &["d"]).await);
    assert_eq!(placed.len(), 4);
    assert!(placed.is_sorted_by(|one, next| one < next), "{placed:?}");
    let read = read_from(&*broker, &topic, 1, placed[0], 4).await;
    assert_eq!(positions(&read), placed, "a message lies where its result says");
    assert_eq!(texts(&read), ["a", "b", "c", "d"]);
}

/// BRK-5.
pub async fn messages_keep_their_order_within_and_across_calls(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    let sent: Vec<String> = (0..300).map(|index| format!("m{index}")).collect();
    for call in sent.chunks(7) {
        let payloads: Vec<&str> = call.iter().map(String::as_str).collect();
        produce(&*broker, &topic, 0, &payloads).await;
    }
    let start = broker.ends(&topic).await.expect("asked")[0].start;
    assert_eq!(texts(&read_from(&*broker, &topic, 0, start, 300).await), sent);
}

/// BRK-5: messages of one call reach their own partitions, in order.
pub async fn partitions_do_not_mix(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 3).await;
    let mut mixed = Frames::default();
    for index in 0..30u32 {
        let id = format!("{}-{index}", index % 3);
        let draft = Draft { id: &id, payload: Some(id.as_bytes()), ..Draft::default() };
        mixed.push(index % 3, &draft).expect("a valid draft");
    }
    let results = broker.produce(&topic, mixed).await;
    assert_eq!(results.len(), 30);
    for partition in 0..3u32 {
        let own = results.iter().skip(partition as usize).step_by(3);
        let placed: Vec<u64> = own.map(|result| *result.as_ref().expect("taken")).collect();
        let read = read_from(&*broker, &topic, partition, placed[0], 10).await;
        assert_eq!(positions(&read), placed);
        let expected: Vec<String> =
            (0..10).map(|nth| format!("{partition}-{}", nth * 3 + partition)).collect();
        assert_eq!(texts(&read), expected);
        assert!(read.iter().all(|delivery| delivery.partition() == partition));
    }
}

/// BRK-5: a message that is too large is refused, and the other messages of its call are taken.
pub async fn a_message_that_is_too_large_is_refused_alone(rig: &mut dyn Rig) {
    let spec = TopicSpec { partitions: 1, message_bytes_max: 2000, ..TopicSpec::default() };
    let (broker, topic) = with_spec(rig, &spec).await;
    let large = "x".repeat(2000);
    let mut call = Frames::default();
    for payload in ["a", large.as_str(), "b"] {
        let draft = Draft { id: "id", payload: Some(payload.as_bytes()), ..Draft::default() };
        call.push(0, &draft).expect("a valid draft");
    }
    let bytes = call.iter().map(|(_, frame)| frame.len()).max().expect("three frames");
    let results = broker.produce(&topic.name, call).await;
    let refused = ProduceError::TooLarge { topic: topic.name.clone(), bytes, bytes_max: 2000 };
    assert_eq!(results[1], Err(refused));
    let first = *results[0].as_ref().expect("a small one is taken");
    assert!(results[2].as_ref().expect("a small one is taken") > &first);
    assert_eq!(texts(&read_from(&*broker, &topic.name, 0, first, 2).await), ["a", "b"]);
}

/// BRK-5.
pub async fn a_message_for_an_unknown_partition_is_refused_alone(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 2).await;
    let missing = rig.name("missing");
    let results = broker.produce(&missing, frames(0, &["a", "b"])).await;
    let unknown = ProduceError::UnknownTopic(missing.clone());
    assert_eq!(results, [Err(unknown.clone()), Err(unknown)]);

    let mut call = frames(1, &["a"]);
    let draft = Draft { id: "b", ..Draft::default() };
    call.push(2, &draft).expect("a valid draft");
    let results = broker.produce(&topic, call).await;
    assert!(results[0].is_ok(), "{results:?}");
    assert!(matches!(results[1], Err(ProduceError::UnknownTopic(_))), "{results:?}");
}

/// BRK-5.
pub async fn a_call_without_messages_answers_at_once(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 1).await;
    assert_eq!(broker.produce(&topic, Frames::default()).await, []);
}

/// BRK-5.
pub async fn concurrent_producers_lose_nothing_and_each_keeps_its_order(rig: &mut dyn Rig) {
    const PRODUCERS: usize = 8;
    const EACH: usize = 60;
    let (broker, topic) = with_topic(rig, 2).await;
    let mut producing = Vec::new();
    for producer in 0..PRODUCERS {
        let (broker, topic) = (rig.broker().await, topic.clone());
        producing.push(tokio::spawn(async move {
            let mut placed = Vec::new();
            for index in 0..EACH / 3 {
                let payloads: Vec<String> =
                    (0..3).map(|nth| format!("{producer} {}", index * 3 + nth)).collect();
                let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
                placed.extend(produce(&*broker, &topic, (producer % 2) as u32, &payloads).await);
            }
            placed
        }));
    }
    let mut placed = Vec::new();
    for task in producing {
        placed.push(task.await.expect("a producer does not panic"));
    }
    let ends = broker.ends(&topic).await.expect("asked");
    for (partition, ends) in ends.iter().enumerate() {
        let count = PRODUCERS / 2 * EACH;
        let read = read_from(&*broker, &topic, partition as u32, ends.start, count).await;
        assert_eq!(read.len(), count, "nothing is there twice");
        let read: Vec<(u64, String)> = positions(&read).into_iter().zip(texts(&read)).collect();
        for producer in (partition..PRODUCERS).step_by(2) {
            let own = (0..EACH).map(|index| (placed[producer][index], format!("{producer} {index}")));
            let prefix = format!("{producer} ");
            let found = read.iter().filter(|(_, text)| text.starts_with(&prefix));
            assert!(found.cloned().eq(own), "producer {producer}");
        }
    }
}

/// BRK-5.
pub async fn ends_follow_what_was_produced(rig: &mut dyn Rig) {
    let (broker, topic) = with_topic(rig, 3).await;
    let empty = broker.ends(&topic).await.expect("asked");
    assert_eq!(empty.len(), 3);
    assert!(empty.iter().all(|ends| ends.start == ends.end), "{empty:?}");
    let placed = produce(&*broker, &topic, 1, &["a", "b"]).await;
    let ends = broker.ends(&topic).await.expect("asked");
    assert_eq!((ends[0], ends[2]), (empty[0], empty[2]));
    assert!(ends[1].start <= placed[0] && ends[1].end > placed[1], "{ends:?}");
    let elsewhere = rig.broker().await;
    assert_eq!(elsewhere.ends(&topic).await, Ok(ends));
}
