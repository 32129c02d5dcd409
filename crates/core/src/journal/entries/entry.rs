//! One message that is held or dead ([`Entry`]), and how it is packed into bytes.

use super::packed::Item;
use crate::journal::encoding::{Malformed, put_varint, take_byte, take_varint};
use crate::journal::record::{DeadEffect, DeadReason, REASONS};
use crate::lanes::Place;

/// What the state knows of one message that is held or dead. The message's body lies in `hold.p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The message's source position.
    pub position: u64,
    /// The key hash of the message's lane; `None` if nothing orders the message.
    pub key_hash: Option<u64>,
    /// Whether the message is held or dead, and how.
    pub fate: Fate,
    /// The position of the message's body in `hold.p`.
    pub body: u64,
    /// The position in `hold.p` of the report of the message's last failure.
    pub report: Option<u64>,
    /// Attempts so far.
    pub tries: u32,
    /// When the message may run, or is tried again by itself, ms since 1970.
    pub due_ms: Option<u64>,
    /// When the dead letter expires, ms since 1970.
    pub expires_ms: Option<u64>,
    /// The message's priority.
    pub priority: u8,
    /// The journal position of the last record that changed the entry, moves of its body apart. While a retry is asked
    /// for, this is the position of the newest command.
    pub changed: u64,
}

/// Whether a message that is not done is held or dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The message waits in `hold.p` and has not failed for good.
    Held {
        /// Successors of the same key need not wait for the message.
        passes: bool,
        /// The guards have already decided about the message.
        judged: bool,
    },
    /// The message is a dead letter.
    Dead {
        /// What the dead letter does to its key.
        effect: DeadEffect,
        /// Why the message died.
        reason: DeadReason,
        /// A retry was asked for, and no attempt has answered it yet.
        asked: bool,
    },
}

/// What an entry means to the search for its key's head. Entries of a key are indexed by class, so that each kind is
/// found without reading the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// The walk up the key's positions stops at the entry: the entry runs, or all behind it waits.
    Stops,
    /// The walk passes the entry, and the entry is to run now: a retry was asked for, or it is held and waits for no
    /// time.
    Runs,
    /// The walk passes the entry, and the entry is not to run, or not before it is due.
    Rests,
}

impl Entry {
    /// True if the message is a dead letter.
    pub fn is_dead(&self) -> bool {
        matches!(self.fate, Fate::Dead { .. })
    }

    /// True if a retry was asked for and no attempt has answered it yet.
    pub fn is_asked(&self) -> bool {
        matches!(self.fate, Fate::Dead { asked: true, .. })
    }

    /// Why the message died; `None` while it is only held.
    pub fn reason(&self) -> Option<DeadReason> {
        match self.fate {
            Fate::Dead { reason, .. } => Some(reason),
            Fate::Held { .. } => None,
        }
    }

    /// The newest command on this entry, which an attempt that begins now has seen. The attempt's dead letter must name
    /// this position to answer a retry.
    pub fn command(&self) -> Option<u64> {
        self.is_asked().then_some(self.changed)
    }

    /// True if no successor of its key waits for the entry.
    pub fn is_passed(&self) -> bool {
        self.key_hash.is_none()
            || matches!(
                self.fate,
                Fate::Held { passes: true, .. } | Fate::Dead { effect: DeadEffect::Passed, .. }
            )
    }

    /// True if the message is held, or dead and holding its key: before a topic's new partitions are read, these must
    /// be settled too (BRK-10).
    pub fn is_open(&self) -> bool {
        !self.is_dead() || !self.is_passed()
    }

    /// What the entry is to the walk up its key's positions.
    pub fn place(&self) -> Place {
        let at_ms = self.due_ms.unwrap_or(0);
        match self.fate {
            Fate::Held { .. } if self.is_passed() => Place::Aside { at_ms },
            Fate::Held { .. } => Place::Turn { at_ms },
            Fate::Dead { asked: true, .. } if self.is_passed() => Place::Aside { at_ms: 0 },
            Fate::Dead { .. } if self.is_passed() => match self.due_ms {
                Some(at_ms) => Place::Aside { at_ms },
                None => Place::Past,
            },
            Fate::Dead { asked: true, .. } => Place::Turn { at_ms: 0 },
            Fate::Dead { effect: DeadEffect::Holding, .. } if self.due_ms.is_some() => Place::Turn { at_ms },
            Fate::Dead { .. } => Place::Stopped,
        }
    }

    pub(super) fn class(&self) -> Class {
        let runs = match self.fate {
            Fate::Held { .. } => self.due_ms.is_none(),
            Fate::Dead { asked, .. } => asked,
        };
        match self.is_passed() {
            false => Class::Stops,
            true if runs => Class::Runs,
            true => Class::Rests,
        }
    }

    /// When an entry that the walk passes becomes one that is to run; `None` if no time makes it run.
    pub(super) fn rests_until_ms(&self) -> Option<u64> {
        self.due_ms.filter(|_| self.class() == Class::Rests)
    }

    /// When the dead letter is to expire. `None` while a retry of it is asked for, and if it waits for a person
    /// (DLQ-3).
    pub(super) fn ends_at_ms(&self) -> Option<u64> {
        let ends = match self.fate {
            Fate::Dead { effect, asked, .. } => !asked && effect != DeadEffect::Halting,
            Fate::Held { .. } => false,
        };
        self.expires_ms.filter(|_| ends)
    }

    /// The lowest position of `hold.p` that the entry names, by its body or its report.
    pub(super) fn named(&self) -> u64 {
        self.report.map_or(self.body, |report| report.min(self.body))
    }
}

/// What is known of a block of entries without reading them: the lowest position named in `hold.p` and the earliest
/// times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) named: u64,
    pub(super) due_ms: u64,
    pub(super) ends_ms: u64,
    /// How many entries are held, or dead and holding.
    pub(super) open: u16,
}

impl Default for Sum {
    fn default() -> Sum {
        Sum { named: u64::MAX, due_ms: u64::MAX, ends_ms: u64::MAX, open: 0 }
    }
}

const DEAD: u8 = 1;
const EFFECT_SHIFT: u8 = 1;
const ASKED: u8 = 1 << 3;
const PASSES: u8 = 1 << 4;
const JUDGED: u8 = 1 << 5;
const HASH: u8 = 1 << 6;
const DUE: u8 = 1 << 7;

const REPORT: u8 = 1;
const EXPIRES: u8 = 1 << 1;
const PRIORITY: u8 = 1 << 2;
const REASON_SHIFT: u8 = 3;
/// The default priority, which takes no byte.
const PRIORITY_USUAL: u8 = 5;

fn flag(on: bool, bit: u8) -> u8 {
    if on { bit } else { 0 }
}

/// Appends `value` as its distance from `base`, which may be negative.
pub(super) fn put_near(out: &mut Vec<u8>, value: u64, base: u64) {
    let distance = value.wrapping_sub(base) as i64;
    put_varint(out, (distance << 1 ^ distance >> 63) as u64);
}

pub(super) fn take_near(bytes: &mut &[u8], base: u64) -> Result<u64, Malformed> {
    let folded = take_varint(bytes)?;
    Ok(base.wrapping_add(folded >> 1 ^ (folded & 1).wrapping_neg()))
}

impl Fate {
    fn bits(self) -> (u8, u8) {
        match self {
            Fate::Held { passes, judged } => (flag(passes, PASSES) | flag(judged, JUDGED), 0),
            Fate::Dead { effect, reason, asked } => {
                (DEAD | effect.code() << EFFECT_SHIFT | flag(asked, ASKED), reason.code() << REASON_SHIFT)
            }
        }
    }

    fn of_bits(first: u8, second: u8) -> Result<Fate, Malformed> {
        if first & DEAD == 0 {
            return Ok(Fate::Held { passes: first & PASSES != 0, judged: first & JUDGED != 0 });
        }
        let reason = REASONS.iter().find(|row| row.1 == second >> REASON_SHIFT);
        Ok(Fate::Dead {
            effect: DeadEffect::of_code(first >> EFFECT_SHIFT & 3)?,
            reason: reason.ok_or(Malformed("a reason of a dead letter that this version does not know"))?.0,
            asked: first & ASKED != 0,
        })
    }
}

impl Item for Entry {
    type Key = u64;
    type Sum = Sum;
    const ORIGIN: Entry = Entry {
        position: 0,
        key_hash: None,
        fate: Fate::Held { passes: false, judged: false },
        body: 0,
        report: None,
        tries: 0,
        due_ms: None,
        expires_ms: None,
        priority: PRIORITY_USUAL,
        changed: 0,
    };

    fn key(&self) -> u64 {
        self.position
    }

    fn put(&self, base: &Entry, out: &mut Vec<u8>) {
        let (first, second) = self.fate.bits();
        out.push(first | flag(self.key_hash.is_some(), HASH) | flag(self.due_ms.is_some(), DUE));
        let unusual = self.priority != PRIORITY_USUAL;
        let given = flag(self.report.is_some(), REPORT) | flag(self.expires_ms.is_some(), EXPIRES);
        out.push(second | given | flag(unusual, PRIORITY));
        put_varint(out, self.position - base.position);
        self.key_hash.iter().for_each(|hash| out.extend_from_slice(&hash.to_le_bytes()));
        put_near(out, self.body, base.body);
        self.report.iter().for_each(|report| put_near(out, *report, self.body));
        put_varint(out, u64::from(self.tries));
        self.due_ms.iter().for_each(|due| put_near(out, *due, base.due_ms.unwrap_or(0)));
        self.expires_ms.iter().for_each(|expires| put_near(out, *expires, base.expires_ms.unwrap_or(0)));
        if unusual {
            out.push(self.priority);
        }
        put_near(out, self.changed, base.changed);
    }

    fn take(base: &Entry, bytes: &mut &[u8]) -> Result<Entry, Malformed> {
        let (first, second) = (take_byte(bytes)?, take_byte(bytes)?);
        let position = base.position.checked_add(take_varint(bytes)?);
        let position = position.ok_or(Malformed("a position over 64 bits"))?;
        let key_hash = match first & HASH != 0 {
            true => {
                let (hash, rest) =
                    bytes.split_first_chunk::<8>().ok_or(Malformed("a hash that is cut off"))?;
                *bytes = rest;
                Some(u64::from_le_bytes(*hash))
            }
            false => None,
        };
        let body = take_near(bytes, base.body)?;
        let near = |there: bool, bytes: &mut &[u8], base: u64| match there {
            true => take_near(bytes, base).map(Some),
            false => Ok(None),
        };
        let report = near(second & REPORT != 0, bytes, body)?;
        let tries = u32::try_from(take_varint(bytes)?).map_err(|_| Malformed("a number over 32 bits"))?;
        let due_ms = near(first & DUE != 0, bytes, base.due_ms.unwrap_or(0))?;
        let expires_ms = near(second & EXPIRES != 0, bytes, base.expires_ms.unwrap_or(0))?;
        let priority = if second & PRIORITY != 0 { take_byte(bytes)? } else { PRIORITY_USUAL };
        let changed = take_near(bytes, base.changed)?;
        let fate = Fate::of_bits(first, second)?;
        Ok(Entry { position, key_hash, fate, body, report, tries, due_ms, expires_ms, priority, changed })
    }

    fn add_to(&self, sum: &mut Sum) {
        sum.named = sum.named.min(self.named());
        sum.due_ms = sum.due_ms.min(self.rests_until_ms().unwrap_or(u64::MAX));
        sum.ends_ms = sum.ends_ms.min(self.ends_at_ms().unwrap_or(u64::MAX));
        sum.open += u16::from(self.is_open());
    }

    fn take_from(&self, sum: &mut Sum) -> bool {
        sum.open -= u16::from(self.is_open());
        self.named() != sum.named
            && self.rests_until_ms() != Some(sum.due_ms)
            && self.ends_at_ms() != Some(sum.ends_ms)
    }
}
