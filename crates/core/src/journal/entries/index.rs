//! The index that finds the entries of a key, by key hash and class.

use super::entry::{Class, Entry, put_near, take_near};
use super::packed::Item;
use crate::journal::encoding::{Malformed, put_varint, take_byte, take_varint};

/// One row of the index: a key has an entry of this class at this position. Rows of a key are sorted by class, those
/// that stop a walk first, and within a class by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfKey {
    pub(super) key_hash: Option<u64>,
    pub(super) class: Class,
    pub(super) position: u64,
}

impl OfKey {
    pub(super) fn new(entry: &Entry) -> OfKey {
        OfKey { key_hash: entry.key_hash, class: entry.class(), position: entry.position }
    }
}

impl Item for OfKey {
    type Key = (Option<u64>, Class, u64);
    type Sum = ();
    const ORIGIN: OfKey = OfKey { key_hash: None, class: Class::Stops, position: 0 };

    fn key(&self) -> Self::Key {
        (self.key_hash, self.class, self.position)
    }

    fn put(&self, base: &OfKey, out: &mut Vec<u8>) {
        out.push(self.class as u8 | if self.key_hash.is_some() { 4 } else { 0 });
        self.key_hash.iter().for_each(|hash| put_varint(out, hash.wrapping_sub(base.key_hash.unwrap_or(0))));
        put_near(out, self.position, base.position);
    }

    fn take(base: &OfKey, bytes: &mut &[u8]) -> Result<OfKey, Malformed> {
        let head = take_byte(bytes)?;
        let class = match head & 3 {
            0 => Class::Stops,
            1 => Class::Runs,
            _ => Class::Rests,
        };
        let key_hash = match head & 4 != 0 {
            true => Some(base.key_hash.unwrap_or(0).wrapping_add(take_varint(bytes)?)),
            false => None,
        };
        Ok(OfKey { key_hash, class, position: take_near(bytes, base.position)? })
    }

    fn add_to(&self, (): &mut ()) {}

    fn take_from(&self, (): &mut ()) -> bool {
        true
    }
}
