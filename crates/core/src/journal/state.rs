//! What a partition's journal says, and its bytes in a snapshot.

use std::collections::VecDeque;

use super::bytes::{
    numbered, order_code, put_accepted, put_dead, put_set, take_accepted, take_dead, take_format, take_order,
    take_set,
};
use super::encoding::{
    FieldReader, Fields, Malformed, list, put_varint, take_flag, take_id, take_u32, take_varint, text, whole,
};
use super::entries::{Entries, Entry, Fate, Reading};
use super::growth::Acceptance;
use super::record::{DeadEntry, FORMAT_FIRST, FORMAT_HOLD, Source};
use crate::lanes::Order;
use crate::ledger::{Ranges, Settled};

/// So many ids of commands are remembered: the newest (a snapshot must stay small).
pub const COMMANDS_MAX: usize = 4_096;

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
    /// Which source positions are settled: done, held or dead.
    pub settled: Settled,
    /// What is held or dead.
    pub entries: Entries,
    /// Positions that are to be buried at their turn, as an operator asked: held, or not settled.
    pub skip: Ranges,
    /// `hold.p` may be cut below this position.
    pub low: u64,
    /// Where the chunks of the newest snapshot lie in `hold.p`.
    pub chunks: Vec<u64>,
    /// The ids of the newest commands, oldest first: a repeat of one is ignored.
    pub commands: VecDeque<u128>,
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

    /// True if what is held, dead and holding, or asked of dead letters can be put on record: all that owned or claimed
    /// the partition when the format was raised read that.
    pub fn can_hold(&self) -> bool {
        self.format() >= FORMAT_HOLD
    }

    /// The lowest position that is not settled, or that is held, or dead and holding. A topic's new number of partitions
    /// waits for these too (BRK-10).
    pub fn open_low(&self) -> u64 {
        self.entries.lowest_open().map_or(self.settled.low(), |open| open.min(self.settled.low()))
    }

    /// The lowest position of `hold.p` that is named, chunks of the newest snapshot included.
    pub fn lowest_named(&self) -> Option<u64> {
        self.entries.lowest_named().into_iter().chain(self.chunks.iter().copied()).min()
    }

    /// Appends the state as a snapshot has it in which it stands whole.
    pub(super) fn encode(&self, format: u8, out: &mut Vec<u8>) {
        self.encode_with(format, true, out);
    }

    /// The same, but for what is held or dead: that stands in chunks of its own.
    pub(super) fn encode_head(&self, format: u8, out: &mut Vec<u8>) {
        self.encode_with(format, false, out);
    }

    fn encode_with(&self, format: u8, entries: bool, out: &mut Vec<u8>) {
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
        if format < FORMAT_HOLD {
            let dead: Vec<DeadEntry> = self.entries.iter().filter_map(dead_of).collect();
            fields.list(8, &dead, put_dead);
        }
        fields.number(9, self.low);
        fields.list(10, &self.accepted, put_accepted);
        fields.number_if(11, (self.widened > 0).then_some(u64::from(self.widened)));
        fields.number_if(12, (self.opened > 0).then_some(u64::from(self.opened)));
        fields.number_if(13, self.format.map(u64::from));
        fields.number_if(14, self.order.map(order_code));
        fields.number_if(15, self.claim.as_ref().and_then(|claim| numbered(claim.format)));
        fields.number_if(16, self.epoch.as_ref().and_then(|epoch| numbered(epoch.format)));
        if format < FORMAT_HOLD {
            return;
        }
        if entries && !self.entries.is_empty() {
            fields.put(17, |out| {
                self.entries.put_blocks(None, usize::MAX, out);
            });
        }
        fields.list(18, &Vec::from_iter(&self.commands), |out, id| out.extend_from_slice(&id.to_le_bytes()));
        put_set(&mut fields, 19, &self.skip);
        fields.list(20, &self.chunks, |out, chunk| put_varint(out, *chunk));
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
            entries: fields
                .list(8, take_dead)?
                .iter()
                .map(|dead| entry_of(dead, dead.command.unwrap_or(0)))
                .collect(),
            low: fields.number(9)?,
            accepted: fields.list(10, take_accepted)?,
            widened: fields.maybe(11)?.map(|value| whole(value, take_u32)).transpose()?.unwrap_or(0),
            opened: fields.maybe(12)?.map(|value| whole(value, take_u32)).transpose()?.unwrap_or(0),
            format: take_format(&mut fields, 13)?,
            order: take_order(&mut fields, 14)?,
            ..State::default()
        };
        let (claimant, owner) = (take_format(&mut fields, 15)?, take_format(&mut fields, 16)?);
        if let (Some(format), Some(claim)) = (claimant, &mut state.claim) {
            claim.format = format;
        }
        if let (Some(format), Some(epoch)) = (owner, &mut state.epoch) {
            epoch.format = format;
        }
        if let Some(blocks) = fields.maybe(17)? {
            let mut reading = Reading::default();
            reading.blocks(blocks)?;
            state.entries = reading.done();
        }
        state.commands = list(fields.maybe(18)?.unwrap_or_default(), take_id)?.into();
        state.skip = take_set(&mut fields, 19)?;
        state.chunks = list(fields.maybe(20)?.unwrap_or_default(), take_varint)?;
        fields.finish()?;
        Ok(state)
    }
}

/// What a record says of a dead letter, as the state has it.
pub(super) fn entry_of(dead: &DeadEntry, changed: u64) -> Entry {
    Entry {
        position: dead.position,
        key_hash: dead.key_hash,
        fate: Fate::Dead { effect: dead.effect, reason: dead.reason, asked: false },
        body: dead.body,
        report: dead.report,
        tries: dead.tries,
        due_ms: dead.due_ms,
        expires_ms: dead.expires_ms,
        priority: dead.priority,
        changed,
    }
}

/// The same the other way round, for snapshots of formats in which nothing is held or asked for.
fn dead_of(entry: Entry) -> Option<DeadEntry> {
    let Fate::Dead { effect, reason, .. } = entry.fate else {
        return None;
    };
    Some(DeadEntry {
        position: entry.position,
        key_hash: entry.key_hash,
        effect,
        reason,
        body: entry.body,
        report: entry.report,
        tries: entry.tries,
        due_ms: entry.due_ms,
        expires_ms: None,
        priority: entry.priority,
        command: (entry.changed > 0).then_some(entry.changed),
    })
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
