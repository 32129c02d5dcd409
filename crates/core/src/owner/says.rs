//! What an owner is told, and what it answers.

use std::sync::Arc;

use bytes::Bytes;

use super::setup::Committed;
use super::stop::{StepBack, Stop};
use super::stored::{Copied, Death, Stored, StoredChunks, Storing};
use crate::journal::{Chunks, DeadEntry, Effect, Record, RecordError};
use crate::ledger::Ranges;

/// What happened.
#[derive(Debug, Clone)]
pub enum Input<'a> {
    /// Time passed; ms on a clock that never goes back.
    Tick(u64),
    /// A record was read. Records come in order; one that was read before is ignored.
    Read {
        /// Where it stands.
        position: u64,
        /// What it is.
        record: &'a Record,
        /// Its size.
        bytes: usize,
    },
    /// A record was read that [`Owner::decode`] refused.
    Unreadable {
        /// Where it stands.
        position: u64,
        /// What is wrong with it.
        error: RecordError,
    },
    /// All of the journal was read, by a read that began after the input before this one.
    CaughtUp {
        /// The first position kept.
        start: u64,
        /// The next position to be given out.
        end: u64,
        /// The time.
        now_ms: u64,
    },
    /// How [`Action::Append`] went.
    Appended(Appended),
    /// The answer to [`Action::ReadCommit`].
    Committed(Committed),
    /// The broker gives the partition to another: drain, and release.
    Revoked,
    /// The broker took the partition away: drop everything, write nothing.
    Lost,
    /// The assignment was confirmed anew since [`Action::StepBack`]; it may be claimed again.
    Confirmed,
    /// What handlers finished, and gaps that the reader passed: ready for the record.
    Finished {
        /// The epoch that they were begun under.
        epoch: u64,
        /// Positions that are done, as a ledger names them. Of a key, an earlier one never comes after a later one.
        done: &'a Ranges,
        /// Messages that died, dead letters that failed again included. They hold their key only where
        /// [`crate::State::can_hold`].
        dead: &'a [Death],
    },
    /// Attempts at what is held or dead that succeeded: their entries go with the next record.
    Replayed {
        /// The epoch that they were begun under.
        epoch: u64,
        /// Their positions.
        done: &'a [u64],
    },
    /// Messages that were copied to hold. Only where [`crate::State::can_hold`].
    Copied {
        /// The epoch in which they were read.
        epoch: u64,
        /// The messages.
        copies: &'a [Copied],
    },
    /// How [`Action::Move`] went.
    Moved {
        /// Whose body it is.
        position: u64,
        /// Where it lay.
        from: u64,
        /// Where it lies now.
        to: Stored,
    },
    /// How [`Action::StoreChunks`] went.
    ChunksStored(StoredChunks),
    /// What was to be stored will not be.
    GivenUp(Storing),
    /// The answer to [`Action::ReadChunks`].
    Chunks {
        /// The position that was asked with.
        position: u64,
        /// All of them in their order; `None` if one is gone, or cannot be read.
        chunks: Option<&'a [Bytes]>,
    },
    /// After [`Action::Drain`]: no handler runs, and all they did was handed over.
    Quiet,
    /// The process slept for more than 1 s: nothing starts until [`Action::Resume`] (ORD-12).
    Paused,
    /// The broker proves that the process with this instance id is dead.
    PredecessorDead(u128),
}

/// How an append went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Appended {
    /// It was acknowledged, at this position.
    At(u64),
    /// It was refused: the journal does not end where it was expected to.
    Moved,
    /// Nobody knows; it may still land.
    Unknown,
}

/// What to do next. All but `Wait` and `Read` are said once, and must be done before the next step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Append the record as [`Owner::encode`] writes it, on condition that the journal ends at `expect` if given, and say how it went.
    Append {
        /// What to append.
        record: Arc<Record>,
        /// Where the journal must end.
        expect: Option<u64>,
    },
    /// Read the journal from here, and say what was read, and when its end is reached.
    Read {
        /// The next position not read.
        from: u64,
    },
    /// Read the broker's commit, and say what it is.
    ReadCommit,
    /// Nothing, until this time, a record lands (read it), or anything else happens.
    Wait {
        /// Then tick; `u64::MAX`: no time.
        until_ms: u64,
    },
    /// Owned: read the source from the lowest unsettled position of [`Owner::state`], skipping what is settled.
    Start {
        /// The epoch, which everything sent elsewhere carries.
        epoch: u64,
    },
    /// After [`Input::Paused`]: still the owner, handlers may start again.
    Resume,
    /// What was handed over counts now. Lanes that waited for it go on, and the broker's commit may follow to `low`.
    /// Before `Start`, the commit must be replaced before the next step: it is an operator's reset.
    Counted {
        /// The epoch, for the commit's metadata.
        epoch: u64,
        /// Positions on record as done, entries included.
        done: Ranges,
        /// Copies on record as held: their source positions.
        held: Vec<u64>,
        /// Dead letters on record.
        dead: Vec<DeadEntry>,
        /// The lowest position that is not settled.
        low: u64,
    },
    /// What a record that counts changed of what is held or dead; said before [`Action::Counted`] if the record was this
    /// owner's. Lanes of the keys concerned are to be shown [`Owner::view`] anew: those whose copy or dead letter counts
    /// now, together with that.
    Changed {
        /// One thing after the other.
        effects: Vec<Effect>,
    },
    /// Of these keys, entries that nobody waits for are due: show their lanes [`Owner::view`] anew.
    Due {
        /// Their hashes; `None` for messages that nothing orders.
        keys: Vec<Option<u64>>,
    },
    /// A copy or a dead letter was stored where `hold.p` may be cut: store its body again, and hand it over again.
    StoreAgain {
        /// Its source position.
        position: u64,
    },
    /// Append the body at `from` in `hold.p` to its end, and say where it lies.
    Move {
        /// Whose body or report it is.
        position: u64,
        /// Where it lies.
        from: u64,
        /// For what is stored.
        storing: Storing,
    },
    /// Append these pieces to `hold.p`, one after the other, and say where all of them lie.
    StoreChunks {
        /// For what is stored.
        storing: Storing,
        /// The pieces, each made when it is asked for.
        chunks: Box<Chunks>,
    },
    /// Read these positions of `hold.p`, and say what they are. No more of the journal is read until then.
    ReadChunks {
        /// To be given back with the answer.
        position: u64,
        /// Where they lie.
        chunks: Vec<u64>,
    },
    /// Forget `hold.p` below this position. May be done late, or not at all.
    CutHold {
        /// The first position to keep.
        below: u64,
    },
    /// Forget the journal below this position. May be done late, or not at all.
    Cut {
        /// The first position to keep.
        below: u64,
    },
    /// Start nothing more; hand over what running handlers finish, then say [`Input::Quiet`].
    Drain,
    /// Not the owner (any more): drop what is left of it. Confirm the assignment anew, then say [`Input::Confirmed`].
    StepBack(StepBack),
    /// Not the owner any more, for good: drop what is left of it, and this owner too.
    Stop(Stop),
}
