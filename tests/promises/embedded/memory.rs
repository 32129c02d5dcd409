//! The memory that the process takes while handlers hang, and when too much is sent to it.

use keylane_tests::{Item, PipelineView, Reply, Server, Setup, Sink, check, client, fill};

const MIB: u64 = 1 << 20;

fn flood(messages: u64, padding: usize) -> Vec<Item> {
    (0..messages)
        .map(|n| Item { key: Some(format!("k{}", n % 2_000)), id: format!("m{n}"), n, padding })
        .collect()
}

/// P5, BPR-1, BPR-2, ORD-4: handlers hang while a producer goes on; far more is in the log than may be in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_stays_bounded_while_handlers_hang_and_a_producer_floods() {
    const MESSAGES: u64 = 24_000;
    const PAYLOAD: usize = 16 * 1024;
    const BYTES_MAX: u64 = 16 * MIB;
    /// The newest messages of a topic that the embedded broker keeps for its readers.
    const TAIL_BYTES: u64 = 8 * MIB;
    /// Memory for what is on its way in and out: requests of 3 MiB, a hundred calls of the handler, and what the
    /// allocator keeps. Measured, this comes to 50 to 85 MiB, and does not grow with the flood.
    const SLACK: u64 = 120 * MIB;
    /// The bound for the first half of the flood, which is 188 MiB, so that keeping it all would be seen.
    const GROWTH_MAX: u64 = BYTES_MAX + TAIL_BYTES + SLACK;
    /// The bound for the second half: the allocator's part varies by about the bound itself; keeping it all would be
    /// 188 MiB.
    const FURTHER_GROWTH_MAX: u64 = 2 * BYTES_MAX;
    let sink = Sink::start().await;
    sink.behave(|_| Reply::Held(200));
    let setup = Setup::pipeline(&["concurrency: 100", "buffer: { messages: 5000, bytes: 16MiB }"]);
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    let first = fill(&server, &flood(100, 0)).await;
    sink.wait("the first handlers to hang", |sink| sink.len() == 100).await;
    let before = server.memory_bytes();
    let mut acked = Vec::new();
    let flood = flood(MESSAGES, PAYLOAD);
    let (first_half, rest) = flood.split_at(flood.len() / 2);
    let mut most = [0; 2];
    for (most, part) in most.iter_mut().zip([first_half, rest]) {
        for part in part.chunks(200) {
            acked.extend(fill(&server, part).await);
            let view = PipelineView::of(&server).await.expect("it answers");
            assert!(view.buffered <= 5_000, "{} messages in memory", view.buffered);
            assert!(view.buffered_bytes <= BYTES_MAX, "{} bytes in memory", view.buffered_bytes);
            *most = server.memory_bytes().saturating_sub(before).max(*most);
        }
    }
    let [early, late] = most;
    println!(
        "memory grew by {} MiB, then by {} MiB, with a bound of {} MiB",
        early / MIB,
        late.saturating_sub(early) / MIB,
        BYTES_MAX / MIB
    );
    assert!(early <= GROWTH_MAX, "memory grew by {} MiB", early / MIB);
    assert!(
        late <= early + FURTHER_GROWTH_MAX,
        "memory goes on growing: {} MiB, then {} MiB",
        early / MIB,
        late / MIB
    );
    sink.release();
    acked.extend(first);
    server.settles(&sink, &acked).await;
    assert_eq!(sink.running_max(), 100, "handlers in flight");
    check(&acked, &sink.calls()).assert_once();
}

/// P5, SEC-2: a request beyond the bound is refused before it is in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_a_hundred_megabytes_is_refused_and_takes_no_memory() {
    let sink = Sink::start().await;
    let mut server = Server::new(&Setup::default(), &sink);
    server.start().await;
    let before = server.memory_peak_bytes();
    let body = vec![b'x'; 100 << 20];
    let sent = client()
        .post(server.url("/v1/topics/t/messages"))
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await;
    if let Ok(answer) = sent {
        assert_eq!(answer.status().as_u16(), 413);
    }
    // The peak, so that memory that was taken and given back counts too.
    let grown = server.memory_peak_bytes().saturating_sub(before);
    assert!(grown < 40 * MIB, "memory grew by {} MiB", grown / MIB);
    let (status, _) = server.get("/healthz").await.expect("it lives on");
    assert_eq!(status, 200);
}
