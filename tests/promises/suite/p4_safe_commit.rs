//! P4: a commit never lies above an unsettled message, and messages on record as finished are not run again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keylane_tests::{
    Acked, Load, PipelineView, Reply, Server, Setup, Sink, check, check_committed, fill, items, restarts,
    until,
};

use crate::ON;

/// P4, COM-1, COM-3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_on_record_is_not_run_again_after_a_kill() {
    let sink = Sink::start().await;
    let mut server = Server::new(&ON.setup(), &sink);
    server.start().await;
    let mut acked: Vec<Acked> = Vec::new();
    for round in 0..5 {
        let all: Vec<_> = (0..50).flat_map(|key| items(&format!("k{key}"), round * 10, 10)).collect();
        acked.extend(fill(&server, &all).await);
        server.settles(&sink, &acked).await;
        server.recorded().await;
        server.kill9().await;
        server.start().await;
    }
    // One more message of each key shows that the server has gone past everything before.
    let last: Vec<_> = (0..50).flat_map(|key| items(&format!("k{key}"), 50, 1)).collect();
    acked.extend(fill(&server, &last).await);
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P4, ORD-10: a clean stop under load forgets nothing and repeats nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_restart_under_load_repeats_nothing() {
    let sink = Sink::start().await;
    let mut server = Server::new(&ON.setup(), &sink);
    let acked = restarts(&mut server, &sink, ON.times(5) as u32).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P4, COM-1: an unsettled message keeps the commit down, and messages finished above it are remembered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_finished_above_an_unsettled_message_is_remembered() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.key.as_deref() == Some("stuck") { 500 } else { 200 }));
    let setup = ON.pipeline(&["retry: { retries: 0, base: 10ms, max: 50ms }"]).partitions(1);
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    let mut acked = fill(&server, &items("stuck", 0, 1)).await;
    for key in 0..50 {
        acked.extend(fill(&server, &items(&format!("k{key}"), 0, 20)).await);
    }
    sink.wait_settled(1_000).await;
    let view = PipelineView::of(&server).await.expect("it answers");
    assert_eq!(Some(view.partitions[0].committed), acked[0].offset, "the stuck one keeps the commit down");
    for _ in 0..2 {
        assert_eq!(server.stop().await, Some(0), "{}", server.output());
        let before = sink.calls_of("stuck").len();
        server.start().await;
        sink.wait("the stuck one to be tried again", |sink| sink.calls_of("stuck").len() > before).await;
    }
    sink.behave(|_| Reply::Status(200));
    sink.wait_settled(1_001).await;
    let view = server.recorded().await;
    assert_eq!(view.partitions[0].committed, view.partitions[0].end);
    check(&acked, &sink.calls()).assert_once();
}

/// P4, COM-2: after a kill only messages that were not yet on record run again, though the commit never moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_at_most_what_was_not_yet_on_record_runs_again() {
    const MESSAGES: u64 = 8_000;
    /// A record is written at the latest when 1,000 completions wait for it, as many wait to be the next, and more come
    /// while a busy disk syncs. Without records all of them would run again.
    const REPEATS_MAX: u64 = MESSAGES / 2;
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.key.as_deref() == Some("stuck") { 500 } else { 200 }));
    let setup = ON.pipeline(&["retry: { retries: 0, base: 10ms, max: 50ms }"]).partitions(1);
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    let mut acked = fill(&server, &items("stuck", 0, 1)).await;
    let all: Vec<_> = (0..MESSAGES / 100).flat_map(|key| items(&format!("k{key}"), 0, 100)).collect();
    acked.extend(fill(&server, &all).await);
    sink.wait_settled(MESSAGES).await;
    server.kill9().await;
    sink.behave(|_| Reply::Status(200));
    server.start().await;
    sink.wait_settled(MESSAGES + 1).await;
    server.recorded().await;
    let report = check(&acked, &sink.calls());
    report.assert_kept();
    assert!(report.duplicated <= REPEATS_MAX, "{report}");
}

/// P4, COM-1: watched from outside all the time, no commit is ever above an unsettled message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_is_ever_seen_above_an_unsettled_message() {
    let sink = Arc::new(Sink::start().await);
    sink.behave(|call| match call.offset % 20 {
        0 if call.attempt < 4 => Reply::Status(500),
        1 => Reply::After(std::time::Duration::from_millis(30), 200),
        _ => Reply::Status(200),
    });
    let mut server = Server::new(&ON.pipeline(&["retry: { retries: 5, base: 20ms, max: 80ms }"]), &sink);
    server.start().await;
    let load = Load::start(&server, &sink, 30);
    let server = Arc::new(server);
    let ends = Arc::new(AtomicBool::new(false));
    let watch = {
        let (server, sink, ends) = (Arc::clone(&server), Arc::clone(&sink), Arc::clone(&ends));
        tokio::spawn(async move {
            let mut seen = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                seen.extend(PipelineView::committed(&server, &sink).await);
                tokio::time::sleep(std::time::Duration::from_millis(3)).await;
            }
            seen
        })
    };
    sink.wait_settled(8_000).await;
    let acked = load.stop().await;
    server.settles(&sink, &acked).await;
    server.recorded().await;
    ends.store(true, Ordering::Relaxed);
    let seen = watch.await.expect("watching does not panic");
    assert!(seen.len() > 50, "only {} looks at the commits", seen.len());
    let calls = sink.calls();
    check(&acked, &calls).assert_once();
    let wrong = check_committed(&seen, &acked, &calls);
    assert!(wrong.is_empty(), "{} wrong commits: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
}

/// ORD-10, P4: a drain lets running attempts finish and puts them on record; it starts nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_what_runs_and_starts_nothing_more() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.key.as_deref() {
        Some("slow") => Reply::Held(200),
        _ => Reply::Status(200),
    });
    let mut server = Server::new(&ON.setup(), &sink);
    server.start().await;
    let acked = fill(&server, &items("slow", 0, 3)).await;
    sink.wait("the slow one to be called", |sink| sink.len() == 1).await;
    server.signal("TERM").await;
    until("its partition to drain", async || {
        let (_, told) = server.get("/admin/pipelines").await?;
        let partitions = told["pipelines"][0]["partitions"].as_array()?.clone();
        partitions.iter().any(|partition| partition["state"] == "draining").then_some(())
    })
    .await;
    let (status, _) = server.get("/readyz").await.expect("it answers while it drains");
    assert_eq!(status, 503);
    sink.release();
    assert_eq!(server.ended().await, Some(0), "{}", server.output());
    assert_eq!(sink.settled(), 1, "what was running is done, the next was not begun");
    server.start().await;
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}

/// ORD-10, P1: an attempt that does not end within the deadline is given up, and runs again after the next start;
/// attempts that ended are on record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_outlasts_the_drain_is_given_up_and_runs_again() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.key.as_deref() {
        Some("slow") => Reply::Held(200),
        _ => Reply::Status(200),
    });
    let mut server = Server::new(&Setup { drain: "500ms", ..ON.setup() }, &sink);
    server.start().await;
    let mut all = items("slow", 0, 3);
    all.extend((0..50).flat_map(|key| items(&format!("k{key}"), 0, 10)));
    let acked = fill(&server, &all).await;
    sink.wait("all but the slow ones", |sink| sink.settled() == 500 && sink.len() == 501).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    assert!(server.output().contains("handlers did not end in time"), "{}", server.output());
    assert_eq!(sink.settled(), 500, "the slow one was not waited for");
    // The call that was given up is never answered.
    sink.behave(|_| Reply::Status(200));
    server.start().await;
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}

/// ORD-10, P1: a second signal ends the server at once; running attempts run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_a_drain_at_once_and_nothing_is_lost() {
    let sink = Sink::start().await;
    sink.behave(|_| Reply::Held(200));
    let mut server = Server::new(&ON.setup(), &sink);
    server.start().await;
    let acked = fill(&server, &items("slow", 0, 3)).await;
    sink.wait("the slow one to be called", |sink| sink.len() == 1).await;
    server.signal("TERM").await;
    until("a server that drains not to be ready", async || {
        let (status, _) = server.get("/readyz").await?;
        (status == 503).then_some(())
    })
    .await;
    server.signal("TERM").await;
    let code = server.ended().await;
    assert_ne!(code, Some(0), "it was not drained");
    assert_eq!(sink.settled(), 0, "it did not wait for the handler");
    sink.release();
    server.start().await;
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_kept();
}
