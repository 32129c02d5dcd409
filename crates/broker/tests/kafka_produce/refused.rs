//! Records that the cluster refuses in the middle of a batch: they alone are refused, and the others keep their order.

use std::sync::Arc;

use keylane_broker::{Broker, Kafka, KafkaOptions, ProduceError, TopicSpec};
use keylane_tests::Cluster;

use crate::{Item, frames};

const BODY: &[u8] = b"{}";

/// A topic of one partition that Keylane knows. `setting` is given to it behind Keylane's back.
async fn topic(name: &str, setting: Option<&str>) -> (Arc<Cluster>, Kafka, String) {
    topic_with(name, setting, &[]).await
}

/// The same, with settings of Keylane's clients.
async fn topic_with(
    name: &str,
    setting: Option<&str>,
    settings: &[(&str, &str)],
) -> (Arc<Cluster>, Kafka, String) {
    let cluster = Cluster::shared();
    let name = format!("{name}.{}", std::process::id());
    let mut options = KafkaOptions::new(&cluster.bootstrap);
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    options.settings.extend(settings);
    let kafka = Kafka::open(options).expect("it opens");
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    kafka.create_topic(&name, &spec).await.expect("a topic is made");
    if let Some(setting) = setting {
        cluster.set(&name, setting);
    }
    (cluster, kafka, name)
}

/// Ids of all that the topic has, in order.
async fn ids(kafka: &Kafka, topic: &str) -> Vec<String> {
    let end = kafka.ends(topic).await.expect("it answers")[0].end;
    let mut reader = kafka.reader(topic, 0, 0).await.expect("it is read");
    let (mut ids, mut at) = (Vec::new(), 0);
    while at < end {
        let batch = std::future::poll_fn(|cx| reader.poll_batch(cx, 1 << 20)).await.expect("it is read");
        ids.extend(batch.cursor(0).map(|message| message.expect("a good frame").id().to_owned()));
        at = batch.next;
    }
    ids
}

/// Bytes that cannot be compressed.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// BRK-2, P2: a compacted topic refuses a message without a key. The others of its batch land, in order, before what was
/// produced behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_record_that_is_refused_does_not_fail_its_batch() {
    let (_cluster, kafka, topic) = topic("poisoned", Some("cleanup.policy=compact")).await;
    let names: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    let item = |name: &'static str| (name, None, BODY);
    let good =
        |range: std::ops::Range<usize>| names[range].iter().map(|id| (id.as_str(), Some(&b"k"[..]), BODY));
    let first: Vec<Item<'_>> = good(0..50).chain([item("bad")]).chain(good(50..100)).collect();
    let second: Vec<Item<'_>> = good(100..200).collect();
    let third: Vec<Item<'_>> =
        good(200..250).chain([item("worse"), item("worst")]).chain(good(250..300)).collect();
    let (first, second, third) = tokio::join!(
        kafka.produce(&topic, frames(&first)),
        kafka.produce(&topic, frames(&second)),
        kafka.produce(&topic, frames(&third)),
    );
    for (index, result) in first.iter().chain(&second).chain(&third).enumerate() {
        match index {
            50 | 251 | 252 => {
                assert!(matches!(result, Err(ProduceError::Invalid(_))), "{index}: {result:?}");
            }
            _ => assert!(result.is_ok(), "{index}: {result:?}"),
        }
    }
    assert_eq!(ids(&kafka, &topic).await, names);
}

/// BRK-2, PRD-3: a batch that is larger than the topic takes is sent in parts, and only a message that is too large by
/// itself is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_takes_less_than_a_batch_takes_its_messages() {
    let (_cluster, kafka, topic) = topic("narrow", Some("max.message.bytes=4000")).await;
    let names: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let bodies: Vec<Vec<u8>> =
        (0..40).map(|number| noise(if number == 17 { 6_000 } else { 600 }, number)).collect();
    let all: Vec<Item<'_>> =
        names.iter().zip(&bodies).map(|(id, body)| (id.as_str(), Some(&b"k"[..]), &body[..])).collect();
    let (first, second) =
        tokio::join!(kafka.produce(&topic, frames(&all[..30])), kafka.produce(&topic, frames(&all[30..])));
    for (index, result) in first.iter().chain(&second).enumerate() {
        match index {
            17 => assert!(matches!(result, Err(ProduceError::TooLargeThere(_))), "{result:?}"),
            _ => assert!(result.is_ok(), "{index}: {result:?}"),
        }
    }
    let landed: Vec<String> = names.iter().filter(|id| *id != "17").cloned().collect();
    assert_eq!(ids(&kafka, &topic).await, landed);
}

/// MSG-1, BRK-2: a topic that is known to be compacted takes no message without a key, and nothing is sent to find out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_a_key_is_refused_by_a_compacted_topic_before_it_is_sent() {
    let (_cluster, kafka, topic) = topic("compacted", Some("cleanup.policy=[compact,delete]")).await;
    kafka.topic(&topic).await.expect("it answers").expect("it is there");
    let all = [("0", Some(&b"k"[..]), BODY), ("1", None, BODY), ("2", Some(b"k"), BODY)];
    let results = kafka.produce(&topic, frames(&all)).await;
    assert_eq!((&results[0], &results[2]), (&Ok(0), &Ok(1)), "{results:?}");
    let refused = results[1].as_ref().expect_err("it has no key");
    assert!(matches!(refused, ProduceError::Keyless(_)), "{refused}");
    assert!(refused.to_string().contains(&topic) && refused.to_string().contains("give the message a key"));
    assert_eq!(ids(&kafka, &topic).await, ["0", "2"]);
}

/// PRD-3, PRD-5, P2: where it is asked for, nothing of a key goes behind a message of it that the cluster refused,
/// though other keys go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_its_key_goes_behind_a_message_that_is_refused_if_that_is_asked_for() {
    let (_cluster, kafka, topic) = topic("stopped", Some("max.message.bytes=4000")).await;
    let large = noise(6_000, 7);
    let (k, other) = (Some(&b"k"[..]), Some(&b"other"[..]));
    let all = [("0", k, BODY), ("1", k, &large[..]), ("2", k, BODY), ("3", other, BODY), ("4", k, BODY)];
    let mut asked = frames(&all);
    asked.stop_at_refused();
    let results = kafka.produce(&topic, asked).await;
    assert!(results[0].is_ok() && results[3].is_ok(), "{results:?}");
    assert!(matches!(results[1], Err(ProduceError::TooLargeThere(_))), "{results:?}");
    assert_eq!((&results[2], &results[4]), (&Err(ProduceError::Behind), &Err(ProduceError::Behind)));
    assert_eq!(ids(&kafka, &topic).await, ["0", "3"]);
}

/// BRK-2, P3: a topic whose policy refuses every message says so, for each, and other topics go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_refuses_times_refuses_its_own_messages_only() {
    let (cluster, kafka, timed) = topic("timed", Some("message.timestamp.type=CreateTime")).await;
    // Whatever is sent is older than that, or younger.
    cluster.set(&timed, "message.timestamp.before.max.ms=0,message.timestamp.after.max.ms=0");
    let free = format!("free.{}", std::process::id());
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    kafka.create_topic(&free, &spec).await.expect("a topic is made");
    let names: Vec<String> = (0..50).map(|number| number.to_string()).collect();
    let all: Vec<Item<'_>> = names.iter().map(|id| (id.as_str(), Some(&b"k"[..]), BODY)).collect();
    let (refused, taken) =
        tokio::join!(kafka.produce(&timed, frames(&all)), kafka.produce(&free, frames(&all)));
    assert!(refused.iter().all(|result| matches!(result, Err(ProduceError::Invalid(_)))), "{refused:?}");
    assert!(taken.iter().all(Result::is_ok), "{taken:?}");
    assert_eq!(ids(&kafka, &free).await, names);
}

/// BRK-2, P2: records that are refused while as many requests are on their way as the client may have: they alone are
/// refused, and nothing of what was on its way behind them overtakes or is lost. The first is of the first call of all,
/// when the leader does not know the client and would take whatever comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_on_its_way_behind_a_record_that_is_refused_keeps_its_order() {
    let (cluster, kafka, topic) =
        topic_with("flying", Some("cleanup.policy=compact"), &[("batch.num.messages", "2")]).await;
    // Somebody else's, so that nothing is known there of the client that is about to produce.
    let other = Kafka::open(KafkaOptions::new(&cluster.bootstrap)).expect("it opens");
    let first: [Item<'_>; 1] = [("first", Some(b"k"), BODY)];
    assert_eq!(other.produce(&topic, frames(&first)).await, [Ok(0)]);
    let names: Vec<String> = (0..960).map(|number| number.to_string()).collect();
    // The client has more than one request to a partition on its way only while they come to less than five messages.
    let bodies: Vec<Vec<u8>> = (0..960).map(|number| noise(6_000, number)).collect();
    let calls = names.chunks(40).zip(bodies.chunks(40)).enumerate().map(|(call, (names, bodies))| {
        let items = names.iter().zip(bodies);
        let mut items: Vec<Item<'_>> =
            items.map(|(id, body)| (id.as_str(), Some(&b"k"[..]), &body[..])).collect();
        if call % 7 == 0 {
            items.insert(call, ("bad", None, BODY));
        }
        kafka.produce(&topic, frames(&items))
    });
    let results: Vec<_> = futures_util::future::join_all(calls).await.into_iter().flatten().collect();
    let refused: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(refused.len(), 4, "{refused:?}");
    assert!(refused.iter().all(|error| matches!(error, ProduceError::Invalid(_))), "{refused:?}");
    let landed = ids(&kafka, &topic).await;
    assert_eq!((landed[0].as_str(), &landed[1..]), ("first", &names[..]));
}
