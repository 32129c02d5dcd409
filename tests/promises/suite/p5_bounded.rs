//! P5: memory is bounded in messages and bytes; past the bound reading slows down, and nothing is dropped.

use keylane_tests::{Item, PipelineView, Reply, Server, Sink, check, fill, until};

use crate::ON;

fn flood(messages: u64, padding: usize) -> Vec<Item> {
    (0..messages)
        .map(|n| Item { key: Some(format!("k{}", n % 2_000)), id: format!("m{n}"), n, padding })
        .collect()
}

/// P5, ORD-4: concurrency bounds handlers, not threads; also on a machine so busy that every poll takes long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_handlers_wait_at_once_and_need_no_thread_each() {
    let sink = Sink::start().await;
    sink.behave(|_| Reply::Held(200));
    let mut server = Server::new(&ON.pipeline(&["concurrency: 1000"]), &sink);
    server.start().await;
    let acked = fill(&server, &flood(2_000, 0)).await;
    sink.wait("a thousand calls at once", |sink| sink.running_max() == 1_000).await;
    let threads = server.threads();
    assert!(threads < 100, "{threads} threads for 1,000 waiting handlers: {:?}", server.threads_by_name());
    sink.release();
    server.settles(&sink, &acked).await;
    assert_eq!(sink.running_max(), 1_000);
    check(&acked, &sink.calls()).assert_once();
}

/// P5, BPR-1: the bound in messages holds as well, and messages in lanes that wait for a retry count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_stay_bounded_while_every_attempt_fails() {
    let sink = Sink::start().await;
    sink.behave(|_| Reply::Status(503));
    let lines = ["buffer: { messages: 300, bytes: 64MiB }", "retry: { retries: 0, base: 20ms, max: 100ms }"];
    let mut server = Server::new(&ON.pipeline(&lines), &sink);
    server.start().await;
    let acked = fill(&server, &flood(5_000, 0)).await;
    let mut most = 0;
    until("intake to reach its bound and stop there", async || {
        let view = PipelineView::of(&server).await.expect("it answers");
        assert!(view.buffered <= 300, "{} messages in memory", view.buffered);
        most = most.max(view.buffered);
        // Every key in memory has been tried several times by now, so everything that could be read was read.
        (most >= 150 && sink.len() >= 3_000).then_some(())
    })
    .await;
    assert_eq!(sink.settled(), 0);
    sink.behave(|_| Reply::Status(200));
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}
