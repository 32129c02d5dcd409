//! Tests of journal formats: nodes of two versions beside each other, and when the newer format comes into use.

use super::*;
use keylane_core::journal::{FORMAT_FIRST, FORMAT_NEW, Ignored, TooOld};
use keylane_core::{Applied, apply};

/// The setup of a node of the next version.
fn ahead(instance: u128) -> Setup {
    Setup { format: FORMAT + 1, ..setup(instance) }
}

fn upgrade(format: u8) -> Record {
    Record::Command(Command {
        id: 1,
        kind: CommandKind::Upgrade,
        positions: Ranges::new(),
        as_of: None,
        body: None,
        accept: None,
        partitions: None,
        format: Some(format),
        who: "ops".to_owned(),
        when_ms: 0,
    })
}

/// What `apply` does with the next record of the journal.
fn applied(log: &Log, record: &Record) -> Applied {
    apply(&mut log.state(), log.end(), record)
}

fn hand_over(log: &mut Log, from: &mut Owner, to: Setup) -> Owner {
    let mut next = Owner::new(to);
    log.drive(&mut next, 0, Input::Tick(0));
    log.read(from, 0);
    log.drive(from, 0, Input::Quiet);
    log.read(&mut next, 0);
    next
}

/// BRK-6: the first fence of a new journal names format and order, and so does the state.
#[test]
fn the_first_fence_names_the_format_and_the_order() {
    for order in [Order::Key, Order::Partition, Order::None] {
        let mut log = Log::default();
        let (owner, _) = log.own(Setup { order, ..setup(1) });
        let state = owner.state().expect("read");
        assert_eq!((state.format, state.order), (Some(FORMAT_NEW), Some(order)));
        let (claim, epoch) = (state.claim.as_ref(), state.epoch.as_ref());
        let formats = (claim.map(|claim| claim.format), epoch.map(|epoch| epoch.format));
        assert_eq!(formats, (Some(FORMAT), Some(FORMAT)));
    }
}

/// BRK-6: an owner writes the format in use, even if it could write a newer one.
#[test]
fn an_owner_that_is_ahead_writes_the_format_in_use_until_it_is_raised() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(ahead(1));
    let facts = Record::Facts(Facts { epoch, seq: 2, ..Facts::default() });
    assert_eq!(owner.encode(&facts)[0], FORMAT_NEW);
    assert!(Record::decode(&owner.encode(&facts)).is_ok(), "a node that is behind reads it");
    log.append(upgrade(FORMAT + 1));
    log.read(&mut owner, 0);
    assert_eq!(owner.state().map(State::format), Some(FORMAT + 1));
    assert_eq!(owner.encode(&facts)[0], FORMAT + 1);
    let claim = log.records[0].clone();
    assert_eq!(owner.encode(&claim)[0], FORMAT_FIRST, "a claim is for all");
    assert_eq!(Record::decode(&owner.encode(&facts)), Err(RecordError::Version(FORMAT + 1)));
    assert_eq!(owner.decode(&owner.encode(&facts)), Ok(facts));
    let (said, _) = log.drive(&mut owner, 0, Input::Finished { epoch, done: &done(&[100..101]), dead: &[] });
    assert_eq!(said, [], "it owns as before");
}

/// BRK-6: a node can read the claim of a node of a newer version, although it does not know all of the claim's fields.
#[test]
#[cfg(feature = "flaws")]
fn a_claim_with_fields_that_may_be_skipped_is_read() {
    let mut log = Log::default();
    log.own(ahead(1));
    let Record::Claim(claim) = &*log.records[0] else { panic!("not a claim") };
    let record = Record::Claim(claim.clone());
    let known = Record::Claim(Claim { format: FORMAT, ..claim.clone() });
    assert!(record.encode().len() > known.encode().len(), "it has a field more");
    assert_eq!(Record::decode(&record.encode()), Ok(record));
}

/// BRK-6: a format is not raised while the owner or the newest claimant cannot read it, and the state says who that is.
#[test]
fn an_upgrade_counts_only_if_owner_and_claimant_read_it() {
    let mut log = Log::default();
    let (mut behind, epoch) = log.own(setup(1));
    let refused = Applied::Ignored(Ignored::TooOld);
    assert_eq!(applied(&log, &upgrade(FORMAT + 1)), refused);
    let state = log.state();
    assert_eq!(state.too_old_for(FORMAT + 1), Some(TooOld { node: "node-1", reads: FORMAT, owns: true }));
    // Now the newest claim is of a node of the next version, but the owner is not.
    let mut next = Owner::new(ahead(2));
    log.drive(&mut next, 0, Input::Tick(0));
    assert_eq!(applied(&log, &upgrade(FORMAT + 1)), refused);
    log.append(upgrade(FORMAT + 1));
    log.read(&mut behind, 0);
    assert_eq!(behind.epoch(), Some(epoch), "it drains, and is not stopped");
    log.drive(&mut behind, 0, Input::Quiet);
    log.read(&mut next, 0);
    assert_eq!(applied(&log, &upgrade(FORMAT + 1)), Applied::Counted);
    assert_eq!(applied(&log, &upgrade(FORMAT)), Applied::Ignored(Ignored::UpgradedBefore));
    // Now the owner is of the next version, but the newest claim is not.
    log.append(claim(9));
    assert_eq!(applied(&log, &upgrade(FORMAT + 1)), refused);
    let state = log.state();
    assert_eq!(state.too_old_for(FORMAT + 1), Some(TooOld { node: "", reads: FORMAT, owns: false }));
}

/// BRK-6, P10: a claimant that cannot read the format in use stops, says so, and has started nothing.
#[test]
fn a_node_that_is_behind_stops_once_the_format_was_raised() {
    let mut log = Log::default();
    let (mut owner, epoch) = log.own(ahead(1));
    log.append(upgrade(FORMAT + 1));
    log.read(&mut owner, 0);
    let mut behind = Owner::new(setup(2));
    let (said, _) = log.drive(&mut behind, 0, Input::Tick(0));
    let why = Stop::NewerFormat { in_use: FORMAT + 1, reads: FORMAT };
    assert_eq!(stop_of(&said), &why);
    assert_eq!(why.code().map(ErrorCode::as_str), Some("KL-1312"));
    assert!(why.to_string().contains("run that version on this node too"), "{why}");
    assert!(!said.iter().any(|action| matches!(action, Action::Start { .. })));
    // The stopped node's claim makes the owner drain; the next claimant continues where the owner ended.
    log.drive(&mut owner, 0, Input::Finished { epoch, done: &done(&[100..120]), dead: &[] });
    log.read(&mut owner, 0);
    log.drive(&mut owner, 0, Input::Quiet);
    let mut last = Owner::new(ahead(3));
    log.drive(&mut last, 0, Input::Tick(0));
    assert!(last.epoch().is_some());
    let state = last.state().expect("read");
    assert_eq!((state.settled.low(), state.format()), (120, FORMAT + 1));
}

/// BRK-6: a node also stops if it meets a record of a newer format first, because the fence or upgrade was cut away.
#[test]
fn a_record_of_a_newer_format_stops_a_node_that_is_behind() {
    let mut behind = Owner::new(setup(1));
    let error = RecordError::Version(FORMAT + 1);
    let action = behind.step(Input::Unreadable { position: 7, error });
    assert_eq!(action, Action::Stop(Stop::NewerFormat { in_use: FORMAT + 1, reads: FORMAT }));
    let mut behind = Owner::new(setup(1));
    let error = RecordError::Version(0);
    let action = behind.step(Input::Unreadable { position: 7, error });
    assert_eq!(action, Action::Stop(Stop::UnknownRecord { position: 7, error }), "damaged, and not newer");
}

/// BRK-6: a fence that was sent before the format was raised does not count if it lands behind the upgrade.
#[test]
fn a_fence_with_another_format_than_the_one_in_use_does_not_count() {
    let mut log = Log::default();
    let (mut owner, _) = log.own(ahead(1));
    hand_over(&mut log, &mut owner, ahead(2));
    let fence = |format| {
        Record::Fence(Fence {
            claim: 9,
            claim_position: 3,
            journal: 0,
            source: SOURCE,
            format,
            order: Some(Order::Key),
        })
    };
    let of = |format| applied(&log, &fence(format));
    let other = Applied::Ignored(Ignored::OtherFormat);
    assert_eq!((of(None), of(Some(FORMAT + 1)), of(Some(FORMAT_FIRST))), (other, other, other));
    assert_eq!(of(Some(FORMAT_NEW)), Applied::Ignored(Ignored::NotNewestClaim));
}

/// BRK-6: the format in use survives hand-overs, and snapshots behind which the journal was cut.
#[test]
fn the_format_in_use_is_kept_by_fences_and_snapshots() {
    let bounds = Bounds { snapshot_after_bytes: 0, ..Bounds::default() };
    let mut log = Log::default();
    let (mut owner, _) = log.own(Setup { bounds: bounds.clone(), order: Order::Partition, ..ahead(1) });
    log.append(upgrade(FORMAT + 1));
    log.read(&mut owner, 0);
    let next = hand_over(&mut log, &mut owner, Setup { bounds, order: Order::Partition, ..ahead(2) });
    assert!(log.start > 0, "the journal was cut");
    let last = Owner::new(ahead(3));
    let mut replay = Replay::default();
    for position in log.start..log.end() {
        let bytes = next.encode(&log.records[position as usize]);
        let record = last.decode(&bytes).expect("it reads that format");
        replay.read(position, &record, bytes.len());
    }
    let state = replay.state().expect("a snapshot counts");
    assert_eq!(Some(state), next.state());
    assert_eq!((state.format, state.order), (Some(FORMAT + 1), Some(Order::Partition)));
}
