//! What a record changed, told as it happens: so that an owner, an index and an answer to a person follow the state
//! without comparing it.

use std::ops::Range;

use super::entries::Entry;

/// What came of a record that counts, one thing at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Something that is held or dead has changed, come or gone.
    Changed(Change),
    /// These positions are to be buried at their turn.
    Skip(Range<u64>),
    /// A command asks for what cannot be done with this entry; nothing of it changed.
    Refused {
        /// The entry's source position.
        position: u64,
        /// Why.
        why: Refusal,
    },
}

/// How something that is held or dead changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Change {
    /// By what.
    pub cause: Cause,
    /// What it was; `None` if it was neither held nor dead.
    pub before: Option<Entry>,
    /// What it is; `None` if it is neither any more.
    pub after: Option<Entry>,
}

/// What changes something that is held or dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Its copy was named.
    Held,
    /// It died: it was held, or not settled.
    Died,
    /// It failed again: by itself when it was due, or in answer to the retry that was asked for.
    Failed,
    /// It failed again, in an attempt that had not seen the newest command: what was asked for stays.
    FailedUnanswered,
    /// Its body or its report lies elsewhere.
    Moved,
    /// It was handled.
    Done,
    /// A retry was asked for.
    Asked,
    /// The same, with another body.
    Edited,
    /// It was discarded.
    Discarded,
    /// It is passed from now on.
    Released,
    /// It was kept for as long as it is to be.
    Expired,
}

/// Why a command does nothing to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It is held, and this is for dead letters.
    Held,
    /// It is dead, and this is for what is held or not settled.
    Dead,
    /// It has changed since it was shown.
    ChangedSince,
    /// It waits for a person, or a retry of it is asked for: it does not expire.
    Wanted,
    /// The new body may have been cut away already: store it again, and ask again.
    BelowLow,
    /// It is so already.
    NoChange,
}

/// Who is told.
pub(super) type Tell<'a> = &'a mut dyn FnMut(Effect);

pub(super) fn changed(tell: Tell<'_>, cause: Cause, before: Option<Entry>, after: Option<Entry>) {
    tell(Effect::Changed(Change { cause, before, after }));
}
