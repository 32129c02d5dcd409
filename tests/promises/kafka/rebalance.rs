//! Members that come and go all the time, politely and not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use keylane_tests::{Call, Load, Pace, Reply, Report, Server, Setup, Sink, check, check_committed};

use crate::commits::Commits;
use crate::{UNRECORDED_MAX, cluster, owns};

const CONCURRENCY: u64 = 200;
const PARTITIONS: u32 = 24;
/// The epochs of all partitions together, at least: fewer are no storm.
const EPOCHS: usize = PARTITIONS as usize * 5 / 4;
/// Take-overs, at most, from an owner that lives and was silent for too long.
const STARVED_MAX: usize = 3;
/// The time between two events of the storm; it belongs to the storm, and waits for nothing.
const EVENT_EVERY: Duration = Duration::from_millis(500);

/// Epochs under which something was called.
fn epochs(calls: &[Call]) -> usize {
    calls.iter().map(|call| (call.partition, call.epoch)).collect::<BTreeSet<_>>().len()
}

/// Take-overs, by partition and epoch, that repeated messages of a process that was not killed. There should be none:
/// such a process puts its work on record before it releases a partition.
fn repeats_of_the_living(calls: &[Call], killed: &BTreeSet<String>) -> BTreeMap<(u32, u64), u64> {
    let mut settled: BTreeMap<(u32, u64), BTreeMap<u64, &str>> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.is_settled()) {
        settled.entry((call.partition, call.offset)).or_default().insert(call.epoch, &call.path);
    }
    let mut repeats = BTreeMap::new();
    for ((partition, _), epochs) in settled {
        for ((_, before), (epoch, _)) in epochs.iter().zip(epochs.iter().skip(1)) {
            if !killed.contains(*before) {
                *repeats.entry((partition, *epoch)).or_default() += 1;
            }
        }
    }
    repeats
}

/// One member stays, and takes what is produced; three others come and go, one event every half second. Then the
/// members are left alone until this many messages were produced and all of them are handled.
async fn storm(topic: &str, events: u64, messages: u64) -> Report {
    let (cluster, sink) = (cluster(), Sink::start().await);
    // Many calls are in flight all the time, and take longer than it takes to assign their partition to another member,
    // so that a new owner has to wait for them.
    sink.behave(|call| match call.offset % 25 {
        0 => Reply::After(Duration::from_millis(1_500), 200),
        _ => Reply::Status(200),
    });
    let setup =
        Setup::pipeline(&[&format!("concurrency: {CONCURRENCY}")]).topic(topic).partitions(PARTITIONS);
    let settings = "session.timeout.ms: 2000, heartbeat.interval.ms: 200";
    let setup = Setup { timeout: "5s", ..setup }.on_kafka(&cluster, settings);
    let mut stays = Server::new(&setup, &sink);
    stays.start().await;
    let watch = Commits::of(&cluster, topic, PARTITIONS).watch(&sink);
    // Far ahead: partitions whose owner was just killed wait for a while, and the others must not wait for them.
    let load = Load::paced(&stays, &sink, 2_000, Pace { batch: 500, ahead: 50_000, per_second: None });
    let mut others: Vec<Server> = (0..3).map(|_| Server::new(&setup, &sink)).collect();
    let (mut killed, mut told) = (0, 0);
    let (mut lives, mut dead) = (vec![String::new(); 3], BTreeSet::new());
    for event in 0..4 * events {
        // A busy machine has fewer take-overs in the same time; then the storm goes on.
        if event >= events && epochs(&sink.calls()) > EPOCHS {
            break;
        }
        // A square's remainder comes and goes without a pattern: some live for half a second, some for several.
        let at = (event * event % 17) as usize % 3;
        let other = &mut others[at];
        if !other.is_running() {
            // Each life has a path of its own, so that calls can be told apart by life.
            lives[at] = format!("/{event}");
            other.configure(&Setup { path: lives[at].clone(), ..setup.clone() }, &sink);
            other.spawn();
        } else if killed <= told {
            other.kill9().await;
            dead.insert(format!("/push{}", lives[at]));
            killed += 1;
        } else {
            other.signal("TERM").await;
            told += 1;
        }
        tokio::time::sleep(EVENT_EVERY).await;
    }
    let during = sink.settled();
    sink.behave(|_| Reply::Status(200));
    sink.wait_long("the rest of the messages", |sink| sink.settled() >= messages).await;
    let acked = load.stop().await;
    stays.settles(&sink, &acked).await;
    Commits::of(&cluster, topic, PARTITIONS).follow(&acked).await;
    let (calls, seen) = (sink.calls(), watch.stop());
    let wrong = check_committed(&seen, &acked, &calls);
    assert!(wrong.is_empty(), "{} wrong commits: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    let report = check(&acked, &calls);
    let epochs = epochs(&calls);
    println!("{killed} killed, {told} told to stop, {during} handled meanwhile, {epochs} epochs: {report}");
    let living = repeats_of_the_living(&calls, &dead);
    // On a busy machine a member may be taken for dead, or lose its session, which ends all that it owns.
    let starved = others.iter().chain([&stays]).any(|server| server.output().contains("SESSTMOUT"));
    assert!(starved || living.len() <= STARVED_MAX, "the living let others repeat: {living:?}\n{report}");
    assert!(killed.min(told) >= events / 8, "no storm: {killed} killed, {told} told to stop");
    // Most take-overs end before the new owner has called anything; these are the ones that got that far.
    assert!(epochs > EPOCHS, "no storm: {epochs} epochs");
    report.assert_repeats(UNRECORDED_MAX + CONCURRENCY);
    assert_eq!(stays.stop().await, Some(0), "{}", stays.output());
    report
}

/// P1, P2, P4, BRK-7, COM-2, ORD-9: a storm of rebalances loses nothing, reorders nothing, skips nothing, and repeats
/// only messages that were not yet on record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_rebalances_keeps_every_promise() {
    let report = storm("stormy", 60, 200_000).await;
    assert!(report.settled >= 200_000, "{report}");
}

/// P2, P4, BRK-7, ORD-9: a member that joins or leaves gets and gives partitions by plan: nothing runs twice, and no
/// key runs in two places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_hand_over_repeats_nothing() {
    let (cluster, sink) = (cluster(), Sink::start().await);
    // Some calls take longer than it takes to assign their partition to another member.
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
