//! Tests of the routes for operators: health, metrics, the admin API, the status page.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keylane::status::Unanswered;
use keylane::{Message, Outcome, Settings};
use keylane_broker::testing::faults::{Faulty, Rates};
use keylane_server::{Config, Environment, Server, hash_token};
use serde_json::{Value, json};

use crate::client::{Client, Rig};

/// ING-8.
#[tokio::test]
async fn the_standard_pages_answer() {
    let rig = Rig::start("topics: { t: {} }").await;
    let health = rig.get("/healthz").await;
    assert_eq!((health.status, health.text().as_str()), (200, r#"{"status":"ok"}"#));
    assert_eq!(rig.get("/readyz").await.value(), json!({ "status": "ready" }));
    let version = rig.get("/version").await.value();
    assert_eq!((&version["name"], &version["broker"]), (&json!("keylane"), &json!("memory")));
    assert_eq!(rig.get("/admin/pipelines").await.value(), json!({ "pipelines": [] }));
    assert_eq!(rig.get("/admin/lanes").await.value(), json!({ "lanes": [], "unanswered": [] }));
}

/// ING-7.
#[tokio::test]
async fn the_api_is_described_and_each_error_has_a_page() {
    let rig = Rig::start("").await;
    let committed = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json"))
        .expect("it is there");
    let committed: Value = serde_json::from_str(&committed).expect("JSON");
    assert_eq!(rig.get("/openapi.json").await.value(), committed);
    let problem = rig.get("/nowhere").await.is_problem(404, "KL-1213");
    let page = rig.get(problem["type"].as_str().expect("a link")).await;
    assert!(page.text().starts_with("# KL-1213: "), "{}", page.text());
}

/// SEC-3.
#[tokio::test]
async fn the_status_page_has_a_strict_policy() {
    let rig = Rig::start("").await;
    let page = rig.get("/").await;
    assert_eq!(page.header("content-type").as_deref(), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
}

/// ADM-1, ADM-3, RTY-2: a failing key shows as stuck with its reason, and no metric names it.
#[tokio::test]
async fn pipelines_and_lanes_show_what_happens_and_metrics_count_it() {
    let rig = Rig::start("topics: { t: { partitions: 2 } }").await;
    let healed = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&healed);
    let mut settings = Settings::default();
    settings.retries = 1;
    settings.retry_base = std::time::Duration::from_millis(1);
    settings.retry_max = std::time::Duration::from_millis(5);
    let pipeline = rig
        .server
        .keylane()
        .pipeline("p")
        .topic("t")
        .settings(settings)
        .handle(move |message: Message| {
            let fails = message.key_text() == "secret-key" && !asked.load(Ordering::Relaxed);
            async move { if fails { Outcome::failed("no luck") } else { Outcome::Done } }
        })
        .start()
        .await
        .expect("it starts");
    rig.server.drain_too(pipeline);
    let lines: String = (0..20).map(|n| format!("{{\"payload\":{n},\"key\":\"k{n}\"}}\n")).collect();
    let failing = "{\"payload\":0,\"key\":\"secret-key\",\"id\":\"secret-id\"}\n".repeat(3);
    assert_eq!(rig.lines("t", &(failing + &lines)).await.status, 202);

    let shown = loop {
        let shown = rig.get("/admin/pipelines").await.value()["pipelines"][0].clone();
        if shown["handled"] == 20 && shown["lanes"]["stuck"] == 1 {
            break shown;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(
        (&shown["name"], &shown["topic"], &shown["mode"]),
        (&json!("p"), &json!("t"), &json!("normal"))
    );
    assert_eq!(shown["lag"]["messages"].as_u64().map(|lag| lag >= 3), Some(true), "{shown}");
    assert_eq!(shown["partitions"].as_array().map(Vec::len), Some(2));
    for sort in ["depth", "waiting"] {
        let lanes = rig.get(&format!("/admin/lanes?pipeline=p&sort={sort}&limit=1000")).await.value();
        let stuck = lanes["lanes"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|lane| lane["key"] == "secret-key")
            .expect("shown")
            .clone();
        assert_eq!((&stuck["depth"], &stuck["partition"].is_u64()), (&json!(3), &true), "{stuck}");
    }

    let described = rig.get("/openapi.json").await.value();
    for path in ["/admin/pipelines", "/admin/lanes", "/admin/topics", "/admin/topics/t/messages"] {
        let template = path.replace("/t/", "/{topic}/");
        let schema = &described["paths"][&template]["get"]["responses"]["200"]["content"]["application/json"]
            ["schema"];
        let mut served = rig.get(path).await.value();
        if path == "/admin/lanes" {
            assert_eq!(served["unanswered"], json!([]), "no shard stands still");
            // Add an entry as it is when a shard does not answer, so that its schema is checked too.
            served["unanswered"] = json!([Unanswered { pipeline: "p".to_owned(), shard: 0 }]);
        }
        is_as_described(&described, schema, &served, path);
    }

    let metrics = rig.get("/metrics").await;
    let text = metrics.text();
    assert!(metrics.header("content-type").expect("a type").starts_with("application/openmetrics-text"));
    for line in [
        "kafka_producer_inflight_current 0",
        "kafka_producer_success_total 23",
        "kafka_producer_failures_total 0",
        "kafka_consumer_lag{topic=\"t\",group=\"p\"}",
        "kafka_consumer_processing_errors{topic=\"t\",group=\"p\"}",
        "keylane_produced_total 23",
        "keylane_handled_total{pipeline=\"p\"} 20",
        "keylane_lanes{pipeline=\"p\",state=\"stuck\"} 1",
        "keylane_end_position{pipeline=\"p\",partition=\"1\"}",
        "keylane_http_requests_total{route=\"/v1/topics/{topic}/messages\",code=\"202\"} 1",
        "keylane_http_request_seconds_count{route=\"/v1/topics/{topic}/messages\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    assert!(!text.contains("secret"), "a label carries a key or an id:\n{text}");
    assert_eq!(text.matches("# EOF").count(), 1);
    assert!(text.ends_with("# EOF\n"));

    healed.store(true, Ordering::Relaxed);
    while rig.get("/admin/pipelines").await.value()["pipelines"][0]["handled"] != 23 {
        tokio::task::yield_now().await;
    }
    rig.server.stop().await.expect("it drains");
}

/// ADM-1: the waiting time of a key is the age of its first message, however often that message was attempted.
#[tokio::test]
async fn a_key_has_waited_as_long_as_its_first_message() {
    let rig = Rig::start("topics: { t: { partitions: 1 } }").await;
    let mut settings = Settings::default();
    (settings.retry_base, settings.retry_max) = (Duration::from_millis(1), Duration::from_millis(2));
    let pipeline = rig.server.keylane().pipeline("p").topic("t").settings(settings);
    let pipeline = pipeline.handle(async |_: Message| Outcome::failed("no luck")).start().await;
    rig.server.drain_too(pipeline.expect("it starts"));
    let lanes = async || rig.get("/admin/lanes?sort=waiting").await.value()["lanes"].clone();
    let seconds = |lane: &Value, what: &str| lane[what].as_f64().expect("a number");
    assert_eq!(rig.json("t", "{\"payload\":1,\"key\":\"old\"}").await.status, 202);
    loop {
        let old = lanes().await[0].clone();
        let is_old = old["attempt"].as_u64() > Some(20) && seconds(&old, "waiting_seconds") > 0.2;
        if is_old && seconds(&old, "last_tried_seconds") < 0.1 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.json("t", "{\"payload\":1,\"key\":\"young\"}").await.status, 202);
    // The key that has waited longer comes first, whichever was attempted last.
    let mut both = 0;
    while both < 50 {
        let shown = lanes().await;
        if shown[1].is_object() {
            assert_eq!((&shown[0]["key"], &shown[1]["key"]), (&json!("old"), &json!("young")), "{shown}");
            both += 1;
        }
    }
}

/// ING-8, ADM-1: all routes show the same lag. Messages read a moment ago count at once, even before the broker was
/// asked again.
#[tokio::test]
async fn metrics_and_the_admin_api_show_the_same_lag() {
    let rig = Rig::start("topics: { t: { partitions: 2 } }").await;
    let pipeline = rig.server.keylane().pipeline("p").topic("t");
    let pipeline = pipeline.handle(async |_: Message| std::future::pending::<Outcome>().await).start().await;
    let pipeline = pipeline.expect("it starts");
    let lag_of_metrics = async || {
        let text = rig.get("/metrics").await.text();
        let of = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
                .unwrap_or_else(|| panic!("{name}: {text}"))
        };
        (of("keylane_handlers_in_flight"), of("kafka_consumer_lag"))
    };
    for round in 1..=10 {
        let lines: String =
            (0..10).map(|n| format!("{{\"payload\":{n},\"key\":\"k{round}-{n}\"}}\n")).collect();
        assert_eq!(rig.lines("t", &lines).await.status, 202);
        loop {
            let (in_flight, lag) = lag_of_metrics().await;
            if in_flight == round * 10 {
                assert_eq!(lag, round * 10, "all that run are not settled");
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(pipeline.seen().lag.messages, 100);
    assert_eq!(rig.get("/admin/pipelines").await.value()["pipelines"][0]["lag"]["messages"], 100);
    assert_eq!(lag_of_metrics().await.1, 100);
}

/// ING-7, ADM-1: the answer names the wrong part of a query, and its valid values.
#[tokio::test]
async fn what_is_wrong_with_a_query_is_told_in_the_askers_words() {
    let rig = Rig::start("topics: { t: { partitions: 1 } }").await;
    for (path, wants) in [
        ("/admin/lanes?limit=many", "limit must be a whole number from 0 on"),
        ("/admin/lanes?limit=-1", "limit must be a whole number from 0 on"),
        ("/admin/lanes?limit=", "limit must be a whole number from 0 on"),
        ("/admin/lanes?limit=5000", "limit must be at most 1000"),
        ("/admin/lanes?sort=age", "sort must be `depth` or `waiting`"),
        ("/admin/lanes?colour=red", "unknown field `colour`; known are `pipeline`, `sort`, `limit`"),
        ("/admin/topics/t/messages?follow=yes", "follow must be `true` or `false`"),
    ] {
        let problem = rig.get(path).await.is_problem(400, "KL-1504");
        assert_eq!(problem["detail"], wants, "{path}");
    }
}

/// ING-1, ADM-1: for a mistyped name, the answer suggests the right one.
#[tokio::test]
async fn a_name_that_is_nearly_right_is_named() {
    let rig = Rig::start("topics: { orders: { partitions: 1 } }").await;
    let pipeline = rig.server.keylane().pipeline("billing").topic("orders");
    let pipeline = pipeline.handle(async |_: Message| Outcome::Done).start().await.expect("it starts");
    rig.server.drain_too(pipeline);
    for (path, code, wants) in [
        ("/admin/topics/ordres/messages", "KL-1201", "did you mean `orders`?"),
        ("/admin/lanes?pipeline=biling", "KL-1309", "did you mean `billing`?"),
    ] {
        let answer = rig.get(path).await;
        let problem = answer.is_problem(404, code);
        assert!(problem["detail"].as_str().is_some_and(|text| text.ends_with(wants)), "{problem}");
    }
    let problem = rig.json("ordesr", "{\"payload\":1}").await.is_problem(404, "KL-1201");
    assert!(
        problem["detail"].as_str().is_some_and(|text| text.contains("did you mean `orders`?")),
        "{problem}"
    );
}

/// Compares an answer with its schema: every member is described, and every required member is present.
fn is_as_described(document: &Value, schema: &Value, served: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.strip_prefix('#').expect("within the document");
        return is_as_described(document, document.pointer(pointer).expect("described"), served, at);
    }
    match served {
        Value::Object(members) if schema["properties"].is_object() => {
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(members.contains_key(name.as_str().expect("a name")), "{at} lacks {name}: {served}");
            }
            for (name, value) in members {
                let inner = &schema["properties"][name];
                assert!(!inner.is_null(), "{at}.{name} is not described");
                is_as_described(document, inner, value, &format!("{at}.{name}"));
            }
        }
        Value::Array(items) if schema["items"].is_object() => {
            // This broker has nothing to warn about and deletes nothing; the tests on Kafka, and of groups, look at
            // those.
            assert!(
                !items.is_empty() || at.ends_with(".warnings") || at.ends_with(".held_back_by"),
                "{at} is empty, so that nothing is held against its description"
            );
            items.iter().for_each(|item| is_as_described(document, &schema["items"], item, at));
        }
        _ => {}
    }
}

/// ADM-1: the messages of a topic are shown by partition, position and limit.
#[tokio::test]
async fn a_topic_can_be_looked_into_anywhere() {
    let rig = Rig::start("topics: { t: { partitions: 1 } }").await;
    let lines: String = (0..40).map(|n| format!("{{\"payload\":{n}}}\n")).collect();
    assert_eq!(rig.lines("t", &lines).await.status, 202);
    let payloads = async |query: &str| -> Vec<u64> {
        let answer = rig.get(&format!("/admin/topics/t/messages{query}")).await;
        answer.value().as_array().expect("an array").iter().filter_map(|m| m["payload"].as_u64()).collect()
    };
    assert_eq!(payloads("").await, (0..40).collect::<Vec<_>>());
    assert_eq!(payloads("?limit=3").await, [0, 1, 2]);
    assert_eq!(payloads("?partition=0&from=17&limit=2").await, [17, 18]);
    assert_eq!(payloads("?partition=0&from=39").await, [39]);
    assert_eq!(payloads("?from=latest").await, [0; 0]);
    assert_eq!(payloads("?limit=0").await, [0; 0]);
}

/// ADM-1: with `follow`, messages arrive as they are produced, and the stream ends when the server drains.
#[tokio::test]
async fn a_topic_can_be_followed() {
    let rig = Rig::start("topics: { t: { partitions: 3 } }").await;
    assert_eq!(rig.json("t", "{\"payload\":\"before\"}").await.status, 202);
    let mut follower = rig.connect().await;
    follower.send(b"GET /admin/topics/t/messages?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let (status, head) = follower.head().await.expect("an answer");
    assert_eq!(status, 200);
    assert!(head.to_lowercase().contains("content-type: application/x-ndjson"), "{head}");
    for n in 0..3 {
        assert_eq!(rig.json("t", &format!("{{\"payload\":{n},\"key\":\"k{n}\"}}")).await.status, 202);
        let line = follower.chunk().await.expect("a line");
        let message: Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!((&message["payload"], &message["key"]), (&json!(n), &json!(format!("k{n}"))));
    }
    let (stopped, end) = tokio::join!(rig.server.stop(), follower.chunk());
    stopped.expect("it stops");
    assert_eq!(end, None);
}

/// ADM-1, SEC-2: a stream without messages sends a blank line now and then, so that a vanished client is noticed.
#[tokio::test]
async fn a_silent_stream_says_that_it_is_there() {
    let rig = Rig::start("server: { idle_timeout: 100ms }\ntopics: { t: {} }").await;
    let mut follower = rig.connect().await;
    follower.send(b"GET /admin/topics/t/messages?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert_eq!(follower.head().await.map(|(status, _)| status), Some(200));
    for _ in 0..3 {
        assert_eq!(follower.chunk().await.as_deref(), Some(&b"\n"[..]));
    }
}

/// ING-8, ADM-1: `/readyz` names a stopped partition and the reason; the server still accepts messages, so it is ready.
#[tokio::test]
async fn a_partition_that_has_stopped_is_shown_and_the_server_stays_ready() {
    let rig = Rig::start("topics: { t: { partitions: 2 } }").await;
    rig.broker.reset_commit("p", "t", 1, 1_000);
    let pipeline = rig
        .server
        .keylane()
        .pipeline("p")
        .topic("t")
        .handle(|_: Message| async { Outcome::Done })
        .start()
        .await
        .expect("it starts");
    rig.server.drain_too(pipeline);
    let shown = loop {
        let shown = rig.get("/admin/pipelines").await.value()["pipelines"][0].clone();
        if shown["partitions"][0]["state"] == "running" && shown["partitions"][1]["state"] == "stopped" {
            break shown;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(shown["state"], "partly stopped");
    let why = shown["partitions"][1]["why"].as_str().expect("a reason");
    let ready = rig.get("/readyz").await;
    let reasons = [format!("partition 1 of pipeline p has stopped: {why}")];
    assert_eq!((ready.status, ready.value()), (200, json!({ "status": "ready", "reasons": reasons })));
    rig.server.stop().await.expect("it drains");
}

/// A delay longer than any test.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// ING-8: `/readyz` and `/metrics` answer from memory, even while the broker answers nothing; a thousand requests cause
/// no further call to the broker.
#[tokio::test]
async fn readiness_and_metrics_never_ask_the_broker() {
    let (kept, keep) = (Arc::new(OnceLock::new()), Rates { delay: 1000, delay_max: NEVER, ..Rates::none() });
    let faulty = Arc::clone(&kept);
    let rig = Rig::start_through("topics: { t: { partitions: 1 } }", |broker| {
        let wrapped = Faulty::new(broker, 1, keep);
        wrapped.calm();
        let _first = faulty.set(Arc::clone(&wrapped));
        wrapped
    })
    .await;
    let faulty = kept.get().expect("it was made");
    let pipeline = rig
        .server
        .keylane()
        .pipeline("p")
        .topic("t")
        .handle(|_: Message| std::future::pending::<Outcome>())
        .start()
        .await
        .expect("it starts");
    for n in 0..3 {
        assert_eq!(rig.json("t", &format!("{{\"payload\":{n},\"key\":\"a\"}}")).await.status, 202);
    }
    // Asking for the status reads the broker once, so that there is a state to show from memory. The loop ends when
    // the handler has the first message.
    while pipeline.status().await.expect("it answers").in_flight == 0 {
        tokio::task::yield_now().await;
    }
    faulty.resume();
    let before = faulty.counts().delayed;
    let mut metrics = String::new();
    for _ in 0..100 {
        assert_eq!(rig.get("/readyz").await.status, 200);
        metrics = rig.get("/metrics").await.text();
    }
    assert!(metrics.contains("kafka_consumer_lag{topic=\"t\",group=\"p\"} 3"), "{metrics}");
    assert!(metrics.contains("keylane_lag_oldest_seconds{pipeline=\"p\"}"), "{metrics}");
    let asked = faulty.counts().delayed - before;
    assert!(asked < 100, "the server itself looks now and then, but not once for each who asks: {asked}");
}

/// BRK-1, ADM-2: only admins may forget a group, and a group in use is refused.
#[tokio::test]
async fn a_group_is_forgotten_by_an_admin_and_not_while_a_pipeline_uses_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let with = |pipelines: &str| {
        let environment = Environment::of([("KEYLANE_SERVER__LISTEN", "127.0.0.1:0")]);
        let tokens: String = ["operate", "admin"]
            .map(|role| format!("{{ name: {role}, role: {role}, sha256: {} }}", hash_token(role)))
            .join(", ");
        let text = format!(
            "server: {{ tokens: [{tokens}] }}\ntopics: {{ t: {{ partitions: 1, retention_bytes: 1MiB }} }}\n{pipelines}"
        );
        let mut config = Config::parse("test", &text, &environment).expect("a valid config");
        config.data = folder.path().to_owned();
        config
    };
    let ask = async |server: &Server, role: &str, query: &str| {
        let path = format!("/admin/topics/t/forget-group{query}");
        let bearer = format!("Bearer {role}");
        Client::connect(server.address()).await.ask("POST", &path, &[("Authorization", &bearer)], b"").await
    };
    let server = Server::start(with("pipelines: { old: { topic: t, handler: { log: {} } } }"))
        .await
        .expect("it starts");
    let used = ask(&server, "admin", "?group=old").await;
    assert_eq!((used.status, used.value()["code"].as_str()), (409, Some("KL-1120")), "{}", used.text());
    server.stop().await.expect("it stops");

    let server = Server::start(with("")).await.expect("it starts");
    assert_eq!(ask(&server, "operate", "?group=old").await.status, 403);
    assert_eq!(ask(&server, "admin", "").await.status, 400);
    let unknown = ask(&server, "admin", "?group=never").await;
    assert_eq!((unknown.status, unknown.value()["code"].as_str()), (404, Some("KL-1121")));
    // No pipeline settles the next messages, so the topic becomes full.
    let payload = "p".repeat(60_000);
    let produce = async || {
        let headers = [("Authorization", "Bearer operate"), ("Content-Type", "application/json")];
        let body = json!({ "payload": payload }).to_string();
        let mut client = Client::connect(server.address()).await;
        client.ask("POST", "/v1/topics/t/messages", &headers, body.as_bytes()).await.status
    };
    let mut taken = 0;
    while produce().await == 202 {
        taken += 1;
        assert!(taken < 1000, "what a group has not settled was deleted");
    }
    let headers = [("Authorization", "Bearer operate")];
    let topics =
        Client::connect(server.address()).await.ask("GET", "/admin/topics", &headers, b"").await.value();
    let held = &topics["topics"][0]["held_back_by"][0];
    assert_eq!((&held["group"], &held["configured"]), (&json!("old"), &json!(false)), "{topics}");
    assert!(held["until"].as_u64().is_some(), "{topics}");
    let forgotten = ask(&server, "admin", "?group=old").await;
    assert_eq!((forgotten.status, forgotten.text().as_str()), (200, "{\"forgotten\":\"old\"}"));
    assert_eq!(ask(&server, "admin", "?group=old").await.status, 404);
    assert_eq!(produce().await, 202, "nothing holds the topic back any more");
    server.stop().await.expect("it stops");
}

/// ADM-2: only admins may make a backup; a backup can be restored and served.
#[tokio::test]
async fn a_backup_of_a_running_server_can_be_restored_and_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let with = |data: &str| {
        let environment = Environment::of([("KEYLANE_SERVER__LISTEN", "127.0.0.1:0")]);
        let tokens: String = ["operate", "admin"]
            .map(|role| format!("{{ name: {role}, role: {role}, sha256: {} }}", hash_token(role)))
            .join(", ");
        let text = format!("server: {{ tokens: [{tokens}] }}\ntopics: {{ t: {{ partitions: 1 }} }}");
        let mut config = Config::parse("test", &text, &environment).expect("a valid config");
        config.data = folder.path().join(data);
        config
    };
    let ask = async |server: &Server, role: &str, path: &str, body: String| {
        let bearer = format!("Bearer {role}");
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
        Client::connect(server.address()).await.ask("POST", path, &headers, body.as_bytes()).await
    };
    let server = Server::start(with("data")).await.expect("it starts");
    let sent = ask(&server, "operate", "/v1/topics/t/messages", json!({ "payload": 7 }).to_string()).await;
    assert_eq!(sent.status, 202);
    let target = folder.path().join("backup");
    let (path, body) = ("/admin/data/backup", json!({ "folder": target }).to_string());
    assert_eq!(ask(&server, "operate", path, body.clone()).await.status, 403);
    assert_eq!(ask(&server, "admin", path, "{}".to_owned()).await.status, 400);
    let made = ask(&server, "admin", path, body.clone()).await;
    assert_eq!(made.status, 200, "{}", made.text());
    assert!(made.value()["backup"]["files"].as_u64() > Some(5), "{}", made.text());
    let twice = ask(&server, "admin", path, body).await;
    assert_eq!((twice.status, twice.value()["code"].as_str()), (409, Some("KL-1122")), "{}", twice.text());
    server.stop().await.expect("it stops");

    keylane::data::restore(&target, &folder.path().join("restored")).expect("the backup is whole");
    let server = Server::start(with("restored")).await.expect("it starts");
    let headers = [("Authorization", "Bearer operate")];
    let shown =
        Client::connect(server.address()).await.ask("GET", "/admin/topics/t/messages", &headers, b"").await;
    assert!(shown.text().contains("\"payload\":7"), "{}", shown.text());
    server.stop().await.expect("it stops");
}

/// BRK-6, ADM-1: an upgrade of journals that cannot be done names the reason; one that is not needed changes nothing.
#[tokio::test]
async fn an_upgrade_says_what_it_did_or_why_not() {
    let config = "topics: { t: {}, alone: {} }\npipelines: { p: { topic: t, handler: { http: { url: \"http://127.0.0.1:1/\", allow_private: true } } } }";
    let rig = Rig::start(config).await;
    let mut client = rig.connect().await;
    let problem =
        client.ask("POST", "/admin/topics/other/upgrade", &[], b"").await.is_problem(404, "KL-1201");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("other")), "{problem}");
    let problem =
        client.ask("POST", "/admin/topics/alone/upgrade", &[], b"").await.is_problem(409, "KL-1313");
    assert_eq!(
        problem["detail"],
        "the journals of topic alone cannot be upgraded: no pipeline here reads it"
    );
    let answer = client.ask("POST", "/admin/topics/t/upgrade", &[], b"").await;
    assert_eq!((answer.status, answer.value()), (200, json!({ "upgraded": [] })));
}
