//! When a topic got more partitions: how far each partition may be read after an operator accepted the new number
//! (BRK-10).
//!
//! More partitions move keys: older messages of a key may lie in another partition than its newer ones. An
//! [`Acceptance`] is decided in the journal of partition 0 and says where every partition ended at that moment; it is
//! copied into the journals of all other partitions, so that the loss of one journal lets nobody read too early. First
//! the partitions that existed before are read up to those ends, then the added ones, and newer messages only once all
//! of that is settled. So a key's messages run in order, provided that the producers already used the new number of
//! partitions. Settled positions come in; out comes how far each partition may be read.

use super::record::Source;
use super::state::State;

/// An operator's acceptance of a topic's new number of partitions, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acceptance {
    /// The topic's incarnation: a topic that was deleted and made anew has another.
    pub incarnation: u128,
    /// How many partitions the group went by until then.
    pub from: u32,
    /// Where each partition ended at that moment; one position for each partition that the topic has now.
    pub ends: Vec<u64>,
}

impl Acceptance {
    /// The number of partitions that was accepted.
    pub fn to(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Whether the acceptance continues from the number of partitions that `state` goes by; of two acceptances of the
    /// same number, only the first does. `from` may be above the number in `state`: a partition that had no owner
    /// during an earlier growth may have missed that one.
    pub(super) fn follows(&self, state: &State) -> bool {
        let before = state.accepted.last().map(|last| (last.incarnation, last.to()));
        let before = before.or(state.source.map(|source| (source.incarnation, source.partitions)));
        let goes_on = |before: (u128, u32)| before.0 == self.incarnation && before.1 <= self.from;
        self.from < self.to() && before.is_none_or(goes_on)
    }
}

/// How far each partition of one topic may be read now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    former: Vec<u32>,
    /// The acceptances whose older messages are not all on record as settled.
    accepted: Vec<Acceptance>,
    /// For each partition, a position below which every message is settled.
    settled: Vec<u64>,
}

impl Growth {
    /// What the journal `first`, as a rule that of partition 0, says about the source that was found. If nobody has
    /// accepted the number of partitions that the source has, the error is the number on record.
    pub fn of(first: &State, found: Source) -> Result<Growth, u32> {
        let mut accepted: Vec<Acceptance> =
            first.accepted.iter().filter(|one| one.incarnation == found.incarnation).cloned().collect();
        let fenced = first.source.filter(|source| source.incarnation == found.incarnation);
        let recorded = accepted.last().map(Acceptance::to).or(fenced.map(|source| source.partitions));
        match recorded {
            Some(recorded) if recorded != found.partitions => Err(recorded),
            _ => {
                let former = accepted.iter().map(|accepted| accepted.from).collect();
                accepted.retain(|accepted| accepted.to() > first.opened);
                Ok(Growth { former, accepted, settled: vec![0; found.partitions as usize] })
            }
        }
    }

    /// Takes in the acceptances that the journal of another partition knows. True if one was not known here: another
    /// journal has lost it.
    pub fn learn(&mut self, state: &State) -> bool {
        let (before, partitions) = (self.former.len(), self.partitions());
        for one in state.accepted.iter().filter(|one| one.to() <= partitions) {
            if !self.former.contains(&one.from) {
                self.former.push(one.from);
                if one.to() > state.opened {
                    self.accepted.push(one.clone());
                }
            }
        }
        before != self.former.len()
    }

    /// The known acceptances that a journal lacks. They must be written to that journal before its partition is owned.
    pub fn missing<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a Acceptance> {
        self.accepted.iter().filter(|one| one.follows(state))
    }

    /// The numbers of partitions from which an acceptance has led to the present number.
    pub fn former(&self) -> Vec<u32> {
        self.former.clone()
    }

    /// How many partitions the topic has.
    pub fn partitions(&self) -> u32 {
        self.settled.len() as u32
    }

    /// True while it is not on record that every message from before the growth is settled.
    pub fn is_new(&self) -> bool {
        !self.accepted.is_empty()
    }

    /// Notes that it is on record: every message from before the growth is settled.
    pub fn open(&mut self) {
        self.accepted.clear();
    }

    /// Notes that everything of a partition below `position` is settled.
    pub fn settle(&mut self, partition: u32, position: u64) {
        let settled = &mut self.settled[partition as usize];
        *settled = position.max(*settled);
    }

    /// The position at which the reader of a partition must stop for now; `None` if there is no limit.
    pub fn limit(&self, partition: u32) -> Option<u64> {
        self.accepted.iter().filter_map(|accepted| self.limit_of(accepted, partition)).min()
    }

    fn limit_of(&self, accepted: &Acceptance, partition: u32) -> Option<u64> {
        let mut open = accepted.ends.iter().zip(&self.settled).map(|(end, settled)| settled < end);
        let before = open.by_ref().take(accepted.from as usize).any(|open| open);
        match before || open.any(|open| open) {
            false => None,
            true if partition < accepted.from || !before => {
                Some(accepted.ends.get(partition as usize).copied().unwrap_or(0))
            }
            true => Some(0),
        }
    }

    /// The partitions that others wait for, each with the position up to which it must be settled.
    pub fn awaited(&self) -> impl Iterator<Item = (u32, u64)> {
        (0..).zip(&self.settled).filter_map(|(partition, settled)| {
            let ends = self.accepted.iter().filter_map(|one| one.ends.get(partition as usize).copied());
            ends.max().filter(|end| settled < end).map(|end| (partition, end))
        })
    }
}
