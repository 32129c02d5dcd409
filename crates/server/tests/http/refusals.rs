//! Tests of refused requests: the answer is always a problem document, and the server keeps running.

use std::time::Duration;

use keylane::TopicSpec;
use serde_json::json;
use tokio::time::timeout;

use crate::client::Rig;

const ONE: &str = "topics: { t: { partitions: 1 } }";
const JSON: &str = "application/json";
/// A time limit that only fails a test that hangs.
const HANGS: Duration = Duration::from_secs(60);

/// ING-1, ING-7.
#[tokio::test]
async fn a_message_that_cannot_be_taken_is_a_problem_and_leaves_nothing_behind() {
    let rig = Rig::start(ONE).await;
    for (body, code) in [
        ("", "KL-1207"),
        (" \n ", "KL-1207"),
        ("[]", "KL-1207"),
        ("[{\"payload\":1},", "KL-1207"),
        ("{\"key\":", "KL-1202"),
        ("{\"key\":\"a\"}", "KL-1202"),
        ("{\"payload\":1,\"priority\":11}", "KL-1202"),
        ("{\"payload\":1,\"id\":\"\"}", "KL-1202"),
        ("[{}, {}]", "KL-1208"),
        ("5", "KL-1202"),
    ] {
        rig.json("t", body).await.is_problem(400, code);
    }
    let long = format!("{{\"payload\":1,\"key\":\"{}\"}}", "k".repeat(5000));
    rig.json("t", &long).await.is_problem(400, "KL-1202");
    assert_eq!(rig.messages("t").await.len(), 0);
    assert_eq!(rig.json("t", "{\"payload\":1}").await.status, 202);
}

/// MSG-1, MSG-6, MSG-7: fields that this version does not carry out are refused with a reason, whether the topic exists
/// or not, and are never stored and ignored.
#[tokio::test]
async fn what_is_not_carried_out_is_refused_by_name() {
    for (config, topic) in [(ONE, "t"), ("", "new")] {
        let rig = Rig::start(config).await;
        for (name, value) in
            [("deliver_at", "\"2027-01-01T00:00:00Z\""), ("priority", "5"), ("ttl", "\"1h\"")]
        {
            let body = format!("{{\"payload\":1,\"{name}\":{value}}}");
            let problem = rig.json(topic, &body).await.is_problem(400, "KL-1202");
            let detail = problem["detail"].as_str().unwrap_or_default();
            assert!(detail.contains(&format!("`{name}` is not carried out by this version")), "{detail}");
        }
        let topics = rig.get("/admin/topics").await.value();
        let kept: u64 = topics["topics"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|one| one["messages"].as_u64())
            .sum();
        let made = topics["topics"].as_array().map(Vec::len);
        assert_eq!((kept, made), (0, Some(usize::from(topic == "t"))), "{topics}");
    }
}

/// ING-1: a form that this version does not have is refused, never taken for another.
#[tokio::test]
async fn other_forms_are_refused() {
    let rig = Rig::start(ONE).await;
    let good = "{\"payload\":1}";
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/cloudevents+json", ""] {
        rig.post("t", kind, good).await.is_problem(415, "KL-1209");
    }
    let mut client = rig.connect().await;
    for (name, value, status, code) in [
        ("Content-Encoding", "gzip", 415, "KL-1209"),
        ("ce-specversion", "1.0", 415, "KL-1209"),
        ("Idempotency-Key", "x", 400, "KL-1216"),
    ] {
        let headers = [("Content-Type", JSON), (name, value)];
        let answer = client.ask("POST", "/v1/topics/t/messages", &headers, good.as_bytes()).await;
        answer.is_problem(status, code);
    }
    assert_eq!(rig.messages("t").await.len(), 0);
}

/// ING-1: the answer about an unknown topic says how to declare it.
#[tokio::test]
async fn an_unknown_topic_is_404_and_says_how_to_declare_it() {
    let rig = Rig::start("topics: { orders: {} }").await;
    let problem = rig.json("order", "{\"payload\":1}").await.is_problem(404, "KL-1201");
    let detail = problem["detail"].as_str().expect("text");
    assert!(detail.contains("did you mean `orders`?"), "{detail}");
    assert!(detail.contains("`topics:` as `order: {}`"), "{detail}");
    rig.get("/admin/topics/none/messages").await.is_problem(404, "KL-1201");
}

/// BRK-1: producers get 503 from a full broker, so that they slow down.
#[tokio::test]
async fn a_full_topic_is_503_with_when_to_try_again() {
    let rig = Rig::start(ONE).await;
    rig.broker.set_full("t", true);
    rig.json("t", "{\"payload\":1}").await.is_problem(503, "KL-1204");
    let problem = rig.lines("t", "{\"payload\":1}\nx\n{\"payload\":2}").await.is_problem(503, "KL-1204");
    assert_eq!(problem["rejected"].as_array().map(Vec::len), Some(3));
    rig.broker.set_full("t", false);
    assert_eq!(rig.json("t", "{\"payload\":1}").await.status, 202);
}

/// ING-7.
#[tokio::test]
async fn unknown_paths_methods_and_queries_are_problems_too() {
    let rig = Rig::start(ONE).await;
    let mut client = rig.connect().await;
    for (method, path, status, code) in [
        ("GET", "/no/such/path", 404, "KL-1213"),
        ("POST", "/admin/dlq/purge", 404, "KL-1213"),
        ("GET", "/v1/topics/t/messages/", 404, "KL-1213"),
        ("GET", "/errors/KL-0000", 404, "KL-1213"),
        ("GET", "/errors/%ff", 404, "KL-1213"),
        ("GET", "/admin/topics/%ff/messages", 404, "KL-1213"),
        ("POST", "/v1/topics/%ff/messages", 404, "KL-1213"),
        ("GET", "/v1/topics/t/messages", 405, "KL-1214"),
        ("DELETE", "/admin/pipelines", 405, "KL-1214"),
        ("POST", "/healthz", 405, "KL-1214"),
        ("GET", "/admin/lanes?sort=size", 400, "KL-1504"),
        ("GET", "/admin/lanes?limit=x", 400, "KL-1504"),
        ("GET", "/admin/lanes?limit=100000", 400, "KL-1504"),
        ("GET", "/admin/lanes?limt=1", 400, "KL-1504"),
        ("GET", "/admin/lanes?pipeline=none", 404, "KL-1309"),
        ("GET", "/admin/topics/t/messages?from=x", 400, "KL-1504"),
        ("GET", "/admin/topics/t/messages?from=3", 400, "KL-1504"),
        ("GET", "/admin/topics/t/messages?partition=9", 400, "KL-1504"),
    ] {
        // All requests use one connection: a refusal does not end it.
        let answer = client.ask(method, path, &[], b"").await;
        answer.is_problem(status, code);
        assert_eq!(answer.header("allow").is_some(), status == 405, "{}", answer.head);
    }
}

/// ING-1: a request without an acceptable message creates no topic, because topics are never deleted.
#[tokio::test]
async fn a_topic_is_made_only_for_a_message_that_is_taken() {
    let rig = Rig::start("").await;
    let long = json!({ "payload": 1, "key": "k".repeat(5000) }).to_string();
    let large = json!({ "payload": "x".repeat(1 << 20) }).to_string();
    for (body, status, code) in [
        ("", 400, "KL-1207"),
        ("[{\"payload\":1},", 400, "KL-1207"),
        ("{\"paylod\":1}", 400, "KL-1202"),
        ("{\"payload\":1,\"id\":\"\"}", 400, "KL-1202"),
        ("[1, {\"payload\":1,\"id\":\"\"}]", 400, "KL-1208"),
        (&long, 400, "KL-1202"),
        (&large, 413, "KL-1203"),
    ] {
        rig.json("t", body).await.is_problem(status, code);
    }
    assert_eq!(rig.get("/admin/topics").await.value(), json!({ "topics": [] }));
    assert_eq!(rig.json("t", "[1, {\"payload\":1}]").await.status, 202);
    assert_eq!(rig.get("/admin/topics").await.value()["topics"][0]["messages"], 1);
}

/// SEC-2.
#[tokio::test]
async fn topics_made_by_first_use_are_bounded() {
    let rig = Rig::start("").await;
    let small = TopicSpec { partitions: 1, ..TopicSpec::default() };
    for number in 0..999 {
        rig.server.keylane().ensure_topic(&format!("t{number}"), &small).await.expect("made");
    }
    let good = "{\"payload\":1}";
    assert_eq!(rig.json("one", good).await.status, 202);
    rig.json("another", good).await.is_problem(403, "KL-1219");
    for topic in ["one", "t0", "t998"] {
        assert_eq!(rig.json(topic, good).await.status, 202, "{topic}");
    }
}

/// ING-7: a client that sends its whole body before it reads still sees why it was refused.
#[tokio::test]
async fn a_refusal_is_seen_by_a_client_that_is_still_sending() {
    let hash = keylane_server::hash_token("writer");
    let rig = Rig::start(&format!(
        "server: {{ tokens: [{{ name: w, role: operate, sha256: \"{hash}\" }}] }}\n{ONE}\n"
    ))
    .await;
    let body = vec![b' '; 12 << 20];
    let token = ("X-Admin-Token", "writer");
    for (path, headers, status, code) in [
        ("/v1/topics/t/messages", vec![("Content-Type", JSON)], 401, "KL-1501"),
        ("/v1/topics/t/messages", vec![token, ("Content-Type", "text/plain")], 415, "KL-1209"),
        ("/v1/topics/a%20b/messages", vec![token, ("Content-Type", JSON)], 400, "KL-1215"),
        ("/nowhere", vec![token], 404, "KL-1213"),
        ("/healthz", vec![token], 405, "KL-1214"),
    ] {
        let mut client = rig.connect().await;
        client.ask("POST", path, &headers, &body).await.is_problem(status, code);
        // After a short body the connection can be used again.
        let mut client = rig.connect().await;
        client.ask("POST", path, &headers, b" ").await.is_problem(status, code);
        assert_eq!(client.ask("GET", "/healthz", &[], b"").await.status, 200);
    }
    // A client that sends `Expect: 100-continue` gets its answer before it sends the body.
    let mut client = rig.connect().await;
    client
        .send(b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n")
        .await;
    client.answer().await.expect("an answer").is_problem(401, "KL-1501");
}

/// ING-7, SEC-2: a client is refused before it has sent its body, and cannot hold the connection by sending slowly.
#[tokio::test]
async fn a_refusal_does_not_wait_for_the_body() {
    let token = |name: &str, role: &str| {
        format!("{{ name: {name}, role: {role}, sha256: \"{}\" }}", keylane_server::hash_token(name))
    };
    // A server that waited for the body would wait for ten minutes.
    let tokens = format!("{}, {}", token("writer", "operate"), token("reader", "read"));
    let rig = Rig::start(&format!("server: {{ body_timeout: 10m, tokens: [{tokens}] }}\n{ONE}\n")).await;
    let large = format!("Content-Length: {}", 1 << 30);
    let unknown = "X-Admin-Token: writer\r\nContent-Type: application/json\r\nContent-Length: 5000";
    for (topic, head, status, code) in [
        ("t", "Content-Type: application/json\r\nContent-Length: 5000", 401, "KL-1501"),
        ("nowhere", unknown, 404, "KL-1201"),
        (
            "t",
            "X-Admin-Token: reader\r\nContent-Type: application/json\r\nContent-Length: 5000",
            403,
            "KL-1502",
        ),
        ("t", "X-Admin-Token: writer\r\nContent-Type: text/plain\r\nContent-Length: 5000", 415, "KL-1209"),
        ("t", &format!("X-Admin-Token: writer\r\nContent-Type: application/json\r\n{large}"), 413, "KL-1210"),
        ("t", "Content-Type: application/json\r\nTransfer-Encoding: chunked", 401, "KL-1501"),
    ] {
        let mut client = rig.connect().await;
        let head = format!("POST /v1/topics/{topic}/messages HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n");
        client.send(head.as_bytes()).await;
        let answer = timeout(HANGS, client.answer()).await.expect("it waits for the body");
        let answer = answer.expect("an answer, though no body was sent");
        answer.is_problem(status, code);
        // A client that continues to send a byte now and then does not keep the connection either.
        let closed = async {
            while timeout(Duration::from_millis(50), client.answer()).await.is_err() {
                client.send(b" ").await;
            }
        };
        timeout(HANGS, closed).await.expect("the connection is kept for who was refused");
    }
}

/// ING-7: errors about messages name the field, its valid values and an example.
#[tokio::test]
async fn what_is_wrong_is_told_in_the_senders_words() {
    let rig = Rig::start(ONE).await;
    let lines = "{\"payload\":1}\n{\"payload\":2}";
    for (kind, body, code, wants) in [
        (
            JSON,
            "{\"payload\":1,\"key\":5}",
            "KL-1202",
            "`key` must be text in quotes, or null, for example \"key\":\"user-1\"; it is the number 5",
        ),
        (JSON, "{\"payload\":1,\"version\":\"7\"}", "KL-1202", "`version` must be a whole number from 0 on"),
        (JSON, "{\"payload\":1,\"headers\":{\"a\":1}}", "KL-1202", "the header `a` must be text in quotes"),
        (JSON, "{bad}", "KL-1202", "a field's name must stand in quotes"),
        (
            JSON,
            "[{\"payload\":1},{bad}]",
            "KL-1207",
            "at its index 1: this is not JSON: a field's name must stand in quotes",
        ),
        (JSON, lines, "KL-1202", "say `Content-Type: application/x-ndjson`"),
        (
            "application/x-ndjson",
            "[{\"payload\":1}]",
            "KL-1202",
            "an array of messages is sent alone, as `Content-Type: application/json`",
        ),
        (JSON, "hello", "KL-1202", "this is not JSON"),
    ] {
        let problem = rig.post("t", kind, body).await.is_problem(400, code);
        let said = problem["detail"].as_str().expect("text");
        assert!(said.contains(wants), "{body}: {said}");
        for rust in ["expected", "u64", "key must be a string", "invalid type"] {
            assert!(!said.contains(rust), "{body}: {said}");
        }
    }
    rig.post("t", "application/x-www-form-urlencoded", "{\"payload\":1}").await.is_problem(415, "KL-1209");
}

/// SEC-1: on every route, a page of another site can change nothing, and the page of this server can.
#[tokio::test]
async fn a_page_of_another_site_changes_nothing_on_any_route() {
    let rig = Rig::start(ONE).await;
    let document = rig.get("/openapi.json").await.value();
    let mut client = rig.connect().await;
    let mut changing = 0;
    for (path, methods) in document["paths"].as_object().expect("an object") {
        let path = path.replace("{topic}", "t").replace("{code}", "KL-1001");
        for method in methods.as_object().expect("an object").keys().filter(|method| *method != "get") {
            changing += 1;
            for foreign in [("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site")] {
                let answer = client.ask(&method.to_uppercase(), &path, &[foreign], b"").await;
                answer.is_problem(403, "KL-1505");
            }
        }
    }
    assert!(changing >= 6, "only {changing} routes change something");
    for own in [("Origin", "http://localhost"), ("Sec-Fetch-Site", "same-origin"), ("A", "b")] {
        let headers = [("Content-Type", JSON), own];
        let answer = client.ask("POST", "/v1/topics/t/messages", &headers, b"{\"payload\":1}").await;
        assert_eq!(answer.status, 202, "{own:?}: {}", answer.text());
    }
}

/// ADM-2.
#[tokio::test]
async fn with_tokens_each_role_may_do_what_it_says() {
    let token = |name: &str, role: &str| {
        let hash = keylane_server::hash_token(name);
        format!("{{ name: {name}, role: {role}, sha256: \"{hash}\" }}")
    };
    let config = format!(
        "server: {{ tokens: [{}, {}] }}\n{ONE}\n",
        token("reader", "read"),
        token("writer", "operate")
    );
    let rig = Rig::start(&config).await;
    let mut client = rig.connect().await;
    for (sent, read, produce) in
        [(None, 401, 401), (Some("wrong"), 401, 401), (Some("reader"), 200, 403), (Some("writer"), 200, 202)]
    {
        let bearer = format!("Bearer {}", sent.unwrap_or_default());
        for name in ["X-Admin-Token", "Authorization"] {
            let mut headers = vec![("Content-Type", JSON)];
            if let Some(sent) = sent {
                headers.push((name, if name == "Authorization" { &bearer } else { sent }));
            }
            for path in ["/metrics", "/admin/pipelines", "/admin/topics"] {
                let answer = client.ask("GET", path, &headers, b"").await;
                assert_eq!(answer.status, read, "{path} with {sent:?}");
            }
            let answer = client.ask("POST", "/v1/topics/t/messages", &headers, b"{\"payload\":1}").await;
            assert_eq!(answer.status, produce, "{sent:?}");
            match produce {
                401 => {
                    answer.is_problem(401, "KL-1501");
                    assert_eq!(answer.header("www-authenticate").as_deref(), Some("Bearer"));
                }
                403 => drop(answer.is_problem(403, "KL-1502")),
                _ => {}
            }
            for path in ["/healthz", "/readyz", "/version", "/", "/openapi.json", "/errors/KL-1501"] {
                assert_eq!(client.ask("GET", path, &headers, b"").await.status, 200, "{path}");
            }
        }
    }
    let metrics = client.ask("GET", "/metrics", &[("X-Admin-Token", "reader")], b"").await.text();
    for (error, count) in [("KL-1501", 4), ("KL-1502", 2)] {
        let line = format!(
            "keylane_http_refused_total{{route=\"/v1/topics/{{topic}}/messages\",error=\"{error}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line} is not in:\n{metrics}");
    }
}

/// SEC-1: a foreign page whose DNS name points at this server gets no answer but a refusal.
#[tokio::test]
async fn without_tokens_another_name_for_this_machine_is_refused() {
    let rig = Rig::start(ONE).await;
    let mut client = rig.connect().await;
    client.send(b"GET /admin/topics HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
    client.answer().await.expect("an answer").is_problem(403, "KL-1503");
}
