//! Tests of retention by time: topics with few messages, logs that are closed often, and wrong clocks (BRK-1).
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use keylane_broker::{Broker, Commit, Ends, TopicSpec};
use rig::Rig;

const HOUR: u64 = 3600 * 1000;
const YEAR: u64 = 365 * 24 * HOUR;

fn opened(seed: u64, retention_ms: u64) -> (Rig, Arc<AtomicU64>) {
    let mut rig = Rig::new(seed);
    rig.now_ms.store(10 * YEAR, Ordering::Relaxed);
    let uptime = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&uptime);
    rig.options = rig.options.clone().with_uptime(Arc::new(move || clock.load(Ordering::Relaxed)));
    rig.open().expect("an empty disk");
    rig.create("orders", &TopicSpec { retention_ms: Some(retention_ms), ..rig::spec(1) });
    (rig, uptime)
}

/// Lets time pass, for the clock and for the uptime alike.
fn pass(rig: &Rig, uptime: &AtomicU64, ms: u64) {
    rig.now_ms.fetch_add(ms, Ordering::Relaxed);
    uptime.fetch_add(ms, Ordering::Relaxed);
    rig.broker().commit_once();
}

/// BRK-1: with one message a minute a segment would take years to fill; a message is kept for little more than an
/// hour.
#[test]
fn a_topic_to_which_little_comes_keeps_to_its_time() {
    let (rig, uptime) = opened(1, HOUR);
    for minute in 0..1000u64 {
        assert_eq!(rig.produce("orders", &[(0, &minute.to_string(), 10)]), [minute]);
        pass(&rig, &uptime, 60_000);
        let Ends { start, end } = rig.ends("orders")[0];
        assert!(end - start <= 60 + 60 / 8 + 2, "{} minutes are kept", end - start);
        assert!(minute < 60 || end - start >= 60, "{} minutes are kept", end - start);
    }
    assert!(rig.disk.used() < 2 << 20, "{} bytes are in use", rig.disk.used());
    assert_eq!(
        rig.read("orders", 0).expect("no damage").len(),
        (1000 - rig.ends("orders")[0].start) as usize
    );
}

/// BRK-1: closing a log writes nothing that makes its segments look younger.
#[test]
fn a_log_that_is_closed_again_and_again_grows_old_all_the_same() {
    let (mut rig, uptime) = opened(2, HOUR);
    rig.produce("orders", &[(0, "old", 10)]);
    for _ in 0..9 {
        pass(&rig, &uptime, HOUR / 8);
        rig.close();
        rig.open().expect("no damage");
    }
    pass(&rig, &uptime, 0);
    // Half an hour is longer than the part of the retention for which the clock must run evenly after a start.
    pass(&rig, &uptime, HOUR / 2);
    assert_eq!(rig.ends("orders")[0], Ends { start: 1, end: 1 });
}

/// BRK-1: a clock that is a year ahead for a moment, at the start or later, deletes nothing.
#[test]
fn a_clock_that_jumps_ahead_and_is_set_right_deletes_nothing() {
    let (mut rig, uptime) = opened(3, 24 * HOUR);
    for index in 0..100 {
        rig.produce("orders", &[(0, &index.to_string(), 3000)]);
    }
    for _ in 0..30 {
        pass(&rig, &uptime, 60_000);
    }
    rig.now_ms.fetch_add(YEAR, Ordering::Relaxed);
    for _ in 0..9 {
        pass(&rig, &uptime, 60_000);
    }
    assert_eq!(rig.ends("orders")[0].start, 0);
    rig.now_ms.fetch_sub(YEAR, Ordering::Relaxed);
    rig.close();
    // The machine starts with a wrong clock, which is corrected once the network is there.
    rig.now_ms.fetch_add(YEAR, Ordering::Relaxed);
    rig.open().expect("no damage");
    for _ in 0..9 {
        pass(&rig, &uptime, 60_000);
    }
    rig.now_ms.fetch_sub(YEAR, Ordering::Relaxed);
    for _ in 0..30 {
        pass(&rig, &uptime, 60_000);
    }
    assert_eq!(rig.ends("orders")[0].start, 0);
    assert_eq!(rig.read("orders", 0).expect("no damage").len(), 100);
}

/// BRK-1: however wrong the clock is, and for however long, messages that a group has not settled stay.
#[test]
fn a_clock_that_stays_wrong_deletes_nothing_that_is_not_settled() {
    let (rig, uptime) = opened(4, HOUR);
    for index in 0..100 {
        rig.produce("orders", &[(0, &index.to_string(), 3000)]);
    }
    let broker = Arc::clone(rig.broker());
    let commit = |position| Commit { position, metadata: Bytes::from_static(b"ours") };
    rig.run(broker.commit("group", "orders", 0, commit(50))).expect("room");
    rig.now_ms.fetch_add(YEAR, Ordering::Relaxed);
    for _ in 0..30 {
        pass(&rig, &uptime, 60_000);
    }
    let start = rig.ends("orders")[0].start;
    assert!((1..=50).contains(&start), "{start}");
    rig.run(broker.commit("group", "orders", 0, commit(100))).expect("room");
    pass(&rig, &uptime, 60_000);
    assert_eq!(rig.ends("orders")[0], Ends { start: 100, end: 100 });
}

/// BRK-1: messages that a wrong clock dated a year ahead are not kept for a year.
#[test]
fn messages_from_the_future_grow_old_with_those_that_came_after_them() {
    let (rig, uptime) = opened(5, HOUR);
    rig.now_ms.fetch_add(YEAR, Ordering::Relaxed);
    rig.produce("orders", &[(0, "from the future", 10)]);
    rig.now_ms.fetch_sub(YEAR, Ordering::Relaxed);
    for minute in 0..100u64 {
        rig.produce("orders", &[(0, &minute.to_string(), 10)]);
        pass(&rig, &uptime, 60_000);
    }
    let Ends { start, end } = rig.ends("orders")[0];
    assert!(start > 0 && end == 101, "{start} to {end}");
}

/// BRK-1, P10: if the disk has no room for another segment, old messages stay a little longer, and new ones are taken
/// as long as the old segment has room.
#[test]
fn a_disk_without_room_for_another_segment_makes_nobody_refuse_what_fits() {
    let (rig, uptime) = opened(6, 8000);
    assert_eq!(rig.produce("orders", &[(0, "old", 10)]), [0]);
    rig.disk.set_space(Some(rig.disk.used() + 1000));
    for _ in 0..10 {
        pass(&rig, &uptime, 2000);
        assert_eq!(rig.run(rig.broker().health()), Ok(()));
    }
    assert_eq!(rig.produce("orders", &[(0, "new", 10)]), [1]);
    assert_eq!(rig.read("orders", 0).expect("no damage").len(), 2);
    rig.disk.set_space(None);
    for _ in 0..10 {
        pass(&rig, &uptime, 2000);
    }
    assert_eq!(rig.ends("orders")[0], Ends { start: 2, end: 2 }, "its time is over, and there is room");
}
