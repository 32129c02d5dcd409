//! `apply`: the one function that decides which journal records count.
//!
//! Records of one partition's journal come in, in the order of their positions; out comes the partition's [`State`].
//! The owner, the next owner, projections and tests all call [`apply`], so they cannot disagree about what happened.
//! [`apply`] depends on nothing but its arguments: no config, no clock.
//!
//! Invariants: the epoch only grows; within an epoch each record counts once, in the order of `seq`, and no record
//! counts behind `released`; only a record that counts settles a position; the format in use only rises, and never
//! beyond the formats that the owner and the newest claimant can read.

use super::change::{Effect, Tell};
use super::commands::apply_command;
use super::record::{Claim, FORMAT_FIRST, Fence, Record, Snapshot, SnapshotBody};
use super::settle::settle;
use super::state::{Epoch, NewestClaim, State};
use crate::owner::Rules;

/// What [`apply`] did with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Applied {
    /// The record counts, and changed the state.
    Counted,
    /// The record does not count; the state is as before.
    Ignored(Ignored),
    /// The record counts, but this version cannot carry out what the record says. The partition must stop.
    Stop(NotCarriedOut),
}

/// Why a record does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// The journal has an identity already.
    SecondIdentity,
    /// A repeat of the newest claim: the claim keeps its first position.
    RepeatedClaim,
    /// A fence whose claim is not the newest claim.
    NotNewestClaim,
    /// A fence that names another position for its claim than where the claim counts.
    OtherClaimPosition,
    /// A fence whose claim already has a counting fence.
    FencedBefore,
    /// A fence of a claimant that read another journal.
    OtherJournal,
    /// Facts or a snapshot of an epoch that is not the current one.
    OtherEpoch,
    /// Facts or a snapshot behind the epoch's `released`.
    Released,
    /// Facts or a snapshot whose `seq` is not the next of the epoch.
    OutOfSequence,
    /// A command that accepts, widens to or opens a number of partitions that is on record already or was overtaken.
    AcceptedBefore,
    /// A fence of a claimant that knows of fewer partitions than the topic has.
    Outgrown,
    /// A fence that names another format than the one in use.
    OtherFormat,
    /// An upgrade to the format in use, or to an older format.
    UpgradedBefore,
    /// An upgrade to a format that the owner or the newest claimant cannot read; see [`State::too_old_for`].
    TooOld,
    /// A command whose id is still remembered: the command was sent twice.
    RepeatedCommand,
    /// A command that the format in use cannot express: an operator must upgrade the journal first.
    OlderFormat,
}

/// Something that a newer version of Keylane put on record and that this version cannot carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0}")]
pub struct NotCarriedOut(pub &'static str);

/// Applies the record at `position`, which must come after the last record applied, and says whether the record counts.
pub fn apply(state: &mut State, position: u64, record: &Record) -> Applied {
    apply_under(Rules::ALL, state, position, record, &mut |_| {})
}

/// [`apply`], also calling `tell` with each change to held messages and dead letters.
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
    // A repeated claim keeps its first position: the claimant's fence names that position, and would else not count.
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
    // This fence was sent before an upgrade landed, but lands behind the upgrade. If the fence counted, its owner would
    // write records in the old format.
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

/// Checks that a record of `epoch` and `seq` is the next one that counts, and if so moves the epoch's `seq` on.
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
