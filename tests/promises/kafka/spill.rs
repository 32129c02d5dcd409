//! A cluster that goes away while messages are produced: Keylane keeps them, and sends them to the cluster later.

use keylane_tests::{Acked, Cluster, Server, Setup, Sink, check, fill, items, until};
use serde_json::Value;

/// The shortest session that a broker with default settings accepts.
const SOON: &str = "session.timeout.ms: 6000, heartbeat.interval.ms: 500";

/// Soon enough for a test. Electing a leader takes longer, which does no harm.
const SPILL: &str = "spill: { after: 1s, drain: 1s }";
const KEYS: u64 = 10;

/// `count` more messages of every key.
async fn more(server: &Server, from: u64, count: u64) -> Vec<Acked> {
    let mut acked = Vec::new();
    for n in from..from + count {
        let batch: Vec<_> = (0..KEYS).flat_map(|key| items(&format!("k{key}"), n, 1)).collect();
        acked.extend(fill(server, &batch).await);
    }
    acked
}

async fn spill(server: &Server) -> Option<Value> {
    let (status, body) = server.get("/admin/spill?limit=1000").await?;
    (status == 200).then_some(body)
}

/// PRD-3, PRD-4, P1, P2, BRK-8: the cluster is killed, messages are produced and acknowledged all the same, Keylane is
/// killed and started again while the cluster is still away, and produces more; once the cluster is back, everything is
/// handled, each key in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_produced_while_the_cluster_is_away_is_kept_and_handled_in_order() {
    let (cluster, sink) = (Cluster::start(1), Sink::start().await);
    let setup = Setup { top: SPILL.to_owned(), timeout: "5s", ..Setup::default() }.on_kafka(&cluster, SOON);
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    let mut acked = more(&server, 0, 10).await;
    assert!(acked.iter().all(|acked| acked.offset.is_some()), "the cluster is there");
    cluster.kill(1);
    let spilled = more(&server, 10, 20).await;
    assert!(spilled.iter().all(|acked| acked.offset.is_none()), "the cluster is away");
    acked.extend(spilled);
    let seen = spill(&server).await.expect("it answers");
    assert_eq!((&seen["state"], &seen["messages"]), (&"spilling".into(), &(20 * KEYS).into()), "{seen}");
    let entries = seen["entries"].as_array().expect("a list");
    assert_eq!(entries.len() as u64, 20 * KEYS);
    assert!(
        entries.iter().all(|entry| entry["state"] == "pending" || entry["state"] == "retrying"),
        "{seen}"
    );
    server.kill9().await;
    server.spawn();
    until("the server to listen", async || server.get("/healthz").await).await;
    until("the broker to be missed", async || {
        let (status, _) = server.get("/readyz").await?;
        (status == 503).then_some(())
    })
    .await;
    let again = until("messages to be taken without a cluster", async || {
        spill(&server).await.filter(|seen| seen["messages"] == 20 * KEYS)
    })
    .await;
    assert_eq!(again["state"], "spilling", "{again}");
    let spilled = more(&server, 30, 10).await;
    assert!(spilled.iter().all(|acked| acked.offset.is_none()), "the cluster is still away");
    acked.extend(spilled);
    cluster.restart(1);
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_kept();
    let drained = until("the spill to be empty", async || {
        spill(&server).await.filter(|seen| seen["state"] == "healthy")
    })
    .await;
    assert_eq!((&drained["messages"], &drained["bytes"]), (&0.into(), &0.into()), "{drained}");
    let after = more(&server, 40, 1).await;
    assert!(after.iter().all(|acked| acked.offset.is_some()), "straight to the cluster again");
    server.settles(&sink, &after).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}
