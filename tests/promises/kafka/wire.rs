//! Other clients beside Keylane: they read what Keylane writes, and the other way round.

use std::collections::BTreeMap;

use keylane_tests::{Server, Setup, Sink, client, fill, items, produce, until};
use serde_json::Value;

use crate::{SOON, cluster};

/// The records that an independent client reads of a topic, as JSON objects.
fn read_by_kcat(topic: &str) -> Vec<Value> {
    let printed = cluster().kcat(&["-C", "-e", "-q", "-J", "-t", topic], "");
    printed.lines().map(|line| serde_json::from_str(line).expect("kcat prints JSON")).collect()
}

/// The headers of a record; kcat prints names and values in turn.
fn headers(record: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let all = record["headers"].as_array().expect("a list");
    all.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

/// MSG-1, MSG-3: id and version stand in headers that any client can read, beside the caller's own; key and payload
/// stand where every client has them, byte for byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_keylane_wrote_is_read_by_another_client() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let mut server = Server::new(&Setup::default().topic("written").on_kafka(&cluster, SOON), &sink);
    server.start().await;
    let lines = concat!(
        r#"{"key":"user-1","payload":{"n": 1,  "a":[]},"id":"m-1","version":7,"headers":{"trace":"x y"}}"#,
        "\n",
        r#"{"key":"","payload_base64":"","id":"m-2"}"#,
        "\n",
        r#"{"payload":"no key","id":"m-3"}"#,
        "\n",
    );
    let post = client().post(server.topic_url()).header("content-type", "application/x-ndjson").body(lines);
    let answer = post.send().await.expect("it answers");
    assert_eq!(answer.status(), 202, "{:?}", answer.text().await);
    let records = read_by_kcat("written");
    let by_id: BTreeMap<String, &Value> =
        records.iter().map(|record| (headers(record)["keylane-id"].clone(), record)).collect();
    assert_eq!(by_id.len(), 3, "{records:?}");
    let (first, empty, keyless) = (by_id["m-1"], by_id["m-2"], by_id["m-3"]);
    assert_eq!((&first["key"], &first["payload"]), (&"user-1".into(), &r#"{"n": 1,  "a":[]}"#.into()));
    assert_eq!((&empty["key"], &empty["payload"]), (&"".into(), &"".into()), "empty, and not null");
    assert_eq!((&keyless["key"], &keyless["payload"]), (&Value::Null, &"\"no key\"".into()));
    let first = headers(first);
    assert_eq!((first["keylane-version"].as_str(), first["trace"].as_str()), ("7", "x y"));
    assert!(!headers(empty).contains_key("keylane-version"), "{empty}");
    for record in &records {
        assert_eq!(record["tstype"], "logappend", "{record}");
    }
    sink.wait_settled(3).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// MSG-1, MSG-3: another system's record is handled like any other; its id is its place, and a null is told from an
/// empty payload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_wrote_is_handled() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let mut server = Server::new(&Setup::default().topic("foreign").on_kafka(&cluster, SOON), &sink);
    server.start().await;
    let written = ["-P", "-t", "foreign", "-p", "2", "-K", ":"];
    cluster.kcat(&[&written[..], &["-H", "kind=created"]].concat(), "k:{\"n\":0}\n");
    cluster.kcat(&[&written[..], &["-Z"]].concat(), "k:\n");
    cluster.kcat(&written, "k:\n");
    cluster.kcat(
        &[&written[..], &["-H", "keylane-id=mine", "-H", "keylane-version=3"]].concat(),
        "k:{\"n\":3}\n",
    );
    sink.wait_settled(4).await;
    let calls = sink.calls();
    let ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["foreign/2/0", "foreign/2/1", "foreign/2/2", "mine"]);
    let (status, shown) = server.get("/admin/topics/foreign/messages?partition=2").await.expect("it answers");
    let shown = shown.as_array().unwrap_or_else(|| panic!("{status}: {shown}"));
    assert_eq!(shown[0]["headers"]["kind"], "created");
    assert!(
        shown[1].get("payload").is_none() && shown[1].get("payload_base64").is_none(),
        "null: {}",
        shown[1]
    );
    assert_eq!(shown[2]["payload_base64"], "", "empty, and not null: {}", shown[2]);
    assert_eq!((&shown[3]["version"], &shown[3]["id"]), (&3.into(), &"mine".into()));
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// MSG-3: a key lies in the partition where the Java client puts it, as librdkafka does with the same partitioner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_lie_where_the_java_client_puts_them() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let setup = Setup::default().topic("keyed").partitions(7).on_kafka(&cluster, SOON);
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    let keys: Vec<String> = (0..300).map(|key| format!("{}-{key}", "é".repeat(key % 5))).collect();
    let all: Vec<_> = keys.iter().flat_map(|key| items(key, 0, 1)).collect();
    let acked = fill(&server, &all).await;
    let lines: String = keys.iter().map(|key| format!("{key}|other\n")).collect();
    let properties = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=|"];
    cluster.tool_fed(&[&["ConsoleProducer", "--topic", "keyed"], &properties[..]].concat(), &lines);
    cluster.kcat(&["-P", "-t", "keyed", "-K", "|", "-X", "topic.partitioner=murmur2_random"], &lines);
    let mut placed: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in read_by_kcat("keyed").iter().filter(|record| record["payload"] == "other") {
        let key = record["key"].as_str().expect("text").to_owned();
        placed.entry(key).or_default().push(record["partition"].as_u64().expect("a number"));
    }
    for acked in &acked {
        let key = acked.key.as_ref().expect("all have one");
        assert_eq!(placed[key], [u64::from(acked.partition); 2], "where the two others put {key:?}");
    }
    sink.wait_settled(900).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-8, ING-8: a server listens before its topics are made; messages sent meanwhile wait, and are accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_as_soon_as_the_server_listens_is_taken() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let setup = Setup::default().topic("early").partitions(12).on_kafka(&cluster, SOON);
    let mut server = Server::new(&setup, &sink);
    server.spawn();
    until("the server to listen", async || server.get("/healthz").await.filter(|(status, _)| *status == 200))
        .await;
    let acked = produce(&client(), &server.topic_url(), &items("k", 0, 10)).await.expect("it is taken");
    server.settles(&sink, &acked).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}
