//! All held messages and dead letters of a partition, in few bytes (PRF-18).
//!
//! Entries come in by position. Out comes what an owner asks: the entry at a position, a key's entries in ascending
//! order, those that are due or expired, and the lowest position of `hold.p` that an entry names. A million entries
//! take some 45 bytes each, indexes included. A clone shares its memory with the original until either changes, so a
//! snapshot is written from a clone while the original goes on.

mod entry;
mod index;
mod packed;

use std::hash::{Hash, Hasher};
use std::ops::Range;

use super::encoding::Malformed;
use entry::Class;
pub use entry::{Entry, Fate};
use index::OfKey;
use packed::Packed;

/// Entries by source position, with an index by key. Equal if both have the same entries.
#[derive(Clone, Default)]
pub struct Entries {
    all: Packed<Entry>,
    by_key: Packed<OfKey>,
    tally: Tally,
}

/// How many entries there are of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Held messages.
    pub held: usize,
    /// Dead letters.
    pub dead: usize,
    /// Dead letters that successors of their key wait for.
    pub holding: usize,
    /// Dead letters for which a retry is asked.
    pub asked: usize,
    /// Reports of failures that entries name.
    pub reports: usize,
}

impl Tally {
    fn add(&mut self, entry: &Entry) {
        self.change(entry, |count, by| *count += by);
    }

    fn sub(&mut self, entry: &Entry) {
        self.change(entry, |count, by| *count -= by);
    }

    fn change(&mut self, entry: &Entry, mut by: impl FnMut(&mut usize, usize)) {
        let dead = entry.is_dead();
        by(&mut self.held, usize::from(!dead));
        by(&mut self.dead, usize::from(dead));
        by(&mut self.holding, usize::from(dead && !entry.is_passed()));
        by(&mut self.asked, usize::from(entry.is_asked()));
        by(&mut self.reports, usize::from(entry.report.is_some()));
    }
}

impl Entries {
    /// The entry at a source position.
    pub fn get(&self, position: u64) -> Option<Entry> {
        self.all.get(position)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// True if no message is held or dead.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many entries there are of each kind.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// All entries, by position.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.all.iter()
    }

    /// The entries in a range of positions, by position.
    pub fn range(&self, range: Range<u64>) -> impl Iterator<Item = Entry> + '_ {
        self.all.from(range.start).take_while(move |entry| entry.position < range.end)
    }

    /// All entries of a key, by position. Reads them all before it returns: meant for operators' queries.
    pub fn of_key(&self, key_hash: Option<u64>) -> Vec<Entry> {
        let classes = [Class::Stops, Class::Runs, Class::Rests];
        let mut entries: Vec<Entry> =
            classes.into_iter().flat_map(|class| self.in_class(key_hash, class)).collect();
        entries.sort_unstable_by_key(|entry| entry.position);
        entries
    }

    /// The entries of a key at which a walk up its positions stops or waits, by position: messages held in their turn,
    /// and dead letters that hold the key.
    pub fn stopping(&self, key_hash: Option<u64>) -> impl Iterator<Item = Entry> + '_ {
        self.in_class(key_hash, Class::Stops)
    }

    /// The entries of a key that no successor waits for and that are to run now, by position. Entries that wait for a
    /// time are not among them.
    pub fn to_run(&self, key_hash: Option<u64>) -> impl Iterator<Item = Entry> + '_ {
        self.in_class(key_hash, Class::Runs)
    }

    fn in_class(&self, key_hash: Option<u64>, class: Class) -> impl Iterator<Item = Entry> + '_ {
        let found = self.by_key.from((key_hash, class, 0));
        found
            .take_while(move |item| item.key_hash == key_hash && item.class == class)
            .map(|item| self.all.get(item.position).expect("the index names what there is"))
    }

    /// The keys with entries that stop a walk or are to run. Reads the whole index, so it is meant for a take-over.
    pub fn keys(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        let mut last = None;
        self.by_key.iter().filter(|item| item.class != Class::Rests).filter_map(move |item| {
            let new = last != Some(item.key_hash);
            last = Some(item.key_hash);
            new.then_some(item.key_hash)
        })
    }

    /// The lowest position of `hold.p` that an entry names.
    pub fn lowest_named(&self) -> Option<u64> {
        self.all.sums().map(|sum| sum.named).min()
    }

    /// The entry that names the lowest position of `hold.p`.
    pub fn lowest_named_entry(&self) -> Option<Entry> {
        let lowest = self.lowest_named()?;
        self.all.within(move |sum| sum.named == lowest).find(|entry| entry.named() == lowest)
    }

    /// The lowest source position that is held, or dead and holding.
    pub fn lowest_open(&self) -> Option<u64> {
        let open = self.all.within(|sum| sum.open > 0).find(Entry::is_open);
        open.map(|entry| entry.position)
    }

    /// The earliest time at which an entry that no successor waits for is due.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.all.sums().map(|sum| sum.due_ms).min().filter(|due_ms| *due_ms != u64::MAX)
    }

    /// The entries that no successor waits for and that are due at `now_ms`, by position.
    pub fn due(&self, now_ms: u64) -> impl Iterator<Item = Entry> + '_ {
        let due = self.all.within(move |sum| sum.due_ms <= now_ms);
        due.filter(move |entry| entry.rests_until_ms().is_some_and(|due_ms| due_ms <= now_ms))
    }

    /// The earliest time at which a dead letter expires.
    pub fn next_end_ms(&self) -> Option<u64> {
        self.all.sums().map(|sum| sum.ends_ms).min().filter(|ends_ms| *ends_ms != u64::MAX)
    }

    /// The dead letters that have expired at `now_ms`, by position.
    pub fn ended(&self, now_ms: u64) -> impl Iterator<Item = Entry> + '_ {
        let ended = self.all.within(move |sum| sum.ends_ms <= now_ms);
        ended.filter(move |entry| entry.ends_at_ms().is_some_and(|ends_ms| ends_ms <= now_ms))
    }

    /// Bytes of memory that the entries take, index included.
    pub fn memory_bytes(&self) -> usize {
        self.all.memory_bytes() + self.by_key.memory_bytes()
    }

    /// Bytes that the entries take in a snapshot.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.all.bytes()
    }

    /// Puts an entry in; returns the entry that it replaces, if there was one at that position.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<Entry> {
        let before = self.all.insert(entry);
        self.tally.add(&entry);
        let item = OfKey::new(&entry);
        match before {
            Some(before) => {
                self.tally.sub(&before);
                let old = OfKey::new(&before);
                if old != item {
                    self.by_key.remove(packed::Item::key(&old));
                    self.by_key.insert(item);
                }
            }
            None => {
                self.by_key.insert(item);
            }
        }
        before
    }

    /// Takes the entry at a position out, and returns it.
    pub(super) fn remove(&mut self, position: u64) -> Option<Entry> {
        let removed = self.all.remove(position)?;
        self.tally.sub(&removed);
        self.by_key.remove(packed::Item::key(&OfKey::new(&removed)));
        Some(removed)
    }

    /// Appends blocks of entries, beginning at block `from`: about `bytes_max` bytes, but at least one block. Returns
    /// where the next block begins, or `None` after the last.
    pub(crate) fn put_blocks(&self, from: Option<u64>, bytes_max: usize, out: &mut Vec<u8>) -> Option<u64> {
        self.all.put_blocks(from, bytes_max, out)
    }
}

/// Entries that are being read from a snapshot, piece by piece. The index is built once all pieces are read: sorting
/// once is cheaper than inserting each.
#[derive(Default)]
pub(super) struct Reading {
    entries: Entries,
    of_keys: Vec<OfKey>,
}

impl Reading {
    pub(super) fn blocks(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let (tally, of_keys) = (&mut self.entries.tally, &mut self.of_keys);
        self.entries.all.take_blocks(bytes, |entry| {
            tally.add(entry);
            of_keys.push(OfKey::new(entry));
        })
    }

    pub(super) fn done(mut self) -> Entries {
        self.of_keys.sort_unstable_by_key(packed::Item::key);
        self.entries.by_key = Packed::of_sorted(&self.of_keys);
        self.entries
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Entries) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Entries {}

impl Hash for Entries {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl std::fmt::Debug for Entries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<T: IntoIterator<Item = Entry>>(entries: T) -> Entries {
        let mut all = Entries::default();
        entries.into_iter().for_each(|entry| {
            all.insert(entry);
        });
        all
    }
}
