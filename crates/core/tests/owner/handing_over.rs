//! Tests of hand-overs: how a partition goes from one owner to the next.

use super::*;

/// ORD-9: a foreign claim makes the owner drain; `released` comes last, behind a snapshot, and only once nothing runs.
#[test]
fn a_foreign_claim_drains_and_released_comes_last() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    log.append(claim(9));
    let (said, until_ms) = log.read(&mut owner, 0);
    assert_eq!(said, [Action::Drain]);
    assert!(until_ms <= 1_000, "it must not seem silent: {until_ms}");
    // The owner writes an empty record while a handler runs, so as not to seem dead.
    let (said, _) = log.drive(&mut owner, until_ms, Input::Tick(until_ms));
    assert!(matches!(&said[..], [Action::Append { .. }]), "{said:?}");
    log.drive(&mut owner, 900, Input::Finished { epoch, done: &done(&[100..103]), dead: &[] });
    assert!(!log.state().epoch.expect("runs").released);
    let (said, _) = log.drive(&mut owner, 900, Input::Quiet);
    assert!(matches!(said.last(), Some(Action::StepBack(StepBack::Released))), "{said:?}");
    assert!(matches!(&**log.records.last().expect("some"), Record::Facts(Facts { released: true, .. })));
    assert!(said.iter().any(|action| matches!(action, Action::Cut { .. })), "{said:?}");
    let state = log.state();
    assert!(state.epoch.expect("ran").released && state.settled.low() == 103);
}

/// ORD-9: `released` is never written while a handler runs.
#[test]
fn a_handler_that_does_not_end_keeps_released_off_the_record() {
    let mut log = Log::default();
    let (mut owner, _) = log.own(setup(1));
    let (said, _) = log.drive(&mut owner, 0, Input::Revoked);
    assert_eq!(said, [Action::Drain]);
    let (said, _) = log.drive(&mut owner, 32_500, Input::Tick(32_500));
    assert_eq!(stop_of(&said), &Stop::DrainTimedOut);
    assert!(!log.state().epoch.expect("ran").released);
}

/// ORD-9: a drain that begins after a quiet minute has its full time.
#[test]
fn a_drain_is_timed_from_when_it_begins() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    owner.tell_time(60_000);
    let (said, _) = log.drive(&mut owner, 60_000, Input::Revoked);
    assert_eq!(said[0], Action::Drain);
    let (said, _) = log.drive(&mut owner, 80_000, Input::Tick(80_000));
    assert!(said.iter().all(|action| matches!(action, Action::Append { .. })), "{said:?}");
    log.drive(&mut owner, 80_000, Input::Finished { epoch, done: &done(&[100..103]), dead: &[] });
    log.drive(&mut owner, 80_000, Input::Quiet);
    assert!(log.state().epoch.expect("ran").released && log.state().settled.low() == 103);
}

/// ORD-9: a journal that no longer answers does not keep the partition for ever.
#[test]
fn a_drain_ends_though_the_journal_does_not_answer() {
    let mut log = Log::default();
    let (mut owner, _) = log.own(setup(1));
    assert_eq!(owner.step(Input::Revoked), Action::Drain);
    assert!(matches!(owner.step(Input::Quiet), Action::Append { .. }));
    assert!(matches!(owner.step(Input::Tick(34_999)), Action::Wait { until_ms: 35_000 }));
    assert_eq!(owner.step(Input::Tick(35_000)), Action::Stop(Stop::DrainTimedOut));
}

/// ORD-9: an owner that lost its partition drops everything at once and writes nothing more.
#[test]
fn a_lost_partition_writes_nothing_more() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(setup(1));
    owner.step(Input::Finished { epoch, done: &done(&[100..200]), dead: &[] });
    let end = log.end();
    let (said, _) = log.drive(&mut owner, 9_000, Input::Lost);
    assert_eq!((stop_of(&said), log.end()), (&Stop::Lost, end));
    assert_eq!(log.drive(&mut owner, 99_000, Input::Tick(99_000)), (Vec::new(), u64::MAX));
}

/// BRK-7: a claimant waits for `released`. Silence of 3 s or a proof of death ends the wait; a sign of life prolongs
/// it.
#[test]
fn a_claimant_waits_for_released_but_not_for_ever() {
    let mut log = Log::default();
    let (_, epoch) = log.own(setup(1));
    let mut next = Owner::new(setup(2));
    let (said, until_ms) = log.drive(&mut next, 0, Input::Tick(0));
    assert!(matches!(&said[..], [Action::Append { .. }]), "{said:?}");
    assert_eq!((until_ms, next.predecessor()), (3_000, Some(1)));
    let mut proven = next.clone();
    // The owner writes just before the time is up.
    log.append(Record::Facts(Facts { epoch, seq: 2, ..Facts::default() }));
    let (said, until_ms) = log.drive(&mut next, 3_000, Input::Tick(3_000));
    assert_eq!((said, until_ms), (Vec::new(), 6_000));
    let (said, _) = log.drive(&mut next, 6_000, Input::Tick(6_000));
    assert!(matches!(said.last(), Some(Action::Start { .. })), "{said:?}");
    let mut log = Log { records: log.records[..6].to_vec(), ..Log::default() };
    let (said, _) = log.drive(&mut proven, 1, Input::PredecessorDead(1));
    assert!(matches!(said.last(), Some(Action::Start { .. })), "{said:?}");
}

/// BRK-7: an owner that keeps writing is given up after the handler time-out and 5 s more.
#[test]
fn patience_has_an_end_though_the_owner_writes() {
    let mut log = Log::default();
    let (_, epoch) = log.own(setup(1));
    let mut next = Owner::new(setup(2));
    log.drive(&mut next, 0, Input::Tick(0));
    for second in 1..=34 {
        log.append(Record::Facts(Facts { epoch, seq: 1 + second, ..Facts::default() }));
        let end = next.next();
        let (said, _) = log.drive(&mut next, second * 1_000, Input::CaughtUp { start: 0, end, now_ms: 0 });
        let (more, _) = log.read(&mut next, second * 1_000);
        assert_eq!((said, more), (Vec::new(), Vec::new()));
    }
    let (said, _) = log.drive(&mut next, 35_000, Input::Tick(35_000));
    assert!(matches!(said.last(), Some(Action::Start { .. })), "{said:?}");
}

/// BRK-7: a claimant gives way to a newer claim. Claiming again takes a confirmation, and a wait that grows each time.
#[test]
fn a_newer_claim_is_given_way_to_and_the_wait_doubles() {
    let mut log = Log::default();
    log.own(setup(1));
    let mut next = Owner::new(setup(2));
    let mut now_ms = 0;
    let mut waits = Vec::new();
    log.drive(&mut next, 0, Input::Tick(0));
    for round in 0..3 {
        log.append(claim(900 + round));
        let (said, until_ms) = log.read(&mut next, now_ms);
        assert_eq!(said, [Action::StepBack(StepBack::NewerClaim)]);
        assert_eq!(until_ms, u64::MAX, "time alone is not enough");
        assert_eq!(log.drive(&mut next, now_ms + 60_000, Input::Tick(now_ms + 60_000)).0, []);
        now_ms += 60_000;
        // The wait since the step back is over, so the owner claims as soon as it is confirmed.
        let (said, _) = log.drive(&mut next, now_ms, Input::Confirmed);
        assert!(matches!(&said[..], [Action::Append { .. }]), "{said:?}");
        log.append(claim(800 + round));
        log.read(&mut next, now_ms);
        let (said, until_ms) = log.drive(&mut next, now_ms, Input::Confirmed);
        assert_eq!(said, []);
        waits.push(until_ms - now_ms);
        now_ms = until_ms;
        log.drive(&mut next, now_ms, Input::Tick(now_ms));
    }
    assert!(waits.windows(2).all(|two| two[0] < two[1]), "{waits:?}");
}
