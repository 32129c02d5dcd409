//! The hash table that finds a key's lane: open addressing over words of a tag and a lane number.
//!
//! A word is the upper half of the lane's hash (the tag, which also decides where the word belongs) and the lane's
//! number. So a miss, growing and removing touch no lane. Tags may be equal for different hashes: the caller's `same`
//! compares whole hashes.

/// Small enough for 1,024 shards to have one table each, large enough that a quiet shard's table never grows.
const WORDS_MIN: usize = 64;

/// The hash table; see the head of this file.
pub(super) struct Table {
    /// Tag in the upper half, number + 1 in the lower half; 0 is empty. The length is a power of two.
    words: Vec<u64>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Table {
        Table { words: vec![0; WORDS_MIN], len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory that the table takes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// The lane number under `hash` for which `same` is true.
    #[inline]
    pub(super) fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.words.len() - 1;
        let mut at = tag(hash) & mask;
        loop {
            let word = self.words[at];
            if word == 0 {
                return None;
            }
            if word >> 32 == hash >> 32 && same(number(word)) {
                return Some(number(word));
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, hash: u64, number: u32) {
        if (self.len + 1) * 4 > self.words.len() * 3 {
            self.resize(self.words.len() * 2);
        }
        self.put((hash >> 32) << 32 | u64::from(number + 1));
        self.len += 1;
    }

    /// Removes `number`, which must stand under `hash`.
    pub(super) fn remove(&mut self, hash: u64, number: u32) {
        let mask = self.words.len() - 1;
        let gone = (hash >> 32) << 32 | u64::from(number + 1);
        let mut hole = tag(hash) & mask;
        while self.words[hole] != gone {
            assert_ne!(self.words[hole], 0, "a lane that is taken out is in the table");
            hole = (hole + 1) & mask;
        }
        // Later words of the chain move up into the hole. A tombstone in their place would make every later search
        // longer.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let word = self.words[at];
            if word == 0 {
                break;
            }
            let home = tag(word) & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.words[hole] = word;
                hole = at;
            }
        }
        self.words[hole] = 0;
        self.len -= 1;
    }

    /// Shrinks the table if it is mostly empty (PRF-5).
    pub(super) fn shrink(&mut self) {
        if self.words.len() > WORDS_MIN && self.len * 8 < self.words.len() {
            self.resize((self.len * 2).next_power_of_two().max(WORDS_MIN));
        }
    }

    #[inline]
    fn put(&mut self, word: u64) {
        let mask = self.words.len() - 1;
        let mut at = tag(word) & mask;
        while self.words[at] != 0 {
            at = (at + 1) & mask;
        }
        self.words[at] = word;
    }

    #[cold]
    fn resize(&mut self, length: usize) {
        let old = std::mem::replace(&mut self.words, vec![0; length]);
        old.into_iter().filter(|word| *word != 0).for_each(|word| self.put(word));
    }
}

#[inline]
fn tag(hash: u64) -> usize {
    (hash >> 32) as usize
}

#[inline]
fn number(word: u64) -> u32 {
    (word as u32) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// With few tags, so that chains are long, wrap around and are cut in the middle.
        #[test]
        fn it_is_a_map_from_hash_to_number(
            steps in proptest::collection::vec((0u64..4, 0u64..40, 0u64..3), 0..600),
        ) {
            let (mut table, mut naive) = (Table::new(), HashMap::new());
            let mut hashes = Vec::new();
            for (what, near, low) in steps {
                let hash = ((near + 40) << 32) + low;
                let found = table.find(hash, |number| hashes[number as usize] == hash);
                prop_assert_eq!(found, naive.get(&hash).copied());
                match (what, found) {
                    (0, Some(number)) => {
                        table.remove(hash, number);
                        naive.remove(&hash);
                        table.shrink();
                    }
                    (1.., None) => {
                        let number = hashes.len() as u32;
                        hashes.push(hash);
                        table.insert(hash, number);
                        naive.insert(hash, number);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), naive.len());
            }
        }
    }

    /// PRF-5.
    #[test]
    fn an_emptied_table_gives_its_memory_back() {
        let mut table = Table::new();
        let spread = |number: u32| u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..100_000).for_each(|number| table.insert(spread(number), number));
        for number in 0..100_000 {
            table.remove(spread(number), number);
            table.shrink();
        }
        assert_eq!(table.words.len(), WORDS_MIN);
    }
}
