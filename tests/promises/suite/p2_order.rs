//! P2: messages of one key are handled one at a time, in log order, retries included.

use std::time::Duration;

use keylane_tests::{Acked, Call, Item, Reply, Server, Setup, Sink, check, fill, items, storm};

use crate::ON;

/// Messages of many keys in turn, as producers send them.
fn interleaved(keys: u64, of_each: u64) -> Vec<Item> {
    let turn = |n| (0..keys).flat_map(move |key| items(&format!("k{key}"), n, 1));
    (0..of_each).flat_map(turn).collect()
}

async fn run(setup: &Setup, sink: &Sink, items: &[Item]) -> (Server, Vec<Acked>) {
    let mut server = Server::new(setup, sink);
    server.start().await;
    let acked = fill(&server, items).await;
    server.settles(sink, &acked).await;
    (server, acked)
}

/// P2, ORD-2, ORD-3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_is_handled_once_each_in_order_one_at_a_time() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.offset % 50 {
        0 => Reply::After(Duration::from_millis(20), 200),
        _ => Reply::Status(200),
    });
    let (mut server, acked) = run(&ON.setup(), &sink, &interleaved(200, 100)).await;
    assert_eq!(server.stop().await, Some(0), "{}", server.output());
    check(&acked, &sink.calls()).assert_once();
}

/// P2, ORD-1: a shard owns whole partitions; if more shards than partitions are asked for, fewer are made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_shards_than_partitions_keep_the_order() {
    let sink = Sink::start().await;
    let (_server, acked) =
        run(&ON.pipeline(&["shards: 8"]).partitions(2), &sink, &interleaved(50, 20)).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P2, RTY-2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_message_is_tried_again_before_anything_later_of_its_key() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.offset % 5 == 0 && call.attempt < 3 { 500 } else { 200 }));
    let setup = ON.pipeline(&["retry: { retries: 3, base: 5ms, max: 20ms }"]);
    let (_server, acked) = run(&setup, &sink, &interleaved(100, 20)).await;
    let calls = sink.calls();
    check(&acked, &calls).assert_once();
    for acked in &acked {
        let here = |call: &&Call| call.partition == acked.partition && Some(call.offset) == acked.offset;
        let attempts: Vec<u32> = calls.iter().filter(here).map(|call| call.attempt).collect();
        let expected: &[u32] =
            if acked.offset.expect("nothing is spilled") % 5 == 0 { &[1, 2, 3] } else { &[1] };
        assert_eq!(attempts, expected, "attempts of {}", acked.id);
    }
}

/// P2, RTY-2: a message's retries are spent, and still nothing of its key passes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_retries_are_spent_stays_the_head_of_its_key() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.key.as_deref() == Some("bad") { 500 } else { 200 }));
    let mut server = Server::new(&ON.pipeline(&["retry: { retries: 2, base: 5ms, max: 20ms }"]), &sink);
    server.start().await;
    let mut all = items("bad", 0, 10);
    all.extend(items("good", 0, 10));
    let acked = fill(&server, &all).await;
    sink.wait("the good key, and ten tries of the bad one", |sink| {
        sink.settled() == 10 && sink.calls_of("bad").len() >= 10
    })
    .await;
    let tried = sink.calls_of("bad");
    assert!(tried.iter().all(|call| call.n == Some(0)), "a later message passed: {tried:?}");
    sink.behave(|_| Reply::Status(200));
    sink.wait_settled(20).await;
    check(&acked, &sink.calls()).assert_once();
}

/// P2, ORD-7: a call that takes too long has failed, and is made again in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_takes_too_long_is_made_again_in_its_place() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.n {
        Some(3) if call.attempt == 1 => Reply::Held(200),
        _ => Reply::Status(200),
    });
    let setup = Setup { timeout: "3s", ..ON.pipeline(&["retry: { retries: 3, base: 5ms, max: 20ms }"]) };
    let (_server, acked) = run(&setup, &sink, &interleaved(10, 10)).await;
    let calls = sink.calls();
    check(&acked, &calls).assert_once();
    assert_eq!(calls.iter().filter(|call| call.n == Some(3)).count(), 20, "two attempts for each key");
}

/// P2, ORD-3: with `order: partition`, all keys of a partition count as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_partition_one_message_of_a_partition_is_handled_at_a_time() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::Status(if call.offset % 9 == 0 && call.attempt < 2 { 500 } else { 200 }));
    let setup = ON.pipeline(&["order: partition", "retry: { retries: 3, base: 2ms, max: 5ms }"]);
    let (_server, acked) = run(&setup, &sink, &interleaved(40, 20)).await;
    let mut calls = sink.calls();
    for call in &mut calls {
        // As if the partition were one key, whose order is that of its positions.
        (call.key, call.n) = (Some("all".to_owned()), None);
    }
    check(&acked, &calls).assert_once();
}

/// P2, P1, RTY-2: order holds through kills, with failures and rejections in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_holds_through_kills_while_attempts_fail() {
    let sink = Sink::start().await;
    sink.behave(|call| match call.offset % 11 {
        0 if call.attempt < 3 => Reply::Status(500),
        1 => Reply::Status(422),
        2 => Reply::After(Duration::from_millis(15), 200),
        _ => Reply::Status(200),
    });
    let setup = ON.pipeline(&["retry: { retries: 3, base: 5ms, max: 20ms }"]);
    let mut server = Server::new(&setup, &sink);
    let storm = storm(&mut server, &sink, 20, ON.times(30)).await;
    storm.check().assert_kept();
}
