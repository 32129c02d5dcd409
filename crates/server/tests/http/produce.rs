//! Tests of accepted messages.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::client::Rig;

const ONE: &str = "topics: { t: { partitions: 1 } }";
/// The section of a pipeline that reads the topic.
const PRINTS: &str = "pipelines: { prints: { topic: t, handler: { log: {} } } }";

/// ING-1, ADM-1: the first message for a topic without a pipeline is answered with a warning, once.
#[tokio::test]
async fn the_first_message_to_a_topic_that_nobody_reads_is_answered_with_a_warning() {
    let topics = "topics: { t: { partitions: 1 }, lonely: { partitions: 1 } }";
    let rig = Rig::start(&format!("{topics}\n{PRINTS}")).await;
    let read = rig.json("t", r#"{"payload":1}"#).await.value();
    assert_eq!(read.get("warnings"), None, "{read}");
    // A refused message is not stored, so there is nothing to warn of yet.
    assert_eq!(rig.json("lonely", r#"{"key":1}"#).await.status, 400);
    let first = rig.json("lonely", r#"{"payload":1}"#).await.value();
    let warnings = first["warnings"].as_array().expect("a list");
    assert_eq!(warnings.len(), 1, "{first}");
    let warning = warnings[0].as_str().expect("text");
    assert!(warning.contains("`lonely`") && warning.contains("no pipeline of this server"), "{warning}");
    let again = rig.json("lonely", r#"[{"payload":1},{"payload":2}]"#).await.value();
    assert_eq!(again.get("warnings"), None, "{again}");
    let shown = rig.get("/admin/topics").await.value();
    let of = |name: &str| {
        shown["topics"].as_array().and_then(|all| all.iter().find(|topic| topic["name"] == name)).cloned()
    };
    assert_eq!(of("t").expect("it is there")["pipelines"], json!(["prints"]));
    assert_eq!(of("lonely").expect("it is there")["pipelines"], json!([]));
}

/// ING-5, MSG-1: a payload of bytes gets a content type, unless its producer gives one; a JSON payload gets none.
#[tokio::test]
async fn bytes_get_a_content_type_and_json_gets_none() {
    let rig = Rig::start(ONE).await;
    let body = r#"[{"payload_base64":"e30="},{"payload_base64":"e30=","headers":{"Content-Type":"text/csv"}},{"payload":{}}]"#;
    assert_eq!(rig.json("t", body).await.status, 202);
    let messages = rig.messages("t").await;
    assert_eq!(messages[0]["headers"], json!({ "content-type": "application/octet-stream" }));
    assert_eq!(messages[1]["headers"], json!({ "Content-Type": "text/csv" }));
    assert_eq!(messages[2]["headers"], json!({}));
}

/// ING-1, MSG-1.
#[tokio::test]
async fn one_message_is_answered_with_where_it_lies_and_read_back_as_it_came() {
    let rig = Rig::start(&format!("{ONE}\n{PRINTS}")).await;
    let body =
        r#"{"key":"user-1","payload":{"n" : 1.50e+2},"id":"m-1","version":9,"headers":{"b":"1","a":"é"}}"#;
    let answer = rig.json("t", body).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    assert_eq!(answer.text(), r#"{"accepted":[{"id":"m-1","partition":0,"offset":0}],"rejected":[]}"#);
    let shown = rig.get("/admin/topics/t/messages").await;
    assert!(shown.text().contains(r#""payload":{"n" : 1.50e+2}"#), "{}", shown.text());
    let message = &shown.value()[0];
    assert_eq!(message["key"], "user-1");
    assert_eq!(message["version"], 9);
    assert_eq!(message["headers"], json!({ "b": "1", "a": "é" }));
    assert!(message["produced_at"].as_u64().is_some_and(|ms| ms > 1_700_000_000_000));
}

/// ING-1, MSG-3: any bytes arrive unchanged.
#[tokio::test]
async fn bytes_come_as_base64_and_go_as_base64() {
    let rig = Rig::start(ONE).await;
    let answer =
        rig.json("t", r#"[{"payload_base64":"/wD+"},{"payload":"x\u0000y"},{"payload":null}]"#).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let messages = rig.messages("t").await;
    assert_eq!(messages[0]["payload_base64"], "/wD+");
    assert_eq!(messages[1]["payload"], "x\u{0}y");
    assert_eq!(messages[2].get("payload"), Some(&Value::Null));
    assert_eq!(messages[0]["key"], Value::Null);
}

/// ING-1, MSG-3: the messages of a key keep their order, in every form of body.
#[tokio::test]
async fn arrays_and_lines_take_many_and_keep_the_order_of_each_key() {
    let rig = Rig::start("topics: { t: { partitions: 4 } }").await;
    let mut client = rig.connect().await;
    for round in 0..3 {
        let messages: Vec<Value> = (0..50)
            .map(|n| json!({ "key": format!("k{}", n % 7), "payload": round * 50 + n, "id": format!("{round}-{n}") }))
            .collect();
        let lines: Vec<String> = messages.iter().map(Value::to_string).collect();
        let (kind, body) = match round {
            0 => ("application/json", Value::from(messages).to_string()),
            1 => ("application/x-ndjson", lines.join("\n")),
            _ => ("application/x-ndjson", lines.join("\r\n\r\n") + "\n"),
        };
        let headers = [("Content-Type", kind)];
        let answer = client.ask("POST", "/v1/topics/t/messages", &headers, body.as_bytes()).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        let ids: Vec<_> =
            answer.value()["accepted"].as_array().expect("a list").iter().map(|a| a["id"].clone()).collect();
        assert_eq!(ids, (0..50).map(|n| json!(format!("{round}-{n}"))).collect::<Vec<_>>());
    }
    let messages = rig.messages("t").await;
    assert_eq!(messages.len(), 150);
    for key in 0..7 {
        let of_key: Vec<u64> = messages
            .iter()
            .filter(|message| message["key"] == format!("k{key}"))
            .map(|message| message["payload"].as_u64().expect("a number"))
            .collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}

/// MSG-1, MSG-2: generated ids are UUIDv7, and their messages spread over partitions; a caller's id decides the
/// partition.
#[tokio::test]
async fn messages_without_a_key_are_spread_unless_they_have_an_id() {
    let rig = Rig::start("topics: { t: { partitions: 4 } }").await;
    let answer = rig.lines("t", &"{\"payload\":1}\n".repeat(8)).await.value();
    let partitions: std::collections::BTreeSet<_> =
        answer["accepted"].as_array().expect("a list").iter().map(|a| a["partition"].as_u64()).collect();
    assert_eq!(partitions.len(), 4);
    assert_eq!(
        answer["accepted"][0]["id"].as_str().map(|id| (id.len(), id.as_bytes()[14])),
        Some((36, b'7'))
    );
    let same = rig.lines("t", &"{\"payload\":1,\"id\":\"x\"}\n".repeat(8)).await.value();
    let partitions: std::collections::BTreeSet<_> =
        same["accepted"].as_array().expect("a list").iter().map(|a| a["partition"].as_u64()).collect();
    assert_eq!(partitions.len(), 1);
}

/// ING-1: without declared topics, the first message for a name creates its topic.
#[tokio::test]
async fn a_first_use_creates_a_topic_where_none_are_declared() {
    let rig = Rig::start("").await;
    assert_eq!(rig.json("fresh", r#"{"payload":1}"#).await.status, 202);
    let topics = rig.get("/admin/topics").await.value();
    assert_eq!(topics["topics"][0]["name"], "fresh");
    assert_eq!(topics["topics"][0]["partitions"], 4);
    rig.json("../../etc", r#"{"payload":1}"#).await;
    rig.json("a%2Fb", r#"{"payload":1}"#).await.is_problem(400, "KL-1215");
    rig.json("..", r#"{"payload":1}"#).await;
    assert_eq!(rig.get("/admin/topics").await.value()["topics"].as_array().map(Vec::len), Some(1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// ING-1: in any mixture, good messages are accepted in order and bad ones are listed by index.
    #[test]
    fn bad_lines_are_told_by_their_index(good in proptest::collection::vec(any::<bool>(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let rig = Rig::start(ONE).await;
            let bad = ["not json", "{}", r#"{"payload":1,"nope":2}"#, r#"{"payload":1"#, "[1]"];
            let lines: Vec<String> = good
                .iter()
                .enumerate()
                .map(|(n, good)| if *good { format!(r#"{{"payload":{n},"id":"{n}"}}"#) } else { bad[n % bad.len()].to_owned() })
                .collect();
            let answer = rig.lines("t", &lines.join("\n")).await;
            let value = answer.value();
            let indexes = |good_ones: bool| -> Vec<u64> {
                (0..).zip(&good).filter(|(_, good)| **good == good_ones).map(|(n, _)| n).collect()
            };
            let rejected: Vec<u64> = value["rejected"].as_array().into_iter().flatten()
                .filter_map(|r| r["index"].as_u64()).collect();
            if good.contains(&true) {
                assert_eq!(answer.status, 202);
                assert_eq!(rejected, indexes(false));
                let accepted: Vec<u64> = value["accepted"].as_array().expect("a list").iter()
                    .filter_map(|a| a["id"].as_str()?.parse().ok()).collect();
                assert_eq!(accepted, indexes(true));
            } else if good.len() > 1 {
                answer.is_problem(400, "KL-1208");
                assert_eq!(rejected, indexes(false));
            } else {
                answer.is_problem(400, "KL-1202");
            }
            assert_eq!(rig.messages("t").await.len(), indexes(true).len());
        });
    }
}
