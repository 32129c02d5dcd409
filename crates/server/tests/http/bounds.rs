//! Bounds on all that comes in (SEC-2).

use serde_json::json;

use crate::client::{Client, Rig};

const SMALL: &str = "topics: { t: { partitions: 1, max_message: 1000 } }\ningest: { max_request: 8KiB }\n";

fn of_size(bytes: usize) -> String {
    json!({ "payload": "x".repeat(bytes) }).to_string()
}

/// SEC-2, ING-1.
#[tokio::test]
async fn a_message_over_its_topics_limit_is_413_alone_and_a_line_among_others() {
    let rig = Rig::start(SMALL).await;
    assert_eq!(rig.json("t", &of_size(900)).await.status, 202);
    rig.json("t", &of_size(1000)).await.is_problem(413, "KL-1203");
    rig.lines("t", &of_size(1000)).await.is_problem(413, "KL-1203");
    let lines = format!("{}\n{{\"payload\":1}}\n{}", of_size(2000), of_size(1001));
    let answer = rig.lines("t", &lines).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let rejected: Vec<_> =
        answer.value()["rejected"].as_array().expect("a list").iter().map(|r| r["index"].clone()).collect();
    assert_eq!(rejected, [json!(0), json!(2)]);
    rig.lines("t", &format!("{}\n{}", of_size(1000), of_size(1000))).await.is_problem(400, "KL-1208");
}

/// SEC-2.
#[tokio::test]
async fn a_request_over_the_limit_is_413_whether_it_says_so_or_not() {
    let rig = Rig::start(SMALL).await;
    let body = "{\"payload\":1}\n".repeat(1000);
    rig.lines("t", &body).await.is_problem(413, "KL-1210");
    let mut client = rig.connect().await;
    client
        .send(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    for _ in 0..20 {
        let part = "{\"payload\":1}\n".repeat(100);
        client.send(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes()).await;
    }
    client.send(b"0\r\n\r\n").await;
    client.answer().await.expect("an answer").is_problem(413, "KL-1210");
    assert_eq!(rig.messages("t").await.len(), 0);
    // A client that asks first is told before it sends.
    let mut client = rig.connect().await;
    client
        .send(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
        .await;
    client.answer().await.expect("an answer").is_problem(413, "KL-1210");
}

/// SEC-2: what was sent in pieces is one body.
#[tokio::test]
async fn a_body_in_pieces_is_put_together() {
    let rig = Rig::start(SMALL).await;
    let mut client = rig.connect().await;
    client
        .send(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    for part in of_size(900).as_bytes().chunks(7) {
        client.send(format!("{:x}\r\n", part.len()).as_bytes()).await;
        client.send(part).await;
        client.send(b"\r\n").await;
    }
    client.send(b"0\r\n\r\n").await;
    assert_eq!(client.answer().await.expect("an answer").status, 202);
    assert_eq!(rig.messages("t").await[0]["payload"].as_str().map(str::len), Some(900));
}

/// SEC-2, P1: half a body leaves nothing behind, even if that half is a message.
#[tokio::test]
async fn half_a_body_leaves_nothing_behind() {
    let rig = Rig::start(SMALL).await;
    for rest in [
        "Content-Length: 500\r\n\r\n{\"payload\":1}\n",
        "Transfer-Encoding: chunked\r\n\r\ne\r\n{\"payload\":1}\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\ne\r\n{\"pay",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let mut client = rig.connect().await;
        let head = "POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n";
        client.send(format!("{head}{rest}").as_bytes()).await;
        drop(client);
    }
    let answer = rig.json("t", "{\"payload\":2}").await;
    assert_eq!(answer.value()["accepted"][0]["offset"], 0, "nothing lies before it");
}

/// SEC-2.
#[tokio::test]
async fn a_body_that_stands_still_is_given_up() {
    let rig = Rig::start("server: { body_timeout: 30ms }\ntopics: { t: {} }\n").await;
    let mut client = rig.connect().await;
    client
        .send(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{\"pay")
        .await;
    client.answer().await.expect("an answer").is_problem(408, "KL-1211");
}

/// SEC-2.
#[tokio::test]
async fn a_connection_that_sends_no_head_is_closed() {
    let rig = Rig::start("server: { idle_timeout: 50ms }\n").await;
    let mut silent = rig.connect().await;
    assert!(silent.is_closed().await);
    let mut slow = rig.connect().await;
    slow.send(b"GET /healthz HTTP/1.1\r\nHost: local").await;
    slow.is_closed().await;
    let mut idle = rig.connect().await;
    assert_eq!(idle.ask("GET", "/healthz", &[], b"").await.status, 200);
    assert!(idle.is_closed().await);
}

/// SEC-2.
#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let rig = Rig::start("").await;
    let mut client = rig.connect().await;
    let long = "x".repeat(200_000);
    client.send(format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: {long}\r\n\r\n").as_bytes()).await;
    assert_eq!(client.answer().await.map(|answer| answer.status), Some(431));
    let mut client = rig.connect().await;
    let many: String = (0..200).map(|n| format!("h{n}: 1\r\n")).collect();
    client.send(format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{many}\r\n").as_bytes()).await;
    assert_eq!(client.answer().await.map(|answer| answer.status), Some(431));
    assert_eq!(rig.get("/healthz").await.status, 200);
}

/// SEC-2.
#[tokio::test]
async fn one_connection_too_many_is_told_and_a_place_that_is_free_is_given() {
    let rig = Rig::start("server: { connections: 2 }\n").await;
    let mut first = rig.connect().await;
    let mut second = rig.connect().await;
    assert_eq!(first.ask("GET", "/healthz", &[], b"").await.status, 200);
    assert_eq!(second.ask("GET", "/healthz", &[], b"").await.status, 200);
    let mut third = rig.connect().await;
    third.ask("GET", "/healthz", &[], b"").await.is_problem(503, "KL-1217");
    drop(first);
    loop {
        let mut again = Client::connect(rig.address()).await;
        if again.ask("GET", "/healthz", &[], b"").await.status == 200 {
            break;
        }
    }
}

/// SEC-2, PRD-2.
#[tokio::test]
async fn one_producing_request_too_many_is_503() {
    let rig = Rig::start("topics: { t: {} }\ningest: { in_flight: 1 }\n").await;
    let mut holds = rig.connect().await;
    let head = "POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    // A request whose body is on its way has its place; that it has, shows when another is refused.
    holds.send(format!("{head}Content-Length: 13\r\n\r\n{{\"payload\"").as_bytes()).await;
    loop {
        let answer = rig.json("t", "{\"payload\":1}").await;
        if answer.status == 503 {
            answer.is_problem(503, "KL-1205");
            break;
        }
        assert_eq!(answer.status, 202);
    }
    holds.send(b":1}").await;
    assert_eq!(holds.answer().await.expect("an answer").status, 202);
    assert_eq!(rig.json("t", "{\"payload\":1}").await.status, 202);
}
