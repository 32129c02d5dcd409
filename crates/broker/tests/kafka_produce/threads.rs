//! Threads that serve Kafka's client library, and panic: that is noticed, and they go on.

use keylane_broker::{Broker, BrokerError, Change, Kafka, KafkaOptions, TopicSpec};
use keylane_tests::Cluster;

use crate::{Item, frames};

/// P10, BRK-8: what the thread of a group's member was about to tell is not known when it panics: the member says so, can
/// be left, and another joins. Readers go on reading when the thread panics that serves their clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_readers_whose_threads_panic_go_on() {
    let cluster = Cluster::shared();
    let topic = format!("struck.{}", std::process::id());
    let kafka = Kafka::open(KafkaOptions::new(&cluster.bootstrap)).expect("it opens");
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    kafka.create_topic(&topic, &spec).await.expect("a topic is made");
    let mut member = kafka.join("g", &topic, "n").await.expect("it joins");
    assert_eq!(member.changed().await, Ok(Change::Assigned(0)));
    kafka.strike("kafka-member");
    let told = member.changed().await.expect_err("it panicked");
    assert!(matches!(&told, BrokerError::Unavailable(why) if why.contains("KL-1321")), "{told}");
    member.leave().await;
    let mut next = kafka.join("g", &topic, "n").await.expect("it joins");
    assert_eq!(next.changed().await, Ok(Change::Assigned(0)));
    let mut reader = kafka.reader(&topic, 0, 0).await.expect("it is read");
    kafka.strike("kafka-clients");
    while kafka.client_figures().expect("it tells").threads_ended < 2 {
        tokio::task::yield_now().await;
    }
    let item: [Item<'_>; 1] = [("0", Some(b"k"), b"0")];
    assert_eq!(kafka.produce(&topic, frames(&item)).await, [Ok(0)]);
    let batch = std::future::poll_fn(|cx| reader.poll_batch(cx, 1 << 20)).await.expect("it is read");
    assert_eq!(batch.next, 1);
    next.leave().await;
}
