//! P1: a message acknowledged to its producer ends handled or dead-lettered, whatever is killed, whenever.

use std::time::Duration;

use keylane_tests::{Load, Reply, Server, Sink, check, check_committed, fill, items, storm};

use crate::ON;

/// On a broker where a start takes milliseconds.
const KILLS: u64 = 100;

/// P1, P2, P4, BRK-1, COM-1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_over_many_kills_under_load() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::After(Duration::from_millis(call.offset % 4), 200));
    let mut server = Server::new(&ON.pipeline(&["concurrency: 100"]), &sink);
    let storm = storm(&mut server, &sink, 50, ON.times(KILLS)).await;
    let report = storm.check();
    report.assert_kept();
    let wrong = check_committed(&storm.committed, &storm.acked, &storm.calls);
    assert!(wrong.is_empty(), "{} wrong commits: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    println!("{} kills: {report}", ON.times(KILLS));
}

/// P1: a message that was acknowledged before a kill and never read is still there, byte for byte, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_has_read_yet_survives_a_kill() {
    let sink = Sink::start().await;
    sink.behave(|_| Reply::Status(503));
    let mut server = Server::new(&ON.pipeline(&["retry: { retries: 0, base: 10ms, max: 50ms }"]), &sink);
    server.start().await;
    let mut all = Vec::new();
    for key in 0..20 {
        all.extend(items(&format!("k{key}"), 0, 100));
    }
    let acked = fill(&server, &all).await;
    server.kill9().await;
    sink.behave(|_| Reply::Status(200));
    server.start().await;
    server.settles(&sink, &acked).await;
    let report = check(&acked, &sink.calls());
    report.assert_once();
    assert_eq!(report.settled, acked.len());
}

/// P1: after a kill amid many requests, every message that was answered with 202 is there, whatever became of the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_is_true_even_if_the_kill_follows_at_once() {
    let sink = Sink::start().await;
    let mut server = Server::new(&ON.setup(), &sink);
    server.start().await;
    for _ in 0..ON.times(10) {
        let load = Load::start(&server, &sink, 10);
        let before = sink.settled();
        sink.wait("some of the load", |sink| sink.settled() >= before + 50).await;
        server.kill9().await;
        server.start().await;
        let acked = load.stop().await;
        server.settles(&sink, &acked).await;
    }
}
