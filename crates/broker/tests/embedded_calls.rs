//! Tests of the calls that wait for a log: the first that came is the first that is written, and callers that went
//! away take no more memory than the bound allows (P2, P5).
#![cfg(feature = "testing")]
#![allow(missing_docs)]

mod rig;

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use keylane_broker::embedded::disk::Fault;
use keylane_broker::embedded::{Embedded, Options};
use keylane_broker::{
    AppendError, Broker, BrokerError, Commit, JournalName, LogKind, ProduceError, TopicSpec,
};
use keylane_core::Frames;
use rig::{Call, Rig, poll};

/// Two calls of this size do not fit into the bound together.
const LARGE: usize = 40 << 20;

/// Frames of about this many bytes in all, each with this id.
fn large(id: &str, bytes: usize) -> Frames {
    let messages: Vec<_> = (0..bytes.div_ceil(1 << 20)).map(|_| (0, id, (1 << 20) - 200)).collect();
    rig::frames(&messages)
}

fn opened(seed: u64, change: fn(&mut Rig)) -> Rig {
    let mut rig = Rig::new(seed);
    // A segment that has room for everything that the test writes.
    rig.options.segment_bytes = 256 << 20;
    change(&mut rig);
    rig.open().expect("an empty disk");
    rig.create("orders", &rig::spec(1));
    rig
}

fn produce(rig: &Rig, frames: Frames) -> Call<Vec<Result<u64, ProduceError>>> {
    let broker = Arc::clone(rig.broker());
    Box::pin(async move { broker.produce("orders", frames).await })
}

fn first(done: Poll<Vec<Result<u64, ProduceError>>>) -> u64 {
    let Poll::Ready(results) = done else { panic!("not answered") };
    *results[0].as_ref().expect("taken")
}

fn later_calls_wait(change: fn(&mut Rig)) {
    let rig = opened(1, change);
    let mut a = produce(&rig, large("a", LARGE));
    let mut b = produce(&rig, large("b", LARGE));
    let mut c = produce(&rig, rig::frames(&[(0, "c", 10)]));
    for call in [&mut a, &mut b, &mut c] {
        assert!(poll(call.as_mut()).is_pending());
    }
    rig.broker().commit_once();
    let a = first(poll(a.as_mut()));
    // The last call is polled again before the one that came before it.
    assert!(poll(c.as_mut()).is_pending());
    let mut d = produce(&rig, rig::frames(&[(0, "d", 10)]));
    assert!(poll(d.as_mut()).is_pending());
    rig.broker().commit_once();
    rig.broker().commit_once();
    let (d, c, b) = (first(poll(d.as_mut())), first(poll(c.as_mut())), first(poll(b.as_mut())));
    assert!(a < b && b < c && c < d, "a {a}, b {b}, c {c}, d {d}");
}

/// P2, BRK-5: a call's place is that of its first poll, in whatever order the calls are polled later.
#[test]
fn a_later_call_never_overtakes_one_that_waits_for_room() {
    later_calls_wait(|_| ());
}

fn journal(rig: &Rig) -> Arc<dyn keylane_broker::Journal> {
    let name =
        JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind: LogKind::Journal };
    let broker = Arc::clone(rig.broker());
    rig.run(broker.journal(&name)).expect("a journal")
}

fn append(rig: &Rig, bytes: usize) -> Call<Result<u64, AppendError>> {
    let journal = journal(rig);
    Box::pin(async move { journal.append(vec![7; bytes].into(), None).await })
}

/// P2, BRK-6.
#[test]
fn a_later_append_never_overtakes_one_that_waits_for_room() {
    let rig = opened(2, |_| ());
    let mut calls = [append(&rig, LARGE), append(&rig, LARGE), append(&rig, 10)];
    for call in &mut calls {
        assert!(poll(call.as_mut()).is_pending());
    }
    rig.broker().commit_once();
    assert!(poll(calls[2].as_mut()).is_pending());
    let mut late = append(&rig, 10);
    assert!(poll(late.as_mut()).is_pending());
    rig.broker().commit_once();
    let ends = calls.iter_mut().map(|call| poll(call.as_mut()));
    assert_eq!(ends.collect::<Vec<_>>(), [0, 1, 2].map(|position| Poll::Ready(Ok(position))));
    assert_eq!(poll(late.as_mut()), Poll::Ready(Ok(3)));
}

fn cancelled_calls_are_bounded(change: fn(&mut Rig)) {
    let rig = opened(3, change);
    // Clients that time out again and again while the disk hangs.
    for _ in 0..12 {
        let mut call = produce(&rig, large("gone", 10 << 20));
        assert!(poll(call.as_mut()).is_pending());
        let mut call = append(&rig, 10 << 20);
        assert!(poll(call.as_mut()).is_pending());
    }
    for _ in 0..20 {
        rig.broker().commit_once();
    }
    // All calls that were admitted for callers that had gone are written by now.
    let landed = rig.ends("orders")[0].end;
    let page = rig.run(journal(&rig).read(0, 1)).expect("no damage");
    assert!(landed <= 64, "{landed} MiB were kept for callers that had gone");
    assert!(page.end <= 6, "{} records of 10 MiB were kept for callers that had gone", page.end);
    assert!(landed > 0 && page.end > 0);
    // And the room of those calls was given back.
    let mut calls: Vec<_> = (0..6).map(|_| produce(&rig, large("there", 10 << 20))).collect();
    calls.iter_mut().for_each(|call| assert!(poll(call.as_mut()).is_pending()));
    rig.broker().commit_once();
    calls.iter_mut().for_each(|call| assert!(poll(call.as_mut()).is_ready()));
}

/// P5: bytes for which no caller waits any more count until they are written.
#[test]
fn calls_that_were_cancelled_stay_within_the_bound() {
    cancelled_calls_are_bounded(|_| ());
}

/// BRK-5: a call that is dropped while it waits for admission makes way for the calls behind it.
#[test]
fn a_call_that_waited_for_room_and_went_away_holds_nobody_up() {
    let rig = opened(4, |_| ());
    let mut a = produce(&rig, large("a", LARGE));
    let mut b = produce(&rig, large("b", LARGE));
    let mut c = produce(&rig, rig::frames(&[(0, "c", 10)]));
    for call in [&mut a, &mut b, &mut c] {
        assert!(poll(call.as_mut()).is_pending());
    }
    drop(b);
    rig.broker().commit_once();
    let a = first(poll(a.as_mut()));
    assert_eq!(first(poll(c.as_mut())), a + 40, "nothing of b lies between");
}

/// P2, BRK-5: after a group whose outcome is unknown, no call that was under way behind it is acknowledged.
#[test]
fn nothing_behind_a_group_that_failed_is_acknowledged() {
    let rig = opened(6, |_| ());
    let mut a = produce(&rig, large("a", LARGE));
    let mut b = produce(&rig, large("b", LARGE));
    let mut c = produce(&rig, rig::frames(&[(0, "c", 10)]));
    for call in [&mut a, &mut b, &mut c] {
        assert!(poll(call.as_mut()).is_pending());
    }
    // The disk reports that it is full, although it stored all bytes.
    rig.disk.fail(Fault::RefusedWrite, 1);
    rig.broker().commit_once();
    for call in [&mut a, &mut b, &mut c] {
        let Poll::Ready(results) = poll(call.as_mut()) else { panic!("not answered") };
        assert!(results.iter().all(|result| matches!(result, Err(ProduceError::Unavailable(_)))));
    }
    assert_eq!(rig.produce("orders", &[(0, "again", 10)]), [0]);
}

/// BRK-8, P10: closing answers every call, also those that still wait for admission.
#[test]
fn a_close_answers_those_who_wait_outside() {
    let rig = opened(5, |_| ());
    let mut calls = [produce(&rig, large("a", LARGE)), produce(&rig, large("b", LARGE))];
    let mut appends = [append(&rig, LARGE), append(&rig, LARGE)];
    calls.iter_mut().for_each(|call| assert!(poll(call.as_mut()).is_pending()));
    appends.iter_mut().for_each(|call| assert!(poll(call.as_mut()).is_pending()));
    rig.broker().close();
    assert_eq!(calls.map(|mut call| first(poll(call.as_mut()))), [0, 40]);
    assert_eq!(appends.map(|mut call| poll(call.as_mut())), [Poll::Ready(Ok(0)), Poll::Ready(Ok(1))]);
    let mut late = produce(&rig, rig::frames(&[(0, "late", 10)]));
    let Poll::Ready(results) = poll(late.as_mut()) else { panic!("not answered") };
    assert_eq!(results[0], Err(ProduceError::Unavailable(BrokerError::Closed.to_string())));
}

/// BRK-1: if a join is dropped before it is on record, its group holds back exactly what it held back before.
#[test]
fn a_join_that_goes_away_leaves_its_group_as_it_was() {
    let mut rig = Rig::new(7);
    rig.open().expect("an empty disk");
    rig.create("orders", &TopicSpec { retention_bytes: Some(100_000), ..rig::spec(1) });
    for index in 0..32 {
        rig.produce("orders", &[(0, &index.to_string(), 3000)]);
    }
    let broker = Arc::clone(rig.broker());
    let held_back = || rig.run(broker.held_back("orders")).expect("an open topic");
    let goes_away = || {
        let mut joined = broker.join("group", "orders", "node");
        assert!(poll(joined.as_mut()).is_pending());
        assert_eq!(held_back().len(), 1, "it counts from its first moment");
    };
    goes_away();
    assert_eq!(held_back(), [], "nobody knew it");
    drop(rig.run(broker.join("group", "orders", "node")).expect("nobody is in it"));
    rig.run(broker.configured(&[])).expect("room");
    let removed = held_back();
    assert!(removed.len() == 1 && removed[0].until_ms.is_some(), "{removed:?}");
    goes_away();
    assert_eq!(held_back(), removed, "no pipeline is configured for it");
}

/// BRK-6: a group is forgotten as a whole or not at all, whether or not the caller waits for the answer.
#[tokio::test]
async fn a_group_that_nobody_waits_for_is_forgotten_to_the_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = Embedded::open(dir.path(), Options::default()).expect("a new folder");
    broker.create_topic("orders", &rig::spec(1)).await.expect("a new topic");
    for kind in [LogKind::Journal, LogKind::Hold] {
        let name = JournalName { group: "group".into(), topic: "orders".into(), partition: 0, kind };
        let journal = broker.journal(&name).await.expect("a journal");
        assert_eq!(journal.append("record".into(), None).await, Ok(0));
    }
    let commit = Commit { position: 0, metadata: Bytes::new() };
    broker.commit("group", "orders", 0, commit).await.expect("room");
    {
        let mut forgotten = broker.forget_group("group", "orders");
        assert!(poll(forgotten.as_mut()).is_pending());
    }
    let left = loop {
        match broker.forget_group("group", "orders").await {
            Err(BrokerError::Invalid(_)) => tokio::task::yield_now().await,
            left => break left,
        }
    };
    assert_eq!(left, Ok(false), "nothing of it was left");
    assert_eq!(broker.committed("group", "orders", 0).await, Ok(None));
}

#[cfg(feature = "flaws")]
mod flaws {
    use keylane_broker::embedded::Flaws;

    use super::*;

    fn is_found(test: fn(fn(&mut Rig)), put_back: fn(&mut Rig)) -> bool {
        std::panic::catch_unwind(|| test(put_back)).is_err()
    }

    /// P2.
    #[test]
    fn overtaking_those_who_wait_is_found() {
        assert!(is_found(later_calls_wait, |rig| {
            let flaws = Flaws { overtake_who_waits: true, ..Flaws::default() };
            rig.options = rig.options.clone().with_flaws(flaws);
        }));
    }

    /// P5.
    #[test]
    fn forgetting_the_room_of_cancelled_calls_is_found() {
        assert!(is_found(cancelled_calls_are_bounded, |rig| {
            let flaws = Flaws { forget_the_cancelled: true, ..Flaws::default() };
            rig.options = rig.options.clone().with_flaws(flaws);
        }));
    }
}
