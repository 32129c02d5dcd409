//! P1: a message acknowledged to its producer ends handled or dead-lettered, whatever is killed, whenever.

use std::time::Duration;

use keylane_tests::{
    Load, PipelineView, Reply, Server, Setup, Sink, check, check_committed, fill, items, storm, until,
};

const KILLS: u64 = 100;
const PARTITIONS: u32 = 4;
/// Completions that are not on record yet: a partition writes a record at the latest when there are 1,000, and as many
/// may come while that is under way; then what is in flight.
const REPEATS_MAX: usize = PARTITIONS as usize * 2 * 1_000 + 100;

/// P1, P2, P4, BRK-1, COM-1, COM-2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_over_a_hundred_kills_under_load() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::After(Duration::from_millis(call.offset % 4), 200));
    let mut server = Server::new(&Setup::pipeline(&["concurrency: 100"]).partitions(PARTITIONS), &sink);
    let storm = storm(&mut server, &sink, 50, KILLS).await;
    assert_eq!(storm.kills.len() as u64, KILLS);
    let report = storm.check();
    report.assert_kept();
    let wrong = check_committed(&storm.committed, &storm.acked, &storm.calls);
    assert!(wrong.is_empty(), "{} wrong commits: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    let repeats = storm.repeats();
    let most = repeats.iter().max().copied().unwrap_or(0);
    assert!(most <= REPEATS_MAX, "{most} messages were run again after one kill: {repeats:?}");
    println!("{KILLS} kills: {report}; at most {most} run again after a kill");
}

/// P1, RTY-1: a rejected message is kept as a dead letter, and is no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_messages_are_dead_letters_and_their_successors_run_through_kills() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.n.is_some_and(|n| n % 3 == 0) { 422 } else { 200 }));
    let mut server = Server::new(&Setup::default(), &sink);
    let storm = storm(&mut server, &sink, 20, 10).await;
    storm.check().assert_kept();
    let settled = until("all to be on record", async || {
        PipelineView::of(&server).await.filter(PipelineView::is_settled)
    })
    .await;
    assert!(
        settled.partitions.iter().map(|partition| partition.end).sum::<u64>() >= storm.acked.len() as u64
    );
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
