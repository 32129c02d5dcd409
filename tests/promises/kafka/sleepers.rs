//! Members that sleep past their session, and wake up believing what they believed before.

use std::collections::BTreeSet;
use std::time::Duration;

use keylane_tests::{
    Acked, Call, Item, Load, Reply, Server, Setup, Sink, check, check_committed, fill, items,
};

use crate::commits::Commits;
use crate::{SOON, UNRECORDED_MAX, cluster, owns};

const CONCURRENCY: u64 = 100;

/// Two members of a group, with two of four partitions each. The outside refuses calls of an older epoch once it has
/// seen a newer one.
async fn two_members(topic: &str, sink: &Sink) -> (Server, Server) {
    sink.refuse_older_epochs();
    let lines = format!("concurrency: {CONCURRENCY}");
    let setup = Setup::pipeline(&[&lines, "retry: { retries: 3, base: 10ms, max: 50ms }"]);
    let setup = Setup { timeout: "20s", ..setup }.topic(topic).on_kafka(&cluster(), SOON);
    let mut first = Server::new(&setup, sink);
    first.start().await;
    let mut second = Server::new(&setup, sink);
    second.start().await;
    owns(&first, 2).await;
    owns(&second, 2).await;
    (first, second)
}

/// Proves that no commit that Kafka showed went back, was above unsettled work, or was forgotten by a later owner.
/// Calls that were refused do not count as having happened.
fn assert_commits(seen: &[keylane_tests::Committed], acked: &[Acked], calls: &[Call]) {
    let taken: Vec<Call> = calls.iter().filter(|call| call.status != Some(409)).cloned().collect();
    let wrong = check_committed(seen, acked, &taken);
    assert!(wrong.is_empty(), "{} wrong commits: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
}

/// P9, BRK-7, ORD-9, ORD-12: a member slept in the middle of its work, which others have done by now. Whatever it still
/// does changes nothing: not the commits, not the journal, and the outside tells it by its epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_slept_past_its_session_changes_nothing() {
    let sink = Sink::start().await;
    sink.behave(|call| Reply::After(Duration::from_millis(call.offset % 4), 200));
    let (mut first, mut second) = two_members("slept", &sink).await;
    let watch = Commits::of(&cluster(), "slept", 4).watch(&sink);
    let load = Load::start(&second, &sink, 50);
    sink.wait("some of the load", |sink| sink.settled() >= 500).await;
    for _ in 0..2 {
        first.signal("STOP").await;
        owns(&second, 4).await;
        first.signal("CONT").await;
        // The sleeper comes back as a member like any other, by a planned hand-over.
        owns(&first, 2).await;
        let more = sink.settled() + 500;
        sink.wait("work after it woke up", |sink| sink.settled() >= more).await;
    }
    let acked = load.stop().await;
    second.settles(&sink, &acked).await;
    let calls = sink.calls();
    check(&acked, &calls).assert_repeats(UNRECORDED_MAX + CONCURRENCY);
    assert_eq!(first.stop().await, Some(0), "{}", first.output());
    Commits::of(&cluster(), "slept", 4).follow(&acked).await;
    assert_commits(&watch.stop(), &acked, &calls);
    assert_eq!(second.stop().await, Some(0), "{}", second.output());
}

/// P9, ORD-12: all answers that its handlers still had to give when it fell asleep come too late. Everything is handled
/// once, by the members whose calls were accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_sleeper_had_in_flight_is_refused_and_handled_once_by_its_successor() {
    const KEYS: u64 = 40;
    let sink = Sink::start().await;
    let (mut first, mut second) = two_members("dozed", &sink).await;
    let watch = Commits::of(&cluster(), "dozed", 4).watch(&sink);
    let some = |from: u64, count: u64| -> Vec<Item> {
        (0..KEYS).flat_map(|key| items(&format!("k{key}"), from, count)).collect()
    };
    let mut acked = fill(&second, &some(0, 5)).await;
    second.settles(&sink, &acked).await;
    Commits::of(&cluster(), "dozed", 4).follow(&acked).await;
    // From here on nothing of the first member goes on record: each of its keys is in its handler.
    sink.behave(|_| Reply::Held(200));
    let before = sink.len();
    acked.extend(fill(&second, &some(5, 5)).await);
    sink.wait("a call of each key", |sink| sink.len() == before + KEYS as usize).await;
    let held = sink.calls().split_off(before);
    first.signal("STOP").await;
    sink.behave(|_| Reply::Status(200));
    owns(&second, 4).await;
    let newest = |partition: u32| {
        sink.calls().iter().filter(|call| call.partition == partition).map(|call| call.epoch).max()
    };
    sink.wait("the successor to call each key of the sleeper", |sink| {
        let calls = sink.calls();
        let moved = held.iter().filter(|held| newest(held.partition) > Some(held.epoch));
        let partitions: BTreeSet<u32> = moved.clone().map(|held| held.partition).collect();
        let again = |held: &Call| {
            calls.iter().any(|call| {
                call.offset == held.offset && call.partition == held.partition && call.epoch > held.epoch
            })
        };
        // If the new owner of a partition has not called anything yet, the sleeper's answers would still be accepted.
        partitions.len() == 2 && moved.clone().all(again)
    })
    .await;
    // The answers reach it while it sleeps, and are refusals where the partition has moved.
    sink.release();
    first.signal("CONT").await;
    acked.extend(fill(&second, &some(10, 5)).await);
    second.settles(&sink, &acked).await;
    owns(&first, 2).await;
    acked.extend(fill(&second, &some(15, 5)).await);
    second.settles(&sink, &acked).await;
    let calls = sink.calls();
    check(&acked, &calls).assert_once();
    let refused = calls.iter().filter(|call| call.status == Some(409)).count();
    assert!(refused > 0, "nothing was refused, so the sleeper had nothing in flight");
    assert_eq!(first.stop().await, Some(0), "{}", first.output());
    Commits::of(&cluster(), "dozed", 4).follow(&acked).await;
    assert_commits(&watch.stop(), &acked, &calls);
    assert_eq!(second.stop().await, Some(0), "{}", second.output());
}
