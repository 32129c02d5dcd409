//! Members that come and go all the time, politely and not.

use std::collections::BTreeSet;
use std::time::Duration;

use keylane_tests::{Load, Pace, Reply, Report, Server, Setup, Sink, check, check_committed};

use crate::commits::Commits;
use crate::{UNRECORDED_MAX, cluster, owns};

const CONCURRENCY: u64 = 200;
const PARTITIONS: u32 = 24;
/// Between two events of the storm: what a storm is, not a wait.
const EVENT_EVERY: Duration = Duration::from_millis(500);

/// One member stays, and takes what is produced; three others come and go, one event every half second. Then there is
/// calm, until so many messages were produced and all of them are handled.
async fn storm(topic: &str, events: u64, messages: u64) -> Report {
    let (cluster, sink) = (cluster(), Sink::start().await);
    let setup =
        Setup::pipeline(&[&format!("concurrency: {CONCURRENCY}")]).topic(topic).partitions(PARTITIONS);
    let settings = "session.timeout.ms: 2000, heartbeat.interval.ms: 200";
    let setup = Setup { timeout: "5s", ..setup }.on_kafka(&cluster, settings);
    let mut stays = Server::new(&setup, &sink);
    stays.start().await;
    let watch = Commits::of(&cluster, topic, PARTITIONS).watch(&sink);
    // Far ahead: partitions whose owner was just killed wait for a while, and the others must not for them.
    let load = Load::paced(&stays, &sink, 2_000, Pace { batch: 500, ahead: 50_000 });
    let mut others: Vec<Server> = (0..3).map(|_| Server::new(&setup, &sink)).collect();
    let (mut killed, mut told) = (0, 0);
    for event in 0..events {
        // A square's remainder comes and goes without a pattern: some live for half a second, some for several.
        let other = &mut others[(event * event % 17) as usize % 3];
        if !other.is_running() {
            other.spawn();
        } else if killed <= told {
            other.kill9().await;
            killed += 1;
        } else {
            other.signal("TERM").await;
            told += 1;
        }
        tokio::time::sleep(EVENT_EVERY).await;
    }
    let during = sink.settled();
    sink.wait_long("the rest of the messages", |sink| sink.settled() >= messages).await;
    let acked = load.stop().await;
    stays.settles(&sink, &acked).await;
    Commits::of(&cluster, topic, PARTITIONS).follow(&acked).await;
    let (calls, seen) = (sink.calls(), watch.stop());
    let wrong = check_committed(&seen, &acked, &calls);
    assert!(wrong.is_empty(), "{} wrong commits: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    let report = check(&acked, &calls);
    let epochs: BTreeSet<(u32, u64)> = calls.iter().map(|call| (call.partition, call.epoch)).collect();
    println!(
        "{killed} killed, {told} told to stop, {during} handled meanwhile, {} epochs: {report}",
        epochs.len()
    );
    assert!(killed.min(told) >= events / 8, "no storm: {killed} killed, {told} told to stop");
    // Most take-overs end before the new owner has called anything: these are the ones that got so far.
    assert!(epochs.len() as u32 > PARTITIONS + PARTITIONS / 4, "no storm: {} epochs", epochs.len());
    report.assert_repeats(UNRECORDED_MAX + CONCURRENCY);
    assert_eq!(stays.stop().await, Some(0), "{}", stays.output());
    report
}

/// P1, P2, P4, BRK-7, COM-2, ORD-9: a storm of rebalances loses nothing, reorders nothing, skips nothing, and repeats no
/// more than what was not yet on record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_rebalances_keeps_every_promise() {
    let report = storm("stormy", 60, 200_000).await;
    assert!(report.settled >= 200_000, "{report}");
}

/// P2, P4, BRK-7, ORD-9: a member that joins or leaves gets and gives partitions by plan: nothing runs twice, and no key
/// in two places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_hand_over_repeats_nothing() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    // Some take longer than it takes to assign their partition to another.
    sink.behave(|call| {
        let ms = if call.offset % 40 == 0 { 2_000 } else { call.offset % 40 };
        Reply::After(Duration::from_millis(ms), 200)
    });
    let setup = Setup::default().topic("planned").on_kafka(&cluster, "heartbeat.interval.ms: 300");
    let mut first = Server::new(&setup, &sink);
    first.start().await;
    owns(&first, 4).await;
    let load = Load::start(&first, &sink, 40);
    let mut second = Server::new(&setup, &sink);
    for _ in 0..2 {
        second.start().await;
        owns(&second, 2).await;
        owns(&first, 2).await;
        assert_eq!(second.stop().await, Some(0), "{}", second.output());
        owns(&first, 4).await;
    }
    let acked = load.stop().await;
    first.settles(&sink, &acked).await;
    check(&acked, &sink.calls()).assert_once();
    assert_eq!(sink.len(), acked.len(), "a message was begun in one place, and once more in another");
    assert_eq!(first.stop().await, Some(0), "{}", first.output());
}

/// P1, P2, P4, COM-2: a storm for a long time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "chaos: ten minutes of rebalances"]
async fn chaos_a_long_storm_of_rebalances_keeps_every_promise() {
    storm("stormier", 1_200, 2_000_000).await;
}
