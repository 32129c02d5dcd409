//! A topic that got more partitions, which moved its keys (BRK-10): what may be read once somebody accepted that.
//!
//! An acceptance is decided in the journal of partition 0 and says where every partition ended at that moment. It is
//! copied into the journals of all other partitions, so that the loss of one journal makes nobody read too early. First
//! the partitions that were there before are read up to there, then those that were added; what is newer is read once all
//! of that is settled. So a key's messages run in order although its partition is another now, provided that its
//! producers used the new number by then. In come positions that are settled; out comes how far each partition may be
//! read.

use super::record::Source;
use super::state::State;

/// The moment at which a topic's new number of partitions was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acceptance {
    /// The topic's incarnation.
    pub incarnation: u128,
    /// How many partitions it had for its group until then.
    pub from: u32,
    /// Where each of its partitions ended; as many as it has now.
    pub ends: Vec<u64>,
}

impl Acceptance {
    /// How many partitions there are now.
    pub fn to(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Whether it goes on where `state` is. Of two for the same number, so, the first counts. A partition that nobody
    /// has owned since an earlier growth may have missed that one.
    pub(super) fn follows(&self, state: &State) -> bool {
        let before = state.accepted.last().map(|last| (last.incarnation, last.to()));
        let before = before.or(state.source.map(|source| (source.incarnation, source.partitions)));
        let goes_on = |before: (u128, u32)| before.0 == self.incarnation && before.1 <= self.from;
        self.from < self.to() && before.is_none_or(goes_on)
    }
}

/// How far each partition of a topic may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    former: Vec<u32>,
    /// Those behind which not all is on record as settled.
    accepted: Vec<Acceptance>,
    /// Of each partition, a position below which all is settled.
    settled: Vec<u64>,
}

impl Growth {
    /// What a journal says about a source, as a rule that of partition 0; an error with the number on record if nobody has accepted
    /// the number that it has now.
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

    /// Takes in what the journal of another partition says. True if something of it was not known: another journal has
    /// lost it.
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

    /// What is known of acceptances and not in a journal: it is to be put there before its partition is owned.
    pub fn missing<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a Acceptance> {
        self.accepted.iter().filter(|one| one.follows(state))
    }

    /// Numbers of partitions from which an acceptance has led to the present one.
    pub fn former(&self) -> Vec<u32> {
        self.former.clone()
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> u32 {
        self.settled.len() as u32
    }

    /// True if it is not on record that all is settled which stood before.
    pub fn is_new(&self) -> bool {
        !self.accepted.is_empty()
    }

    /// It is on record that all is settled which stood before.
    pub fn open(&mut self) {
        self.accepted.clear();
    }

    /// Everything of a partition below `position` is settled.
    pub fn settle(&mut self, partition: u32, position: u64) {
        let settled = &mut self.settled[partition as usize];
        *settled = position.max(*settled);
    }

    /// Where a partition's reader must stop for now, if it must.
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

    /// Partitions that others wait for, each with the position it has to reach.
    pub fn awaited(&self) -> impl Iterator<Item = (u32, u64)> {
        (0..).zip(&self.settled).filter_map(|(partition, settled)| {
            let ends = self.accepted.iter().filter_map(|one| one.ends.get(partition as usize).copied());
            ends.max().filter(|end| settled < end).map(|end| (partition, end))
        })
    }
}
