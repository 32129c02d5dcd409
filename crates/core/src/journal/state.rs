//! [`State`]: everything that a partition's journal says up to some position, and its bytes in a snapshot.

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

/// How many command ids the state remembers, the newest: more would make every snapshot larger.
pub const COMMANDS_MAX: usize = 4_096;

/// The state that a reader gets by applying a journal's records in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The journal's id, once its first identity record was read.
    pub journal: Option<u128>,
    /// The newest claim.
    pub claim: Option<NewestClaim>,
    /// The current epoch, or the last one if it was released.
    pub epoch: Option<Epoch>,
    /// The source topic as the last counting fence found it.
    pub source: Option<Source>,
    /// True once it is on record at which position the group starts.
    pub started: bool,
    /// Which source positions are settled: done, held or dead.
    pub settled: Settled,
    /// The messages that are held or dead.
    pub entries: Entries,
    /// Positions that an operator asked to skip: each is buried when its turn comes. They are held or not settled.
    pub skip: Ranges,
    /// `hold.p` may be cut below this position: nothing below is named.
    pub low: u64,
    /// Where the chunks of the newest snapshot lie in `hold.p`.
    pub chunks: Vec<u64>,
    /// The ids of the newest commands, oldest first: a command with one of these ids is a repeat, and ignored.
    pub commands: VecDeque<u128>,
    /// The numbers of partitions that operators accepted; decided in the journal of partition 0.
    pub accepted: Vec<Acceptance>,
    /// Every message from before the acceptance of this many partitions is settled; decided in the journal of partition
    /// 0.
    pub opened: u32,
    /// The topic has at least this many partitions: a process that goes by fewer must not own this one.
    pub widened: u32,
    /// The format in use; `None` until a fence names one.
    pub format: Option<u8>,
    /// The order that the last counting fence names, under which all that is held was held; `None` if that fence names
    /// none.
    pub order: Option<Order>,
}

/// The newest claim on record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewestClaim {
    /// The claim's id.
    pub id: u128,
    /// Where the claim became the newest; a repeat of it while it is the newest does not change this.
    pub position: u64,
    /// The random id of the process that made the claim.
    pub instance: u128,
    /// The name of that process's node, for people.
    pub node: String,
    /// True once a fence of this claim counted; no second fence of it will.
    pub fenced: bool,
    /// The newest format that the claimant reads and writes.
    pub format: u8,
}

/// An epoch: the time of one owner, from its counting fence to the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// The position of the fence. Everything that the owner sends elsewhere carries it.
    pub position: u64,
    /// The random id of the process that owns the partition.
    pub instance: u128,
    /// The name of that process's node, for people.
    pub node: String,
    /// The `seq` of the epoch's last record that counted; 0 before the first.
    pub seq: u64,
    /// The owner is through: no further record of this epoch counts.
    pub released: bool,
    /// The newest format that the owner can read and write.
    pub format: u8,
}

/// A node that cannot read a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TooOld<'a> {
    /// The node's name.
    pub node: &'a str,
    /// The newest format that the node reads.
    pub reads: u8,
    /// True if the node owns the partition; false if it made the newest claim.
    pub owns: bool,
}

impl State {
    /// The format in use; the first format until a fence names one.
    pub fn format(&self) -> u8 {
        self.format.unwrap_or(FORMAT_FIRST)
    }

    /// The owner or the newest claimant, if one of them cannot read `format`; an upgrade to `format` then does not
    /// count.
    pub fn too_old_for(&self, format: u8) -> Option<TooOld<'_>> {
        let epoch = self.epoch.as_ref().filter(|epoch| !epoch.released && epoch.format < format);
        let owner = epoch.map(|epoch| TooOld { node: &epoch.node, reads: epoch.format, owns: true });
        let newest = self.claim.as_ref().filter(|newest| newest.format < format);
        owner.or(newest.map(|newest| TooOld { node: &newest.node, reads: newest.format, owns: false }))
    }

    /// True if the format in use can express held messages, dead letters that hold, and commands on them. Every process
    /// that owned or had claimed the partition when the format was raised can then read such records.
    pub fn can_hold(&self) -> bool {
        self.format() >= FORMAT_HOLD
    }

    /// The lowest position that is not settled, or that is held, or dead and holding. A topic's added partitions wait
    /// for all of these (BRK-10).
    pub fn open_low(&self) -> u64 {
        self.entries.lowest_open().map_or(self.settled.low(), |open| open.min(self.settled.low()))
    }

    /// The lowest position of `hold.p` that the state names, the chunks of the newest snapshot included.
    pub fn lowest_named(&self) -> Option<u64> {
        self.entries.lowest_named().into_iter().chain(self.chunks.iter().copied()).min()
    }

    /// Appends the whole state, as a snapshot in one record carries it.
    pub(super) fn encode(&self, format: u8, out: &mut Vec<u8>) {
        self.encode_with(format, true, out);
    }

    /// Appends the state without its entries, as the first chunk of a snapshot carries it.
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

    /// Reads what `encode` or `encode_head` wrote.
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

/// The entry that a record's dead letter becomes in the state.
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

/// The reverse of `entry_of`, for snapshots of the formats in which nothing is held and no retry is asked for.
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
