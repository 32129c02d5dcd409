//! A store of values, each under a fixed number; lanes and queued deliveries are linked by these numbers.
//!
//! A value keeps its `u32` number until it is removed. Values lie in chunks of 512, and a chunk without values is
//! freed, so memory follows what is live; a plain `Vec` with a free list would only grow (PRF-5). One empty chunk is
//! kept, so that inserting and removing at a chunk's edge allocates nothing.

use std::mem;

/// No number: marks the end of a list.
pub(super) const NONE: u32 = u32::MAX;

const CHUNK_BITS: u32 = 9;
/// Large enough that the table of chunks stays in the first cache levels at a million values, and small enough that a
/// few values cost little memory.
const CHUNK: usize = 1 << CHUNK_BITS;

enum Slot<T> {
    Vacant(u32),
    Live(T),
}

struct Tally {
    live: u32,
    /// The chunk's first vacant slot; `NONE` if the chunk is full.
    free: u32,
}

/// The store; see the head of this file.
pub(super) struct Slab<T> {
    chunks: Vec<Option<Box<[Slot<T>; CHUNK]>>>,
    tallies: Vec<Tally>,
    /// Numbers of the chunks that are allocated and have a vacant slot.
    roomy: Vec<u32>,
    /// Numbers of the chunks that were freed.
    missing: Vec<u32>,
    empty: u32,
    len: usize,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            tallies: Vec::new(),
            roomy: Vec::new(),
            missing: Vec::new(),
            empty: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let chunk = self.chunks.get((index >> CHUNK_BITS) as usize)?.as_ref()?;
        match &chunk[index as usize % CHUNK] {
            Slot::Live(value) => Some(value),
            Slot::Vacant(_) => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut((index >> CHUNK_BITS) as usize)?.as_mut()?;
        match &mut chunk[index as usize % CHUNK] {
            Slot::Live(value) => Some(value),
            Slot::Vacant(_) => None,
        }
    }

    /// The number that the next `insert` will use.
    #[inline]
    pub(super) fn next_index(&mut self) -> u32 {
        let number = match self.roomy.last() {
            Some(number) => *number,
            None => self.open(),
        };
        number << CHUNK_BITS | self.tallies[number as usize].free
    }

    #[inline]
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let index = self.next_index();
        let number = (index >> CHUNK_BITS) as usize;
        let tally = &mut self.tallies[number];
        let chunk = self.chunks[number].as_mut().expect("a roomy chunk is there");
        let Slot::Vacant(next) = mem::replace(&mut chunk[index as usize % CHUNK], Slot::Live(value)) else {
            unreachable!("the free list names vacant slots only");
        };
        tally.free = next;
        self.empty -= u32::from(tally.live == 0);
        tally.live += 1;
        if next == NONE {
            self.roomy.pop();
        }
        self.len += 1;
        index
    }

    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> T {
        let number = index >> CHUNK_BITS;
        let at = index as usize % CHUNK;
        let tally = &mut self.tallies[number as usize];
        let chunk = self.chunks[number as usize].as_mut().expect("a value's chunk is there");
        let Slot::Live(value) = mem::replace(&mut chunk[at], Slot::Vacant(tally.free)) else {
            unreachable!("a number is given back once");
        };
        if tally.free == NONE {
            self.roomy.push(number);
        }
        tally.free = at as u32;
        tally.live -= 1;
        self.len -= 1;
        if tally.live == 0 {
            self.empty += 1;
            if self.empty > 1 {
                self.close(number);
            }
        }
        value
    }

    /// Bytes of memory that the store takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let chunks = self.chunks.iter().flatten().count();
        let lists = (self.roomy.capacity() + self.missing.capacity()) * size_of::<u32>();
        chunks * size_of::<[Slot<T>; CHUNK]>()
            + self.chunks.capacity() * (size_of::<usize>() + size_of::<Tally>())
            + lists
    }

    /// All values with their numbers, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let chunks = (0u32..).zip(&self.chunks);
        chunks.filter_map(|(number, chunk)| Some((number, chunk.as_ref()?))).flat_map(|(number, chunk)| {
            (0u32..).zip(chunk.iter()).filter_map(move |(at, slot)| match slot {
                Slot::Live(value) => Some((number << CHUNK_BITS | at, value)),
                Slot::Vacant(_) => None,
            })
        })
    }

    #[cold]
    fn open(&mut self) -> u32 {
        let slots: Vec<Slot<T>> = (1..=CHUNK as u32)
            .map(|next| Slot::Vacant(if next as usize == CHUNK { NONE } else { next }))
            .collect();
        let Ok(chunk) = slots.into_boxed_slice().try_into() else {
            unreachable!("made with this length");
        };
        let tally = Tally { live: 0, free: 0 };
        let number = match self.missing.pop() {
            Some(number) => {
                self.chunks[number as usize] = Some(chunk);
                self.tallies[number as usize] = tally;
                number
            }
            None => {
                self.chunks.push(Some(chunk));
                self.tallies.push(tally);
                self.chunks.len() as u32 - 1
            }
        };
        self.empty += 1;
        self.roomy.push(number);
        number
    }

    #[cold]
    fn close(&mut self, number: u32) {
        self.chunks[number as usize] = None;
        self.roomy.retain(|roomy| *roomy != number);
        self.missing.push(number);
        self.empty -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn values_keep_their_numbers_until_they_are_taken_out(
            steps in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..4000),
        ) {
            let (mut slab, mut naive) = (Slab::new(), HashMap::new());
            for (value, (insert, which)) in steps.into_iter().enumerate() {
                if insert || naive.is_empty() {
                    prop_assert_eq!(naive.insert(slab.insert(value), value), None);
                } else {
                    let index = *naive.keys().nth(which.index(naive.len())).expect("within");
                    prop_assert_eq!(Some(slab.remove(index)), naive.remove(&index));
                    prop_assert_eq!(slab.get(index), None);
                }
                prop_assert_eq!(slab.len(), naive.len());
            }
            let all: HashMap<u32, usize> = slab.iter().map(|(index, value)| (index, *value)).collect();
            prop_assert_eq!(all, naive);
        }
    }

    /// PRF-5: a slot takes no byte more than the lane in it.
    #[test]
    fn a_slot_is_as_large_as_its_value() {
        assert_eq!(size_of::<Slot<super::super::lane::Lane>>(), size_of::<super::super::lane::Lane>());
    }

    /// PRF-5.
    #[test]
    fn chunks_without_values_are_given_back() {
        let mut slab = Slab::new();
        let all: Vec<u32> = (0..10 * CHUNK).map(|value| slab.insert(value)).collect();
        assert_eq!(slab.chunks.iter().flatten().count(), 10);
        for index in all {
            slab.remove(index);
        }
        assert_eq!(slab.chunks.iter().flatten().count(), 1);
        let again: Vec<u32> = (0..2 * CHUNK).map(|value| slab.insert(value)).collect();
        assert_eq!(slab.chunks.len(), 10, "numbers of chunks are used again");
        assert!(again.iter().all(|index| slab.get(*index).is_some()));
    }
}
