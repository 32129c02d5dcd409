//! A cluster that fails as it is told: librdkafka's mock.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use keylane_broker::{Broker, Kafka, KafkaOptions, NO_POSITION, ProduceError, Topic, TopicSpec};
use keylane_core::{Draft, Frames};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::{Item, frames};

const TOPIC: &str = "mocked";

type Mock = MockCluster<'static, DefaultProducerContext>;

/// A cluster with one topic, and Keylane on it.
fn cluster() -> (Mock, Arc<Kafka>) {
    cluster_of(1)
}

/// The same, with so many brokers. The mock does not look at sequence numbers as a cluster does, so only one request is
/// on its way at a time.
fn cluster_of(brokers: i32) -> (Mock, Arc<Kafka>) {
    cluster_with(brokers, &[("max.in.flight.requests.per.connection", "1")])
}

/// The same, with settings.
fn cluster_with(brokers: i32, settings: &[(&str, &str)]) -> (Mock, Arc<Kafka>) {
    let mock = Mock::new(brokers).expect("it starts");
    let mut options = KafkaOptions::new(mock.bootstrap_servers());
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    options.settings.extend(settings);
    // By default a client takes half a minute to believe that a topic is not there.
    options.settings.insert("topic.metadata.propagation.max.ms".to_owned(), "100".to_owned());
    let kafka = Kafka::open(options).expect("it opens");
    topic(&mock, &kafka, TOPIC, 1);
    (mock, Arc::new(kafka))
}

/// Makes a topic that this broker leads.
fn topic(mock: &Mock, kafka: &Kafka, name: &str, leader: i32) {
    topic_of(mock, kafka, name, &[leader]);
}

/// Makes a topic with a leader for each partition.
fn topic_of(mock: &Mock, kafka: &Kafka, name: &str, leaders: &[i32]) {
    mock.create_topic(name, leaders.len() as i32, 1).expect("a topic is made");
    for (partition, leader) in (0..).zip(leaders) {
        mock.partition_leader(name, partition, Some(*leader)).expect("it has a leader");
    }
    let spec = TopicSpec { partitions: leaders.len() as u32, ..TopicSpec::default() };
    kafka.suppose(Topic { name: name.to_owned(), partitions: leaders.len() as u32, incarnation: 1, spec });
}

/// Produces one message, which is its own payload.
async fn one(kafka: &Kafka, topic: &str, name: &str) -> Result<u64, ProduceError> {
    kafka.produce(topic, frames(&[(name, Some(b"k"), name.as_bytes())])).await.remove(0)
}

/// Payloads of all that lies in the topic, in order.
fn landed(mock: &Mock, count: usize) -> Vec<String> {
    landed_in(mock, TOPIC, count)
}

fn landed_in(mock: &Mock, topic: &str, count: usize) -> Vec<String> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", mock.bootstrap_servers())
        .set("group.id", "reader")
        .create()
        .expect("it is made");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning).expect("a place");
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

/// P3, BRK-2: a topic that we may not write to is refused without being tried each time, since each try costs the client
/// that all topics share. Others go on meanwhile, and it is tried again after a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_forbidden_does_not_keep_others_from_theirs() {
    let (mock, kafka) = cluster();
    topic(&mock, &kafka, "forbidden", 1);
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    mock.request_errors(RDKafkaApiKey::Produce, &[denied]);
    let item: [Item<'_>; 1] = [("0", Some(b"k"), b"0")];
    let first = kafka.produce("forbidden", frames(&item)).await;
    assert!(matches!(first[0], Err(ProduceError::Denied(_))), "{first:?}");
    // The mock would take it now. Nobody asks.
    let second = kafka.produce("forbidden", frames(&item)).await;
    assert_eq!(second, first);
    let names: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    for name in &names {
        one(&kafka, TOPIC, name).await.expect("it is taken");
    }
    assert_eq!(landed(&mock, names.len()), names);
    while kafka.produce("forbidden", frames(&item)).await[0].is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// BRK-2, BRK-10: a topic that was there, and that one answer does not know, is away and not gone: who produces to it tries
/// again, or has it spilled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_one_answer_does_not_know_is_away_and_not_gone() {
    let (mock, kafka) = cluster();
    let item: [Item<'_>; 1] = [("0", Some(b"k"), b"0")];
    assert!(kafka.produce(TOPIC, frames(&item)).await[0].is_ok());
    mock.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).expect("it is told so");
    let refused = loop {
        // Looks who leads it, by the client that produces.
        kafka.silence(TOPIC, &[0]).await;
        if let Err(refused) = kafka.produce(TOPIC, frames(&item)).await.remove(0) {
            break refused;
        }
    };
    assert!(matches!(&refused, ProduceError::Unavailable(why) if why.contains(TOPIC)), "{refused}");
    mock.topic_error(TOPIC, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).expect("it is told so");
    while kafka.produce(TOPIC, frames(&item)).await[0].is_err() {
        kafka.silence(TOPIC, &[0]).await;
    }
}

/// BRK-2, P2: a leader that takes its time is waited for when another topic has the client replaced: what it has is not
/// sent again, and does not land behind what is newer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_slow_leader_has_not_answered_is_not_sent_again() {
    let (mock, kafka) = cluster_of(2);
    topic(&mock, &kafka, "slow", 2);
    one(&kafka, TOPIC, "first").await.expect("it is taken");
    one(&kafka, "slow", "0").await.expect("it is taken");
    mock.broker_round_trip_time(2, Duration::from_secs(3)).expect("it gets slow");
    let mut call = Box::pin(one(&kafka, "slow", "1"));
    assert!(futures_util::poll!(&mut call).is_pending());
    // It is on its way: others that were produced later have been there and back.
    for number in 0..5 {
        one(&kafka, TOPIC, &number.to_string()).await.expect("it is taken");
    }
    mock.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN]);
    one(&kafka, TOPIC, "again").await.expect("the next client is given it");
    call.await.expect("it is answered");
    mock.broker_round_trip_time(2, Duration::ZERO).expect("it gets quick");
    one(&kafka, "slow", "2").await.expect("it is taken");
    assert_eq!(landed_in(&mock, "slow", 3), ["0", "1", "2"]);
}

/// P3, BRK-8: one thread of the client that does not come back, because it looks up a name, does not keep the partitions
/// of other brokers from theirs. What it has is sent later, in order, and once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_does_not_come_back_does_not_stop_producing_to_others() {
    let (mock, kafka) = cluster_of(2);
    topic(&mock, &kafka, "stuck", 2);
    one(&kafka, "stuck", "0").await.expect("it is taken");
    one(&kafka, TOPIC, "0").await.expect("it is taken");
    // The connection breaks, and the thread has taken both along when it does not come back.
    kafka.stick(2, true);
    mock.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT]);
    let (mut first, mut second) = (Box::pin(one(&kafka, "stuck", "1")), Box::pin(one(&kafka, "stuck", "2")));
    assert!(futures_util::poll!(&mut first).is_pending() && futures_util::poll!(&mut second).is_pending());
    while !kafka.is_stuck(2) {
        tokio::task::yield_now().await;
    }
    mock.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN]);
    for name in ["1", "2"] {
        one(&kafka, TOPIC, name).await.expect("the next client is given it");
    }
    assert_eq!(landed(&mock, 3), ["0", "1", "2"]);
    kafka.stick(2, false);
    first.await.expect("it is taken");
    second.await.expect("it is taken");
    one(&kafka, "stuck", "3").await.expect("it is taken");
    assert_eq!(landed_in(&mock, "stuck", 4), ["0", "1", "2", "3"]);
}

/// P10, BRK-8: the thread that takes the producer's reports panics: what is open ends, it is counted, and producing goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_whose_thread_panics_goes_on() {
    let (mock, kafka) = cluster();
    one(&kafka, TOPIC, "0").await.expect("it is taken");
    mock.broker_round_trip_time(1, Duration::from_secs(600)).expect("it does not answer");
    let mut open = Box::pin(one(&kafka, TOPIC, "1"));
    assert!(futures_util::poll!(&mut open).is_pending());
    kafka.strike("kafka-producer");
    let ended = open.await;
    assert!(matches!(ended, Err(ProduceError::Unavailable(_))), "{ended:?}");
    mock.broker_round_trip_time(1, Duration::ZERO).expect("it answers");
    one(&kafka, TOPIC, "2").await.expect("it is taken");
    assert_eq!(kafka.client_figures().expect("it tells").threads_ended, 1);
}

/// P1, P2, BRK-2: a leader that does not know the client yet takes whatever comes first. What it refuses, for a while or
/// for good, is neither passed over nor taken for acknowledged because of what came behind it, though as many requests
/// as the client may have could be on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_requests_of_a_client_are_neither_lost_nor_overtaken() {
    for (code, refused) in [
        (RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, 0),
        (RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD, 1),
    ] {
        // The client has more than one request to a partition on its way only while they come to less than five
        // messages.
        let (mock, kafka) = cluster_with(1, &[("batch.num.messages", "2")]);
        topic(&mock, &kafka, "near", 1);
        one(&kafka, "near", "0").await.expect("it is taken");
        // Long enough for all of them.
        mock.broker_round_trip_time(1, Duration::from_millis(400)).expect("it gets slow");
        mock.request_errors(RDKafkaApiKey::Produce, &[code]);
        let names: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let mut calls = Vec::new();
        for name in &names {
            let mut call = Box::pin(one(&kafka, TOPIC, name));
            assert!(futures_util::poll!(&mut call).is_pending());
            calls.push(call);
            // The client looks for the next request only when something more comes.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        mock.broker_round_trip_time(1, Duration::ZERO).expect("it gets quick");
        let results = futures_util::future::join_all(calls).await;
        assert!(
            results[..refused].iter().all(|it| matches!(it, Err(ProduceError::Invalid(_)))),
            "{results:?}"
        );
        let is_placed = |result: &Result<u64, _>| result.as_ref().is_ok_and(|at| *at != NO_POSITION);
        assert!(results[refused..].iter().all(is_placed), "{code:?}: {results:?}");
        assert_eq!(landed(&mock, names.len() - refused), names[refused..], "{code:?}");
    }
}

/// BRK-2, P3: a message that the client itself does not take, since a setting says so, is refused; those around it
/// land in order, also if it is the first that a client is given, or is given again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_for_the_client_itself_is_refused_and_nothing_waits_for_it() {
    let (mock, kafka) = cluster_with(1, &[("message.max.bytes", "2000"), ("max.in.flight", "1")]);
    let large = vec![b'x'; 5_000];
    let all: [Item<'_>; 4] =
        [("0", None, &large), ("1", None, b"1"), ("2", Some(b"k"), &large), ("3", Some(b"k"), b"3")];
    for _ in 0..2 {
        let results = kafka.produce(TOPIC, frames(&all)).await;
        for (index, result) in results.iter().enumerate() {
            let is_refused = matches!(result, Err(ProduceError::TooLargeThere(_)));
            assert_eq!((is_refused, result.is_ok()), (index % 2 == 0, index % 2 == 1), "{results:?}");
        }
    }
    assert_eq!(landed(&mock, 4), ["1", "3", "1", "3"]);
}

/// P2, PRD-3: a message that fails while others of its call wait for a slow leader is not overtaken until its caller has
/// the answer: what is produced to its partition meanwhile fails, too, and can be kept behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_is_not_overtaken_while_its_call_waits_for_others() {
    let (mock, kafka) = cluster_with(3, &[("max.in.flight", "1")]);
    topic_of(&mock, &kafka, "two", &[2, 3]);
    topic(&mock, &kafka, "busy", 3);
    let to = |partition: u32, name: &str| {
        let mut frames = Frames::default();
        push(&mut frames, partition, name);
        kafka.produce("two", frames)
    };
    for partition in [0, 1] {
        assert!(to(partition, "first").await[0].is_ok());
    }
    for name in [TOPIC, "busy"] {
        one(&kafka, name, "first").await.expect("it is taken");
    }
    // Others that were produced later have been there and back.
    let is_on_its_way = async || {
        for number in 0..20 {
            one(&kafka, TOPIC, &number.to_string()).await.expect("it is taken");
        }
    };
    // One message is to wait for its leader's answer, and the other to be sent, since its leader has not answered to
    // what was sent before.
    for broker in [2, 3] {
        mock.broker_round_trip_time(broker, Duration::from_secs(8)).expect("it gets slow");
    }
    let mut busy = Box::pin(one(&kafka, "busy", "second"));
    assert!(futures_util::poll!(&mut busy).is_pending());
    is_on_its_way().await;
    let mut both = Frames::default();
    (0..2).for_each(|partition| push(&mut both, partition, "second"));
    let mut call = Box::pin(kafka.produce("two", both));
    assert!(futures_util::poll!(&mut call).is_pending());
    is_on_its_way().await;
    // The client asks the broker that it used last, which is not to be the slow one.
    let look = async || {
        one(&kafka, TOPIC, "look").await.expect("it is taken");
        kafka.silence("two", &[1]).await;
    };
    // One answer does not know the topic, so that what was not sent fails.
    mock.topic_error("two", RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).expect("it is told so");
    while !kafka.is_shut("two", 1) {
        look().await;
    }
    mock.topic_error("two", RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).expect("it is told so");
    let mut tries = 0;
    let results = loop {
        look().await;
        if let Poll::Ready(results) = futures_util::poll!(&mut call) {
            break results;
        }
        let overtaking = to(1, "third").await;
        assert!(matches!(overtaking[0], Err(ProduceError::Unavailable(_))), "{overtaking:?}");
        tries += 1;
    };
    assert!(tries > 0 && results[0].is_ok(), "{tries}: {results:?}");
    assert!(matches!(results[1], Err(ProduceError::Unavailable(_))), "{results:?}");
    // Whoever keeps what failed calls back all that is under way, and then goes on.
    for broker in [2, 3] {
        mock.broker_round_trip_time(broker, Duration::ZERO).expect("it gets quick");
    }
    kafka.recall().await;
    while to(1, "fourth").await[0].is_err() {
        kafka.silence("two", &[1]).await;
    }
}

fn push(frames: &mut Frames, partition: u32, name: &str) {
    let draft = Draft { id: name, key: Some(b"k"), payload: Some(name.as_bytes()), ..Draft::default() };
    frames.push(partition, &draft).expect("it is well formed");
}
