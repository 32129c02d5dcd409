//! Examples of single rules of the lanes, one test each.

use keylane_core::{Candidate, Engine, LaneKey, LaneState, Order, Ready, Settings, Verdict};

use crate::world::delivery;

fn engine(order: Order) -> Engine {
    Engine::new(Settings { order, keyless_max: 2, ..Settings::default() })
}

/// Reads a message of a key as a shard does; returns the lane's id if its attempt is now under way.
fn read(
    engine: &mut Engine,
    key: usize,
    partition: u32,
    position: u64,
    now: u64,
) -> Option<keylane_core::LaneId> {
    let message = delivery(key, partition, position);
    let hash = engine.lane_key(message.partition(), message.key());
    match engine.judge(Candidate::Read(hash)) {
        Verdict::Run => Some(engine.began(hash, partition, now)),
        Verdict::Queue => {
            engine.queue(hash, message, now);
            None
        }
        Verdict::Full | Verdict::Wait => panic!("no room"),
    }
}

/// ORD-5: the lane is removed, and a message that arrives at that very moment gets a new lane.
#[test]
fn a_message_that_arrives_as_its_lane_ends_is_not_lost() {
    let mut engine = engine(Order::Key);
    let old = read(&mut engine, 5, 0, 1, 0).expect("runs");
    assert!(engine.done(old, 0));
    assert_eq!(engine.sweep(299_999, 10), 0, "not yet");
    assert_eq!(engine.sweep(300_000, 10), 1);
    let new = read(&mut engine, 5, 0, 2, 300_000).expect("runs");
    assert_ne!(old, new);
    assert_eq!(read(&mut engine, 5, 0, 3, 300_000), None, "waits its turn");
    assert!(!engine.done(old, 300_000), "the old lane's id names nothing");
    assert!(engine.done(new, 300_000));
    let next = engine.next_ready(300_000).expect("its turn");
    assert_eq!(next.delivery.position(), 3);
}

/// ORD-5: a lane that works now and then is kept, however old its entry among the idle lanes is.
#[test]
fn a_lane_in_use_is_not_swept() {
    let mut engine = engine(Order::Key);
    for now in (0..3_000_000).step_by(100_000) {
        let lane = read(&mut engine, 5, 0, now, now).expect("runs");
        assert!(engine.done(lane, now));
        assert_eq!(engine.sweep(now + 99_999, 10), 0);
    }
    assert_eq!(engine.counts().lanes, 1);
}

/// ORD-2, RTY-2: a lane that waits for a retry, or for its dead letter to count, stops no other lane.
#[test]
fn lanes_do_not_wait_for_each_other() {
    let mut engine = engine(Order::Key);
    let failing = read(&mut engine, 5, 0, 1, 0).expect("runs");
    let rejecting = read(&mut engine, 6, 0, 2, 0).expect("runs");
    for position in 3..9 {
        assert_eq!(read(&mut engine, 5 + position as usize % 2, 0, position, 0), None);
    }
    assert!(engine.failed(failing, delivery(5, 0, 1), "broken".into(), None, 0).is_some());
    assert!(engine.rejected(rejecting, 0));
    assert!(engine.next_ready(0).is_none(), "both keys wait");
    let other = read(&mut engine, 7, 0, 9, 0).expect("another key runs");
    assert!(engine.done(other, 0));
    assert!(engine.buried(rejecting, 1));
    let next = engine.next_ready(1).expect("its dead letter counts");
    assert_eq!(next.delivery.key(), Some(b"6".as_slice()));
}

/// ORD-2: a hot lane goes on in bursts, and cannot keep the other lanes from their turns.
#[test]
fn a_hot_lane_drains_in_bursts() {
    let mut engine = engine(Order::Key);
    let hot = read(&mut engine, 5, 0, 1, 0).expect("runs");
    let cold = read(&mut engine, 6, 0, 2, 0).expect("runs");
    (3..900).for_each(|position| assert_eq!(read(&mut engine, 5, 0, position, 0), None));
    assert_eq!(read(&mut engine, 6, 0, 900, 0), None);
    assert!(engine.done(hot, 0) && engine.done(cold, 0));
    let mut cold_at = None;
    let mut turns = 0;
    while let Some(Ready { lane, delivery, .. }) = engine.next_ready(0) {
        if delivery.key() == Some(b"6") {
            cold_at = Some(turns);
        }
        assert!(engine.done(lane, 0));
        turns += 1;
    }
    assert_eq!(turns, 898);
    assert!(cold_at.is_some_and(|at| (100..200).contains(&at)), "{cold_at:?}");
}

/// MSG-2: hanging messages without a key take their share and no more; keys run on, and waiting messages run when one
/// ends.
#[test]
fn hanging_keyless_messages_do_not_starve_keys() {
    let mut engine = engine(Order::Key);
    let first = read(&mut engine, 0, 0, 1, 0).expect("runs at once");
    assert!(read(&mut engine, 0, 0, 2, 0).is_some());
    assert_eq!(read(&mut engine, 0, 0, 3, 0), None, "the share is taken");
    assert!(engine.next_ready(0).is_none());
    assert!(read(&mut engine, 5, 0, 4, 0).is_some(), "a key runs");
    assert!(engine.done(first, 0));
    assert_eq!(engine.next_ready(0).map(|ready| ready.delivery.position()), Some(3));
}

/// MSG-2: waiting messages without a key are bounded by the shard's buffer, not by a lane's capacity: messages behind
/// them in their partition are read, and keys run.
#[test]
fn a_backlog_of_keyless_messages_never_fills_a_lane() {
    let mut engine = Engine::new(Settings { lane_capacity: 10, keyless_max: 2, ..Settings::default() });
    for position in 0..1_000 {
        read(&mut engine, 0, 0, position, 0);
    }
    assert_eq!(engine.counts().keyless_queued, 998);
    assert!(engine.has_room(LaneKey::Unordered));
    assert!(read(&mut engine, 5, 0, 1_000, 0).is_some(), "a key runs at once");
}

/// MSG-2, P3: partitions take turns with waiting messages without a key: one partition's backlog does not delay
/// another's message.
#[test]
fn partitions_take_turns_with_keyless_messages() {
    let mut engine = engine(Order::Key);
    let first = read(&mut engine, 0, 0, 0, 0).expect("runs");
    assert!(read(&mut engine, 0, 0, 1, 0).is_some());
    (2..1_000).for_each(|position| assert_eq!(read(&mut engine, 0, 0, position, 0), None));
    assert_eq!(read(&mut engine, 0, 1, 1, 0), None);
    let mut turns = 0;
    let mut ends = first;
    loop {
        assert!(engine.done(ends, 0));
        let next = engine.next_ready(0).expect("one waits");
        turns += 1;
        if next.delivery.partition() == 1 {
            break;
        }
        ends = next.lane;
    }
    assert!(turns <= 2, "{turns} messages of the backlog came first");
}

/// ORD-12: nothing of a held partition starts, whether queued or due for a retry; other partitions go on.
#[test]
fn a_partition_that_is_held_starts_nothing_and_others_go_on() {
    let mut engine = engine(Order::Key);
    let busy = read(&mut engine, 5, 0, 1, 0).expect("runs");
    assert_eq!(read(&mut engine, 5, 0, 2, 0), None);
    let failing = read(&mut engine, 6, 0, 3, 0).expect("runs");
    let other = read(&mut engine, 5, 1, 1, 0).expect("runs");
    assert_eq!(read(&mut engine, 5, 1, 2, 0), None);
    engine.hold_partition(0);
    assert!(engine.failed(failing, delivery(6, 0, 3), "broken".into(), None, 0).is_some());
    assert!(engine.done(busy, 0) && engine.done(other, 0), "what runs may end");
    assert_eq!(engine.wake_due(100_000), 1);
    let next = engine.next_ready(100_000).expect("the other partition goes on");
    assert_eq!((next.delivery.partition(), next.delivery.position()), (1, 2));
    assert!(engine.next_ready(100_000).is_none(), "the held one waits");
    engine.release_partition(0);
    let mut started: Vec<u64> =
        std::iter::from_fn(|| engine.next_ready(100_000)).map(|ready| ready.delivery.position()).collect();
    started.sort_unstable();
    assert_eq!(started, [2, 3]);
}

/// ORD-9, P3: giving up a partition looks only at its own lanes, whatever the other partitions have, and the entries
/// that it leaves in lists are removed in the end.
#[test]
fn giving_a_partition_up_looks_at_its_own_lanes_only() {
    let mut engine = engine(Order::Key);
    let idle = read(&mut engine, 1, 0, 1, 0).expect("runs");
    assert!(engine.done(idle, 0));
    for key in 10..10_000 {
        let lane = read(&mut engine, key, 0, 1, 0).expect("runs");
        assert!(engine.done(lane, 0));
    }
    let before = engine.memory_bytes();
    for round in 0..1_000 {
        for key in 10..20 {
            let lane = read(&mut engine, key, 1, round, 0).expect("runs");
            assert!(engine.done(lane, 0));
        }
        assert_eq!(engine.drop_partition(1).lanes, 10);
    }
    assert_eq!(engine.counts().lanes, 9_990);
    assert!(engine.memory_bytes() < 2 * before, "{} bytes from {before}", engine.memory_bytes());
}

/// ORD-1, ORD-9: a lane belongs to one partition. The same key in another partition has another lane, which stays when
/// the first partition is dropped.
#[test]
fn lanes_of_two_partitions_are_never_one() {
    let mut engine = engine(Order::Key);
    let zero = read(&mut engine, 5, 0, 1, 0).expect("runs");
    let one = read(&mut engine, 5, 1, 1, 0).expect("runs beside it");
    engine.drop_partition(0);
    assert!(!engine.done(zero, 0));
    assert!(engine.done(one, 0));
}

/// ORD-2: two keys with the same hash wait for each other, and both run, in order.
#[test]
fn keys_that_collide_share_a_lane() {
    let mut engine = engine(Order::Key);
    let first = delivery(5, 0, 1);
    let hash = engine.lane_key(first.partition(), first.key());
    let lane = engine.began(hash, 0, 0);
    assert_eq!(engine.judge(Candidate::Read(hash)), Verdict::Queue);
    engine.queue(hash, delivery(6, 0, 2), 0);
    engine.queue(hash, delivery(5, 0, 3), 0);
    assert!(engine.done(lane, 0));
    for position in [2, 3] {
        let ready = engine.next_ready(0).expect("its turn");
        assert_eq!(ready.delivery.position(), position);
        assert!(engine.done(ready.lane, 0));
    }
}

/// RTY-2: a message fails four times, then it is stuck at the head of its lane, tried again for ever, and shown with
/// its error.
#[test]
fn a_message_whose_retries_are_spent_stays_its_lanes_head() {
    let mut engine = engine(Order::Key);
    let mut lane = read(&mut engine, 5, 0, 1, 0).expect("runs");
    assert_eq!(read(&mut engine, 5, 0, 2, 0), None);
    let mut now = 0;
    for attempt in 1..20 {
        let retry = engine.failed(lane, delivery(5, 0, 1), format!("error {attempt}").into(), None, now);
        let retry = retry.expect("the lane is there");
        assert_eq!((retry.attempt, retry.stuck), (attempt + 1, attempt > 3));
        assert_eq!(engine.counts().stuck, usize::from(attempt > 3));
        let view = engine.views().next().expect("one lane");
        assert_eq!((view.state, view.position, view.depth), (LaneState::Waiting, Some(1), 2));
        assert_eq!((view.why, view.due_ms), (Some(format!("error {attempt}").as_str()), Some(retry.at_ms)));
        assert_eq!(engine.wake_due(retry.at_ms - 1), 0);
        now = retry.at_ms;
        assert_eq!((engine.next_due(), engine.wake_due(now)), (Some(now), 1));
        let ready = engine.next_ready(now).expect("due");
        assert_eq!((ready.delivery.position(), ready.attempt), (1, attempt + 1));
        lane = ready.lane;
    }
    assert!(engine.done(lane, now));
    let next = engine.next_ready(now).expect("its successor");
    assert_eq!((next.delivery.position(), next.attempt, engine.counts().stuck), (2, 1, 0));
}

/// PRF-5: lane, table and lists take at most 90 bytes a key, and are freed once the keys have been idle for long
/// enough.
#[test]
fn a_million_lanes_cost_90_bytes_each_and_go_when_idle() {
    let mut engine = engine(Order::Key);
    let start = engine.memory_bytes();
    let lanes: Vec<_> = (10..1_000_010).map(|key| read(&mut engine, key, 0, 1, 0).expect("runs")).collect();
    lanes.into_iter().for_each(|lane| assert!(engine.done(lane, 0)));
    assert_eq!(engine.counts().idle, 1_000_000);
    let bytes = engine.memory_bytes() - start;
    assert!(bytes <= 90_000_000, "{bytes} bytes for a million lanes");
    while engine.sweep(300_000, 500) > 0 {}
    assert_eq!(engine.counts().lanes, 0);
    assert!(engine.memory_bytes() - start < 1 << 20, "{} bytes left", engine.memory_bytes());
}
