//! Keylane killed, stopped and started again; brokers killed and started again.

use std::time::Duration;

use keylane_tests::{
    Cluster, Committed, Load, Reply, Server, Setup, Sink, Storm, check, check_committed, restarts, storm,
};

use crate::commits::Commits;
use crate::{SOON, UNRECORDED_MAX, cluster};

const CONCURRENCY: u64 = 100;

fn assert_commits(seen: &[Committed], storm: &Storm) {
    let wrong = check_committed(seen, &storm.acked, &storm.calls);
    assert!(wrong.is_empty(), "{} wrong commits: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
}

/// P1, P2, P4, BRK-2, COM-2, COM-3: kill -9 of Keylane, under load. Only messages that were not on record run again; a
/// message below a commit that Keylane or Kafka shows never runs again, and no commit lies above an unsettled message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_keylane_is_killed() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    // Some calls take longer than it takes to put on record what lies behind them.
    sink.behave(|call| {
        let ms = if call.offset % 61 == 0 { 1_500 } else { call.offset % 4 };
        Reply::After(Duration::from_millis(ms), 200)
    });
    // A process that comes back under its name has its partitions back at once.
    let settings = format!("{SOON}, group.instance.id: one");
    let setup = Setup::pipeline(&[&format!("concurrency: {CONCURRENCY}")]).topic("killed");
    let setup = Setup { timeout: "5s", ..setup }.on_kafka(&cluster, &settings);
    let mut server = Server::new(&setup, &sink);
    let watch = Commits::of(&cluster, "killed", 4).watch(&sink);
    let storm = storm(&mut server, &sink, 50, 8).await;
    server.recorded().await;
    assert_commits(&watch.stop(), &storm);
    assert_commits(&storm.committed, &storm);
    storm.check().assert_repeats(UNRECORDED_MAX + CONCURRENCY);
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}

/// P4, ORD-10, BRK-7: a server that is told to stop leaves nothing for its successor to repeat, and Kafka's own commit
/// stands at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_restart_under_load_repeats_nothing() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let mut server = Server::new(&Setup::default().topic("restarted").on_kafka(&cluster, SOON), &sink);
    let acked = restarts(&mut server, &sink, 3).await;
    check(&acked, &sink.calls()).assert_once();
    let committed = Commits::of(&cluster, "restarted", 4).now().expect("Kafka answers");
    for (partition, position) in committed {
        let last =
            acked.iter().filter(|acked| acked.partition == partition).filter_map(|acked| acked.offset).max();
        assert_eq!(Some(position), last.map(|last| last + 1), "the commit of partition {partition}");
    }
}

/// P1, P2, BRK-8: kill -9 of one broker after another, under load; Keylane is not restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_brokers_are_killed() {
    let (cluster, sink) = (Cluster::start(3), Sink::start().await);
    let setup = Setup { replicas: (3, 2), ..Setup::default() };
    let mut server = Server::new(&setup.on_kafka(&cluster, "session.timeout.ms: 6000"), &sink);
    server.start().await;
    let load = Load::start(&server, &sink, 50);
    for broker in 1..=3 {
        let more = sink.settled() + 200;
        sink.wait("work between two kills", |sink| sink.settled() >= more).await;
        cluster.kill(broker);
        let more = sink.settled() + 200;
        sink.wait("work while a broker is away", |sink| sink.settled() >= more).await;
        cluster.restart(broker);
        cluster.in_sync();
    }
    let acked = load.stop().await;
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_kept();
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}
