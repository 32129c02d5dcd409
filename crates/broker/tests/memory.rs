//! What tests can do to the memory broker, and that it does nothing by chance. That it is a broker at all is
//! conformance.rs's part.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use keylane_broker::testing::conformance::client::*;
use keylane_broker::{
    AppendError, Broker, BrokerError, Change, Commit, Ends, LogKind, MemoryBroker, ProduceError,
};
use tokio::time::Instant;

const TOPIC: &str = "orders";
const GROUP: &str = "billing";

async fn cluster_with_topic(partitions: u32) -> (MemoryBroker, Arc<dyn Broker>) {
    let cluster = MemoryBroker::new(1, || 5);
    let node = cluster.node("a");
    node.create_topic(TOPIC, &spec(partitions)).await.expect("a new topic");
    (cluster, node)
}

/// MSG-3.
#[tokio::test]
async fn a_skipped_position_is_a_gap_that_readers_pass() {
    let (cluster, node) = cluster_with_topic(1).await;
    assert_eq!(produce(&*node, TOPIC, 0, &["a"]).await, [0]);
    cluster.skip_positions(TOPIC, 0, 10);
    assert_eq!(produce(&*node, TOPIC, 0, &["b"]).await, [11]);
    cluster.skip_positions(TOPIC, 0, 3);
    let mut reader = node.reader(TOPIC, 0, 0).await.expect("in range");
    let batch = next_batch(&mut *reader, PLENTY).await.expect("a batch");
    assert_eq!(positions(&deliveries(&batch)), [0, 11]);
    assert_eq!(batch.next, 15, "the gap behind the last message is closed, too");
    let mut within = node.reader(TOPIC, 0, 5).await.expect("a gap is in range");
    assert_eq!(positions(&read(&mut *within, 1).await), [11]);
}

/// MSG-3: a batch's deltas have 32 bits.
#[tokio::test]
async fn a_gap_wider_than_a_delta_ends_the_batch() {
    let (cluster, node) = cluster_with_topic(1).await;
    produce(&*node, TOPIC, 0, &["a"]).await;
    cluster.skip_positions(TOPIC, 0, 1 << 40);
    produce(&*node, TOPIC, 0, &["b"]).await;
    let mut reader = node.reader(TOPIC, 0, 0).await.expect("in range");
    let first = next_batch(&mut *reader, PLENTY).await.expect("a batch");
    assert_eq!((positions(&deliveries(&first)), first.next), (vec![0], (1 << 40) + 1));
    assert_eq!(positions(&read(&mut *reader, 1).await), [(1 << 40) + 1]);
}

#[tokio::test]
async fn a_removed_message_is_a_gap() {
    let (cluster, node) = cluster_with_topic(1).await;
    produce(&*node, TOPIC, 0, &["a", "b", "c"]).await;
    assert!(cluster.remove(TOPIC, 0, 1));
    assert!(!cluster.remove(TOPIC, 0, 1));
    assert_eq!(texts(&read_from(&*node, TOPIC, 0, 0, 2).await), ["a", "c"]);
}

async fn trace(seed: u64) -> (String, Duration) {
    let started = Instant::now();
    let cluster = MemoryBroker::new(seed, || 5);
    cluster.set_latency(Duration::from_millis(1), Duration::from_millis(50));
    let node = cluster.node("a");
    let topic = node.create_topic(TOPIC, &spec(3)).await.expect("a new topic");
    cluster.set_gaps(1000);
    let placed = produce(&*node, TOPIC, 1, &["a", "b", "c", "d"]).await;
    let mut members = Vec::new();
    for name in ["b", "c"] {
        members.push(cluster.node(name).join(GROUP, TOPIC, name).await.expect("joins"));
    }
    let changes = changes(&mut *members[0], 4).await;
    let instances: Vec<u128> = members.iter().map(|member| member.instance()).collect();
    let what = format!("{topic:?} {placed:?} {changes:?} {instances:?}");
    (what, started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let traces = [trace(7).await, trace(7).await, trace(8).await];
    assert_eq!(traces[0], traces[1]);
    assert_ne!(traces[0].0, traces[2].0);
    assert_ne!(traces[0].1, traces[2].1);
}

#[tokio::test(start_paused = true)]
async fn latency_is_virtual_and_counts_both_ways() {
    let (cluster, node) = cluster_with_topic(1).await;
    cluster.set_latency(Duration::from_secs(3600), Duration::from_secs(3600));
    let started = Instant::now();
    produce(&*node, TOPIC, 0, &["a"]).await;
    assert_eq!(started.elapsed(), Duration::from_secs(7200));
}

#[tokio::test]
async fn append_times_come_from_the_clock_and_part_batches() {
    let now = Arc::new(AtomicU64::new(100));
    let ticking = now.clone();
    let cluster = MemoryBroker::new(1, move || ticking.fetch_add(1, Ordering::Relaxed));
    let node = cluster.node("a");
    node.create_topic(TOPIC, &spec(1)).await.expect("a new topic");
    produce(&*node, TOPIC, 0, &["a", "b"]).await;
    produce(&*node, TOPIC, 0, &["c"]).await;
    let read = read_from(&*node, TOPIC, 0, 0, 3).await;
    let times: Vec<u64> = read.iter().map(|delivery| delivery.appended_ms()).collect();
    assert!(times[0] >= 100 && times[0] == times[1] && times[1] < times[2], "{times:?}");
}

/// BRK-10.
#[tokio::test]
async fn a_recreated_topic_is_another_and_old_readers_end() {
    let (cluster, node) = cluster_with_topic(2).await;
    let before = node.topic(TOPIC).await.expect("asked").expect("there");
    produce(&*node, TOPIC, 0, &["a"]).await;
    let mut reader = node.reader(TOPIC, 0, 1).await.expect("in range");
    let mut member = node.join(GROUP, TOPIC, "a").await.expect("joins");
    changes(&mut *member, 2).await;
    let waiting = tokio::spawn(async move { next_batch(&mut *reader, PLENTY).await.err() });
    tokio::task::yield_now().await;
    cluster.recreate_topic(TOPIC);
    let after = node.topic(TOPIC).await.expect("asked").expect("there");
    assert_ne!(before.incarnation, after.incarnation);
    assert_eq!(node.ends(TOPIC).await.expect("asked"), [Ends::default(); 2]);
    let ended = waiting.await.expect("no panic");
    assert_eq!(ended, Some(BrokerError::UnknownTopic(TOPIC.to_owned())));
    assert_eq!(changes(&mut *member, 2).await, [Change::Lost(0), Change::Lost(1)]);
    assert_eq!(member.changed().await, Err(BrokerError::Recreated(TOPIC.to_owned())));
}

#[tokio::test]
async fn a_deleted_topic_is_gone_with_its_commits() {
    let (cluster, node) = cluster_with_topic(1).await;
    cluster.reset_commit(GROUP, TOPIC, 0, 0);
    cluster.delete_topic(TOPIC);
    assert_eq!(node.topic(TOPIC).await, Ok(None));
    node.create_topic(TOPIC, &spec(1)).await.expect("a new topic");
    assert_eq!(node.committed(GROUP, TOPIC, 0).await, Ok(None));
}

/// BRK-10.
#[tokio::test]
async fn what_was_deleted_below_a_reader_is_an_error_and_not_skipped() {
    let (cluster, node) = cluster_with_topic(1).await;
    produce(&*node, TOPIC, 0, &["a", "b", "c"]).await;
    let mut behind = node.reader(TOPIC, 0, 1).await.expect("in range");
    cluster.delete_below(TOPIC, 0, 2);
    assert_eq!(node.ends(TOPIC).await, Ok(vec![Ends { start: 2, end: 3 }]));
    let out_of_range =
        |error: &BrokerError| matches!(error, BrokerError::OutOfRange { position: 1, start: 2, .. });
    let ended = next_batch(&mut *behind, PLENTY).await.expect_err("it would skip");
    assert!(out_of_range(&ended));
    let refused = node.reader(TOPIC, 0, 1).await.err().expect("below the start");
    assert!(out_of_range(&refused));
    assert_eq!(texts(&read_from(&*node, TOPIC, 0, 2, 1).await), ["c"]);
}

/// COM-3.
#[tokio::test]
async fn an_operators_reset_has_no_metadata() {
    let (cluster, node) = cluster_with_topic(1).await;
    let ours = Commit { position: 9, metadata: Bytes::from_static(b"ours") };
    node.commit(GROUP, TOPIC, 0, ours.clone()).await.expect("taken");
    cluster.reset_commit(GROUP, TOPIC, 0, 4);
    let committed = node.committed(GROUP, TOPIC, 0).await.expect("asked").expect("there");
    assert_eq!((committed.position, committed.metadata.len()), (4, 0));
    cluster.set_keeps_metadata(false);
    node.commit(GROUP, TOPIC, 0, ours).await.expect("taken");
    let committed = node.committed(GROUP, TOPIC, 0).await.expect("asked").expect("there");
    assert_eq!((committed.position, committed.metadata.len()), (9, 0));
}

#[tokio::test]
async fn a_full_topic_refuses_until_it_is_not() {
    let (cluster, node) = cluster_with_topic(1).await;
    cluster.set_full(TOPIC, true);
    let refused = node.produce(TOPIC, frames(0, &["a"])).await;
    assert!(matches!(refused[..], [Err(ProduceError::Full { .. })]), "{refused:?}");
    cluster.set_full(TOPIC, false);
    assert_eq!(produce(&*node, TOPIC, 0, &["a"]).await, [0]);
}

/// BRK-6.
#[tokio::test]
async fn conditional_appends_can_be_switched_off() {
    let (cluster, node) = cluster_with_topic(1).await;
    let journal = node.journal(&journal_name(GROUP, TOPIC, LogKind::Journal)).await.expect("a journal");
    assert!(journal.conditional());
    assert_eq!(journal.append(Bytes::from_static(b"a"), Some(0)).await, Ok(0));
    cluster.set_conditional(false);
    assert!(!journal.conditional());
    let refused = journal.append(Bytes::from_static(b"b"), Some(1)).await;
    assert_eq!(refused, Err(AppendError::Unconditional));
}

/// ORD-9.
#[tokio::test]
async fn a_test_assigns_revokes_and_takes_partitions_away() {
    let (cluster, a) = cluster_with_topic(2).await;
    let b = cluster.node("b");
    cluster.by_hand(GROUP, TOPIC);
    let mut first = a.join(GROUP, TOPIC, "a").await.expect("joins");
    let mut second = b.join(GROUP, TOPIC, "b").await.expect("joins");
    assert_eq!(poll_once(first.changed()).await, None);
    cluster.assign(GROUP, TOPIC, 1, "a");
    assert_eq!(changes(&mut *first, 1).await, [Change::Assigned(1)]);
    assert_eq!(first.confirm(1).await, Ok(true));

    cluster.assign(GROUP, TOPIC, 1, "b");
    assert_eq!(changes(&mut *first, 1).await, [Change::Revoked(1)]);
    assert_eq!(poll_once(second.changed()).await, None);
    assert_eq!(cluster.owner(GROUP, TOPIC, 1).as_deref(), Some("a"));
    first.gave_up(1).await;
    assert_eq!(changes(&mut *second, 1).await, [Change::Assigned(1)]);

    cluster.lose(GROUP, TOPIC, 1);
    assert_eq!(changes(&mut *second, 1).await, [Change::Lost(1)]);
    assert_eq!(second.confirm(1).await, Ok(false));
    assert_eq!(cluster.owner(GROUP, TOPIC, 1), None);

    cluster.assign(GROUP, TOPIC, 0, "b");
    cluster.revoke(GROUP, TOPIC, 0);
    assert_eq!(changes(&mut *second, 2).await, [Change::Assigned(0), Change::Revoked(0)]);
}

/// BRK-7, BRK-8: the process goes on believing what it believed.
#[tokio::test]
async fn a_process_cut_off_hears_of_its_loss_when_it_is_back() {
    let (cluster, a) = cluster_with_topic(1).await;
    let b = cluster.node("b");
    let mut first = a.join(GROUP, TOPIC, "a").await.expect("joins");
    let mut second = b.join(GROUP, TOPIC, "b").await.expect("joins");
    assert_eq!(changes(&mut *first, 1).await, [Change::Assigned(0)]);
    let mut reader = a.reader(TOPIC, 0, 0).await.expect("in range");
    let journal = a.journal(&journal_name(GROUP, TOPIC, LogKind::Journal)).await.expect("a journal");
    let waiting = tokio::spawn(async move {
        let waited = tokio::join!(next_batch(&mut *reader, PLENTY), journal.beyond(0));
        (waited.0.err(), waited.1.err())
    });
    tokio::task::yield_now().await;

    cluster.cut_off("a");
    let unavailable = BrokerError::Unavailable("a is cut off".to_owned());
    let ended = waiting.await.expect("no panic");
    assert_eq!(ended, (Some(unavailable.clone()), Some(unavailable.clone())));
    assert_eq!(first.confirm(0).await, Err(unavailable));
    let produced = a.produce(TOPIC, frames(0, &["a"])).await;
    assert!(matches!(produced[..], [Err(ProduceError::Unavailable(_))]));
    assert_eq!(cluster.owner(GROUP, TOPIC, 0).as_deref(), Some("a"), "its session lasts");

    cluster.expire("a");
    assert_eq!(changes(&mut *second, 1).await, [Change::Assigned(0)]);
    assert_eq!(poll_once(first.changed()).await, None);
    cluster.reconnect("a");
    assert_eq!(changes(&mut *first, 1).await, [Change::Lost(0)]);
    assert_eq!(first.confirm(0).await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn what_landed_before_the_cut_stays_though_its_answer_is_lost() {
    let (cluster, node) = cluster_with_topic(1).await;
    cluster.set_latency(Duration::from_millis(10), Duration::from_millis(10));
    let producing = tokio::spawn(async move { node.produce(TOPIC, frames(0, &["a"])).await });
    tokio::time::sleep(Duration::from_millis(15)).await;
    cluster.cut_off("a");
    let produced = producing.await.expect("no panic");
    assert!(matches!(produced[..], [Err(ProduceError::Unavailable(_))]));
    let watcher = cluster.node("b");
    assert_eq!(texts(&read_from(&*watcher, TOPIC, 0, 0, 1).await), ["a"]);
}

#[tokio::test]
async fn a_crashed_process_is_closed_and_its_partitions_wait_for_its_session() {
    let (cluster, a) = cluster_with_topic(1).await;
    cluster.set_proves_dead(true);
    let mut first = a.join(GROUP, TOPIC, "a").await.expect("joins");
    changes(&mut *first, 1).await;
    let again = cluster.node("a");
    let second = again.join(GROUP, TOPIC, "a").await.expect("joins");
    assert_ne!(first.instance(), second.instance());
    assert!(!second.proves_dead(first.instance()), "it lives");
    cluster.crash("a");
    assert_eq!(first.changed().await, Err(BrokerError::Closed));
    assert_eq!(a.topic(TOPIC).await, Err(BrokerError::Closed));

    let third = cluster.node("a");
    let mut successor = third.join(GROUP, TOPIC, "a").await.expect("the new process lives");
    assert!(successor.proves_dead(first.instance()) && !successor.proves_dead(successor.instance()));
    drop((first, second));
    assert_eq!(poll_once(successor.changed()).await, None, "the dead cannot leave");
    cluster.expire("a");
    assert_eq!(changes(&mut *successor, 1).await, [Change::Assigned(0)]);
    cluster.set_proves_dead(false);
    assert!(!successor.proves_dead(1));
}

#[tokio::test]
async fn a_membership_that_is_dropped_leaves() {
    let (cluster, a) = cluster_with_topic(1).await;
    let first = a.join(GROUP, TOPIC, "a").await.expect("joins");
    let mut second = cluster.node("b").join(GROUP, TOPIC, "b").await.expect("joins");
    drop(first);
    assert_eq!(changes(&mut *second, 1).await, [Change::Assigned(0)]);
}
