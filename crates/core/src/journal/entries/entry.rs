//! One message that is held or dead, and its bytes.

use super::packed::Item;
use crate::journal::encoding::{Malformed, put_varint, take_byte, take_varint};
use crate::journal::record::{DeadEffect, DeadReason, REASONS};
use crate::lanes::Place;

/// A message that is held or dead: what the state knows of it. Its body lies in `hold.p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Its source position.
    pub position: u64,
    /// Its lane's key hash; `None` if nothing orders it.
    pub key_hash: Option<u64>,
    /// What became of it.
    pub fate: Fate,
    /// Where its body lies in `hold.p`.
    pub body: u64,
    /// Where the report of its last failure lies there.
    pub report: Option<u64>,
    /// Attempts so far.
    pub tries: u32,
    /// When it may run, or is tried again by itself, ms since 1970.
    pub due_ms: Option<u64>,
    /// When its dead letter expires, ms since 1970.
    pub expires_ms: Option<u64>,
    /// Its priority.
    pub priority: u8,
    /// The journal position of the last record that changed it, a move of its body apart. While a retry is asked, that
    /// is the newest command.
    pub changed: u64,
}

/// What became of a message that is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It waits in `hold.p`, not having failed for good.
    Held {
        /// Its successors need not wait for it.
        passes: bool,
        /// The guards have decided about it already.
        judged: bool,
    },
    /// It is a dead letter.
    Dead {
        /// What it does to its key.
        effect: DeadEffect,
        /// Why it died.
        reason: DeadReason,
        /// A retry was asked for, and no attempt has answered it.
        asked: bool,
    },
}

/// What an entry means to whoever looks for the head of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// The walk up the key's positions stops there: it runs, or all behind it waits.
    Stops,
    /// It is passed, and is to run: asked for, or nothing orders it and it need not wait.
    Runs,
    /// It is passed, and nothing is to be done, or not before it is due.
    Rests,
}

impl Entry {
    /// It is a dead letter.
    pub fn is_dead(&self) -> bool {
        matches!(self.fate, Fate::Dead { .. })
    }

    /// A retry was asked for, and no attempt has answered it.
    pub fn is_asked(&self) -> bool {
        matches!(self.fate, Fate::Dead { asked: true, .. })
    }

    /// Why it died; `None` while it is only held.
    pub fn reason(&self) -> Option<DeadReason> {
        match self.fate {
            Fate::Dead { reason, .. } => Some(reason),
            Fate::Held { .. } => None,
        }
    }

    /// The newest command that an attempt has seen which begins now: what its dead letter must name to answer it.
    pub fn command(&self) -> Option<u64> {
        self.is_asked().then_some(self.changed)
    }

    /// True if nothing of its key waits for it.
    pub fn is_passed(&self) -> bool {
        self.key_hash.is_none()
            || matches!(
                self.fate,
                Fate::Held { passes: true, .. } | Fate::Dead { effect: DeadEffect::Passed, .. }
            )
    }

    /// It is held, or dead and its key waits for it: a topic's new number of partitions waits for it too (BRK-10).
    pub fn is_open(&self) -> bool {
        !self.is_dead() || !self.is_passed()
    }

    /// What it is to whoever walks up the positions of its key.
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

    /// When it becomes one that is to run, while nobody of its key waits for it.
    pub(super) fn rests_until_ms(&self) -> Option<u64> {
        self.due_ms.filter(|_| self.class() == Class::Rests)
    }

    /// When it is to be expired. What is asked for is not, nor what waits for a person (DLQ-3).
    pub(super) fn ends_at_ms(&self) -> Option<u64> {
        let ends = match self.fate {
            Fate::Dead { effect, asked, .. } => !asked && effect != DeadEffect::Halting,
            Fate::Held { .. } => false,
        };
        self.expires_ms.filter(|_| ends)
    }

    /// The lowest position of `hold.p` that it names.
    pub(super) fn named(&self) -> u64 {
        self.report.map_or(self.body, |report| report.min(self.body))
    }
}

/// What a block knows of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) named: u64,
    pub(super) due_ms: u64,
    pub(super) ends_ms: u64,
    /// Entries that are held, or dead and holding.
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
/// The priority that takes no byte.
const PRIORITY_USUAL: u8 = 5;

fn flag(on: bool, bit: u8) -> u8 {
    if on { bit } else { 0 }
}

/// Appends how far `value` lies from `base`, in either direction.
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
