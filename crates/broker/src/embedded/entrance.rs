//! Admits calls to a log in the order in which they were first polled, and bounds the memory of those that wait.
//!
//! A call that finds room is *admitted*: its messages or records are laid out in the group that gathers. Its room is
//! given back when that group was written, whether or not its caller still waits. A call that finds no room, or other
//! calls before it, waits *outside*. Giving room back admits the calls outside, in their order. Invariants:
//!
//! - A call gets its place at its first poll, under the queue's lock, so no later call passes an earlier one (P2).
//! - If a caller goes away before its call is admitted, the call's bytes go with it. If it goes away later, the bytes
//!   stay and count until they are written: so callers that give up cannot make a slow disk use up all memory (P5).

use std::collections::VecDeque;

/// A group that gathers calls.
pub(crate) trait Gather: Default {
    /// The type of a call.
    type Call;
    /// Lays out a call behind those that are in the group already.
    fn admit(&mut self, call: Self::Call);
}

/// The group that gathers, and the calls that wait outside.
#[derive(Debug)]
pub(crate) struct Entrance<G: Gather> {
    group: G,
    group_kib: usize,
    /// The id of the first call in the group.
    group_from: Option<u64>,
    kib_max: usize,
    /// KiB of all calls that were admitted and are not yet written.
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

/// The place of a call. Its caller holds the ticket while it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    id: u64,
    kib: usize,
}

impl<G: Gather> Entrance<G> {
    /// An entrance without calls. At most `kib_max` KiB are ever admitted and not yet written.
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

    /// Gives a call of `bytes` bytes its place behind all earlier ones. `overtake` puts a known flaw back.
    pub fn enter(&mut self, bytes: usize, call: G::Call, overtake: bool) -> Ticket {
        // A call that is larger than the bound counts as large as the bound, so that it is admitted alone.
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

    /// The caller went away without an answer. True if other calls were admitted. `forget` puts a known flaw back.
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

    /// Takes the group that has gathered, and its KiB, which the writer passes to [`Entrance::written`] afterwards.
    pub fn take(&mut self) -> (G, usize) {
        self.group_from = None;
        (std::mem::take(&mut self.group), std::mem::take(&mut self.group_kib))
    }

    /// Like [`Entrance::take`], if the group contains a call that entered when [`Entrance::last`] was at most `last`.
    pub fn take_up_to(&mut self, last: u64) -> Option<(G, usize)> {
        self.group_from.is_some_and(|first| first <= last).then(|| self.take())
    }

    /// The id of the call that entered last.
    pub fn last(&self) -> u64 {
        self.last_id
    }

    /// Gives back the room of a group that was written or refused. True if other calls were admitted.
    pub fn written(&mut self, kib: usize) -> bool {
        self.held_kib = self.held_kib.saturating_sub(kib);
        self.admit_all()
    }

    /// Drops all calls, because no thread will write them.
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

    /// P5: a call larger than the bound is admitted alone.
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

    /// P2: calls that entered up to a certain call are told from later ones, even if some of them wait outside.
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
