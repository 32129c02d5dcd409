//! The one function that decides what counts.
//!
//! In come records in the order of their positions; out comes a [`State`]. Owner, next owner, projections and tests
//! all use [`apply`], so they cannot disagree. It depends on nothing but its arguments: no config, no clock.
//!
//! Kept: the epoch only grows; within an epoch a record counts once, in the order of `seq`, and not behind `released`;
//! a position is settled only by a record that counts; the format in use only grows, and never beyond what the owner
//! and the newest claimant read.

use super::change::{Effect, Tell};
use super::commands::apply_command;
use super::record::{Claim, FORMAT_FIRST, Fence, Record, Snapshot, SnapshotBody};
use super::settle::settle;
use super::state::{Epoch, NewestClaim, State};
use crate::owner::Rules;

/// What [`apply`] made of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Applied {
    /// It counts; the state has changed by it.
    Counted,
    /// It does not count; the state is as before.
    Ignored(Ignored),
    /// It counts, but this version does not carry out what it says. The partition must stop.
    Stop(NotCarriedOut),
}

/// Why a record does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// The journal has an identity already.
    SecondIdentity,
    /// A repeat of the newest claim.
    RepeatedClaim,
    /// A fence whose claim is not the newest.
    NotNewestClaim,
    /// A fence whose claim stands at another position.
    OtherClaimPosition,
    /// A fence whose claim was fenced before.
    FencedBefore,
    /// A fence of a claimant that read another journal.
    OtherJournal,
    /// Facts of an epoch that is not the current one.
    OtherEpoch,
    /// Facts behind `released`.
    Released,
    /// Facts that are not the next of their epoch.
    OutOfSequence,
    /// A number of partitions that was accepted or told before, or that another was meanwhile.
    AcceptedBefore,
    /// A fence of a claimant that goes by fewer partitions than the topic has.
    Outgrown,
    /// A fence that names another format than the one in use.
    OtherFormat,
    /// An upgrade to the format in use, or to an older one.
    UpgradedBefore,
    /// An upgrade to a format that the owner or the newest claimant does not read; see [`State::too_old_for`].
    TooOld,
    /// A command that was sent before, and is remembered.
    RepeatedCommand,
    /// A command of which the format in use knows nothing: the journal is to be upgraded first.
    OlderFormat,
}

/// What a newer version of Keylane put on record, and this one cannot carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0}")]
pub struct NotCarriedOut(pub &'static str);

/// Applies the record at `position`, which must follow the one applied before, and says whether it counts.
pub fn apply(state: &mut State, position: u64, record: &Record) -> Applied {
    apply_under(Rules::ALL, state, position, record, &mut |_| {})
}

/// [`apply`], telling what changed of what is held or dead.
pub fn apply_telling(
    state: &mut State,
    position: u64,
    record: &Record,
    tell: &mut dyn FnMut(Effect),
) -> Applied {
    apply_under(Rules::ALL, state, position, record, tell)
}

/// [`apply_telling`], with rules left out. For tests.
#[cfg(feature = "flaws")]
pub fn apply_with(
    rules: Rules,
    state: &mut State,
    position: u64,
    record: &Record,
    tell: &mut dyn FnMut(Effect),
) -> Applied {
    apply_under(rules, state, position, record, tell)
}

pub(super) fn apply_under(
    rules: Rules,
    state: &mut State,
    position: u64,
    record: &Record,
    tell: Tell<'_>,
) -> Applied {
    match record {
        Record::Identity { journal } => match state.journal {
            Some(_) => Applied::Ignored(Ignored::SecondIdentity),
            None => {
                state.journal = Some(*journal);
                Applied::Counted
            }
        },
        Record::Claim(claim) => apply_claim(state, position, claim),
        Record::Fence(fence) => apply_fence(rules, state, position, fence),
        Record::Facts(facts) => match count(rules, state, facts.epoch, facts.seq) {
            Ok(()) => settle(rules, state, position, facts, tell),
            Err(why) => Applied::Ignored(why),
        },
        Record::Snapshot(snapshot) => apply_snapshot(rules, state, snapshot),
        Record::Command(command) => apply_command(rules, state, position, command, tell),
    }
}

fn apply_claim(state: &mut State, position: u64, claim: &Claim) -> Applied {
    // A repeat keeps the first position: its claimant's fence names that one.
    if state.claim.as_ref().is_some_and(|newest| newest.id == claim.id) {
        return Applied::Ignored(Ignored::RepeatedClaim);
    }
    state.claim = Some(NewestClaim {
        id: claim.id,
        position,
        instance: claim.instance,
        node: claim.node.clone(),
        fenced: false,
        format: claim.format,
    });
    Applied::Counted
}

fn apply_fence(rules: Rules, state: &mut State, position: u64, fence: &Fence) -> Applied {
    if fence.source.partitions < state.widened {
        return Applied::Ignored(Ignored::Outgrown);
    }
    // A fence that was sent before an upgrade landed, and lands behind it: its owner would write what it should not.
    if state.format.is_some() && state.format != fence.format {
        return Applied::Ignored(Ignored::OtherFormat);
    }
    let (mut instance, mut node, mut format) = (0, String::new(), FORMAT_FIRST);
    match &mut state.claim {
        Some(newest) if newest.id == fence.claim => {
            if rules.claim_position() && newest.position != fence.claim_position {
                return Applied::Ignored(Ignored::OtherClaimPosition);
            }
            if newest.fenced {
                return Applied::Ignored(Ignored::FencedBefore);
            }
            if state.journal != Some(fence.journal) {
                return Applied::Ignored(Ignored::OtherJournal);
            }
            newest.fenced = true;
            (instance, node, format) = (newest.instance, newest.node.clone(), newest.format);
        }
        _ if rules.newest_claim() => return Applied::Ignored(Ignored::NotNewestClaim),
        _ => {}
    }
    state.epoch = Some(Epoch { position, instance, node, seq: 0, released: false, format });
    state.source = Some(fence.source);
    (state.format, state.order) = (fence.format, fence.order);
    Applied::Counted
}

/// Whether a record of `epoch` and `seq` counts; if so, the sequence goes on.
fn count(rules: Rules, state: &mut State, epoch: u64, seq: u64) -> Result<(), Ignored> {
    let Some(current) = &mut state.epoch else {
        return Err(Ignored::OtherEpoch);
    };
    if rules.epoch_check() && current.position != epoch {
        return Err(Ignored::OtherEpoch);
    }
    if current.released {
        return Err(Ignored::Released);
    }
    if rules.seq() && current.seq.checked_add(1) != Some(seq) {
        return Err(Ignored::OutOfSequence);
    }
    current.seq = seq;
    Ok(())
}

fn apply_snapshot(rules: Rules, state: &mut State, snapshot: &Snapshot) -> Applied {
    if let Err(why) = count(rules, state, snapshot.epoch, snapshot.seq) {
        return Applied::Ignored(why);
    }
    match &snapshot.body {
        SnapshotBody::State(_) => state.chunks.clear(),
        SnapshotBody::Chunks(_) if !state.can_hold() => {
            return Applied::Stop(NotCarriedOut("a snapshot in chunks in a journal of an older format"));
        }
        SnapshotBody::Chunks(chunks) => state.chunks.clone_from(chunks),
    }
    Applied::Counted
}
