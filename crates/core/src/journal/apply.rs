//! What a partition's journal says, and the one function that decides what counts.
//!
//! In come records in the order of their positions; out comes a [`State`]. Owner, next owner, projections and tests
//! all use [`apply`], so they cannot disagree. It depends on nothing but its arguments: no config, no clock.
//!
//! Kept: the epoch only grows; within an epoch a record counts once, in the order of `seq`, and not behind `released`;
//! a position is settled only by a record that counts; the format in use only grows, and never beyond what the owner
//! and the newest claimant read.

use std::collections::BTreeMap;

use super::bytes::{
    numbered, order_code, put_accepted, put_dead, put_set, take_accepted, take_dead, take_format, take_order,
    take_set,
};
use super::encoding::{
    FieldReader, Fields, Malformed, put_varint, take_flag, take_id, take_u32, take_varint, text, whole,
};
use super::growth::Acceptance;
use super::record::{
    Claim, Command, CommandKind, DeadEffect, DeadEntry, FORMAT_FIRST, Facts, Fence, Record, Snapshot,
    SnapshotBody, Source,
};
use crate::lanes::Order;
use crate::ledger::Settled;
use crate::owner::Rules;

/// What a reader gets by applying the records of a journal in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The journal's id, once its first identity was read.
    pub journal: Option<u128>,
    /// The newest claim.
    pub claim: Option<NewestClaim>,
    /// The epoch that runs, or ran last.
    pub epoch: Option<Epoch>,
    /// What the last counting fence says of the source.
    pub source: Option<Source>,
    /// True once it is on record where the group starts.
    pub started: bool,
    /// Which source positions are settled: done, or dead.
    pub settled: Settled,
    /// Dead letters by source position.
    pub dead: BTreeMap<u64, DeadEntry>,
    /// `hold.p` may be cut below this position.
    pub low: u64,
    /// In the journal of partition 0: new numbers of partitions that were accepted.
    pub accepted: Vec<Acceptance>,
    /// In the journal of partition 0: all that stood before so many partitions were accepted is settled.
    pub opened: u32,
    /// The topic has at least so many partitions: who goes by fewer does not own this one.
    pub widened: u32,
    /// The format in use; none until a fence names one.
    pub format: Option<u8>,
    /// The order that the last counting fence says; none if it says nothing. It is the order that whatever is held was
    /// held under.
    pub order: Option<Order>,
}

/// The newest claim on record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewestClaim {
    /// Its id.
    pub id: u128,
    /// Where it was first read since another was the newest.
    pub position: u64,
    /// The process that made it.
    pub instance: u128,
    /// Who that is, for people.
    pub node: String,
    /// True once a fence of it counted; no second one does.
    pub fenced: bool,
    /// The newest format that the claimant reads and writes.
    pub format: u8,
}

/// An epoch: from its fence to the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// The position of its fence: what everything that its owner sends elsewhere carries.
    pub position: u64,
    /// The process that owns it.
    pub instance: u128,
    /// Who that is, for people.
    pub node: String,
    /// The last record of it that counted; 0 before the first.
    pub seq: u64,
    /// Its owner is through: nothing of it counts any more.
    pub released: bool,
    /// The newest format that its owner reads and writes.
    pub format: u8,
}

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
}

/// What a newer version of Keylane put on record, and this one cannot carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0}")]
pub struct NotCarriedOut(pub &'static str);

/// Applies the record at `position`, which must follow the one applied before, and says whether it counts.
pub fn apply(state: &mut State, position: u64, record: &Record) -> Applied {
    apply_under(Rules::ALL, state, position, record)
}

/// [`apply`], with rules left out. For tests.
#[cfg(feature = "flaws")]
pub fn apply_with(rules: Rules, state: &mut State, position: u64, record: &Record) -> Applied {
    apply_under(rules, state, position, record)
}

pub(super) fn apply_under(rules: Rules, state: &mut State, position: u64, record: &Record) -> Applied {
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
        Record::Facts(facts) => apply_facts(rules, state, facts),
        Record::Snapshot(snapshot) => apply_snapshot(rules, state, snapshot),
        Record::Command(command) => apply_command(rules, state, command),
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
    if current.seq.checked_add(1) != Some(seq) {
        return Err(Ignored::OutOfSequence);
    }
    current.seq = seq;
    Ok(())
}

fn apply_facts(rules: Rules, state: &mut State, facts: &Facts) -> Applied {
    if let Err(why) = count(rules, state, facts.epoch, facts.seq) {
        return Applied::Ignored(why);
    }
    if let Some(what) = not_carried_out(facts) {
        return Applied::Stop(NotCarriedOut(what));
    }
    if let Some(position) = facts.start.or(facts.reset) {
        state.started = true;
        state.settled.reset(position);
        // Dead letters stay settled, also where everything else is to be run again.
        for position in state.dead.range(position..).map(|(position, _)| *position) {
            state.settled.settle(position..position.saturating_add(1));
        }
    }
    facts.done.iter().for_each(|range| state.settled.settle(range));
    for dead in &facts.dead {
        state.settled.settle(dead.position..dead.position.saturating_add(1));
        state.dead.insert(dead.position, *dead);
    }
    if let Some(low) = facts.low {
        // Nothing that the state names may be cut away, whatever the owner believed.
        let named = state.dead.values().flat_map(|dead| [Some(dead.body), dead.report]).flatten().min();
        state.low = state.low.max(named.map_or(low, |named| named.min(low)));
    }
    if let (true, Some(epoch)) = (facts.released, &mut state.epoch) {
        epoch.released = true;
    }
    Applied::Counted
}

fn not_carried_out(facts: &Facts) -> Option<&'static str> {
    let later = [
        (!facts.held.is_empty(), "a held message"),
        (!facts.moved.is_empty(), "a moved copy"),
        (facts.dead.iter().any(|dead| dead.effect != DeadEffect::Passed), "a dead letter that holds its key"),
        (!facts.again.is_empty(), "a replay of history"),
        (!facts.versions.is_empty() || !facts.forgotten.is_empty(), "versions of keys"),
        (facts.published.is_some(), "a published cursor"),
        (facts.control.is_some_and(|cursor| cursor > 0), "a control cursor"),
    ];
    later.into_iter().find(|(there, _)| *there).map(|(_, what)| what)
}

fn apply_snapshot(rules: Rules, state: &mut State, snapshot: &Snapshot) -> Applied {
    if let Err(why) = count(rules, state, snapshot.epoch, snapshot.seq) {
        return Applied::Ignored(why);
    }
    match snapshot.body {
        SnapshotBody::State(_) => Applied::Counted,
        SnapshotBody::Chunks(_) => Applied::Stop(NotCarriedOut("a snapshot in chunks")),
    }
}

fn apply_command(rules: Rules, state: &mut State, command: &Command) -> Applied {
    if let (CommandKind::Upgrade, Some(format)) = (command.kind, command.format) {
        return apply_upgrade(rules, state, format);
    }
    match (command.kind, &command.accept, command.partitions) {
        (CommandKind::Accept, Some(accept), _) if accept.follows(state) => {
            state.accepted.push(accept.clone());
            Applied::Counted
        }
        (CommandKind::Widen, _, Some(partitions)) if partitions > state.widened => {
            state.widened = partitions;
            Applied::Counted
        }
        (CommandKind::Open, _, Some(partitions)) if partitions > state.opened => {
            state.opened = partitions;
            Applied::Counted
        }
        (CommandKind::Accept | CommandKind::Widen | CommandKind::Open, ..) => {
            Applied::Ignored(Ignored::AcceptedBefore)
        }
        _ => Applied::Stop(NotCarriedOut("a command")),
    }
}

fn apply_upgrade(rules: Rules, state: &mut State, format: u8) -> Applied {
    if format <= state.format() {
        return Applied::Ignored(Ignored::UpgradedBefore);
    }
    // An owner that cannot read it would stop in the midst of its work, a claimant before it could begin. Behind this
    // record both are known to read it: a claim that comes later is written by someone who has yet to read this.
    if rules.upgrade_when_readable() && state.too_old_for(format).is_some() {
        return Applied::Ignored(Ignored::TooOld);
    }
    state.format = Some(format);
    Applied::Counted
}

/// Who does not read a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TooOld<'a> {
    /// The node.
    pub node: &'a str,
    /// The newest format that it reads.
    pub reads: u8,
    /// It owns the partition; otherwise it has claimed it, later than all others.
    pub owns: bool,
}

impl State {
    /// The format in use.
    pub fn format(&self) -> u8 {
        self.format.unwrap_or(FORMAT_FIRST)
    }

    /// The owner or the newest claimant, if it does not read `format`; then an upgrade to it does not count.
    pub fn too_old_for(&self, format: u8) -> Option<TooOld<'_>> {
        let epoch = self.epoch.as_ref().filter(|epoch| !epoch.released && epoch.format < format);
        let owner = epoch.map(|epoch| TooOld { node: &epoch.node, reads: epoch.format, owns: true });
        let newest = self.claim.as_ref().filter(|newest| newest.format < format);
        owner.or(newest.map(|newest| TooOld { node: &newest.node, reads: newest.format, owns: false }))
    }

    /// Appends the state as a snapshot has it.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut fields = Fields::new(out);
        if let Some(journal) = self.journal {
            fields.id(1, journal);
        }
        if let Some(claim) = &self.claim {
            fields.put(2, |out| {
                out.extend_from_slice(&claim.id.to_le_bytes());
                put_varint(out, claim.position);
                out.extend_from_slice(&claim.instance.to_le_bytes());
                out.push(u8::from(claim.fenced));
                out.extend_from_slice(claim.node.as_bytes());
            });
        }
        if let Some(epoch) = &self.epoch {
            fields.put(3, |out| {
                put_varint(out, epoch.position);
                out.extend_from_slice(&epoch.instance.to_le_bytes());
                put_varint(out, epoch.seq);
                out.push(u8::from(epoch.released));
                out.extend_from_slice(epoch.node.as_bytes());
            });
        }
        if let Some(source) = &self.source {
            fields.put(4, |out| {
                out.extend_from_slice(&source.incarnation.to_le_bytes());
                put_varint(out, u64::from(source.partitions));
            });
        }
        fields.mark_if(5, self.started);
        fields.number(6, self.settled.low());
        put_set(&mut fields, 7, self.settled.above());
        let dead: Vec<&DeadEntry> = self.dead.values().collect();
        fields.list(8, &dead, |out, dead| put_dead(out, dead));
        fields.number(9, self.low);
        fields.list(10, &self.accepted, put_accepted);
        fields.number_if(11, (self.widened > 0).then_some(u64::from(self.widened)));
        fields.number_if(12, (self.opened > 0).then_some(u64::from(self.opened)));
        fields.number_if(13, self.format.map(u64::from));
        fields.number_if(14, self.order.map(order_code));
        fields.number_if(15, self.claim.as_ref().and_then(|claim| numbered(claim.format)));
        fields.number_if(16, self.epoch.as_ref().and_then(|epoch| numbered(epoch.format)));
    }

    /// Reads what [`State::encode`] wrote.
    pub(super) fn decode(bytes: &[u8]) -> Result<State, Malformed> {
        let mut fields = FieldReader::new(bytes)?;
        let mut state = State {
            journal: fields.maybe(1)?.map(|value| whole(value, take_id)).transpose()?,
            claim: fields.maybe(2)?.map(take_claim).transpose()?,
            epoch: fields.maybe(3)?.map(take_epoch).transpose()?,
            source: fields.maybe(4)?.map(|value| whole(value, take_source)).transpose()?,
            started: fields.mark(5)?,
            settled: {
                let mut settled = Settled::below(fields.number(6)?);
                take_set(&mut fields, 7)?.iter().for_each(|range| settled.settle(range));
                settled
            },
            dead: fields.list(8, take_dead)?.into_iter().map(|dead| (dead.position, dead)).collect(),
            low: fields.number(9)?,
            accepted: fields.list(10, take_accepted)?,
            widened: fields.maybe(11)?.map(|value| whole(value, take_u32)).transpose()?.unwrap_or(0),
            opened: fields.maybe(12)?.map(|value| whole(value, take_u32)).transpose()?.unwrap_or(0),
            format: take_format(&mut fields, 13)?,
            order: take_order(&mut fields, 14)?,
        };
        let (claimant, owner) = (take_format(&mut fields, 15)?, take_format(&mut fields, 16)?);
        if let (Some(format), Some(claim)) = (claimant, &mut state.claim) {
            claim.format = format;
        }
        if let (Some(format), Some(epoch)) = (owner, &mut state.epoch) {
            epoch.format = format;
        }
        fields.finish()?;
        Ok(state)
    }
}

fn take_claim(mut bytes: &[u8]) -> Result<NewestClaim, Malformed> {
    Ok(NewestClaim {
        id: take_id(&mut bytes)?,
        position: take_varint(&mut bytes)?,
        instance: take_id(&mut bytes)?,
        fenced: take_flag(&mut bytes)?,
        node: text(bytes)?,
        format: FORMAT_FIRST,
    })
}

fn take_epoch(mut bytes: &[u8]) -> Result<Epoch, Malformed> {
    Ok(Epoch {
        position: take_varint(&mut bytes)?,
        instance: take_id(&mut bytes)?,
        seq: take_varint(&mut bytes)?,
        released: take_flag(&mut bytes)?,
        node: text(bytes)?,
        format: FORMAT_FIRST,
    })
}

fn take_source(bytes: &mut &[u8]) -> Result<Source, Malformed> {
    Ok(Source { incarnation: take_id(bytes)?, partitions: take_u32(bytes)? })
}
