//! Input that a Kafka cluster refuses, and a cluster that is away: each case has a clear error with its code and what
//! to do; nothing is lost, and the rest goes on.

use keylane_tests::{Cluster, Server, Setup, Sink, check, client, fill, items, run_binary, until};
use serde_json::{Value, json};

/// Short times, so that a member that vanished is noticed within the test.
const SOON: &str = "session.timeout.ms: 6000, heartbeat.interval.ms: 500";
/// All rights that a user needs on a topic that the config declares and that does not exist yet.
const TOPIC: [&str; 7] = ["Describe", "DescribeConfigs", "AlterConfigs", "Create", "Read", "Write", "Delete"];

/// A cluster that lets `ada` do only what is granted, with rights on a topic `t`, its journals and a group.
fn guarded() -> Cluster {
    let cluster = Cluster::with(&["--acls", "--user", "ada:secret1"]);
    cluster.allow("ada", &TOPIC, &["--topic", "t"]);
    cluster.allow("ada", &TOPIC, &["--topic", "_keylane.", "--resource-pattern-type", "prefixed"]);
    cluster.allow("ada", &["Read"], &["--group", "t"]);
    cluster
}

fn on(cluster: &Cluster) -> Setup {
    let settings = format!("{SOON}, {}", cluster.user("ada", "secret1"));
    Setup::default().on_kafka(cluster, &settings)
}

/// A cluster of one broker, and a server on it that is ready.
async fn started() -> (Cluster, Sink, Server) {
    let (cluster, sink) = (Cluster::start(1), Sink::start().await);
    let mut server = Server::new(&Setup::default().on_kafka(&cluster, SOON), &sink);
    server.start().await;
    (cluster, sink, server)
}

async fn post(server: &Server, topic: &str, body: &Value) -> (u16, Value) {
    let url = server.url(&format!("/v1/topics/{topic}/messages"));
    let answer = client()
        .post(url)
        .header("content-type", "application/json")
        .body(body.to_string())
        .send()
        .await
        .expect("an answer");
    let status = answer.status().as_u16();
    (status, serde_json::from_str(&answer.text().await.expect("a body")).expect("JSON"))
}

/// Waits until `/readyz` answers with this status and reasons that contain all of these words.
async fn readyz_says(server: &Server, wanted: u16, says: &[&str]) {
    until("/readyz to say why", async || {
        let (status, answer) = server.get("/readyz").await?;
        let reasons = answer["reasons"].to_string();
        (status == wanted && says.iter().all(|text| reasons.contains(text))).then_some(())
    })
    .await;
}

/// Waits until `/readyz` answers 200 without any reason.
async fn well(server: &Server) {
    until("/readyz to be well", async || {
        let (status, answer) = server.get("/readyz").await?;
        (status == 200 && answer.get("reasons").is_none()).then_some(())
    })
    .await;
}

/// BRK-8: a server that is started before its cluster listens, says what it waits for, and comes up by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_waits_for_a_cluster_that_is_not_there_yet() {
    let cluster = Cluster::start(1);
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default().on_kafka(&cluster, SOON), &sink);
    cluster.kill(1);
    server.spawn();
    until("/healthz to answer", async || server.get("/healthz").await.filter(|(status, _)| *status == 200))
        .await;
    readyz_says(&server, 503, &["KL-1102", &cluster.bootstrap, "broker.kafka.brokers"]).await;
    let (status, answer) = post(&server, "t", &json!({ "payload": 1 })).await;
    assert_eq!((status, &answer["accepted"][0]["spilled"]), (202, &json!(true)), "{answer}");
    assert!(server.is_running(), "{}", server.output());
    cluster.restart(1);
    well(&server).await;
    let acked = fill(&server, &items("k", 0, 50)).await;
    server.settles(&sink, &acked).await;
    assert!(server.output().contains("KL-1102"), "{}", server.output());
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-8, ORD-10: a server that waits for its cluster can be stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_waits_for_its_cluster_can_be_stopped() {
    let sink = Sink::start().await;
    let setup = Setup {
        broker: "{ kind: kafka, kafka: { brokers: \"127.0.0.1:1\" } }".to_owned(),
        ..Setup::default()
    };
    let mut server = Server::new(&setup, &sink);
    server.spawn();
    readyz_says(&server, 503, &["KL-1102", "127.0.0.1:1"]).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-2: a log-in that the cluster does not accept ends the start, with what to look at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_or_user_is_told_and_ends_the_start() {
    let cluster = Cluster::with(&["--sasl", "--user", "ada:secret1"]);
    let sink = Sink::start().await;
    for (user, password) in [("ada", "wrong"), ("eve", "secret1")] {
        let setup = Setup::default().on_kafka(&cluster, &cluster.user(user, password));
        let mut server = Server::new(&setup, &sink);
        server.spawn();
        assert_eq!(server.ended().await, Some(1), "{}", server.output());
        let said = server.output();
        assert!(said.contains("KL-1109") && said.contains("sasl.password"), "{said}");
        assert!(!said.contains(password) || password == "secret1", "{said}");
    }
    let mut server = Server::new(&on(&cluster), &sink);
    server.start().await;
    let acked = fill(&server, &items("k", 0, 20)).await;
    server.settles(&sink, &acked).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-2: a user who may do what `docs/kafka.md` lists can run everything; a journal is cut, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough() {
    let cluster = guarded();
    let sink = Sink::start().await;
    let mut server = Server::new(&on(&cluster), &sink);
    server.start().await;
    let acked = fill(&server, &items("k", 0, 100)).await;
    server.settles(&sink, &acked).await;
    server.recorded().await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    let starts = cluster.starts("_keylane.journal.t.t");
    // A cut may be left to the next owner, so that not every journal need be cut yet.
    assert!(starts.iter().any(|start| *start > 0), "no journal was cut: {starts:?}\n{}", server.output());
    server.start().await;
    let more = fill(&server, &items("k", 100, 100)).await;
    server.settles(&sink, &more).await;
    let acked: Vec<_> = acked.into_iter().chain(more).collect();
    check(&acked, &sink.calls()).assert_once();
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// ORD-10, BRK-2: a server whose connections are encrypted ends with 0 each time it is told to stop, although threads
/// of the Kafka client may still be closing connections when the process ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "chaos: sixty stops"]
async fn chaos_a_server_on_a_guarded_cluster_ends_in_order_each_time() {
    let (cluster, sink) = (guarded(), Sink::start().await);
    let mut server = Server::new(&on(&cluster), &sink);
    for _ in 0..60 {
        server.start().await;
        assert_eq!(server.stop().await, Some(0), "{}", server.output());
    }
}

/// BRK-2: a topic that the user may not create ends the start, and the error names the right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_may_not_be_made_ends_the_start() {
    let cluster = guarded();
    cluster.forbid("ada", &["Create"], &["--topic", "t"]);
    let sink = Sink::start().await;
    let mut server = Server::new(&on(&cluster), &sink);
    server.spawn();
    assert_eq!(server.ended().await, Some(1), "{}", server.output());
    let said = server.output();
    assert!(said.contains("KL-1110") && said.contains("CREATE") && said.contains("topic t"), "{said}");
}

/// BRK-2, P1: a message that may not be written is refused with that reason, and existing messages are handled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_may_not_be_written_is_told_to_its_producer() {
    let cluster = guarded();
    let sink = Sink::start().await;
    let mut server = Server::new(&on(&cluster), &sink);
    server.start().await;
    let acked = fill(&server, &items("k", 0, 20)).await;
    cluster.forbid("ada", &["Write"], &["--topic", "t"]);
    let problem = until("a message to be refused", async || {
        let (status, problem) = post(&server, "t", &json!({ "payload": 1, "key": "late" })).await;
        (status == 503).then_some(problem)
    })
    .await;
    assert_eq!(problem["code"], "KL-1110", "{problem}");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("WRITE on the topic") && !detail.contains("READ"), "{problem}");
    server.settles(&sink, &acked).await;
    cluster.allow("ada", &["Write"], &["--topic", "t"]);
    until("messages to be taken again", async || {
        let (status, _) = post(&server, "t", &json!({ "payload": 1, "key": "late" })).await;
        (status == 202).then_some(())
    })
    .await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-2, P3: a pipeline whose group may not be read says so, stops no other pipeline, and goes on when it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_may_not_be_read_keeps_no_other_pipeline_from_its_work() {
    let cluster = guarded();
    let sink = Sink::start().await;
    let setup = Setup { more: second_pipeline(&sink, "u", "{ partitions: 1 }"), ..on(&cluster) };
    cluster.allow("ada", &TOPIC, &["--topic", "u"]);
    let mut server = Server::new(&setup, &sink);
    server.spawn();
    readyz_says(&server, 200, &["KL-1110", "pipeline u", "READ on the group"]).await;
    let acked = fill(&server, &items("k", 0, 20)).await;
    server.settles(&sink, &acked).await;
    cluster.allow("ada", &["Read"], &["--group", "u"]);
    well(&server).await;
    let (status, answer) = post(&server, "u", &json!({ "payload": 1, "key": "u" })).await;
    assert_eq!(status, 202, "{answer}");
    sink.wait("the other pipeline's message", |sink| !sink.calls_of("u").is_empty()).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-2, P3: a topic that may not be read stops its own partitions only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_may_not_be_read_stops_its_own_pipeline_only() {
    let cluster = guarded();
    let sink = Sink::start().await;
    cluster.allow(
        "ada",
        &["Describe", "DescribeConfigs", "AlterConfigs", "Create", "Write"],
        &["--topic", "u"],
    );
    cluster.allow("ada", &["Read"], &["--group", "u"]);
    let setup = Setup { more: second_pipeline(&sink, "u", "{ partitions: 1 }"), ..on(&cluster) };
    let mut server = Server::new(&setup, &sink);
    server.spawn();
    readyz_says(&server, 200, &["KL-1110", "pipeline u", "READ"]).await;
    let acked = fill(&server, &items("k", 0, 20)).await;
    server.settles(&sink, &acked).await;
    let (status, answer) = post(&server, "u", &json!({ "payload": 1, "key": "u" })).await;
    assert_eq!(status, 202, "it may be written: {answer}");
    cluster.allow("ada", &["Read"], &["--topic", "u"]);
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    server.start().await;
    sink.wait("what waited to be handled", |sink| !sink.calls_of("u").is_empty()).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// MSG-4: more replicas than brokers, by hand and by profile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_replicas_than_brokers_is_an_error_that_names_the_setting() {
    let cluster = Cluster::start(1);
    let sink = Sink::start().await;
    let asked = Setup { replicas: (3, 2), ..Setup::default() }.on_kafka(&cluster, SOON);
    let profiled =
        Setup { topics: Some("{ t: {} }".into()), top: "profile: production".into(), ..Setup::default() };
    for setup in [asked, profiled.on_kafka(&cluster, SOON)] {
        let mut server = Server::new(&setup, &sink);
        server.spawn();
        assert_eq!(server.ended().await, Some(1), "{}", server.output());
        let said = server.output();
        assert!(said.contains("KL-1111") && said.contains("topics.t.replicas"), "{said}");
        assert!(said.contains("3 replicas") && said.contains("1 brokers"), "{said}");
    }
    let listed = cluster.tool(&["TopicCommand", "--list"]);
    assert!(!listed.lines().any(|topic| topic == "t"), "nothing was made: {listed}");
}

/// MSG-4: from one broker to a cluster changes the config only; a topic by first use gets the profile's figures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_profile_makes_topics_for_a_cluster() {
    let cluster = Cluster::start(3);
    let sink = Sink::start().await;
    let setup = Setup { topics: Some("{}".into()), top: "profile: production".into(), ..Setup::default() };
    let mut server = Server::new(&setup.on_kafka(&cluster, SOON), &sink);
    server.start().await;
    let (status, answer) = post(&server, "first-use", &json!({ "payload": 1 })).await;
    assert_eq!(status, 202, "{answer}");
    for topic in ["t", "first-use"] {
        let told = cluster.tool(&["TopicCommand", "--describe", "--topic", topic]);
        for figure in ["PartitionCount: 12", "ReplicationFactor: 3", "min.insync.replicas=2"] {
            assert!(told.contains(figure), "{topic} has no {figure}: {told}");
        }
        assert!(told.contains("retention.ms=604800000"), "{topic} keeps something else: {told}");
        // Messages come as lz4. Managed clusters refuse the setting, so it is set only if the config names a codec.
        assert!(!told.contains("compression.type"), "{topic} has a codec that nobody wrote: {told}");
    }
    let acked = fill(&server, &items("k", 0, 50)).await;
    server.settles(&sink, &acked).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-2, ING-1: a message over a limit is refused alone: Keylane's limit, or the cluster's where that is lower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_over_the_limit_are_refused_alone() {
    let (cluster, sink, mut server) = started().await;
    // Random enough not to be compressible: a cluster counts the bytes that are sent.
    let noise: String = (0..700_000u64)
        .map(|n| {
            char::from(33 + (n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n * n) >> 33) as u8 % 90)
        })
        .collect();
    let large = json!({ "payload": noise.repeat(2) });
    let (status, problem) = post(&server, "t", &large).await;
    assert_eq!((status, &problem["code"]), (413, &json!("KL-1203")), "{}", problem["detail"]);
    let both = json!([{ "payload": noise.repeat(2) }, { "key": "k", "payload": 1 }]);
    let (status, answer) = post(&server, "t", &both).await;
    assert_eq!(status, 202, "{answer}");
    assert_eq!(answer["rejected"][0]["index"], 0, "{answer}");
    cluster.set("t", "max.message.bytes=100000");
    let problem = until("the cluster's limit to count", async || {
        let (status, problem) = post(&server, "t", &json!({ "payload": noise })).await;
        (status != 202).then_some((status, problem))
    })
    .await;
    assert_eq!((problem.0, &problem.1["code"]), (413, &json!("KL-1203")), "{}", problem.1);
    let both = json!([{ "payload": noise }, { "key": "k", "payload": 2 }]);
    let (status, answer) = post(&server, "t", &both).await;
    assert_eq!((status, &answer["rejected"][0]["index"]), (202, &json!(0)), "{answer}");
    assert_eq!(answer["accepted"].as_array().map(Vec::len), Some(1), "{answer}");
    let acked = fill(&server, &items("k", 0, 20)).await;
    server.settles(&sink, &acked).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// ING-1: if topics are declared, no other topic is made, on Kafka neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_not_declared_is_not_there() {
    let (cluster, _sink, mut server) = started().await;
    let (status, problem) = post(&server, "elsewhere", &json!({ "payload": 1 })).await;
    assert_eq!((status, &problem["code"]), (404, &json!("KL-1201")), "{problem}");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    let listed = cluster.tool(&["TopicCommand", "--list"]);
    assert!(!listed.contains("elsewhere"), "{listed}");
}

/// BRK-9: settings that weaken a promise are named at start and in the admin API, with a code and what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_weaken_a_promise_are_named() {
    let cluster = Cluster::start(3);
    let sink = Sink::start().await;
    let create = ["TopicCommand", "--create", "--partitions", "1", "--replication-factor", "2"];
    let weak =
        ["unclean.leader.election.enable=true", "min.insync.replicas=1", "message.timestamp.type=CreateTime"];
    let mut arguments = create.to_vec();
    arguments.extend(["--topic", "weak"]);
    weak.iter().for_each(|setting| arguments.extend(["--config", setting]));
    cluster.tool(&arguments);
    let more =
        format!("  weak:\n    handler: {{ http: {{ url: \"{}\", allow_private: true }} }}\n", sink.url());
    let setup = Setup {
        topics: Some("{}".into()),
        more: (String::new(), more),
        replicas: (3, 2),
        ..Setup::default()
    };
    let mut server = Server::new(&setup.on_kafka(&cluster, SOON), &sink);
    server.start().await;
    let said = server.output();
    for code in ["KL-1601", "KL-1602", "KL-1603"] {
        assert!(said.contains(code), "{code} is not named: {said}");
    }
    let (_, answer) = server.get("/admin/topics").await.expect("an answer");
    let topics = answer["topics"].as_array().expect("a list");
    let codes = |name: &str| {
        let topic = topics.iter().find(|topic| topic["name"] == name).expect("it is there");
        let warnings = topic["warnings"].as_array().expect("a list");
        let codes = warnings.iter().map(|warning| warning["code"].as_str().expect("text").to_owned());
        codes.collect::<Vec<_>>()
    };
    let warnings: Vec<&Value> =
        topics.iter().filter_map(|topic| topic["warnings"].as_array()).flatten().collect();
    for warning in warnings {
        let members: Vec<&String> = warning.as_object().expect("an object").keys().collect();
        assert_eq!(members, ["code", "remedy", "what"], "as the API describes it");
    }
    assert_eq!(codes("weak"), ["KL-1601", "KL-1602", "KL-1603"]);
    assert_eq!(codes("t"), ["KL-1604"], "it was made by default, with one copy");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-9, P10: a journal whose topic would delete records stops its pipeline before Keylane relies on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_would_not_be_kept_whole_ends_the_start() {
    let (cluster, sink, mut server) = started().await;
    let acked = fill(&server, &items("k", 0, 20)).await;
    server.settles(&sink, &acked).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    let journal = "_keylane.journal.t.t";
    for (bad, good) in
        [("cleanup.policy=compact", "cleanup.policy=delete"), ("retention.ms=1000000", "retention.ms=-1")]
    {
        cluster.set(journal, bad);
        server.spawn();
        assert_eq!(server.ended().await, Some(1), "{}", server.output());
        let said = server.output();
        assert!(said.contains("KL-1112") && said.contains(journal), "{said}");
        cluster.set(journal, good);
    }
    server.start().await;
    let more = fill(&server, &items("k", 20, 20)).await;
    server.settles(&sink, &more).await;
    let acked: Vec<_> = acked.into_iter().chain(more).collect();
    check(&acked, &sink.calls()).assert_once();
}

/// MSG-4, ADM-9: `check` shows the figures that a profile gives, and refuses those that a cluster does not accept.
#[tokio::test]
async fn check_shows_the_effective_figures() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("keylane.yaml");
    let text = "profile: production\nbroker: { kind: kafka, kafka: { brokers: \"k:9092\", settings: { sasl.password: hunter2 } } }\n\
                topics: { t: { partitions: 5 } }\npipelines: { t: { handler: { log: {} } } }\n";
    std::fs::write(&file, text).expect("written");
    let path = file.display().to_string();
    let (code, said) = run_binary(&["check", "-c", &path, "--json"]).await;
    assert_eq!(code, Some(0), "{said}");
    let plan: Value = serde_json::from_str(&said).expect("JSON");
    let topic = &plan["topics"][0];
    assert_eq!(
        (&topic["partitions"], &topic["replicas"], &topic["min_insync"], &topic["compression"]),
        (&json!(5), &json!(3), &json!(2), &json!("lz4"))
    );
    let (code, said) = run_binary(&["check", "-c", &path]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("profile production") && said.contains("k:9092") && !said.contains("hunter2"),
        "{said}"
    );
    std::fs::write(&file, text.replace("sasl.password", "sasl.pasword")).expect("written");
    let (code, said) = run_binary(&["check", "-c", &path]).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("sasl.pasword") && !said.contains("hunter2"), "{said}");
}

/// BRK-5, ADM-3: lag in messages and age, on the admin API and as a metric; the age is counted from the append.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lag_is_told_in_messages_and_age() {
    let cluster = Cluster::start(1);
    let sink = Sink::start().await;
    sink.behave(|_| keylane_tests::Reply::Held(200));
    let mut server = Server::new(&Setup::default().partitions(1).on_kafka(&cluster, SOON), &sink);
    server.start().await;
    fill(&server, &items("k", 0, 30)).await;
    let aged = |seconds: f64| {
        let server = &server;
        async move {
            let (_, answer) = server.get("/admin/pipelines").await?;
            let lag = &answer["pipelines"][0]["lag"];
            let age = lag["oldest_age_seconds"].as_f64()?;
            (lag["messages"] == 30 && age > seconds).then_some(age)
        }
    };
    let age = until("a lag of 30 messages, a second old", async || aged(1.0).await).await;
    assert!(age < 3_600.0, "{age}");
    let (_, metrics) = server.get("/metrics").await.expect("an answer");
    let metrics = metrics.as_str().expect("text");
    assert!(metrics.contains("kafka_consumer_lag{topic=\"t\",group=\"t\"} 30"), "{metrics}");
    // While no broker answers, the last figures are shown, and `/readyz` says so.
    cluster.kill(1);
    readyz_says(&server, 200, &["KL-1102"]).await;
    let (status, metrics) = server.get("/metrics").await.expect("an answer");
    let metrics = metrics.as_str().expect("text").to_owned();
    assert_eq!(status, 200, "{metrics}");
    assert!(metrics.contains("kafka_consumer_lag{topic=\"t\",group=\"t\"} 30"), "{metrics}");
    assert!(metrics.contains("keylane_broker_up 0"), "{metrics}");
    cluster.restart(1);
    well(&server).await;
    let (_, metrics) = server.get("/metrics").await.expect("an answer");
    assert!(metrics.as_str().is_some_and(|text| text.contains("keylane_broker_up 1")), "{metrics}");
}

/// Lines of the config for a topic and a pipeline of that name beside `t`.
fn second_pipeline(sink: &Sink, name: &str, topic: &str) -> (String, String) {
    let pipeline =
        format!("  {name}:\n    handler: {{ http: {{ url: \"{}\", allow_private: true }} }}\n", sink.url());
    (format!(", {name}: {topic}"), pipeline)
}
