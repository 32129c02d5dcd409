//! P3: a slow, failing or poisonous key never delays another key, whatever its shard or partition. This holds within
//! the capacity of lanes; a lane that overflows pauses its partition, since there is no hold yet.
//!
//! The tests use no clocks: all other keys must be done while the slow key's call has not returned.

use keylane_tests::{Acked, Call, Item, PipelineView, Reply, Server, Setup, Sink, check, fill, items};

use crate::ON;

const OTHERS: u64 = 200;

/// Many keys with a few messages each.
fn others() -> Vec<Item> {
    let turn = |n| (0..OTHERS).flat_map(move |key| items(&format!("k{key}"), n, 1));
    (0..10).flat_map(turn).collect()
}

/// Puts the messages of a troublesome key first, so that everything else lies behind them in the log.
async fn others_run_beside(setup: Setup, sink: &Sink, trouble: &[Item]) -> (Server, Vec<Acked>) {
    let mut server = Server::new(&setup, sink);
    server.start().await;
    let mut acked = fill(&server, trouble).await;
    acked.extend(fill(&server, &others()).await);
    sink.wait("all other keys, beside the troublesome one", |sink| {
        let is_other = |call: &Call| call.key.as_deref().is_some_and(|key| key.starts_with('k'));
        sink.count_calls(|call| call.status == Some(200) && is_other(call)) == OTHERS * 10
    })
    .await;
    (server, acked)
}

/// P3, ORD-2, ORD-4: one partition and one shard, so that only the lanes keep keys apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_key_delays_no_other_key_of_its_shard_and_partition() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.key.as_deref() {
        Some("slow") => Reply::Held(200),
        _ => Reply::Status(200),
    });
    let setup = ON.pipeline(&["shards: 1"]).partitions(1);
    let (server, acked) = others_run_beside(setup, &sink, &items("slow", 0, 50)).await;
    let slow = sink.calls_of("slow");
    assert!(slow.len() == 1 && slow[0].ended.is_none(), "the slow key is still at its first: {slow:?}");
    sink.release();
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P3, RTY-2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_key_delays_no_other_key() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.key.as_deref() == Some("failing") { 500 } else { 200 }));
    let setup = ON.pipeline(&["shards: 1", "retry: { retries: 1, base: 5ms, max: 20ms }"]).partitions(1);
    let (_server, _acked) = others_run_beside(setup, &sink, &items("failing", 0, 50)).await;
    let failing = sink.calls_of("failing");
    assert!(failing.iter().all(|call| call.n == Some(0)), "nothing of the failing key passes its head");
}

/// P3, RTY-1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poisonous_key_delays_no_other_key_and_its_messages_are_dead_letters() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.key.as_deref() == Some("poison") { 422 } else { 200 }));
    let setup = ON.pipeline(&["shards: 1"]).partitions(1);
    let (server, acked) = others_run_beside(setup, &sink, &items("poison", 0, 50)).await;
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
    let view = server.recorded().await;
    assert_eq!(view.dead, 50);
}

/// P3, ORD-6: a lane that is full to its last place, and not beyond.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_lane_within_its_capacity_delays_no_other_key() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.key.as_deref() {
        Some("flooded") => Reply::Held(200),
        _ => Reply::Status(200),
    });
    let setup = ON.pipeline(&["shards: 1", "lane: { capacity: 1000 }"]).partitions(1);
    let (server, acked) = others_run_beside(setup, &sink, &items("flooded", 0, 1_000)).await;
    assert_eq!(sink.calls_of("flooded").len(), 1);
    sink.release();
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P3, ORD-6, BPR-2: a lane that overflows pauses its own partition, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_partition_delays_no_other_partition() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.key.as_deref() {
        Some("flooded") => Reply::Held(200),
        _ => Reply::Status(200),
    });
    let setup = ON.pipeline(&["shards: 1", "lane: { capacity: 20, overflow: pause }"]);
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    let mut acked = fill(&server, &items("flooded", 0, 200)).await;
    let hot = acked[0].partition;
    acked.extend(fill(&server, &others()).await);
    let elsewhere = acked.iter().filter(|acked| acked.partition != hot).count() as u64;
    assert!(elsewhere > 0);
    sink.wait("all other partitions, beside the paused one", |sink| {
        sink.count_calls(|call| call.status == Some(200) && call.partition != hot) == elsewhere
    })
    .await;
    assert_eq!(sink.calls_of("flooded").len(), 1);
    let view = PipelineView::of(&server).await.expect("it answers");
    let paused = &view.partitions[hot as usize];
    assert_eq!(paused.state, "paused", "{paused:?}");
    assert!(paused.why.is_some(), "a paused partition says why: {paused:?}");
    sink.release();
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P3: one partition with a backlog that hardly moves, and others without a backlog.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_partition_delays_no_other_partition() {
    let sink = Sink::start().await;
    let mut server = Server::new(&ON.pipeline(&["shards: 1"]), &sink);
    server.start().await;
    // One message of each key shows in which partition the key lies.
    let first = fill(&server, &others()[..OTHERS as usize]).await;
    let hot = first[0].partition;
    sink.wait_settled(OTHERS).await;
    sink.behave(move |call| match call.partition == hot {
        true => Reply::Held(200),
        false => Reply::Status(200),
    });
    let mut acked = first;
    acked.extend(fill(&server, &others()[OTHERS as usize..]).await);
    let elsewhere = acked.iter().filter(|acked| acked.partition != hot).count() as u64;
    sink.wait("all other partitions, beside the hot one", |sink| {
        sink.count_calls(|call| call.status == Some(200) && call.partition != hot) == elsewhere
    })
    .await;
    sink.release();
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P3, MSG-2: messages without a key take at most half of the concurrency.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_messages_without_a_key_do_not_starve_keys() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.key {
        None => Reply::Held(200),
        Some(_) => Reply::Status(200),
    });
    let keyless: Vec<Item> =
        (0..30).map(|n| Item { key: None, id: format!("keyless-{n}"), n, padding: 0 }).collect();
    let setup = ON.pipeline(&["shards: 1", "concurrency: 20"]).partitions(1);
    let (server, acked) = others_run_beside(setup, &sink, &keyless).await;
    let hanging = sink.calls().iter().filter(|call| call.key.is_none()).count();
    assert_eq!(hanging, 10, "half of the concurrency");
    sink.release();
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P3, MSG-2: more messages without a key than a lane would hold wait for their turn; keys behind them in the same
/// partition run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_messages_without_a_key_delays_no_key() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.key {
        None => Reply::Held(200),
        Some(_) => Reply::Status(200),
    });
    let keyless: Vec<Item> =
        (0..12_000).map(|n| Item { key: None, id: format!("keyless-{n}"), n, padding: 0 }).collect();
    let setup = ON.pipeline(&["shards: 1", "concurrency: 200"]).partitions(1);
    let (server, acked) = others_run_beside(setup, &sink, &keyless).await;
    assert_eq!(sink.calls().iter().filter(|call| call.key.is_none()).count(), 100, "half of the concurrency");
    sink.release();
    sink.behave(|_| Reply::Status(200));
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P3, BPR-2: a failing key fills the buffer with large messages, until less room is left than the largest message may
/// take; other partitions of its shard are still read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_key_that_fills_the_buffer_delays_no_other_partition_of_its_shard() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.key.as_deref() == Some("failing") { 500 } else { 200 }));
    let setup = ON.pipeline(&["shards: 1", "buffer: { bytes: 8MiB }"]);
    let topics = format!("{{ {}: {{ partitions: 4, replicas: 1, min_insync: 1, max_message: 4MiB }} }}", setup.topic);
    let setup = Setup { topics: Some(topics), ..setup };
    let mut server = Server::new(&setup, &sink);
    server.start().await;
    let failing: Vec<Item> =
        items("failing", 0, 900).into_iter().map(|item| Item { padding: 10_000, ..item }).collect();
    let hot = fill(&server, &failing).await[0].partition;
    let acked = fill(&server, &others()).await;
    let elsewhere = acked.iter().filter(|acked| acked.partition != hot).count() as u64;
    assert!(elsewhere > 0);
    sink.wait("all other partitions, beside the full one", |sink| {
        sink.count_calls(|call| call.status == Some(200) && call.partition != hot) == elsewhere
    })
    .await;
}
