//! Tests of the bounds on everything that clients send (SEC-2).

use std::time::Duration;

use keylane::Message;
use keylane_server::{Config, Environment, Server};
use serde_json::json;
use serde_json::value::RawValue;

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
    // A client that sends `Expect: 100-continue` gets its answer before it sends the body.
    let mut client = rig.connect().await;
    client
        .send(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
        .await;
    client.answer().await.expect("an answer").is_problem(413, "KL-1210");
}

/// SEC-2: a body that is sent in pieces is read as one body.
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

/// SEC-2, P1: a body that breaks off stores nothing, even if the part that arrived is a whole message.
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
    let rig = Rig::start("server: { idle_timeout: 1s }\n").await;
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
    client.answer().await.expect("an answer").is_problem(431, "KL-1223");
    let mut client = rig.connect().await;
    let many: String = (0..200).map(|n| format!("h{n}: 1\r\n")).collect();
    client.send(format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{many}\r\n").as_bytes()).await;
    client.answer().await.expect("an answer").is_problem(431, "KL-1223");
    for garbage in ["\x16\x03\x01\x02 hello\r\n\r\n", "GET /a b c\r\n\r\n"] {
        let mut client = rig.connect().await;
        client.send(garbage.as_bytes()).await;
        let problem = client.answer().await.expect("an answer").is_problem(400, "KL-1223");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains("HTTP/1.1")), "{problem}");
    }
    assert_eq!(rig.get("/healthz").await.status, 200);
}

/// SEC-2: hyper drops one of two lengths, and a proxy in front may have used the dropped one: bytes that the proxy took
/// for a body must not be read as a request.
#[tokio::test]
async fn a_request_with_two_lengths_is_refused_and_nothing_behind_it_is_read() {
    let rig = Rig::start("topics: { t: { partitions: 1 } }").await;
    let first =
        "POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let chunked = "d\r\n{\"payload\":1}\r\n0\r\n\r\n";
    let smuggled = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for lengths in [
        "Content-Length: 13\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 13",
        "transfer-encoding: chunked\r\nA: b\r\ncontent-length:13",
    ] {
        // The request is the first of its connection, or a later one.
        for before in [false, true] {
            let mut client = rig.connect().await;
            if before {
                let earlier = format!("{first}Transfer-Encoding: chunked\r\n\r\n{chunked}");
                client.send(earlier.as_bytes()).await;
                assert_eq!(client.answer().await.map(|answer| answer.status), Some(202));
            }
            client.send(format!("{first}{lengths}\r\n\r\n{chunked}{smuggled}").as_bytes()).await;
            client.answer().await.expect("an answer").is_problem(400, "KL-1222");
            assert!(client.answer().await.is_none(), "{lengths}: what stood behind it was read as a request");
        }
    }
    // If the request is sent together with the one before, its lengths are not known: it is answered, and the
    // connection ends.
    let mut client = rig.connect().await;
    let pair = format!(
        "{smuggled}{first}Content-Length: 13\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}{smuggled}"
    );
    client.send(pair.as_bytes()).await;
    assert_eq!(client.answer().await.map(|answer| answer.status), Some(200));
    assert_eq!(client.answer().await.map(|answer| answer.status), Some(202));
    assert!(client.answer().await.is_none(), "what stood behind it was read as a request");
}

/// SEC-2.
#[tokio::test]
async fn an_odd_host_and_an_odd_encoding_are_refused() {
    let rig = Rig::start("").await;
    for host in ["", "Host: \r\n", "Host: a b\r\n", "Host: a\r\nHost: a\r\n", "Host: me@localhost\r\n"] {
        let mut client = rig.connect().await;
        client.send(format!("GET /healthz HTTP/1.1\r\n{host}\r\n").as_bytes()).await;
        client.answer().await.expect("an answer").is_problem(400, "KL-1222");
    }
    for (encoding, code) in
        [("gzip, chunked", "KL-1222"), ("chunked, gzip", "KL-1223"), ("identity", "KL-1223")]
    {
        let mut client = rig.connect().await;
        let head =
            "POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        client.send(format!("{head}Transfer-Encoding: {encoding}\r\n\r\n0\r\n\r\n").as_bytes()).await;
        client.answer().await.expect("an answer").is_problem(400, code);
    }
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
    third.ask("GET", "/admin/pipelines", &[], b"").await.is_problem(503, "KL-1217");
    // Requests of monitoring are answered, and show how many connections were refused.
    let metrics = rig.connect().await.ask("GET", "/metrics", &[], b"").await;
    let text = String::from_utf8(metrics.body).expect("text");
    assert!(text.contains("keylane_http_connections_refused_total 2"), "{text}");
    let mut watching = rig.connect().await;
    assert_eq!(watching.ask("GET", "/healthz", &[], b"").await.status, 200);
    assert!(watching.answer().await.is_none(), "it keeps no place");
    // Clients that connect and send nothing do not keep out a client that asks at once.
    let mut silent = Vec::new();
    for round in 0..10 {
        for _ in 0..50 {
            silent.push(rig.connect().await);
        }
        let mut watching = rig.connect().await;
        assert_eq!(watching.ask("GET", "/healthz", &[], b"").await.status, 200, "round {round}");
    }
    drop(first);
    loop {
        let mut again = Client::connect(rig.address()).await;
        if again.ask("GET", "/admin/pipelines", &[], b"").await.status == 200 {
            break;
        }
    }
}

/// SEC-2, PRD-2.
#[tokio::test]
async fn one_producing_request_too_many_is_503() {
    let rig = Rig::start("topics: { t: {} }\ningest: { in_flight: 1 }\n").await;
    let some = Duration::from_millis(20);
    rig.broker.set_latency(some, some);
    loop {
        let (one, two) = tokio::join!(rig.json("t", "{\"payload\":1}"), rig.json("t", "{\"payload\":1}"));
        let refused = [one, two].into_iter().find(|answer| answer.status == 503);
        if let Some(refused) = refused {
            refused.is_problem(503, "KL-1205");
            break;
        }
    }
    assert_eq!(rig.json("t", "{\"payload\":1}").await.status, 202);
}

/// SEC-2, PRD-2.
#[tokio::test]
async fn a_body_on_its_way_holds_no_place_among_those_that_produce() {
    let rig = Rig::start("topics: { t: {} }\ningest: { in_flight: 1 }\n").await;
    let mut slow = rig.connect().await;
    slow.send(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 13\r\nExpect: 100-continue\r\n\r\n")
        .await;
    // From here on, the server waits for the body.
    assert_eq!(slow.head().await.map(|(status, _)| status), Some(100));
    assert_eq!(rig.json("t", "{\"payload\":1}").await.status, 202);
    slow.send(b"{\"payload\":1}").await;
    assert_eq!(slow.answer().await.expect("an answer").status, 202);
}

/// SEC-2.
#[tokio::test]
async fn a_body_that_drips_is_given_up() {
    let rig = Rig::start("server: { body_timeout: 200ms }\ntopics: { t: {} }\n").await;
    let mut client = rig.connect().await;
    client.send(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n").await;
    let answer = loop {
        client.send(b" ").await;
        if let Ok(answer) = tokio::time::timeout(Duration::from_millis(20), client.answer()).await {
            break answer.expect("an answer");
        }
    };
    let problem = answer.is_problem(408, "KL-1211");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("slower")), "{problem}");
}

/// SEC-2: a message can take as little as two bytes of a body, so the number of messages is bounded too.
#[tokio::test]
async fn messages_of_a_request_are_bounded_and_so_is_what_is_said_about_them() {
    let rig = Rig::start("topics: { t: { partitions: 1 } }").await;
    let array = |count: usize, item: &str| format!("[{}]", vec![item; count].join(","));
    rig.json("t", &array(100_001, "{\"payload\":1}")).await.is_problem(413, "KL-1210");
    rig.lines("t", &"{\"payload\":1}\n".repeat(100_001)).await.is_problem(413, "KL-1210");
    assert_eq!(rig.messages("t").await.len(), 0, "nothing was kept");

    let answer = rig.json("t", &array(100_000, "1")).await;
    let problem = answer.is_problem(400, "KL-1208");
    assert_eq!(problem["rejected"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(problem["rejected_count"], 100_000);
    assert!(answer.body.len() < 200_000, "{} bytes", answer.body.len());

    // One message is refused by the JSON reader, one by the producer, one is accepted: each keeps its index.
    let thirds = ["1", "{\"payload\":1,\"id\":\"\"}", "{\"payload\":1}"].join(",");
    let answer = rig.json("t", &array(30_000, &thirds)).await;
    assert_eq!(answer.status, 202);
    let answer = answer.value();
    assert_eq!(answer["accepted"].as_array().map(Vec::len), Some(30_000));
    assert_eq!(answer["rejected_count"], 60_000);
    let rejected = answer["rejected"].as_array().expect("a list");
    let indexes: Vec<_> = rejected.iter().map(|rejected| rejected["index"].as_u64()).collect();
    assert_eq!(indexes, (0..).filter(|index| index % 3 != 2).map(Some).take(1_000).collect::<Vec<_>>());
    assert!(rejected[1]["error"].as_str().is_some_and(|error| error.contains("the id has 0 bytes")));
}

/// SEC-2, ING-1: the size of a message is its stored size: id, key, headers and payload, plus 28 bytes.
#[tokio::test]
async fn a_message_of_exactly_its_topics_limit_is_taken_and_a_byte_more_is_not() {
    let rig = Rig::start(SMALL).await;
    let folder = tempfile::tempdir().expect("a folder");
    let environment = Environment::of([("KEYLANE_SERVER__LISTEN", "127.0.0.1:0")]);
    let mut config = Config::parse("test", SMALL, &environment).expect("a valid config");
    config.data = folder.path().to_owned();
    let embedded = Server::start(config).await.expect("it starts");
    let message = |payload: usize| {
        let payload = "7".repeat(payload);
        format!("{{\"id\":\"m\",\"key\":\"kk\",\"headers\":{{\"hhh\":\"vvvv\"}},\"payload\":{payload}}}")
    };
    let fits = 1000 - 28 - "m".len() - "kk".len() - (6 + "hhh".len() + "vvvv".len());
    for address in [rig.address(), embedded.address()] {
        let mut client = Client::connect(address).await;
        let headers = [("Content-Type", "application/json")];
        for (payload, status) in [(fits, 202), (fits + 1, 413), (1000, 413)] {
            let body = message(payload);
            let answer = client.ask("POST", "/v1/topics/t/messages", &headers, body.as_bytes()).await;
            assert_eq!(answer.status, status, "{payload}: {}", answer.text());
            if status == 413 {
                answer.is_problem(413, "KL-1203");
            }
        }
    }
    for keylane in [rig.server.keylane(), embedded.keylane()] {
        for (payload, code) in [(fits, None), (fits + 1, Some("KL-1203"))] {
            let digits: Box<RawValue> = RawValue::from_string("7".repeat(payload)).expect("a number");
            let message =
                Message::to("t").id("m").key("kk").header("hhh", "vvvv").json(&digits).expect("JSON");
            assert_eq!(keylane.produce(message).await.err().map(|error| error.code().as_str()), code);
        }
    }
    embedded.stop().await.expect("it stops");
}

/// SEC-2: a client that sends a request and does not read the answer loses its place.
#[tokio::test]
async fn a_client_that_does_not_read_is_closed() {
    let rig =
        Rig::start("server: { connections: 1, idle_timeout: 100ms }\ntopics: { t: { partitions: 1 } }\n")
            .await;
    let payload = Message::to("t").payload(vec![b'x'; 1_000_000]);
    for _ in 0..17 {
        rig.server.keylane().produce(payload.clone()).await.expect("taken");
    }
    let mut deaf = Client::connect_narrow(rig.address()).await;
    deaf.send(b"GET /admin/topics/t/messages?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    while rig.get("/healthz").await.status != 200 {
        tokio::task::yield_now().await;
    }
}

/// SEC-2: the number of pages in memory is bounded, even if clients ask for pages and do not read them.
#[tokio::test]
async fn one_page_of_messages_too_many_is_503_until_another_was_taken() {
    /// The same bound as in `admin/pages.rs`.
    const PAGES: usize = 16;
    let rig = Rig::start("topics: { t: { partitions: 1 } }").await;
    let payload = Message::to("t").payload(vec![b'x'; 1_000_000]);
    for _ in 0..8 {
        rig.server.keylane().produce(payload.clone()).await.expect("taken");
    }
    let path = "/admin/topics/t/messages?limit=8";
    let mut deaf = Vec::new();
    for _ in 0..PAGES {
        let mut client = Client::connect_narrow(rig.address()).await;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await;
        // The head has arrived, so the page is in memory, and far more of it is left than the system buffers.
        assert_eq!(client.head().await.map(|(status, _)| status), Some(200));
        deaf.push(client);
    }
    rig.get(path).await.is_problem(503, "KL-1205");
    assert_eq!(rig.get("/admin/topics").await.status, 200, "other routes have nothing to do with it");
    // Clients that follow a topic have places of their own.
    let mut follower = rig.connect().await;
    let follow =
        "GET /admin/topics/t/messages?follow=true&from=earliest&limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    follower.send(follow.as_bytes()).await;
    assert_eq!(follower.head().await.map(|(status, _)| status), Some(200));
    assert!(follower.chunk().await.is_some_and(|line| line.len() > 1_000_000));
    drop(deaf.pop());
    while rig.get(path).await.status != 200 {
        tokio::task::yield_now().await;
    }
}
