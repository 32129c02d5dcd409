//! Input that cannot be accepted: it is refused with a problem that gives the reason, nothing of it is kept, and the
//! server lives on.

use keylane_tests::{PipelineView, Server, Setup, Sink, check, client, fill, items, run_binary};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn post(
    server: &Server,
    topic: &str,
    kind: &str,
    body: impl Into<reqwest::Body>,
) -> (u16, String, Value) {
    let url = server.url(&format!("/v1/topics/{topic}/messages"));
    let answer = client().post(url).header("content-type", kind).body(body).send().await.expect("an answer");
    let status = answer.status().as_u16();
    let kind = answer.headers().get("content-type").map(|kind| kind.to_str().expect("ASCII").to_owned());
    let text = answer.text().await.expect("a body");
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, kind.unwrap_or_default(), value)
}

/// Proves that nothing was kept, and that a good message still goes through.
async fn lives_on(server: &Server, sink: &Sink) {
    let view = PipelineView::of(server).await.expect("it answers");
    assert!(view.partitions.iter().all(|partition| partition.end == 0), "something was kept: {view:?}");
    let acked = fill(server, &items("good", 0, 10)).await;
    sink.wait_settled(10).await;
    check(&acked, &sink.calls()).assert_once();
}

/// ING-1, ING-7, SEC-2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_and_oversized_messages_are_refused_as_problems_and_nothing_is_kept() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    let deep = format!("{{\"payload\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let large = json!({ "payload": "x".repeat(2_000_000) }).to_string();
    let huge = json!({ "payload": "x".repeat(17 << 20) }).to_string();
    let long_key = json!({ "payload": 1, "key": "k".repeat(5_000) }).to_string();
    for (name, body, expected) in [
        ("half a body", "{\"key\":", 400),
        ("no payload", "{\"key\":\"a\"}", 400),
        ("an empty body", "", 400),
        ("a bare number", "7", 400),
        ("an empty array", "[]", 400),
        ("a key that is a number", "{\"key\":1,\"payload\":1}", 400),
        ("a key beyond 4 KiB", &long_key, 400),
        ("a negative version", "{\"version\":-1,\"payload\":1}", 400),
        ("two payloads", "{\"payload\":1,\"payload_base64\":\"AA==\"}", 400),
        ("no base64", "{\"payload_base64\":\"§§\"}", 400),
        (
            "a delivery time, which is not built yet",
            "{\"payload\":1,\"deliver_at\":\"2027-01-01T00:00:00Z\"}",
            400,
        ),
        ("a priority, which is not built yet", "{\"payload\":1,\"priority\":5}", 400),
        ("a time to live, which is not built yet", "{\"payload\":1,\"ttl\":\"1h\"}", 400),
        ("a hundred thousand brackets", &deep, 400),
        ("a message of 2 MB", &large, 413),
        ("a request of 17 MiB", &huge, 413),
    ] {
        let (status, kind, problem) = post(&server, "t", "application/json", body.to_owned()).await;
        assert_eq!(status, expected, "{name}: {problem}");
        assert!(kind.starts_with("application/problem+json"), "{name}: {kind}");
        assert_eq!(problem["status"], expected, "{name}: {problem}");
        for field in ["type", "title", "detail", "code"] {
            assert!(
                problem[field].as_str().is_some_and(|text| !text.is_empty()),
                "{name} has no {field}: {problem}"
            );
        }
    }
    lives_on(&server, &sink).await;
}

/// SEC-2, ING-7: to say what is wrong with a message takes no more memory than to read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_message_with_a_wrong_field_is_explained_in_little_memory() {
    /// Many times the body, which is in memory once; read into values it takes a gigabyte.
    const GROWTH_MAX: u64 = 100 << 20;
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    let many = vec!["{\"\":0}"; (15 << 20) / 8].join(",");
    let before = server.memory_peak_bytes();
    for (body, wants) in [
        (format!("{{\"key\":5,\"payload\":[{many}]}}"), "`key` must be text in quotes"),
        (format!("{{\"payload\":[{many}],\"headers\":{{\"a\":[]}}}}"), "the header `a` must be text"),
        (format!("[{{\"payload\":[{many}],\"version\":-1}}]"), "`version` must be a whole number"),
    ] {
        let (status, _, problem) = post(&server, "t", "application/json", body).await;
        assert_eq!(status, 400, "{problem}");
        let said = problem.to_string();
        assert!(said.contains(wants), "{said}");
    }
    let growth = server.memory_peak_bytes() - before;
    assert!(growth < GROWTH_MAX, "memory grew by {} MiB", growth >> 20);
    lives_on(&server, &sink).await;
}

/// ING-1: a bad line is refused with its index, the others are accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_line_does_not_refuse_the_others() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    let lines =
        "{\"payload\":1,\"id\":\"a\"}\nnot json\n{\"payload\":2,\"id\":\"b\"}\n{\"key\":\"no payload\"}\n";
    let (status, _, answer) = post(&server, "t", "application/x-ndjson", lines).await;
    assert_eq!(status, 202, "{answer}");
    let accepted: Vec<&str> =
        answer["accepted"].as_array().expect("a list").iter().filter_map(|a| a["id"].as_str()).collect();
    let rejected: Vec<u64> =
        answer["rejected"].as_array().expect("a list").iter().filter_map(|r| r["index"].as_u64()).collect();
    assert_eq!((accepted, rejected), (vec!["a", "b"], vec![1, 3]));
    sink.wait_settled(2).await;
    assert_eq!(sink.len(), 2);
}

/// ING-7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_topic_is_404_and_says_how_to_declare_it() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    let (status, kind, problem) = post(&server, "elsewhere", "application/json", "{\"payload\":1}").await;
    assert_eq!(status, 404, "{problem}");
    assert!(kind.starts_with("application/problem+json"), "{kind}");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(detail.contains("elsewhere") && detail.contains("topics"), "{detail}");
    lives_on(&server, &sink).await;
}

/// SEC-2: a sender that dies in the middle has sent nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_sent_request_leaves_nothing_behind() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    let body = "{\"payload\":1,\"id\":\"half\"}";
    let chunked = format!("{:x}\r\n{body}\r\n", body.len());
    let head = "POST /v1/topics/t/messages HTTP/1.1\r\nHost: t\r\nContent-Type: application/x-ndjson\r\n";
    for half in [
        // The line that has arrived is whole; the request is not.
        format!("{head}Content-Length: 500\r\n\r\n{body}\n"),
        format!("{head}Content-Length: 500\r\n\r\n{{\"payl"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunked}"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{body}"),
        format!("{head}Content-Length: 5"),
        "POST /v1/top".to_owned(),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await.expect("it listens");
        stream.write_all(half.as_bytes()).await.expect("it reads");
        stream.shutdown().await.expect("half closed");
        let mut answer = Vec::new();
        let _reset_is_an_answer_too = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains(" 202 "), "{half:?} was acknowledged: {answer}");
    }
    lives_on(&server, &sink).await;
}

/// SEC-2: bytes that are not HTTP at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_on_the_port_does_no_harm() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    for round in 0..50_u32 {
        let noise: Vec<u8> =
            (0..2_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> (round % 24)) as u8).collect();
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await.expect("it listens");
        let _it_may_hang_up = stream.write_all(&noise).await;
    }
    lives_on(&server, &sink).await;
}

/// ADM-9, ORD-1: for a wrong field, type or unit in a config, the error names the place, the nearest name, the remedy.
#[tokio::test]
async fn a_wrong_config_is_named_by_line_and_ends_with_2() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("keylane.yaml");
    let path = path.to_str().expect("a plain path");
    for (text, (line, column, says)) in [
        (
            "broker: { kind: embedded }\npipelines:\n  a:\n    topic: a\n    concurency: 5\n    handler: { log: {} }\n",
            (5, 5, "concurrency"),
        ),
        (
            "pipelines:\n  a:\n    topic: a\n    concurrency: many\n    handler: { log: {} }\n",
            (4, 18, "concurrency"),
        ),
        (
            "pipelines:\n  a:\n    topic: a\n    handler: { log: {} }\n    retry: { base: 100 parsecs }\n",
            (5, 20, "100 parsecs"),
        ),
        ("pipelines:\n  a:\n    topic: a\n    shards: 0\n    handler: { log: {} }\n", (4, 13, "shards")),
        ("pipelines:\n  a:\n    topic: a\n    shards: 1025\n    handler: { log: {} }\n", (4, 13, "1024")),
        ("pipelines: [\n", (1, 12, "")),
    ] {
        std::fs::write(path, text).expect("it can be written");
        for command in ["check", "serve"] {
            let (code, said) = run_binary(&[command, "-c", path]).await;
            assert_eq!(code, Some(2), "{command} of {text}: {said}");
            let place = format!("{path}:{line}:{column}:");
            assert!(said.contains(&place) && said.contains(says), "{place} and {says} are not in: {said}");
        }
    }
    let (code, said) = run_binary(&["serve", "-c", "/no/such/file.yaml"]).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/no/such/file.yaml"), "{said}");
}

/// ADM-9, SEC-4: an address that pushes may not reach is found before a message waits for it.
#[tokio::test]
async fn a_private_address_that_is_not_allowed_is_named_by_check() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("keylane.yaml");
    let path = path.to_str().expect("a plain path");
    let text = "pipelines:\n  a:\n    topic: a\n    handler: { http: { url: \"http://10.0.0.1/\" } }\n";
    std::fs::write(path, text).expect("it can be written");
    for command in ["check", "serve"] {
        let (code, said) = run_binary(&[command, "-c", path]).await;
        assert_eq!(code, Some(2), "{command}: {said}");
        assert!(said.contains(":4:29:") && said.contains("allow_private"), "{said}");
    }
}
