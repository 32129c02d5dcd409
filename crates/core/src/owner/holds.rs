//! What an owner knows of `hold.p` beyond the journal: what is being stored there, and below which position `hold.p`
//! may be cut.
//!
//! In come acknowledgements and changes of entries; out come `low`, moves of bodies that keep `low` down, keys with
//! entries that are due, and the view that a lane is shown of its key. Nothing is stored or awaited here.
//!
//! Invariant: `low` is never above a position that the state names, or that this owner may yet name.

use std::collections::{BTreeMap, BTreeSet};

use super::stored::{Stored, StoredChunks, Storing, named_by};
use super::{Action, Owner, Phase};
use crate::journal::{
    Change, Command, CommandKind, Effect, Entry, Facts, Made, Moved, Record, Snapshot, SnapshotBody, State,
};
use crate::lanes::HoldView;
use crate::ledger::Ranges;

/// The most due entries that the driver was told of and that have not changed since. Until these change, the driver is
/// told of no more.
const DUE_MAX: usize = 1_000;
/// The most of them for one key: otherwise a key whose head is stopped would keep all other keys from being told.
const DUE_OF_KEY_MAX: usize = 16;
/// The most dead letters that one command expires, so that the command stays small beside any journal's limit.
const EXPIRED_MAX: usize = 500;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Holds {
    /// What is being stored, by number. Each has the end of `hold.p` as it was known when the storing began: the body
    /// cannot land below that.
    under_way: BTreeMap<u64, u64>,
    /// The position behind the highest one that was acknowledged in `hold.p`.
    end: u64,
    /// Entries that no successor waits for and that are due, by key hash and position.
    due: BTreeSet<(Option<u64>, u64)>,
    moving: Option<Moving>,
    snapshot: Option<Making>,
    /// When to look again for entries that are due, have expired or keep `low` down.
    pub(super) look_ms: Option<u64>,
    /// The safe `low` that the last look found.
    low: u64,
}

/// A body or report that is being copied to the end of `hold.p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Moving {
    number: u64,
    /// The message's source position, and where its body or report lay.
    position: u64,
    from: u64,
}

/// A snapshot whose chunks are being stored, or were stored and are not named yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Making {
    number: u64,
    as_of: u64,
    /// Where the chunks lie, once all of them are stored.
    chunks: Option<Vec<u64>>,
}

impl Holds {
    pub(super) fn new(low: u64) -> Holds {
        Holds { end: low, look_ms: Some(0), ..Holds::default() }
    }

    fn begin(&mut self) -> u64 {
        // The next number comes from the last one: a burst of dead letters has 100,000 and more under way, and
        // searching for a free number would take too long.
        let number = self.under_way.last_key_value().map_or(0, |(number, _)| number + 1);
        self.under_way.insert(number, self.end);
        number
    }

    /// For exploring: forgets the time at which it looks next.
    #[cfg(feature = "flaws")]
    pub(super) fn rewind(&mut self) {
        self.look_ms = self.look_ms.map(|_| 0);
    }
}

impl Owner {
    /// Begins to store something in `hold.p`: from here on nothing is cut there where it may land. `None` unless the
    /// partition is owned.
    pub fn storing(&mut self) -> Option<Storing> {
        let epoch = self.epoch()?;
        Some(Storing { epoch, number: self.holds.begin() })
    }

    /// What a lane is shown of its key: at most `most` entries of either kind. Of messages without a key, all that are
    /// to run are shown as asides, since none waits for another.
    pub fn view(&self, key_hash: Option<u64>, most: usize) -> HoldView {
        let Some(state) = self.state().filter(|state| !state.entries.is_empty()) else {
            return HoldView::default();
        };
        let flight = self.flight.as_ref().and_then(|flight| match &*flight.record {
            Record::Facts(facts) => Some(facts),
            _ => None,
        });
        // Entries that are done, but whose record is still to be sent or under way: the lane has already gone through
        // them.
        let done = |entry: &Entry| {
            self.ready.is_done(entry.position)
                || flight.is_some_and(|facts| facts.done.contains(entry.position))
        };
        let due = self.holds.due.range((key_hash, 0)..=(key_hash, u64::MAX)).map(|(_, position)| *position);
        HoldView::of(&state.entries, key_hash, due, most, done)
    }

    /// True if an operator asked to bury the message at this position when its turn comes.
    pub fn is_to_skip(&self, position: u64) -> bool {
        self.state().is_some_and(|state| state.skip.contains(position))
    }

    /// The body of `storing` was acknowledged at `position`. False if `hold.p` may be cut there: the body must then be
    /// stored again, and not be named.
    pub(super) fn landed(&mut self, storing: &Storing, position: u64) -> bool {
        // Numbers begin anew with each epoch: the same number in an older epoch is another body's.
        if self.epoch() == Some(storing.epoch) {
            self.holds.under_way.remove(&storing.number);
        }
        self.holds.end = self.holds.end.max(position.saturating_add(1));
        self.look_soon();
        let low = self.state().map_or(0, |state| state.low);
        position >= low || !self.rules.low_waits_for_copies()
    }

    pub(super) fn given_up(&mut self, storing: &Storing) {
        if self.epoch() == Some(storing.epoch) {
            self.holds.under_way.remove(&storing.number);
            self.holds.moving.take_if(|moving| moving.number == storing.number);
            let number = storing.number;
            if self.holds.snapshot.take_if(|one| one.number == number && one.chunks.is_none()).is_some() {
                self.replay.snapshot_given_up();
            }
            self.look_soon();
        }
    }

    /// Follows what a record changed of held messages and dead letters.
    pub(super) fn follow(&mut self, effects: &[Effect]) {
        if effects.is_empty() {
            return;
        }
        for effect in effects {
            let Effect::Changed(Change { before, after, .. }) = effect else {
                continue;
            };
            let Some(entry) = before.or(*after) else {
                continue;
            };
            self.holds.due.remove(&(entry.key_hash, entry.position));
            let named = |entry: &Entry, from| entry.body == from || entry.report == Some(from);
            self.holds.moving = self.holds.moving.filter(|moving| {
                moving.position != entry.position || after.is_some_and(|after| named(&after, moving.from))
            });
        }
        self.look_soon();
    }

    fn look_soon(&mut self) {
        let look_ms = self.now_ms.saturating_add(self.setup.bounds.look_ms);
        self.holds.look_ms = Some(self.holds.look_ms.unwrap_or(u64::MAX).min(look_ms));
    }

    /// The highest `low` at which nothing is cut that the state names or this owner may yet name.
    pub(super) fn safe_low(&self, state: &State) -> u64 {
        let holds = &self.holds;
        let flight = self.flight.as_ref().and_then(|flight| named_by(&flight.record));
        let snapshot = holds.snapshot.as_ref().and_then(|making| making.chunks.as_ref());
        let snapshot = snapshot.and_then(|chunks| chunks.iter().copied().min());
        // The one that was begun first was begun where `hold.p` ended lowest.
        let under_way = holds.under_way.first_key_value().map(|(_, end)| *end);
        let named = [state.lowest_named(), self.ready.lowest_named(), flight, snapshot];
        let under_way = under_way.filter(|_| self.rules.low_waits_for_copies());
        named.into_iter().chain([under_way]).flatten().fold(holds.end, u64::min)
    }

    /// The `low` that the next record should carry; `None` if it has risen too little to be worth it.
    pub(super) fn low_to_record(&self) -> Option<u64> {
        let state = self.state()?;
        let low = self.holds.low;
        (state.can_hold() && low >= state.low.saturating_add(self.setup.bounds.low_step)).then_some(low)
    }

    /// If it is time: looks for entries that are due, have expired or keep `low` down. Returns when to look next.
    pub(super) fn look(&mut self, epoch: u64) -> u64 {
        match self.holds.look_ms {
            None => return u64::MAX,
            Some(look_ms) if look_ms > self.now_ms => return look_ms,
            Some(_) => self.holds.look_ms = None,
        }
        let Some(state) = self.replay.state().filter(|state| state.can_hold()) else {
            return u64::MAX;
        };
        let low = self.safe_low(state);
        let mut next_ms = u64::MAX;
        if !state.entries.is_empty() {
            let wait = |at_ms: u64| at_ms.saturating_sub(self.wall_ms).max(self.setup.bounds.look_ms);
            let times = [state.entries.next_due_ms(), state.entries.next_end_ms()];
            next_ms = times
                .into_iter()
                .flatten()
                .map(|at_ms| self.now_ms.saturating_add(wait(at_ms)))
                .min()
                .unwrap_or(u64::MAX);
        }
        self.holds.low = low;
        self.tell_due();
        self.move_lowest();
        self.expire();
        if self.flight.is_none() && self.low_to_record().is_some() {
            let facts = self.next_facts(epoch);
            self.fly(Record::Facts(facts));
        }
        if next_ms != u64::MAX {
            self.holds.look_ms = Some(next_ms);
        }
        self.holds.look_ms.unwrap_or(u64::MAX)
    }

    fn tell_due(&mut self) {
        let Some(state) = self.replay.state() else { return };
        let due = &mut self.holds.due;
        let mut keys = BTreeSet::new();
        for entry in state.entries.due(self.wall_ms) {
            if due.len() >= DUE_MAX {
                break;
            }
            let key = (entry.key_hash, 0)..=(entry.key_hash, u64::MAX);
            if entry.key_hash.is_some() && due.range(key).nth(DUE_OF_KEY_MAX - 1).is_some() {
                continue;
            }
            if due.insert((entry.key_hash, entry.position)) {
                keys.insert(entry.key_hash);
            }
        }
        if !keys.is_empty() {
            self.said.push_back(Action::Due { keys: keys.into_iter().collect() });
        }
    }

    /// If one entry keeps `low` down while most of `hold.p` above it is garbage, starts copying its body to the end.
    fn move_lowest(&mut self) {
        let bounds = &self.setup.bounds;
        let Some(state) = self.replay.state().filter(|_| self.holds.moving.is_none()) else { return };
        let Some(lowest) = state.entries.lowest_named() else { return };
        let named = state.entries.len() + state.entries.tally().reports + state.chunks.len();
        let garbage = self.holds.end.saturating_sub(lowest).saturating_sub(named as u64);
        if garbage > bounds.move_slack.saturating_add(named as u64 * bounds.move_factor) {
            self.begin_move();
        }
    }

    /// Starts copying the body or report that lies lowest in `hold.p` to its end.
    fn begin_move(&mut self) -> Option<()> {
        let entry = self.state()?.entries.lowest_named_entry()?;
        let from = entry.report.map_or(entry.body, |report| report.min(entry.body));
        let storing = self.storing()?;
        self.holds.moving = Some(Moving { number: storing.number, position: entry.position, from });
        self.said.push_back(Action::Move { position: entry.position, from, storing });
        Some(())
    }

    /// For exploring: starts to move the lowest body at once, whether or not it keeps much from being cut.
    #[cfg(feature = "flaws")]
    pub fn moves_lowest(&mut self) -> bool {
        self.holds.moving.is_none()
            && matches!(self.phase, Phase::Owning { .. })
            && self.begin_move().is_some()
    }

    /// A body or report was copied to the end of `hold.p`. If its message has changed meanwhile, the copy is not named.
    pub(super) fn moved(&mut self, position: u64, from: u64, to: &Stored) {
        let moving = self.holds.moving.take_if(|moving| moving.number == to.storing.number);
        let wanted = moving.is_some_and(|moving| (moving.position, moving.from) == (position, from));
        if self.landed(&to.storing, to.position) && (wanted || !self.rules.moved_names_from()) {
            self.ready.add_moved(self.now_ms, Moved { position, from, to: to.position });
        }
    }

    fn expire(&mut self) {
        let Some(state) = self.replay.state().filter(|_| self.flight.is_none()) else { return };
        let ended = state.entries.ended(self.wall_ms).take(EXPIRED_MAX);
        let positions: Ranges = ended.map(|entry| entry.position..entry.position + 1).collect();
        if positions.is_empty() {
            return;
        }
        let id = self.random_id((u64::MAX >> 3) - self.replay.next());
        self.fly(Record::Command(Command {
            id,
            kind: CommandKind::Expire,
            positions,
            as_of: None,
            body: None,
            accept: None,
            partitions: None,
            format: None,
            who: self.setup.node.clone(),
            when_ms: self.wall_ms,
        }));
    }

    /// Sends a snapshot of everything that was read, or has its chunks stored first.
    pub(super) fn fly_snapshot(&mut self, epoch: u64) {
        let (seq, bounds) = (self.next_seq(), &self.setup.bounds);
        match self.replay.snapshot(epoch, seq, bounds.snapshot_bytes_max, bounds.chunk_bytes_max) {
            Some(Made::Record(record)) => self.fly(*record),
            Some(Made::Chunks(chunks)) => {
                if let Some(storing) = self.storing() {
                    let making = Making { number: storing.number, as_of: chunks.as_of(), chunks: None };
                    self.holds.snapshot = Some(making);
                    self.said.push_back(Action::StoreChunks { storing, chunks });
                }
            }
            Some(Made::TooLarge) | None => {}
        }
    }

    /// Sends the snapshot whose chunks are all stored, if there is one; says whether it did.
    pub(super) fn fly_stored_snapshot(&mut self, epoch: u64) -> bool {
        let Some(making) = self.holds.snapshot.take_if(|making| making.chunks.is_some()) else {
            return false;
        };
        let body = SnapshotBody::Chunks(making.chunks.unwrap_or_default());
        let seq = self.next_seq();
        self.fly(Record::Snapshot(Snapshot { epoch, seq, as_of: making.as_of, body }));
        true
    }

    /// True while the chunks of a snapshot are being stored, or wait to be named.
    pub(super) fn makes_snapshot(&self) -> bool {
        self.holds.snapshot.is_some()
    }

    /// The chunks of a snapshot were stored and acknowledged.
    pub(super) fn chunks_stored(&mut self, stored: StoredChunks) {
        let positions = stored.positions;
        let (lowest, highest) = (positions.iter().copied().min(), positions.iter().copied().max());
        let usable = self.landed(&stored.storing, lowest.unwrap_or(0));
        self.holds.end = self.holds.end.max(highest.map_or(0, |highest| highest.saturating_add(1)));
        let making = self.holds.snapshot.take();
        self.holds.snapshot = making.filter(|making| usable && making.number == stored.storing.number);
        if let Some(making) = &mut self.holds.snapshot {
            making.chunks = Some(positions);
        }
    }

    /// The next facts: everything that is ready and fits into one record.
    pub(super) fn next_facts(&mut self, epoch: u64) -> Facts {
        let draining = matches!(self.phase, Phase::Draining { .. });
        if let (false, Some(state)) = (self.rules.cut_by_counted_low(), self.state()) {
            let below = self.safe_low(state);
            self.said.push_back(Action::CutHold { below });
        }
        let mut facts = self.facts(epoch);
        match draining && self.rules.few_records() {
            true => self.ready.take(self.rules, &self.setup.bounds.draining(), &mut facts),
            false => self.ready.take(self.rules, &self.setup.bounds, &mut facts),
        }
        facts.low = self.low_to_record();
        facts
    }
}
