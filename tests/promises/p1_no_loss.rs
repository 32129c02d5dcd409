//! P1: a message acknowledged to its producer ends handled or dead-lettered, whatever is killed, whenever.

use std::time::Duration;

use keylane_tests::{
    Load, Reply, Server, Setup, Sink, check, check_committed, files_below, fill, find_bytes, items, storm,
};

const KILLS: u64 = 100;

/// P1, P2, P4, BRK-1, COM-1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_over_a_hundred_kills_under_load() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::After(Duration::from_millis(call.offset % 4), 200));
    let mut server = Server::new(&Setup::pipeline(&["concurrency: 100"]), &sink);
    let storm = storm(&mut server, &sink, 50, KILLS).await;
    let report = storm.check();
    report.assert_kept();
    let wrong = check_committed(&storm.committed, &storm.acked, &storm.calls);
    assert!(wrong.is_empty(), "{} wrong commits: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    println!("{KILLS} kills: {report}");
}

/// P1, RTY-1: a rejected message is kept as a dead letter, and is no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_messages_are_dead_letters_and_their_successors_run_through_kills() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.n.is_some_and(|n| n % 3 == 0) { 422 } else { 200 }));
    let mut server = Server::new(&Setup::default(), &sink);
    let storm = storm(&mut server, &sink, 20, 10).await;
    storm.check().assert_kept();
    server.recorded().await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    let holds: Vec<Vec<u8>> = files_below(&server.data().join("holds"))
        .iter()
        .map(|path| std::fs::read(path).expect("it can be read"))
        .collect();
    let rejected: Vec<_> = storm.acked.iter().filter(|acked| acked.n % 3 == 0).collect();
    assert!(rejected.len() > 100, "only {} were rejected", rejected.len());
    for message in rejected.iter().step_by(rejected.len() / 50) {
        // A body is the message as it lay in the log: its id, and a little further on its payload.
        let payload = format!("{{\"n\":{}}}", message.n);
        let kept = holds.iter().any(|hold| {
            let Some(at) = find_bytes(hold, message.id.as_bytes()) else { return false };
            find_bytes(&hold[at..(at + 200).min(hold.len())], payload.as_bytes()).is_some()
        });
        assert!(kept, "{} was rejected, and is in no hold", message.id);
    }
}

/// P1: what was acknowledged before a kill and never read is still there, byte for byte in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_has_read_yet_survives_a_kill() {
    let sink = Sink::start().await;
    sink.behave(|_| Reply::Status(503));
    let mut server = Server::new(&Setup::pipeline(&["retry: { retries: 0, base: 10ms, max: 50ms }"]), &sink);
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

/// P1: a kill in the middle of many requests; what was answered 202 is there, whatever became of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_is_true_even_if_the_kill_follows_at_once() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    for _ in 0..10 {
        let load = Load::start(&server, &sink, 10);
        let before = sink.settled();
        sink.wait("some of the load", |sink| sink.settled() >= before + 50).await;
        server.kill9().await;
        server.start().await;
        let acked = load.stop().await;
        server.settles(&sink, &acked).await;
    }
}
