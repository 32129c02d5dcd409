//! Finds the head of a key: the one message of it that may run next (docs/protocol.md, "Which message of a key may
//! run").
//!
//! A key's order is the order of its source positions, wherever the bodies lie. [`walk`] goes up the positions of one
//! key until it finds the one that may run or the one that all later ones must wait for. Shards, the simulation and the
//! explorer all use this one function. Positions come in ascending, each with what it is ([`Place`]); out comes a
//! [`Turn`].

use crate::owner::Rules;

/// What a position of a key means to the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Finished or no longer in the way: on record as done, skipped or discarded, done here, or dead and passed. The
    /// walk goes on.
    Past,
    /// Its message is running here. The walk stops.
    Running,
    /// Its message failed here and its dead letter does not count yet. The walk stops: after a take-over the message
    /// would run again, behind a successor that had already run.
    Dying,
    /// Its message is being copied to hold, or no counting record names the copy yet. The walk stops, for the same
    /// reason.
    Copying,
    /// Its message is being copied, but is scheduled, so that its successors do not wait for it. The walk goes on.
    CopyingPassed,
    /// A dead letter that holds its key, with no retry asked for or due. The walk stops.
    Stopped,
    /// A message that lies in hold and whose entry the lane was not shown yet. The walk stops.
    InHold,
    /// Not read from the source since the take-over, so a message of the key may lie there. The walk stops.
    Unread,
    /// A message to run from this time on: held, or dead and holding with a retry asked for or due, or read and
    /// unsettled. Until then the walk stops.
    Turn {
        /// The time; 0 if the message waits for none.
        at_ms: u64,
    },
    /// A message that no successor waits for, to run from this time on, but only while no other of the key runs:
    /// scheduled, or dead and passed with a retry asked for or due. Until then the walk goes on.
    Aside {
        /// The time; 0 if the message waits for none.
        at_ms: u64,
    },
}

/// What a key may do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Turn {
    /// Run the message at this position.
    Run(u64),
    /// Wait until this time: then the position at which the walk stopped, or one that it passed, may run.
    Until(u64),
    /// Wait until the position at which the walk stopped has become something else.
    Stop(u64, Place),
    /// The key has nothing to run.
    Nothing,
}

/// Walks up the positions of one key, which must ascend, to the first that may run now or that all later ones wait for.
pub fn walk(places: impl IntoIterator<Item = (u64, Place)>, now_ms: u64) -> Turn {
    walk_under(Rules::ALL, places, now_ms)
}

pub(crate) fn walk_under(rules: Rules, places: impl IntoIterator<Item = (u64, Place)>, now_ms: u64) -> Turn {
    // The earliest time at which a position that the walk passed is due.
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
