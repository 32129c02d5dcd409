//! From one broker to a cluster, by config alone; and more partitions on a cluster that lacks a broker.

use std::time::Duration;

use keylane_tests::{Cluster, Load, Reply, Server, Setup, Sink, check, fill, run_binary, until};

use crate::changes::in_order_across_partitions;
use crate::{many, stopped};

/// Puts three copies of every partition of these topics onto three brokers, with Kafka's own tool.
fn copy_to_three(cluster: &Cluster, topics: &[(&str, u32)]) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("plan.json");
    let plan: Vec<String> = topics
        .iter()
        .flat_map(|(topic, partitions)| (0..*partitions).map(move |partition| (topic, partition)))
        .map(|(topic, partition)| {
            // The broker that has the partition stays its leader.
            format!(r#"{{"topic":"{topic}","partition":{partition},"replicas":[1,2,3]}}"#)
        })
        .collect();
    std::fs::write(&file, format!(r#"{{"version":1,"partitions":[{}]}}"#, plan.join(",")))
        .expect("it can be written");
    let file = file.display().to_string();
    let run = |verb: &str| {
        cluster.tool(&[
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            verb,
            "--reassignment-json-file",
            &file,
        ])
    };
    run("--execute");
    while run("--verify").contains("in progress") {}
}

/// MSG-4, P1, P2: a topic that began on one broker goes on, on three, with nothing changed but the config: nothing is
/// lost or reordered across, and from then on a broker may be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_grows_from_one_broker_to_three_by_config_alone() {
    let (cluster, sink) = (Cluster::start(3), Sink::start().await);
    let settings = "session.timeout.ms: 6000";
    let one = cluster.bootstrap.split(',').next().expect("there is one").to_owned();
    let all_on_one = |topic: &str| {
        let plan = ["--replica-assignment", "1,1,1,1"];
        cluster.tool(&[&["TopicCommand", "--create", "--topic", topic], &plan[..]].concat());
    };
    all_on_one("t");
    let mut server = Server::new(&Setup::default().on_kafka_at(&one, settings), &sink);
    server.start().await;
    let load = Load::start(&server, &sink, 50);
    sink.wait_settled(1_000).await;
    // Journals have as many partitions as their topic; the topic of holds exists once a message has died.
    copy_to_three(&cluster, &[("t", 4), ("_keylane.journal.t.t", 4)]);
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    let grown = Setup { replicas: (3, 2), ..Setup::default() }.on_kafka(&cluster, settings);
    server.configure(&grown, &sink);
    server.start().await;
    let more = sink.settled() + 1_000;
    sink.wait("work on the cluster", |sink| sink.settled() >= more).await;
    // Keylane's own topics are as safe as those of its users.
    for topic in ["t", "_keylane.journal.t.t"] {
        until("two copies to be asked for", async || {
            let told = cluster.tool(&["TopicCommand", "--describe", "--topic", topic]);
            (told.contains("min.insync.replicas=2") && told.contains("ReplicationFactor: 3")).then_some(())
        })
        .await;
    }
    // The broker that had everything.
    cluster.kill(1);
    let more = sink.settled() + 1_000;
    sink.wait("work without the first broker", |sink| sink.settled() >= more).await;
    let acked = load.stop().await;
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// BRK-10, P2: all groups whose pipelines run here accept added partitions in one call, each for itself, also while a
/// broker is down; and keys that moved are in order for each group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_group_accepts_added_partitions_while_a_broker_is_down() {
    let (cluster, sink, other) = (Cluster::start(3), Sink::start().await, Sink::start().await);
    let handler = format!("{{ http: {{ url: \"{}\", allow_private: true }} }}", other.url());
    let more = format!("  u:\n    topic: t\n    group: u\n    handler: {handler}\n");
    let setup = Setup { replicas: (3, 2), more: (String::new(), more), ..Setup::default() };
    let mut server = Server::new(&setup.on_kafka(&cluster, "session.timeout.ms: 6000"), &sink);
    server.start().await;
    let mut acked = fill(&server, &many(0, 5, 0)).await;
    for sink in [&sink, &other] {
        sink.wait("all to be settled", |sink| sink.has_settled(&acked)).await;
        sink.behave(|_| Reply::After(Duration::from_millis(500), 200));
    }
    acked.extend(fill(&server, &many(5, 30, 0)).await);
    cluster.tool(&["TopicCommand", "--alter", "--topic", "t", "--partitions", "8"]);
    stopped(&server, &[0, 1, 2, 3, 4, 5, 6, 7], &["KL-1304"]).await;
    for sink in [&sink, &other] {
        assert!(!sink.has_settled(&acked), "something is left in the old partitions");
        sink.behave(|_| Reply::Status(200));
    }
    acked.extend(fill(&server, &many(35, 5, 0)).await);
    cluster.kill(2);
    // While leaders change the call may be refused; a second try then goes on from where the first one stopped.
    let (url, mut said) = (server.url(""), String::new());
    until("the partitions to be accepted", async || {
        let (code, more) = run_binary(&["topics", "accept", "t", "--url", &url]).await;
        assert!(code == Some(0) || more.contains("KL-"), "{more}");
        said.push_str(&more);
        (code == Some(0)).then_some(())
    })
    .await;
    assert!(said.contains("group t") || said.contains("group u"), "{said}");
    acked.extend(fill(&server, &many(40, 5, 0)).await);
    for sink in [&sink, &other] {
        sink.wait("all to be settled", |sink| sink.has_settled(&acked)).await;
        check(&acked, &sink.calls()).assert_kept();
        in_order_across_partitions(sink);
    }
    cluster.restart(2);
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}
