//! Where calls come in: bounds what waits for a log, in the order in which calls were first polled.
//!
//! A call that finds room is *admitted*: what it wants written is laid out in the group that gathers, and its room is
//! given back when that group was written, whether or not anybody still waits for the answer. A call that finds none,
//! or others before it, waits *outside* and is admitted in its turn, by whoever gives room back. Invariants:
//!
//! - Places are taken under the queue's lock at the first poll, so that no later call gets before an earlier one (P2).
//! - A caller that goes away before it was admitted takes its bytes with it. One that goes away later leaves them, and
//!   they stay counted until they were written: callers that give up cannot make a slow disk take all memory (P5).

use std::collections::VecDeque;

/// A group that gathers.
pub(crate) trait Gather: Default {
    /// What comes in.
    type Call;
    /// Takes a call in behind those that are there.
    fn admit(&mut self, call: Self::Call);
}

/// The group that gathers, and who waits outside.
#[derive(Debug)]
pub(crate) struct Entrance<G: Gather> {
    group: G,
    group_kib: usize,
    /// The first call in the group.
    group_from: Option<u64>,
    kib_max: usize,
    /// Of all that was admitted and not yet written.
    held_kib: usize,
    outside: VecDeque<Outside<G::Call>>,
    last_id: u64,
}

#[derive(Debug)]
struct Outside<C> {
    id: u64,
    kib: usize,
    call: C,
}

/// What a caller holds while it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    id: u64,
    kib: usize,
}

impl<G: Gather> Entrance<G> {
    /// Nobody waits; at most `kib_max` KiB are ever admitted and not written.
    pub fn new(kib_max: usize) -> Entrance<G> {
        Entrance {
            group: G::default(),
            group_kib: 0,
            group_from: None,
            kib_max,
            held_kib: 0,
            outside: VecDeque::new(),
            last_id: 0,
        }
    }

    /// Takes the place of a call with so many bytes, behind all that came before. `overtake` is a flaw, put back.
    pub fn enter(&mut self, bytes: usize, call: G::Call, overtake: bool) -> Ticket {
        // One that is larger than the bound is admitted alone.
        let kib = (bytes / 1024 + 1).min(self.kib_max);
        self.last_id += 1;
        let ticket = Ticket { id: self.last_id, kib };
        if (self.outside.is_empty() || overtake) && self.held_kib + kib <= self.kib_max {
            self.admit(ticket.id, kib, call);
        } else {
            self.outside.push_back(Outside { id: ticket.id, kib, call });
        }
        ticket
    }

    /// The caller has gone away without an answer. True if others were admitted in its place. `forget` is a flaw.
    pub fn leave(&mut self, ticket: Ticket, forget: bool) -> bool {
        match self.outside.binary_search_by_key(&ticket.id, |outside| outside.id) {
            Ok(at) => {
                self.outside.remove(at);
            }
            Err(_) if forget => self.held_kib = self.held_kib.saturating_sub(ticket.kib),
            Err(_) => {}
        }
        self.admit_all()
    }

    /// Takes the group that has gathered, and what [`Entrance::written`] is to be told of it.
    pub fn take(&mut self) -> (G, usize) {
        self.group_from = None;
        (std::mem::take(&mut self.group), std::mem::take(&mut self.group_kib))
    }

    /// The same, if any of it was entered by when [`Entrance::last`] said `last`.
    pub fn take_up_to(&mut self, last: u64) -> Option<(G, usize)> {
        self.group_from.is_some_and(|first| first <= last).then(|| self.take())
    }

    /// The call that was entered last.
    pub fn last(&self) -> u64 {
        self.last_id
    }

    /// A group was written, or refused. True if others were admitted.
    pub fn written(&mut self, kib: usize) -> bool {
        self.held_kib = self.held_kib.saturating_sub(kib);
        self.admit_all()
    }

    /// Drops all that waits: nobody will write it.
    pub fn clear(&mut self) {
        self.group = G::default();
        self.group_from = None;
        self.outside.clear();
    }

    fn admit_all(&mut self) -> bool {
        let before = self.group_kib;
        while self.outside.front().is_some_and(|next| self.held_kib + next.kib <= self.kib_max) {
            let Some(Outside { id, kib, call }) = self.outside.pop_front() else {
                break;
            };
            self.admit(id, kib, call);
        }
        self.group_kib > before
    }

    fn admit(&mut self, id: u64, kib: usize, call: G::Call) {
        self.group_from.get_or_insert(id);
        self.held_kib += kib;
        self.group_kib += kib;
        self.group.admit(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Gather for Vec<u32> {
        type Call = u32;

        fn admit(&mut self, call: u32) {
            self.push(call);
        }
    }

    fn kib(count: usize) -> usize {
        count * 1024 - 1
    }

    /// P2.
    #[test]
    fn a_small_call_does_not_pass_a_large_one_that_waits() {
        let mut entrance: Entrance<Vec<u32>> = Entrance::new(10);
        entrance.enter(kib(8), 1, false);
        entrance.enter(kib(5), 2, false);
        entrance.enter(kib(1), 3, false);
        let (group, room) = entrance.take();
        assert_eq!(group, [1]);
        assert!(entrance.written(room));
        assert_eq!(entrance.take().0, [2, 3]);
    }

    /// P5.
    #[test]
    fn a_call_that_went_away_holds_its_room_until_it_was_written_and_none_if_it_was_outside() {
        let mut entrance: Entrance<Vec<u32>> = Entrance::new(10);
        let admitted = entrance.enter(kib(8), 1, false);
        let outside = entrance.enter(kib(5), 2, false);
        entrance.enter(kib(4), 3, false);
        assert!(!entrance.leave(admitted, false));
        assert!(!entrance.leave(outside, false), "the first still holds its room");
        entrance.enter(kib(1), 4, false);
        let (group, room) = entrance.take();
        assert_eq!(group, [1]);
        assert!(entrance.written(room));
        assert_eq!(entrance.take(), (vec![3, 4], 5));
    }

    /// P5: one larger than the bound comes in alone.
    #[test]
    fn a_call_larger_than_the_bound_is_taken_alone() {
        let mut entrance: Entrance<Vec<u32>> = Entrance::new(10);
        entrance.enter(kib(1), 1, false);
        entrance.enter(kib(99), 2, false);
        let (group, room) = entrance.take();
        assert_eq!((group, room), (vec![1], 1));
        assert!(entrance.written(room));
        entrance.enter(kib(1), 3, false);
        let (group, room) = entrance.take();
        assert_eq!((group, room), (vec![2], 10));
        assert!(entrance.written(room));
        assert_eq!(entrance.take().0, [3]);
    }

    /// P2: what waited is told from what came since, also while some of it waits outside.
    #[test]
    fn what_was_entered_up_to_a_call_is_taken_and_no_more_than_its_groups() {
        let mut entrance: Entrance<Vec<u32>> = Entrance::new(10);
        entrance.enter(kib(8), 1, false);
        entrance.enter(kib(5), 2, false);
        let last = entrance.last();
        for want in [[1], [2]] {
            let (group, room) = entrance.take_up_to(last).expect("it waits");
            assert_eq!(group, want);
            entrance.written(room);
        }
        entrance.enter(kib(1), 3, false);
        assert_eq!(entrance.take_up_to(last), None);
        assert_eq!(entrance.take(), (vec![3], 1));
    }
}
