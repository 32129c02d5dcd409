//! Which message of a key is its head (docs/protocol.md, "Which message of a key may run").
//!
//! A key's order is its source positions, wherever the body lies. [`walk`] goes up the positions of one key and finds
//! the one that may run: the one function for it, used by shards, the simulation and the explorer. In come positions in
//! ascending order, each with what it is; out comes a [`Turn`].

use crate::owner::Rules;

/// What a position of a key is to whoever looks for the key's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// On record as done, skipped or discarded; done here; dead and passed.
    Past,
    /// It runs here.
    Running,
    /// It failed here, and its dead letter does not count yet: after a take-over it would run again, behind its
    /// successor.
    Dying,
    /// It is being copied to hold, or was copied and no record that counts names the copy: the same would happen.
    Copying,
    /// The same, of a message that its successors do not wait for: one that is scheduled.
    CopyingPassed,
    /// Dead and holding; no replay is asked for or due.
    Stopped,
    /// It lies in hold, and what it is was not shown here yet.
    InHold,
    /// It was not read from the source since the take-over: a message of the key may lie there.
    Unread,
    /// It runs, from this time on: held, dead and holding with a replay that is asked for or due, or read and unsettled.
    Turn {
        /// From then on; 0 if it waits for no time.
        at_ms: u64,
    },
    /// Nobody waits for it, and it runs from this time on, one at a time with the others: dead and passed, with a replay
    /// that is asked for or due, or scheduled.
    Aside {
        /// From then on; 0 if it waits for no time.
        at_ms: u64,
    },
}

/// What a key may do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Turn {
    /// Run this position.
    Run(u64),
    /// Wait until then: that is when the position at which the walk stopped, or one that was passed, may run.
    Until(u64),
    /// Wait until the position at which the walk stopped is something else.
    Stop(u64, Place),
    /// There is nothing to run.
    Nothing,
}

/// Walks up the positions of one key, which ascend, to the first that may run now or that all behind it waits for.
pub fn walk(places: impl IntoIterator<Item = (u64, Place)>, now_ms: u64) -> Turn {
    walk_under(Rules::ALL, places, now_ms)
}

pub(crate) fn walk_under(rules: Rules, places: impl IntoIterator<Item = (u64, Place)>, now_ms: u64) -> Turn {
    // When one that was passed is due.
    let mut until_ms = u64::MAX;
    for (position, place) in places {
        let stops = match place {
            Place::Past | Place::CopyingPassed => false,
            Place::Turn { at_ms } | Place::Aside { at_ms } if at_ms <= now_ms => return Turn::Run(position),
            Place::Aside { at_ms } => {
                until_ms = until_ms.min(at_ms);
                false
            }
            Place::Turn { at_ms } => return Turn::Until(until_ms.min(at_ms)),
            Place::Copying => rules.copy_counts_first(),
            Place::Dying => rules.dead_counts_first(),
            Place::Stopped => rules.escalated_holds(),
            Place::Unread => rules.wait_for_reader(),
            Place::Running | Place::InHold => true,
        };
        if stops {
            return if until_ms == u64::MAX { Turn::Stop(position, place) } else { Turn::Until(until_ms) };
        }
    }
    if until_ms == u64::MAX { Turn::Nothing } else { Turn::Until(until_ms) }
}
