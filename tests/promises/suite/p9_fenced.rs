//! P9: calls to the outside carry the epoch, which only grows, so the outside can refuse calls of an earlier owner.

use std::collections::BTreeMap;

use keylane_tests::{PipelineView, Reply, Server, Sink, check, fill, items};

use crate::ON;

/// P9, BRK-7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_epoch_of_each_partition_grows_with_every_restart_and_never_goes_back() {
    let sink = Sink::start().await;
    let mut server = Server::new(&ON.setup(), &sink);
    let mut acked = Vec::new();
    let mut highest: BTreeMap<u32, u64> = BTreeMap::new();
    for round in 0..ON.times(12) {
        server.start().await;
        let seen = sink.len();
        let all: Vec<_> = (0..100).flat_map(|key| items(&format!("k{key}"), round, 1)).collect();
        acked.extend(fill(&server, &all).await);
        server.settles(&sink, &acked).await;
        let mut now: BTreeMap<u32, u64> = BTreeMap::new();
        for call in &sink.calls()[seen..] {
            let epoch = *now.entry(call.partition).or_insert(call.epoch);
            assert_eq!(epoch, call.epoch, "one process, one epoch: {call:?}");
        }
        assert_eq!(now.len(), 4, "all partitions were at work");
        let view = PipelineView::of(&server).await.expect("it answers");
        for (partition, epoch) in now {
            let before = highest.insert(partition, epoch);
            assert!(before < Some(epoch), "partition {partition}: {epoch} after {before:?}");
            assert_eq!(view.partitions[partition as usize].epoch, epoch);
        }
        if round % 2 == 0 {
            server.kill9().await;
        } else {
            assert_eq!(server.stop().await, Some(0), "{}", server.output());
        }
    }
    check(&acked, &sink.calls()).assert_kept();
}

/// P9, ORD-12: a process that slept goes on where it was, or under a newer epoch; never in disorder, never twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_slept_goes_on_without_loss_or_disorder() {
    let sink = Sink::start().await;
    sink.behave(|_| Reply::Held(200));
    let mut server = Server::new(&ON.setup(), &sink);
    server.start().await;
    let first: Vec<_> = (0..50).flat_map(|key| items(&format!("k{key}"), 0, 20)).collect();
    let mut acked = fill(&server, &first).await;
    sink.wait("a call of each key to be under way", |sink| sink.len() == 50).await;
    server.signal("STOP").await;
    // The answers come while the process sleeps.
    sink.release();
    // Long enough to be noticed as a pause of the whole process (ORD-12).
    tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
    server.signal("CONT").await;
    let second: Vec<_> = (0..50).flat_map(|key| items(&format!("k{key}"), 20, 20)).collect();
    acked.extend(fill(&server, &second).await);
    server.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
}
