//! How each record's fields become bytes: which field has which tag, and how its value is laid out.
//!
//! A tag that was given to a field keeps its meaning and layout for ever, because journals of older versions must stay
//! readable; a changed field gets a new tag. The golden test in `tests/journal.rs` reads bytes that older versions
//! wrote.

use bytes::Bytes;

use super::encoding::{
    FieldReader, Fields, Malformed, list, put_option, put_varint, take_byte, take_flag, take_id, take_option,
    take_u8, take_u32, take_varint, whole,
};
use super::growth::Acceptance;
use super::record::{
    COMMANDS, Claim, Command, DeadEffect, DeadEntry, FORMAT, FORMAT_FIRST, FORMAT_HOLD, Facts, Fence, Held,
    Moved, REASONS, Record, RecordError, Snapshot, SnapshotBody, Source,
};
use super::state::State;
use crate::lanes::Order;
use crate::ledger::{Ranges, put_ranges, read_ranges};

/// Tag of the claim's field for the newest format that its writer reads. A reader that does not know the tag skips it.
const CLAIM_FORMAT: u8 = 128;
/// Tag of a field that no version knows. Under test, a writer that plays a newer version puts this field into its
/// records.
#[cfg(feature = "flaws")]
const AHEAD: u8 = 200;

impl Record {
    /// The record's bytes in the newest format that this version writes.
    pub fn encode(&self) -> Bytes {
        self.encode_as(FORMAT)
    }

    /// The record's bytes for a journal whose format in use is `format`.
    pub fn encode_as(&self, format: u8) -> Bytes {
        let format = match self {
            Record::Facts(_) | Record::Snapshot(_) => format,
            _ => FORMAT_FIRST,
        };
        let mut out = vec![format, self.kind()];
        let mut fields = Fields::new(&mut out);
        match self {
            Record::Identity { journal } => fields.id(1, *journal),
            Record::Claim(claim) => {
                fields.id(1, claim.id);
                fields.id(2, claim.instance);
                fields.text(3, &claim.node);
                fields.number_if(CLAIM_FORMAT, numbered(claim.format));
            }
            Record::Fence(fence) => {
                fields.id(1, fence.claim);
                fields.number(2, fence.claim_position);
                fields.id(3, fence.journal);
                fields.id(4, fence.source.incarnation);
                fields.number(5, u64::from(fence.source.partitions));
                fields.number_if(6, fence.format.map(u64::from));
                fields.number_if(7, fence.order.map(order_code));
            }
            Record::Facts(facts) => facts.put(format, &mut fields),
            Record::Snapshot(snapshot) => snapshot.put(format, &mut fields),
            Record::Command(command) => command.put(&mut fields),
        }
        #[cfg(feature = "flaws")]
        if format > FORMAT || matches!(self, Record::Claim(claim) if claim.format > FORMAT) {
            fields.number(AHEAD, 1);
        }
        out.into()
    }

    /// Reads a record of any format that this version reads. Never panics, whatever the bytes are.
    pub fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
        Record::decode_up_to(FORMAT, bytes)
    }

    /// Reads a record of any format up to `newest`, which is [`FORMAT`] except in tests that play a newer node.
    pub fn decode_up_to(newest: u8, bytes: &[u8]) -> Result<Record, RecordError> {
        let mut rest = bytes;
        let format = take_byte(&mut rest)?;
        if !(FORMAT_FIRST..=newest).contains(&format) {
            return Err(RecordError::Version(format));
        }
        let kind = take_byte(&mut rest)?;
        let mut fields = FieldReader::new(rest)?;
        let record = match kind {
            1 => Record::Identity { journal: fields.id(1)? },
            2 => Record::Claim(Claim {
                id: fields.id(1)?,
                instance: fields.id(2)?,
                node: fields.text(3)?,
                format: take_format(&mut fields, CLAIM_FORMAT)?.unwrap_or(FORMAT_FIRST),
            }),
            3 => Record::Fence(Fence {
                claim: fields.id(1)?,
                claim_position: fields.number(2)?,
                journal: fields.id(3)?,
                source: Source {
                    incarnation: fields.id(4)?,
                    partitions: whole(fields.needed(5)?, take_u32)?,
                },
                format: take_format(&mut fields, 6)?,
                order: take_order(&mut fields, 7)?,
            }),
            4 => Record::Facts(Facts::read(&mut fields)?),
            5 => Record::Snapshot(Snapshot::read(&mut fields)?),
            6 => Record::Command(Command::read(&mut fields)?),
            kind => return Err(RecordError::Kind(kind)),
        };
        fields.finish()?;
        Ok(record)
    }

    fn kind(&self) -> u8 {
        match self {
            Record::Identity { .. } => 1,
            Record::Claim(_) => 2,
            Record::Fence(_) => 3,
            Record::Facts(_) => 4,
            Record::Snapshot(_) => 5,
            Record::Command(_) => 6,
        }
    }
}

impl Facts {
    fn put(&self, format: u8, fields: &mut Fields<'_>) {
        fields.number(1, self.epoch);
        fields.number(2, self.seq);
        fields.number_if(3, self.start);
        fields.number_if(4, self.reset);
        put_set(fields, 5, &self.done);
        fields.list(6, &self.held, put_held);
        fields.list(7, &self.moved, |out, moved| {
            [moved.position, moved.from, moved.to].into_iter().for_each(|number| put_varint(out, number));
        });
        if format < FORMAT_HOLD {
            fields.list(8, &self.dead, put_dead);
        }
        put_set(fields, 9, &self.again);
        fields.list(10, &self.versions, |out, (hash, version)| {
            out.extend_from_slice(&hash.to_le_bytes());
            put_varint(out, *version);
        });
        fields.list(11, &self.forgotten, |out, hash| out.extend_from_slice(&hash.to_le_bytes()));
        fields.number_if(12, self.published);
        fields.number_if(13, self.control);
        fields.number_if(14, self.low);
        fields.mark_if(15, self.released);
        if format >= FORMAT_HOLD {
            fields.list(16, &self.dead, |out, dead| {
                put_dead(out, dead);
                put_option(out, dead.expires_ms);
            });
        }
    }

    fn read(fields: &mut FieldReader<'_>) -> Result<Facts, Malformed> {
        let mut facts = Facts {
            epoch: fields.number(1)?,
            seq: fields.number(2)?,
            start: fields.number_if(3)?,
            reset: fields.number_if(4)?,
            done: take_set(fields, 5)?,
            held: fields.list(6, take_held)?,
            moved: fields.list(7, |bytes| {
                Ok(Moved {
                    position: take_varint(bytes)?,
                    from: take_varint(bytes)?,
                    to: take_varint(bytes)?,
                })
            })?,
            dead: fields.list(8, take_dead)?,
            again: take_set(fields, 9)?,
            versions: fields.list(10, |bytes| Ok((take_hash(bytes)?, take_varint(bytes)?)))?,
            forgotten: fields.list(11, take_hash)?,
            published: fields.number_if(12)?,
            control: fields.number_if(13)?,
            low: fields.number_if(14)?,
            released: fields.mark(15)?,
        };
        facts.dead.extend(fields.list(16, |bytes| {
            let dead = take_dead(bytes)?;
            Ok(DeadEntry { expires_ms: take_option(bytes)?, ..dead })
        })?);
        Ok(facts)
    }
}

impl Snapshot {
    fn put(&self, format: u8, fields: &mut Fields<'_>) {
        fields.number(1, self.epoch);
        fields.number(2, self.seq);
        fields.number(3, self.as_of);
        match &self.body {
            SnapshotBody::State(state) => fields.put(4, |out| state.encode(format, out)),
            SnapshotBody::Chunks(chunks) => {
                fields.put(5, |out| chunks.iter().for_each(|chunk| put_varint(out, *chunk)));
            }
        }
    }

    fn read(fields: &mut FieldReader<'_>) -> Result<Snapshot, Malformed> {
        let (epoch, seq, as_of) = (fields.number(1)?, fields.number(2)?, fields.number(3)?);
        let body = match fields.maybe(4)? {
            Some(state) => SnapshotBody::State(Box::new(State::decode(state)?)),
            None => SnapshotBody::Chunks(list(fields.needed(5)?, take_varint)?),
        };
        Ok(Snapshot { epoch, seq, as_of, body })
    }
}

impl Command {
    fn put(&self, fields: &mut Fields<'_>) {
        fields.id(1, self.id);
        let code = COMMANDS.iter().find(|row| row.0 == self.kind).map_or(0, |row| row.1);
        fields.number(2, u64::from(code));
        put_set(fields, 3, &self.positions);
        fields.number_if(4, self.as_of);
        fields.number_if(5, self.body);
        fields.text(6, &self.who);
        fields.number(7, self.when_ms);
        if let Some(accept) = &self.accept {
            fields.put(8, |out| put_accepted(out, accept));
        }
        fields.number_if(9, self.partitions.map(u64::from));
        fields.number_if(10, self.format.map(u64::from));
    }

    fn read(fields: &mut FieldReader<'_>) -> Result<Command, Malformed> {
        let id = fields.id(1)?;
        let code = fields.number(2)?;
        let kind = COMMANDS.iter().find(|row| u64::from(row.1) == code);
        Ok(Command {
            id,
            kind: kind.ok_or(Malformed("a command that this version does not know"))?.0,
            positions: take_set(fields, 3)?,
            as_of: fields.number_if(4)?,
            body: fields.number_if(5)?,
            who: fields.text(6)?,
            when_ms: fields.number(7)?,
            accept: fields.maybe(8)?.map(|bytes| whole(bytes, take_accepted)).transpose()?,
            partitions: fields.maybe(9)?.map(|bytes| whole(bytes, take_u32)).transpose()?,
            format: take_format(fields, 10)?,
        })
    }
}

/// The number that is put on record for a format; `None` for the first format, which is the default.
pub(super) fn numbered(format: u8) -> Option<u64> {
    (format != FORMAT_FIRST).then_some(u64::from(format))
}

pub(super) fn take_format(fields: &mut FieldReader<'_>, tag: u8) -> Result<Option<u8>, Malformed> {
    fields.maybe(tag)?.map(|bytes| whole(bytes, take_u8)).transpose()
}

/// Code 4 is reserved for the order `adaptive`.
pub(super) fn order_code(order: Order) -> u64 {
    match order {
        Order::Key => 1,
        Order::Partition => 2,
        Order::None => 3,
    }
}

pub(super) fn take_order(fields: &mut FieldReader<'_>, tag: u8) -> Result<Option<Order>, Malformed> {
    Ok(match fields.number_if(tag)? {
        None => None,
        Some(1) => Some(Order::Key),
        Some(2) => Some(Order::Partition),
        Some(3) => Some(Order::None),
        Some(_) => return Err(Malformed("an order that this version does not know")),
    })
}

pub(super) fn put_accepted(out: &mut Vec<u8>, accepted: &Acceptance) {
    out.extend_from_slice(&accepted.incarnation.to_le_bytes());
    put_varint(out, u64::from(accepted.from));
    put_varint(out, accepted.ends.len() as u64);
    accepted.ends.iter().for_each(|end| put_varint(out, *end));
}

pub(super) fn take_accepted(bytes: &mut &[u8]) -> Result<Acceptance, Malformed> {
    let (incarnation, from, count) = (take_id(bytes)?, take_u32(bytes)?, take_u32(bytes)?);
    let ends = (0..count).map(|_| take_varint(bytes)).collect::<Result<_, _>>()?;
    Ok(Acceptance { incarnation, from, ends })
}

pub(super) fn put_set(fields: &mut Fields<'_>, tag: u8, set: &Ranges) {
    if !set.is_empty() {
        fields.put(tag, |out| put_ranges(out, set));
    }
}

pub(super) fn take_set(fields: &mut FieldReader<'_>, tag: u8) -> Result<Ranges, Malformed> {
    fields.maybe(tag)?.map_or(Ok(Ranges::new()), read_ranges)
}

fn take_hash(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let (hash, rest) = bytes.split_first_chunk::<8>().ok_or(Malformed("a hash that is cut off"))?;
    *bytes = rest;
    Ok(u64::from_le_bytes(*hash))
}

fn put_key_hash(out: &mut Vec<u8>, hash: Option<u64>) {
    out.push(u8::from(hash.is_some()));
    hash.iter().for_each(|hash| out.extend_from_slice(&hash.to_le_bytes()));
}

fn take_key_hash(bytes: &mut &[u8]) -> Result<Option<u64>, Malformed> {
    Ok(if take_flag(bytes)? { Some(take_hash(bytes)?) } else { None })
}

fn put_held(out: &mut Vec<u8>, held: &Held) {
    put_varint(out, held.position);
    put_key_hash(out, held.key_hash);
    put_varint(out, held.body);
    put_option(out, held.due_ms);
    out.extend_from_slice(&[u8::from(held.passes), u8::from(held.judged), held.priority]);
    put_varint(out, u64::from(held.tries));
}

fn take_held(bytes: &mut &[u8]) -> Result<Held, Malformed> {
    Ok(Held {
        position: take_varint(bytes)?,
        key_hash: take_key_hash(bytes)?,
        body: take_varint(bytes)?,
        due_ms: take_option(bytes)?,
        passes: take_flag(bytes)?,
        judged: take_flag(bytes)?,
        priority: take_byte(bytes)?,
        tries: take_u32(bytes)?,
    })
}

pub(super) fn put_dead(out: &mut Vec<u8>, dead: &DeadEntry) {
    put_varint(out, dead.position);
    put_key_hash(out, dead.key_hash);
    out.push(dead.effect.code());
    out.push(dead.reason.code());
    put_varint(out, dead.body);
    put_option(out, dead.report);
    put_varint(out, u64::from(dead.tries));
    put_option(out, dead.due_ms);
    out.push(dead.priority);
    put_option(out, dead.command);
}

pub(super) fn take_dead(bytes: &mut &[u8]) -> Result<DeadEntry, Malformed> {
    Ok(DeadEntry {
        position: take_varint(bytes)?,
        key_hash: take_key_hash(bytes)?,
        effect: DeadEffect::of_code(take_byte(bytes)?)?,
        reason: {
            let code = take_byte(bytes)?;
            let row = REASONS.iter().find(|row| row.1 == code);
            row.ok_or(Malformed("a reason of a dead letter that this version does not know"))?.0
        },
        body: take_varint(bytes)?,
        report: take_option(bytes)?,
        tries: take_u32(bytes)?,
        due_ms: take_option(bytes)?,
        expires_ms: None,
        priority: take_byte(bytes)?,
        command: take_option(bytes)?,
    })
}
