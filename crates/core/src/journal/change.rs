//! The changes that a record makes, reported one by one while the record is applied.
//!
//! The owner, the index and the answer to an operator's command use these reports to follow the state without comparing
//! whole states.

use std::ops::Range;

use super::entries::Entry;

/// One effect of a record that counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// A held message or dead letter appeared, changed or is gone.
    Changed(Change),
    /// An operator asked to skip these positions: each is buried when its turn comes.
    Skip(Range<u64>),
    /// The command asks for something that this entry does not allow; the entry did not change.
    Refused {
        /// The entry's source position.
        position: u64,
        /// Why the command was refused for this entry.
        why: Refusal,
    },
}

/// How an entry, which is a held message or a dead letter, changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Change {
    /// What changed the entry.
    pub cause: Cause,
    /// The entry before the change; `None` if the message was neither held nor dead.
    pub before: Option<Entry>,
    /// The entry after the change; `None` if the message is neither held nor dead any more.
    pub after: Option<Entry>,
}

/// What can change an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A record named the message's copy in `hold.p`: the message is held now.
    Held,
    /// The message became a dead letter: before, it was held or not settled.
    Died,
    /// The dead letter failed again, either when it came due by itself or in answer to the retry that was asked for.
    Failed,
    /// The dead letter failed again, but its attempt began before the newest command: the retry that was asked for
    /// stands.
    FailedUnanswered,
    /// The message's body or report was moved within `hold.p`.
    Moved,
    /// The message was handled.
    Done,
    /// A command asked for a retry.
    Asked,
    /// A command asked for a retry with an edited body.
    Edited,
    /// A command discarded the message.
    Discarded,
    /// A command released the dead letter: successors of its key no longer wait for it.
    Released,
    /// The dead letter reached the end of its time to be kept.
    Expired,
}

/// Why a command does nothing to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The message is held, and the command is for dead letters only.
    Held,
    /// The message is dead, and the command is for held or unsettled messages only.
    Dead,
    /// The entry has changed since it was shown to whoever sent the command.
    ChangedSince,
    /// The dead letter must not expire: it waits for a person's decision, or a retry of it is asked for.
    Wanted,
    /// The new body may have been cut away from `hold.p` already: the sender must store it again and repeat the
    /// command.
    BelowLow,
    /// The entry is already in the state that the command asks for.
    NoChange,
}

/// The function that receives each effect as it happens.
pub(super) type Tell<'a> = &'a mut dyn FnMut(Effect);

pub(super) fn changed(tell: Tell<'_>, cause: Cause, before: Option<Entry>, after: Option<Entry>) {
    tell(Effect::Changed(Change { cause, before, after }));
}
