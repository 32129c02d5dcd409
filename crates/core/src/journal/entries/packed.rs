//! A sorted collection of items in few bytes: what a partition's entries and their index are stored in.
//!
//! Items lie in ascending blocks of a few dozen. Each item is written as its difference from the block's base, not from
//! its neighbour, so an item can be put in or taken out without rewriting the others. Clones share a block's bytes
//! until one of them changes the block: a clone costs as much as there are blocks, and can be read while the original
//! goes on. Each block keeps a sum of its items, which finds what is due or lowest without decoding the other blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::journal::encoding::{Malformed, put_varint, take_varint};

/// The most items in one block. More items cost fewer bytes each, but finding one takes longer.
const ITEMS_MAX: usize = 64;
/// Two neighbouring blocks that have at most this many items together are joined.
const JOINED_MAX: usize = 40;

/// What [`Packed`] can store.
pub(super) trait Item: Copy + Eq {
    /// What the items are sorted by.
    type Key: Copy + Ord;
    /// What a block keeps to be searched without decoding it.
    type Sum: Copy + Eq + Default;
    /// The base that a block's own base is written relative to.
    const ORIGIN: Self;

    fn key(&self) -> Self::Key;
    /// Appends the item to `out`; its key must not be below that of `base`.
    fn put(&self, base: &Self, out: &mut Vec<u8>);
    fn take(base: &Self, bytes: &mut &[u8]) -> Result<Self, Malformed>;
    fn add_to(&self, sum: &mut Self::Sum);
    /// Takes the item out of a sum; false if the sum must be computed anew from the items that are left.
    fn take_from(&self, sum: &mut Self::Sum) -> bool;
}

/// Some items in a row. The bytes are the base, then each item relative to the base. No block is empty.
#[derive(Clone)]
struct Block<T: Item> {
    count: u16,
    sum: T::Sum,
    bytes: Arc<Vec<u8>>,
}

/// The collection; see the head of this file.
#[derive(Clone)]
pub(super) struct Packed<T: Item> {
    /// Each block under a key that is not above any of its items, and above all items of the blocks before it.
    blocks: BTreeMap<T::Key, Block<T>>,
    len: usize,
    bytes: usize,
    /// No item has a key above this one; `None` if nothing was ever put in.
    end: Option<T::Key>,
}

impl<T: Item> Default for Packed<T> {
    fn default() -> Packed<T> {
        Packed { blocks: BTreeMap::new(), len: 0, bytes: 0, end: None }
    }
}

/// Decodes the items of one block, in order.
struct Items<'a, T> {
    bytes: &'a [u8],
    base: T,
}

impl<T: Item> Iterator for Items<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        (!self.bytes.is_empty()).then(|| read(&self.base, &mut self.bytes))
    }
}

fn read<T: Item>(base: &T, bytes: &mut &[u8]) -> T {
    T::take(base, bytes).expect("a block was written here, or read through once")
}

/// Where in a block's bytes an item is, or would be put in.
struct Place<T> {
    base: T,
    start: usize,
    end: usize,
    found: Option<T>,
}

impl<T: Item> Block<T> {
    fn of(items: &[T]) -> Block<T> {
        let mut block = Block { count: 0, sum: T::Sum::default(), bytes: Arc::default() };
        let mut bytes = Vec::with_capacity((items.len() + 1) * 32);
        items[0].put(&T::ORIGIN, &mut bytes);
        for item in items {
            item.put(&items[0], &mut bytes);
            item.add_to(&mut block.sum);
            block.count += 1;
        }
        bytes.shrink_to_fit();
        block.bytes = Arc::new(bytes);
        block
    }

    fn items(&self) -> Items<'_, T> {
        let mut bytes = &self.bytes[..];
        let base = read(&T::ORIGIN, &mut bytes);
        Items { bytes, base }
    }

    fn place(&self, key: T::Key) -> Place<T> {
        let mut items = self.items();
        loop {
            let start = self.bytes.len() - items.bytes.len();
            match items.next() {
                Some(item) if item.key() < key => {}
                item => {
                    let found = item.filter(|item| item.key() == key);
                    let end = if found.is_some() { self.bytes.len() - items.bytes.len() } else { start };
                    return Place { base: items.base, start, end, found };
                }
            }
        }
    }

    /// Replaces the item at `place`, if one was found there, by `item`, if one is given.
    fn splice(&mut self, place: &Place<T>, item: Option<&T>) {
        let mut new = Vec::new();
        if let Some(item) = item {
            item.put(&place.base, &mut new);
            self.count += 1;
        }
        let bytes = Arc::make_mut(&mut self.bytes);
        bytes.reserve_exact(new.len().saturating_sub(place.end - place.start));
        bytes.splice(place.start..place.end, new);
        if bytes.capacity() > bytes.len() * 5 / 4 + 32 {
            bytes.shrink_to_fit();
        }
        if let Some(before) = &place.found {
            self.count -= 1;
            if !before.take_from(&mut self.sum) {
                let mut sum = T::Sum::default();
                self.items().for_each(|item| item.add_to(&mut sum));
                self.sum = sum;
                return;
            }
        }
        if let Some(item) = item {
            item.add_to(&mut self.sum);
        }
    }
}

impl<T: Item> Packed<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that the collection takes, with what the allocator and the tree add as far as it is known.
    pub(super) fn memory_bytes(&self) -> usize {
        const SHARED: usize = size_of::<usize>() * 2 + size_of::<Vec<u8>>() + 16;
        let data: usize = self.blocks.values().map(|block| block.bytes.capacity() + SHARED).sum();
        data + self.blocks.len() * (size_of::<Block<T>>() + size_of::<T::Key>()) * 3 / 2
    }

    /// Bytes of the encoded form that [`Packed::put_blocks`] writes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.blocks.len() * 3
    }

    pub(super) fn get(&self, key: T::Key) -> Option<T> {
        let (_, block) = self.blocks.range(..=key).next_back()?;
        block.place(key).found
    }

    /// All items from `key` on, ascending.
    pub(super) fn from(&self, key: T::Key) -> impl Iterator<Item = T> + '_ {
        let before = self.blocks.range(..=key).next_back().map_or(key, |(first, _)| *first);
        let items = self.blocks.range(before..).flat_map(|(_, block)| block.items());
        items.skip_while(move |item: &T| item.key() < key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.blocks.values().flat_map(Block::items)
    }

    /// The items of the blocks whose sums `wanted` accepts, ascending.
    pub(super) fn within(&self, wanted: impl Fn(&T::Sum) -> bool) -> impl Iterator<Item = T> {
        self.blocks.values().filter(move |block| wanted(&block.sum)).flat_map(Block::items)
    }

    pub(super) fn sums(&self) -> impl Iterator<Item = &T::Sum> {
        self.blocks.values().map(|block| &block.sum)
    }

    /// Puts an item in; returns the one that had the same key.
    pub(super) fn insert(&mut self, item: T) -> Option<T> {
        let key = item.key();
        if self.end.is_none_or(|end| key > end) {
            self.push(item);
            return None;
        }
        let Some((first, block)) = self.blocks.range_mut(..=key).next_back() else {
            return self.insert_first(item);
        };
        let place = block.place(key);
        let before = block.bytes.len();
        if place.found.is_none() {
            self.len += 1;
        }
        if place.found.is_none() && usize::from(block.count) == ITEMS_MAX {
            let first = *first;
            self.split(first, item);
            return None;
        }
        block.splice(&place, Some(&item));
        self.bytes = self.bytes + block.bytes.len() - before;
        place.found
    }

    /// Adds an item behind all others, where most entries come in.
    fn push(&mut self, item: T) {
        self.end = Some(item.key());
        self.len += 1;
        match self.blocks.last_entry().filter(|last| usize::from(last.get().count) < ITEMS_MAX) {
            Some(mut last) => {
                let block = last.get_mut();
                let end = block.bytes.len();
                let place = Place { base: block.items().base, start: end, end, found: None };
                block.splice(&place, Some(&item));
                self.bytes += block.bytes.len() - end;
            }
            // The last block is full. It is not split: the items come in ascending order, so both halves would stay
            // half full.
            None => self.put_in(&[item]),
        }
    }

    /// Adds an item before all others.
    fn insert_first(&mut self, item: T) -> Option<T> {
        self.len += 1;
        let first = self.blocks.first_key_value().map(|(first, _)| *first);
        let joined = first.filter(|first| usize::from(self.blocks[first].count) < ITEMS_MAX);
        let mut items = vec![item];
        if let Some(block) = joined.and_then(|first| self.take_out(first)) {
            items.extend(block.items());
        }
        self.put_in(&items);
        None
    }

    fn split(&mut self, first: T::Key, item: T) {
        let block = self.take_out(first).expect("found by the caller");
        let mut items: Vec<T> = block.items().collect();
        let at = items.partition_point(|other| other.key() < item.key());
        items.insert(at, item);
        let (left, right) = items.split_at(items.len() / 2);
        self.put_in(left);
        self.put_in(right);
    }

    fn take_out(&mut self, first: T::Key) -> Option<Block<T>> {
        let block = self.blocks.remove(&first)?;
        self.bytes -= block.bytes.len();
        Some(block)
    }

    fn put_in(&mut self, items: &[T]) {
        let block = Block::of(items);
        self.bytes += block.bytes.len();
        self.blocks.insert(items[0].key(), block);
    }

    /// Takes the item with `key` out, and returns it.
    pub(super) fn remove(&mut self, key: T::Key) -> Option<T> {
        let (first, block) = self.blocks.range_mut(..=key).next_back()?;
        let first = *first;
        let place = block.place(key);
        let removed = place.found?;
        self.len -= 1;
        if block.count == 1 {
            self.take_out(first);
            return Some(removed);
        }
        let before = block.bytes.len();
        block.splice(&place, None);
        self.bytes = self.bytes + block.bytes.len() - before;
        if usize::from(block.count) <= JOINED_MAX / 2 {
            self.join(first);
        }
        Some(removed)
    }

    /// Joins a block with a neighbour if both are small: in a small block the base costs as much as several items.
    fn join(&mut self, first: T::Key) {
        let behind = self.blocks.range((std::ops::Bound::Excluded(first), std::ops::Bound::Unbounded)).next();
        let before = || self.blocks.range(..first).next_back();
        let Some((left, right)) = (match behind {
            Some((behind, _)) => Some((first, *behind)),
            None => before().map(|(before, _)| (*before, first)),
        }) else {
            return;
        };
        if usize::from(self.blocks[&left].count + self.blocks[&right].count) > JOINED_MAX {
            return;
        }
        let (left, right) = (self.take_out(left), self.take_out(right));
        let items: Vec<T> = left.iter().chain(&right).flat_map(Block::items).collect();
        self.put_in(&items);
    }

    /// Appends whole blocks, beginning with the block `from`: as many as fit into `bytes_max`, but at least one.
    /// Returns the first block that did not fit.
    pub(super) fn put_blocks(
        &self,
        from: Option<T::Key>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<T::Key> {
        let start = out.len();
        let blocks = match from {
            Some(from) => self.blocks.range(from..),
            None => self.blocks.range(..),
        };
        for (first, block) in blocks {
            if out.len() > start && out.len() - start + block.bytes.len() + 8 > bytes_max {
                return Some(*first);
            }
            put_varint(out, block.bytes.len() as u64);
            out.extend_from_slice(&block.bytes);
        }
        None
    }

    /// Reads what [`Packed::put_blocks`] wrote and puts the blocks behind those that are there; calls `seen` with each
    /// item.
    pub(super) fn take_blocks(
        &mut self,
        mut bytes: &[u8],
        mut seen: impl FnMut(&T),
    ) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            let length = take_varint(&mut bytes)?;
            if length == 0 || length > bytes.len() as u64 {
                return Err(Malformed("a block that is cut off"));
            }
            let (block, rest) = bytes.split_at(length as usize);
            bytes = rest;
            self.take_block(block, &mut seen)?;
        }
        Ok(())
    }

    fn take_block(&mut self, mut bytes: &[u8], seen: &mut impl FnMut(&T)) -> Result<(), Malformed> {
        let whole = bytes;
        let base = T::take(&T::ORIGIN, &mut bytes)?;
        if self.end.is_some_and(|end| base.key() <= end) {
            return Err(Malformed("blocks that do not ascend"));
        }
        let mut last = None;
        let mut block = Block { count: 0, sum: T::Sum::default(), bytes: Arc::default() };
        while !bytes.is_empty() {
            let item = T::take(&base, &mut bytes)?;
            let ascends = last.map_or(item.key() >= base.key(), |last| item.key() > last);
            if !ascends || usize::from(block.count) == ITEMS_MAX {
                return Err(Malformed("a block whose items do not ascend, or are too many"));
            }
            last = Some(item.key());
            item.add_to(&mut block.sum);
            block.count += 1;
            seen(&item);
        }
        if block.count == 0 {
            return Err(Malformed("an empty block"));
        }
        block.bytes = Arc::new(whole.to_vec());
        (self.len, self.bytes) = (self.len + usize::from(block.count), self.bytes + whole.len());
        self.end = last;
        self.blocks.insert(base.key(), block);
        Ok(())
    }

    /// A collection of `items`, which must ascend.
    pub(super) fn of_sorted(items: &[T]) -> Packed<T> {
        let end = items.last().map(Item::key);
        let mut packed = Packed { len: items.len(), end, ..Packed::default() };
        items.chunks(ITEMS_MAX * 3 / 4).for_each(|items| packed.put_in(items));
        packed
    }
}
