//! One key's lane while messages of the key lie in hold (DLQ-5): what the shard knows, and what may run next.
//!
//! The owner knows every held and dead message; the lane sees only the first few entries of its key, and from which
//! position on there are more. Some things the lane knows before the owner: which entry ran here, which message is
//! being copied, which one failed and is not on record yet. Views from the owner and events of the shard come in; out
//! come the lane's next turn, decided by [`walk`](super::walk()), and whether an arriving message is copied to hold or
//! may wait in memory.
//!
//! Invariants: a view that is older than what happened here never starts a message twice and never lets one overtake
//! another; a message that was copied or died here stops the lane until the owner says that its record counts, and
//! shows a view that contains it.

use super::hold::{Place, Turn, walk_under};
use crate::journal::{Entries, Entry};
use crate::owner::Rules;

/// The first entries of a key, as the owner shows them to the key's lane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HoldView {
    /// The entries that the lane goes through one after another, by position.
    pub heads: Vec<Entry>,
    /// The position of the first entry of that kind that is not shown; `None` if all are shown.
    pub beyond: Option<u64>,
    /// The entries that are to run and that no successor waits for, by position.
    pub asides: Vec<Entry>,
    /// True if there are more asides than shown. No successor waits for them, so running others first reorders nothing.
    pub more_asides: bool,
}

impl HoldView {
    /// What the owner shows a lane of its key: the lowest entries, at most `most` of either kind. `due` are the
    /// positions of the key's entries that no successor waits for and whose time has come; `done` is true for entries
    /// that the lane has already gone through.
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

    /// True if the key has no entry to go through or to run.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.asides.is_empty() && self.beyond.is_none()
    }
}

/// What the shard must do with a message that it just read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// The message waits in memory, in the order of its position.
    Wait,
    /// The message must be copied to hold; the shard then calls [`HeldLane::copies`].
    Copy,
}

/// Whether a lane works from memory or from hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldState {
    /// Nothing of the key is in hold, and nothing is being copied.
    Live,
    /// The lane's head stops, or the lane is too long: arriving messages are copied to hold.
    Held,
    /// The entries left in hold run first; arriving messages wait in memory.
    Draining,
}

/// One key's view of hold; see the head of this file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HeldLane {
    view: HoldView,
    /// Messages that are being copied, or whose copy is not on record yet; true for a message that its successors pass.
    copies: Vec<(u64, bool)>,
    /// Messages that failed for good or are being buried in place, and are not on record as dead yet.
    dying: Vec<u64>,
    /// Entries whose messages were handled here, and are not on record as done yet.
    done: Vec<u64>,
    running: Option<u64>,
    full: bool,
}

impl HeldLane {
    /// The owner shows the lane a new view. `counted` is true for positions that are on record as done, held or dead by
    /// now; the lane stops waiting for those.
    pub fn told(&mut self, view: HoldView, counted: impl Fn(u64) -> bool) {
        self.view = view;
        self.copies.retain(|(position, _)| !counted(*position));
        self.dying.retain(|position| !counted(*position));
        self.done.retain(|position| !counted(*position));
    }

    /// The view that the owner showed last.
    pub fn view(&self) -> &HoldView {
        &self.view
    }

    /// Decides about an arriving message. `room` says whether the lane's memory takes one more.
    pub fn arrives(&mut self, room: bool, now_ms: u64) -> Arrival {
        self.full |= !room;
        match self.state(now_ms) {
            HoldState::Held => Arrival::Copy,
            HoldState::Live | HoldState::Draining => Arrival::Wait,
        }
    }

    /// The messages in memory are down to half of the lane's capacity: arriving messages may wait in memory again.
    pub fn half_empty(&mut self) {
        self.full = false;
    }

    /// A message left memory and is on its way to hold. `passed` is true if its successors do not wait for it.
    pub fn copies(&mut self, position: u64, passed: bool) {
        self.copies.push((position, passed));
    }

    /// The copy of a message was given up: the message is back in memory.
    pub fn copy_given_up(&mut self, position: u64) {
        self.copies.retain(|(copy, _)| *copy != position);
    }

    /// An attempt at the message at `position` begins.
    pub fn begins(&mut self, position: u64) {
        assert!(self.running.is_none(), "of a key one message runs at a time");
        self.running = Some(position);
    }

    /// The attempt ended and its message will be tried again later, as if the attempt had not begun.
    pub fn ends(&mut self) {
        self.running = None;
    }

    /// The attempt ended and its message is done.
    pub fn is_done(&mut self, position: u64) {
        self.running.take_if(|running| *running == position);
        if self.entry(position).is_some() {
            self.done.push(position);
        }
    }

    /// The message is to become a dead letter: its attempt failed for good, or it is buried without an attempt.
    pub fn dies(&mut self, position: u64) {
        self.running.take_if(|running| *running == position);
        self.dying.push(position);
    }

    /// The shown entry at `position`; an attempt at such a message takes its body from `hold.p`.
    pub fn entry(&self, position: u64) -> Option<&Entry> {
        let shown = self.view.heads.iter().chain(&self.view.asides);
        shown.into_iter().find(|entry| entry.position == position)
    }

    /// What the lane does next. `memory` is the lowest position of the key that waits in memory; `read_to` is the
    /// position behind the last one read from the source since the take-over.
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
            // A running message stops the lane even if it is one that successors pass: of a key only one message runs
            // at a time.
            Some(position) => Turn::Stop(position, Place::Running),
            None => walk_under(rules, self.places(memory, read_to), now_ms),
        }
    }

    /// Whether the lane works from memory or from hold now.
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

    /// True if the lane should be shown more: more exist, and it has gone through half of what it was shown.
    pub fn wants_more(&self) -> bool {
        let (heads, asides) = (&self.view.heads, &self.view.asides);
        let half_through = |entries: &[Entry]| {
            let left = entries.iter().filter(|entry| !self.done.contains(&entry.position)).count();
            2 * left <= entries.len()
        };
        (self.view.beyond.is_some() && half_through(heads)) || (self.view.more_asides && half_through(asides))
    }

    /// The key's positions as far as the lane knows them, ascending, each with what it is to the walk.
    fn places(&self, memory: Option<u64>, read_to: u64) -> impl Iterator<Item = (u64, Place)> + '_ {
        let mut from = Some(0);
        std::iter::from_fn(move || {
            let (position, _, place) = self.first_from(from?, memory, read_to)?;
            from = position.checked_add(1);
            Some((position, place))
        })
    }

    /// The lowest known position from `from` on. If the lane and the view both know the position, the lane's knowledge
    /// wins: the view may be older.
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
