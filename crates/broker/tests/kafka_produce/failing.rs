//! A cluster that fails as it is told: librdkafka's mock.

use std::sync::Arc;
use std::time::Duration;

use keylane_broker::{Broker, Kafka, KafkaOptions, ProduceError, Topic, TopicSpec};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::{Item, frames};

const TOPIC: &str = "mocked";

type Mock = MockCluster<'static, DefaultProducerContext>;

/// A cluster with one topic, and Keylane on it. The mock does not look at sequence numbers as a cluster does, so only
/// one request is on its way at a time.
fn cluster() -> (Mock, Arc<Kafka>) {
    let mock = Mock::new(1).expect("it starts");
    mock.create_topic(TOPIC, 1, 1).expect("a topic is made");
    let mut options = KafkaOptions::new(mock.bootstrap_servers());
    options.settings.insert("max.in.flight.requests.per.connection".to_owned(), "1".to_owned());
    let kafka = Kafka::open(options).expect("it opens");
    let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
    kafka.suppose(Topic { name: TOPIC.to_owned(), partitions: 1, incarnation: 1, spec });
    (mock, Arc::new(kafka))
}

/// Payloads of all that lies in the topic, in order.
fn landed(mock: &Mock, count: usize) -> Vec<String> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", mock.bootstrap_servers())
        .set("group.id", "reader")
        .create()
        .expect("it is made");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(TOPIC, 0, Offset::Beginning).expect("a place");
    consumer.assign(&list).expect("it is assigned");
    let mut found = Vec::new();
    while found.len() < count {
        let Some(message) = consumer.poll(Duration::from_secs(60)) else { break };
        let message = message.expect("it is read");
        found.push(String::from_utf8_lossy(message.payload().expect("it has one")).into_owned());
    }
    found
}

/// PRD-3, BRK-2, P2: an error that the client calls permanent, and that passes, lets nobody overtake. What failed is
/// sent again, before all that was behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_for_a_while_is_not_overtaken() {
    for code in [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NETWORK_EXCEPTION,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
    ] {
        let (mock, kafka) = cluster();
        mock.request_errors(RDKafkaApiKey::Produce, &[code, code]);
        let names: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        let calls = names.iter().map(|name| {
            let item: Item<'_> = (name, Some(b"k"), name.as_bytes());
            kafka.produce(TOPIC, frames(&[item]))
        });
        let results = futures_util::future::join_all(calls).await;
        for (name, result) in names.iter().zip(&results) {
            assert!(result[0].is_ok(), "{code:?}: {name}: {result:?}");
        }
        assert_eq!(landed(&mock, names.len()), names, "{code:?}");
    }
}

/// PRD-3: what is called back while it fails again and again ends soon, and nothing of it is sent any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_called_back_while_it_fails_ends() {
    let (mock, kafka) = cluster();
    mock.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN; 1_000]);
    let items: [Item<'_>; 2] = [("0", Some(b"k"), b"0"), ("1", Some(b"k"), b"1")];
    let broker = Arc::clone(&kafka);
    let call = tokio::spawn(async move { broker.produce(TOPIC, frames(&items)).await });
    while kafka.health().await.is_err() {}
    kafka.recall().await;
    let results = call.await.expect("it does not panic");
    assert!(results.iter().all(|result| matches!(result, Err(ProduceError::Unavailable(_)))), "{results:?}");
    mock.clear_request_errors(RDKafkaApiKey::Produce);
    let after: [Item<'_>; 1] = [("2", Some(b"k"), b"2")];
    assert!(kafka.produce(TOPIC, frames(&after)).await[0].is_ok());
    assert_eq!(landed(&mock, 1), ["2"]);
}

/// PRD-3, BRK-8: calling back waits for nobody. One of the client's threads may be looking up a name, or a broker may
/// not answer: producing goes on all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calling_back_does_not_wait_for_a_broker_that_does_not_answer() {
    let (mock, kafka) = cluster();
    let first: [Item<'_>; 1] = [("0", Some(b"k"), b"0")];
    assert!(kafka.produce(TOPIC, frames(&first)).await[0].is_ok());
    mock.broker_down(1).expect("it is taken down");
    for _ in 0..3 {
        let item: [Item<'_>; 1] = [("1", Some(b"k"), b"1")];
        let mut call = Box::pin(kafka.produce(TOPIC, frames(&item)));
        assert!(futures_util::poll!(&mut call).is_pending(), "nobody answers");
        kafka.recall().await;
        let result = call.await;
        assert!(matches!(result[0], Err(ProduceError::Unavailable(_))), "{result:?}");
    }
    mock.broker_up(1).expect("it is back");
    let last: [Item<'_>; 1] = [("2", Some(b"k"), b"2")];
    assert!(kafka.produce(TOPIC, frames(&last)).await[0].is_ok());
    assert_eq!(landed(&mock, 2), ["0", "2"]);
}
