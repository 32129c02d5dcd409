//! A broker that does what it is asked, and whose answers do not arrive.

use keylane_tests::{Cluster, Load, Proxy, Server, Setup, Sink, check, until};

/// P1, P2, BRK-2: a message that was appended and not acknowledged is sent again, and lies in the log once; a commit or
/// record that was not acknowledged counts once. Nothing is lost, and no order changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_lose_no_message_and_change_no_order() {
    let (cluster, sink) = (Cluster::with(&["--proxied"]), Sink::start().await);
    let proxy = Proxy::start(cluster.proxies[0]).await;
    let brokers = cluster.proxied.clone().expect("asked for above");
    // Without the spill: calls that are taken back and sent again would be repeats, and this test allows none.
    let setup = Setup { top: "spill: { after: 10m }".to_owned(), ..Setup::default() };
    let mut server = Server::new(&setup.on_kafka_at(&brokers, "session.timeout.ms: 30000"), &sink);
    server.start().await;
    let load = Load::start(&server, &sink, 50);
    for round in 0..8 {
        let more = sink.settled() + 300;
        sink.wait("work between two losses", |sink| sink.settled() >= more).await;
        let lost = proxy.lost();
        proxy.lose_answers();
        // One answer gets lost, or a few; soon everything that is on its way stops.
        until("answers to be lost", async || (proxy.lost() > lost + round % 3).then_some(())).await;
        proxy.pass_answers();
    }
    let acked = load.stop().await;
    server.settles(&sink, &acked).await;
    let report = check(&acked, &sink.calls());
    report.assert_once();
    // No request was answered with an error, so only the Kafka client has sent anything twice, which must not show.
    assert_eq!(report.settled, acked.len(), "a message lies in the log twice");
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
}
