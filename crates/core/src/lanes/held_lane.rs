//! A key of which something lies in hold, as its shard sees it (DLQ-5).
//!
//! The owner knows all that is held; a shard's lane sees the first few entries of its key, and the position from which
//! there are more. What the lane knows first is its own: which of them ran here, what is being copied, what failed and
//! is not on record. In come views from the owner, and what happens here; out comes the lane's head, by
//! [`walk`](super::walk()), and whether a message that arrives is copied or may wait in memory.
//!
//! Kept: a view that is older than what happened here starts nothing twice and lets nothing overtake; what was copied
//! or died stops the lane until the owner has said, together with the view that shows it, that it counts.

use super::hold::{Place, Turn, walk_under};
use crate::journal::{Entries, Entry};
use crate::owner::Rules;

/// The first entries of a key, as an owner shows them to its lane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HoldView {
    /// Those that the lane has to go through, by position.
    pub heads: Vec<Entry>,
    /// The position of the next one, if there are more.
    pub beyond: Option<u64>,
    /// Those that nobody waits for and that are to run, by position.
    pub asides: Vec<Entry>,
    /// There are more of these. Nobody waits for them, so that others may run first.
    pub more_asides: bool,
}

impl HoldView {
    /// What a lane is shown of its key: at most `most` entries of either kind, the lowest. `due` are those of the key that
    /// nobody waits for and whose time has come; `done` says which the lane has gone through already.
    pub fn of(
        entries: &Entries,
        key_hash: Option<u64>,
        due: impl Iterator<Item = u64>,
        most: usize,
        done: impl Fn(&Entry) -> bool,
    ) -> HoldView {
        let left = |entry: &Entry| !done(entry);
        let mut heads: Vec<Entry> = entries.stopping(key_hash).filter(left).take(most + 1).collect();
        let beyond = heads.get(most).map(|entry| entry.position);
        heads.truncate(most);
        let mut asides: Vec<Entry> = entries.to_run(key_hash).filter(left).take(most + 1).collect();
        asides.extend(due.filter_map(|position| entries.get(position)).filter(left).take(most + 1));
        asides.sort_unstable_by_key(|entry| entry.position);
        let more_asides = asides.len() > most;
        asides.truncate(most);
        HoldView { heads, beyond, asides, more_asides }
    }

    /// Nothing of the key is to be gone through or run.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.asides.is_empty() && self.beyond.is_none()
    }
}

/// What is to be done with a message that was just read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// It waits in memory, in the order of its position.
    Wait,
    /// It is to be copied to hold: say [`HeldLane::copies`].
    Copy,
}

/// How a lane stands to what is held of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldState {
    /// Nothing of it is in hold, and nothing is being copied.
    Live,
    /// Its head stops, or it is too long: what arrives is copied.
    Held,
    /// What is left in hold comes first; what arrives waits in memory.
    Draining,
}

/// See the head of `held_lane.rs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HeldLane {
    view: HoldView,
    /// Being copied, or copied and not on record; true if the message is passed.
    copies: Vec<(u64, bool)>,
    /// Failed for good, or buried where they stood, and not on record as dead.
    dying: Vec<u64>,
    /// Entries that were done here, and are not on record as done.
    done: Vec<u64>,
    running: Option<u64>,
    full: bool,
}

impl HeldLane {
    /// The owner shows what its key has in hold, after a record in which what is `counted` stands: done, held or dead.
    pub fn told(&mut self, view: HoldView, counted: impl Fn(u64) -> bool) {
        self.view = view;
        self.copies.retain(|(position, _)| !counted(*position));
        self.dying.retain(|position| !counted(*position));
        self.done.retain(|position| !counted(*position));
    }

    /// What its owner showed it last.
    pub fn view(&self) -> &HoldView {
        &self.view
    }

    /// A message that arrives: `room` says whether its lane takes one more into memory.
    pub fn arrives(&mut self, room: bool, now_ms: u64) -> Arrival {
        self.full |= !room;
        match self.state(now_ms) {
            HoldState::Held => Arrival::Copy,
            HoldState::Live | HoldState::Draining => Arrival::Wait,
        }
    }

    /// What waits in memory has gone down to half of what it may be.
    pub fn half_empty(&mut self) {
        self.full = false;
    }

    /// A message is on its way to hold; it is not in memory any more. `passed`: its successors do not wait for it.
    pub fn copies(&mut self, position: u64, passed: bool) {
        self.copies.push((position, passed));
    }

    /// Its copy was given up: the message is in memory again.
    pub fn copy_given_up(&mut self, position: u64) {
        self.copies.retain(|(copy, _)| *copy != position);
    }

    /// An attempt begins.
    pub fn begins(&mut self, position: u64) {
        assert!(self.running.is_none(), "of a key one message runs at a time");
        self.running = Some(position);
    }

    /// The attempt is over, and its message is to be tried again later: it is as if it had not begun.
    pub fn ends(&mut self) {
        self.running = None;
    }

    /// The attempt is over, and its message is done.
    pub fn is_done(&mut self, position: u64) {
        self.running.take_if(|running| *running == position);
        if self.entry(position).is_some() {
            self.done.push(position);
        }
    }

    /// A message is to be buried: its attempt failed for good, or it is buried where it stands.
    pub fn dies(&mut self, position: u64) {
        self.running.take_if(|running| *running == position);
        self.dying.push(position);
    }

    /// The entry that is shown at a position, if its attempt is to have its body from there.
    pub fn entry(&self, position: u64) -> Option<&Entry> {
        let shown = self.view.heads.iter().chain(&self.view.asides);
        shown.into_iter().find(|entry| entry.position == position)
    }

    /// What it does next. `memory` is the lowest position of its key that was read and waits in memory, `read_to` the
    /// position behind the last that was read from the source since the take-over.
    pub fn next(&self, memory: Option<u64>, read_to: u64, now_ms: u64) -> Turn {
        self.next_under(Rules::ALL, memory, read_to, now_ms)
    }

    /// [`HeldLane::next`], with rules left out. For tests.
    #[cfg(feature = "flaws")]
    pub fn next_with(&self, rules: Rules, memory: Option<u64>, read_to: u64, now_ms: u64) -> Turn {
        self.next_under(rules, memory, read_to, now_ms)
    }

    fn next_under(&self, rules: Rules, memory: Option<u64>, read_to: u64, now_ms: u64) -> Turn {
        match self.running {
            // Also if it was passed, and stands anywhere among the others.
            Some(position) => Turn::Stop(position, Place::Running),
            None => walk_under(rules, self.places(memory, read_to), now_ms),
        }
    }

    /// How it stands to what is held of it.
    pub fn state(&self, now_ms: u64) -> HoldState {
        let quiet = self.copies.is_empty() && self.dying.is_empty() && self.done.is_empty();
        if quiet
            && self.view.is_empty()
            && !self.full
            && self.running.is_none_or(|at| self.entry(at).is_none())
        {
            return HoldState::Live;
        }
        let ahead = self.view.heads.iter().find(|entry| !self.done.contains(&entry.position));
        let stops = ahead.is_some_and(|entry| match entry.place() {
            Place::Turn { at_ms } => at_ms > now_ms,
            place => place == Place::Stopped,
        });
        if stops || self.full { HoldState::Held } else { HoldState::Draining }
    }

    /// True if it is to be shown more, since it has gone through half of what it was shown.
    pub fn wants_more(&self) -> bool {
        let (heads, asides) = (&self.view.heads, &self.view.asides);
        let half_through = |entries: &[Entry]| {
            let left = entries.iter().filter(|entry| !self.done.contains(&entry.position)).count();
            2 * left <= entries.len()
        };
        (self.view.beyond.is_some() && half_through(heads)) || (self.view.more_asides && half_through(asides))
    }

    /// Its positions as far as they are known here, ascending, each with what it is.
    fn places(&self, memory: Option<u64>, read_to: u64) -> impl Iterator<Item = (u64, Place)> + '_ {
        let mut from = Some(0);
        std::iter::from_fn(move || {
            let (position, _, place) = self.first_from(from?, memory, read_to)?;
            from = position.checked_add(1);
            Some((position, place))
        })
    }

    /// The lowest position from `from` on; of what is said of it here, what happened here goes first.
    fn first_from(&self, from: u64, memory: Option<u64>, read_to: u64) -> Option<(u64, u8, Place)> {
        let dying = self.dying.iter().map(|position| (*position, 0, Place::Dying));
        let copies = self.copies.iter().map(|(position, passed)| {
            (*position, 0, if *passed { Place::CopyingPassed } else { Place::Copying })
        });
        let done = self.done.iter().map(|position| (*position, 0, Place::Past));
        let shown = self.view.heads.iter().chain(&self.view.asides);
        let shown = shown.map(|entry| (entry.position, 1, entry.place()));
        let beyond = self.view.beyond.map(|position| (position, 2, Place::InHold));
        let memory = memory.map(|position| (position, 3, Place::Turn { at_ms: 0 }));
        let all = dying.chain(copies).chain(done).chain(shown).chain(beyond).chain(memory);
        let all = all.chain([(read_to, 4, Place::Unread)]);
        all.filter(|(position, ..)| *position >= from).min_by_key(|(position, rank, _)| (*position, *rank))
    }
}
