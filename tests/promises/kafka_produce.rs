//! Producing with the library itself to a real cluster that refuses some messages, throttles Keylane, or is away.

use std::time::Duration;

use keylane::outbox::{OutboxOptions, ddl};
use keylane::raw::Draft;
use keylane::{Config, Ids, KafkaOptions, Keylane, Message, SpillOptions, TopicSpec};
use keylane_tests::{Cluster, until};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use tempfile::TempDir;

fn one_partition() -> TopicSpec {
    TopicSpec { partitions: 1, ..TopicSpec::default() }
}

/// Keylane on a cluster, which counts as away after a second.
async fn open(cluster: &Cluster) -> (TempDir, Keylane) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut spill = SpillOptions::default();
    (spill.after, spill.drain_every) = (Duration::from_secs(1), Duration::from_secs(1));
    let config = Config::kafka(KafkaOptions::new(&cluster.bootstrap), folder.path()).spill(spill);
    let keylane = Keylane::open(config).await.expect("it opens");
    (folder, keylane)
}

/// Ids of all messages in partition 0 of a topic, in order.
async fn landed(keylane: &Keylane, topic: &str) -> Vec<String> {
    let there = keylane.peek(topic, 0, 0, 100_000).await.expect("it is read");
    there.iter().map(|message| message.id().to_owned()).collect()
}

/// The same, with repeats left out that follow at once: a client that is replaced sends again what it had not heard of, so
/// that a row may land twice under its id (PRD-5).
async fn landed_once(keylane: &Keylane, topic: &str) -> Vec<String> {
    let mut landed = landed(keylane, topic).await;
    landed.dedup();
    landed
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

/// BRK-2, PRD-3: slow is not away. With a quota far below what is sent, nothing is taken back, nothing is spilled, and
/// each message lands once, though most wait for much longer than `spill.after`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_does_not_make_the_cluster_count_as_away() {
    const MESSAGES: u64 = 240;
    let cluster = Cluster::with(&["--brokers", "1", "--set", "quota.window.num=2"]);
    let (_folder, keylane) = open(&cluster).await;
    let spec = TopicSpec { partitions: 3, ..TopicSpec::default() };
    keylane.ensure_topic("slow", &spec).await.expect("a topic is made");
    let quota =
        ["--add-config", "producer_byte_rate=1048576", "--entity-type", "clients", "--entity-default"];
    cluster.tool(&[&["kafka.admin.ConfigCommand", "--alter"], &quota[..]].concat());
    let mut tickets = Vec::new();
    for number in 0..MESSAGES {
        let message = Message::to("slow").id(number.to_string()).key(format!("k{number}"));
        let payload = noise(50_000, number);
        tickets.push(keylane.producer().send(message.payload(payload)).await.expect("there is room"));
    }
    for ticket in tickets {
        let receipt = ticket.await.expect("it is taken");
        assert!(!receipt.is_spilled() && receipt.offset.is_some(), "{receipt:?}");
    }
    let topics = keylane.topics().await.expect("it answers");
    assert_eq!(topics.iter().find(|topic| topic.name == "slow").expect("it is there").messages, MESSAGES);
    assert_eq!(keylane.spill().degraded_messages, 0);
}

/// PRD-3, BRK-2: a leader that is away counts as away after `spill.after`, whatever it acknowledged before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_away_is_bridged_all_the_same() {
    let cluster = Cluster::start(1);
    let (_folder, keylane) = open(&cluster).await;
    keylane.ensure_topic("gone", &one_partition()).await.expect("a topic is made");
    let message = |id: &str| Message::to("gone").key("k").payload("{}").id(id);
    keylane.produce(message("0")).await.expect("it is taken");
    cluster.kill(1);
    let kept = keylane.produce(message("1")).await.expect("it is kept");
    assert!(kept.is_spilled(), "{kept:?}");
    cluster.restart(1);
    until("the spill to be empty", async || (keylane.spill().messages == 0).then_some(())).await;
    keylane.produce(message("2")).await.expect("it is taken");
    assert_eq!(landed(&keylane, "gone").await, ["0", "1", "2"]);
}

/// PRD-5, P2, BRK-2: a row that the cluster refuses stays alone. Rows of other keys in its batch land, in order; later
/// rows of its key wait, and land behind it once the topic accepts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_outbox_only_the_row_that_is_refused_stays() {
    let cluster = Cluster::shared();
    let (folder, keylane) = open(&cluster).await;
    keylane.ensure_topic("rows", &one_partition()).await.expect("a topic is made");
    keylane.produce(Message::to("rows").key("first").payload("{}").id("known")).await.expect("it is taken");
    let url = format!("sqlite:{}/shop.db?mode=rwc", folder.path().display());
    let mut database = SqliteConnection::connect(&url).await.expect("a file");
    let sql = ddl(&url, "keylane_outbox").expect("a good name");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut database).await.expect("a table");
    let large: String = noise(4_000, 1).iter().map(|byte| format!("{byte:02x}")).collect();
    for (id, key, payload) in [
        ("a0", Some("a"), "{}"),
        ("b0", Some("b"), &large),
        ("a1", Some("a"), "{}"),
        ("b1", Some("b"), "{}"),
        ("none", None, "{}"),
        ("a2", Some("a"), "{}"),
        ("b2", Some("b"), "{}"),
    ] {
        let row =
            sqlx::query("INSERT INTO keylane_outbox (id, topic, key, payload) VALUES (?, 'rows', ?, ?)");
        row.bind(id).bind(key).bind(payload).execute(&mut database).await.expect("a row");
    }
    cluster.set("rows", "cleanup.policy=compact,max.message.bytes=3000");
    let options = OutboxOptions::new(&url).poll(Duration::from_millis(20)).retry(Duration::from_millis(200));
    let relay = keylane.outbox(options);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relaying = tokio::spawn(relay.run_until(async move {
        let _ = stopped.await;
    }));
    let left = async |database: &mut SqliteConnection| -> Vec<String> {
        let left = sqlx::query_scalar("SELECT id FROM keylane_outbox ORDER BY seq");
        left.fetch_all(database).await.expect("ids")
    };
    while left(&mut database).await != ["b0", "b1", "none", "b2"] {
        tokio::task::yield_now().await;
    }
    assert_eq!(landed_once(&keylane, "rows").await, ["known", "a0", "a1", "a2"]);
    cluster.set("rows", "max.message.bytes=1000000");
    while left(&mut database).await != ["none"] {
        tokio::task::yield_now().await;
    }
    assert_eq!(landed_once(&keylane, "rows").await, ["known", "a0", "a1", "a2", "b0", "b1", "b2"]);
    stop.send(()).expect("it runs");
    relaying.await.expect("it does not panic").expect("its options are good");
}

/// MSG-1, BRK-2: on a topic with `ids: caller` a message without an id is named by its place, in its receipt and when
/// it is read, and has no header; a message with an id keeps it. The order is kept across both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_ids_of_callers_only_others_are_called_by_their_place() {
    let cluster = Cluster::shared();
    let (_folder, keylane) = open(&cluster).await;
    let spec = TopicSpec { ids: Ids::Caller, ..one_partition() };
    keylane.ensure_topic("named", &spec).await.expect("a topic is made");
    let mut receipts = Vec::new();
    for number in 0..20 {
        let message = Message::to("named").key("k").json(&number).expect("a number is JSON");
        let message = if number % 5 == 4 { message.id(format!("own-{number}")) } else { message };
        receipts.push(keylane.producer().send(message).await.expect("there is room"));
    }
    let mut expected = Vec::new();
    for (number, receipt) in receipts.into_iter().enumerate() {
        let id = receipt.await.expect("it is taken").id;
        match number % 5 {
            4 => assert_eq!(id, format!("own-{number}")),
            _ => assert_eq!(id, format!("named/0/{number}")),
        }
        expected.push(id);
    }
    assert_eq!(landed(&keylane, "named").await, expected);
    for (number, headers) in headers(&cluster, "named", 20).into_iter().enumerate() {
        match number % 5 {
            4 => assert_eq!(headers, [("keylane-id".to_owned(), format!("own-{number}"))]),
            _ => assert_eq!(headers, []),
        }
    }
}

/// MSG-1, BRK-2: of what Keylane adds to a message only the id stands on the wire. The id or the record's time says
/// when the message was produced; where neither does, a header does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_has_one_header_and_its_time_is_told_by_its_id() {
    let cluster = Cluster::shared();
    let (_folder, keylane) = open(&cluster).await;
    keylane.ensure_topic("headed", &one_partition()).await.expect("a topic is made");
    let producer = keylane.producer();
    let now_ms = producer.wall_ms();
    let (made, old) = (producer.new_id(), "018f0000-0000-7000-8000-000000000000");
    let mut call = producer.call("headed").await.expect("it is there");
    for (id, produced_ms) in [(&*made, now_ms), ("own", now_ms), ("late", 5_000_000), (old, now_ms)] {
        call.push(&Draft { id, key: Some(b"k"), payload: Some(b"{}"), produced_ms, ..Draft::default() });
    }
    let results = call.send().await.expect("it is sent");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let names: Vec<Vec<String>> = headers(&cluster, "headed", 4)
        .into_iter()
        .map(|headers| headers.into_iter().map(|(name, _)| name).collect())
        .collect();
    let (one, two) = (vec!["keylane-id"], vec!["keylane-id", "keylane-produced-at"]);
    assert_eq!(names, [one.clone(), one, two.clone(), two]);
    let read = keylane.peek("headed", 0, 0, 10).await.expect("it is read");
    let (late, rest) = (read[2].produced_ms(), [&read[0], &read[1], &read[3]]);
    assert_eq!(late, 5_000_000);
    for message in rest {
        assert!(
            message.produced_ms().abs_diff(now_ms) < 60_000,
            "{}: {}",
            message.id(),
            message.produced_ms()
        );
    }
    assert!(read[0].produced_ms().abs_diff(now_ms) <= 1_000, "it is the id's");
}

/// Headers of the first records of partition 0, as another client reads them.
fn headers(cluster: &Cluster, topic: &str, count: usize) -> Vec<Vec<(String, String)>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &cluster.bootstrap)
        .set("group.id", "headers")
        .create()
        .expect("it is made");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Beginning).expect("a place");
    consumer.assign(&list).expect("it is assigned");
    let mut found = Vec::new();
    while found.len() < count {
        let message = consumer.poll(Duration::from_secs(60)).expect("there are more").expect("it is read");
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
        found.push(headers.map(|header| (header.key.to_owned(), text(header.value))).collect());
    }
    found
}
