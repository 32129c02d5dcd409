//! The inputs that an owner is given, and the actions that it answers with.

use std::sync::Arc;

use bytes::Bytes;

use super::setup::Committed;
use super::stop::{StepBack, Stop};
use super::stored::{Copied, Death, Stored, StoredChunks, Storing};
use crate::journal::{Chunks, DeadEntry, Effect, Record, RecordError};
use crate::ledger::Ranges;

/// Something that happened, which a driver reports to the owner.
#[derive(Debug, Clone)]
pub enum Input<'a> {
    /// Time has passed: ms on a clock that never goes back.
    Tick(u64),
    /// A record of the journal was read. Records come in order; one that was read before is ignored.
    Read {
        /// The record's position.
        position: u64,
        /// The record.
        record: &'a Record,
        /// Its size in bytes.
        bytes: usize,
    },
    /// A record of the journal was read that [`Owner::decode`] refused.
    Unreadable {
        /// The record's position.
        position: u64,
        /// Why it was refused.
        error: RecordError,
    },
    /// The journal was read to its end, by a read that began after the owner asked for it last ([`Owner::asked`]).
    CaughtUp {
        /// The first position that the journal keeps.
        start: u64,
        /// The position that the next append will get.
        end: u64,
        /// The time, as in `Tick`.
        now_ms: u64,
    },
    /// The result of [`Action::Append`].
    Appended(Appended),
    /// The answer to [`Action::ReadCommit`].
    Committed(Committed),
    /// The broker gives the partition to another: drain, and release.
    Revoked,
    /// The broker took the partition away: drop everything of it, and write nothing.
    Lost,
    /// The assignment was confirmed anew after [`Action::StepBack`]: this process may claim again.
    Confirmed,
    /// Handlers finished messages, or the reader passed gaps: these may go on record.
    Finished {
        /// The epoch in which the attempts began.
        epoch: u64,
        /// Positions that are done, as a ledger names them. Within a key, no position may come after a later one has.
        done: &'a Ranges,
        /// Messages that died and dead letters that failed again. Their effect may be other than passed only if
        /// [`crate::State::can_hold`].
        dead: &'a [Death],
    },
    /// Attempts at held messages or dead letters succeeded: their entries end with the next record.
    Replayed {
        /// The epoch in which the attempts began.
        epoch: u64,
        /// The entries' source positions.
        done: &'a [u64],
    },
    /// Messages were copied to hold. Allowed only if [`crate::State::can_hold`].
    Copied {
        /// The epoch in which the messages were read.
        epoch: u64,
        /// The messages.
        copies: &'a [Copied],
    },
    /// The result of [`Action::Move`].
    Moved {
        /// The source position of the message whose body or report it is.
        position: u64,
        /// Where the body or report lay.
        from: u64,
        /// Where it lies now.
        to: Stored,
    },
    /// The result of [`Action::StoreChunks`].
    ChunksStored(StoredChunks),
    /// A body, a report, a move or the chunks of a snapshot will not be stored.
    GivenUp(Storing),
    /// The answer to [`Action::ReadChunks`].
    Chunks {
        /// The position from the action.
        position: u64,
        /// All chunks in the order asked for; `None` if one is gone or cannot be read.
        chunks: Option<&'a [Bytes]>,
    },
    /// After [`Action::Drain`]: no handler runs any more, and everything that handlers did was handed over.
    Quiet,
    /// The process slept for more than 1 s: the driver starts nothing until [`Action::Resume`] (ORD-12).
    Paused,
    /// The broker proves that the process with this instance id is dead, whether or not it released its epoch.
    PredecessorDead(u128),
}

/// The result of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Appended {
    /// The append was acknowledged, at this position.
    At(u64),
    /// The append was refused: the journal does not end where the condition says.
    Moved,
    /// The result is not known; the record may still land.
    Unknown,
}

/// The next thing that a driver must do. Every action except `Wait` and `Read` is given once, and must be carried out
/// before the next step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Append the record as [`Owner::encode`] writes it and report how that went. With `expect`, append only if the
    /// journal ends there.
    Append {
        /// The record to append.
        record: Arc<Record>,
        /// Where the journal must end.
        expect: Option<u64>,
    },
    /// Read the journal from here on, report each record, and report when the end is reached.
    Read {
        /// The first position that was not read yet.
        from: u64,
    },
    /// Read the broker's commit for the partition, and report it.
    ReadCommit,
    /// Do nothing until this time, or until a record lands, which must be read, or something else happens.
    Wait {
        /// The time to tick; `u64::MAX` if no time matters.
        until_ms: u64,
    },
    /// The partition is owned: read the source from the lowest unsettled position of [`Owner::state`], skipping settled
    /// positions.
    Start {
        /// The epoch, which everything that is sent elsewhere must carry.
        epoch: u64,
    },
    /// After [`Input::Paused`]: this process still owns the partition, and handlers may start again.
    Resume,
    /// A record of this owner counts. Lanes that waited for it go on, and the broker's commit may follow to `low`. If
    /// this comes before `Start`, it carries out an operator's reset or a new group's start, and the commit must be
    /// replaced before the next step.
    Counted {
        /// The owner's epoch, for the commit's metadata.
        epoch: u64,
        /// Positions that are on record as done, those of entries included.
        done: Ranges,
        /// Source positions of the messages that are on record as held.
        held: Vec<u64>,
        /// Dead letters that are on record now.
        dead: Vec<DeadEntry>,
        /// The lowest position that is not settled.
        low: u64,
    },
    /// A record that counts changed held messages or dead letters; if the record was this owner's, this comes before
    /// [`Action::Counted`]. The lanes of the keys concerned must be shown [`Owner::view`] anew. A lane whose copy or
    /// dead letter counts now must hear of both together.
    Changed {
        /// The changes, in order.
        effects: Vec<Effect>,
    },
    /// Entries of these keys that no successor waits for are due: show the keys' lanes [`Owner::view`] anew.
    Due {
        /// The key hashes; `None` for messages that nothing orders.
        keys: Vec<Option<u64>>,
    },
    /// The body of a copy or dead letter landed where `hold.p` may be cut: store it again, and hand it over again.
    StoreAgain {
        /// The message's source position.
        position: u64,
    },
    /// Append the body or report that lies at `from` in `hold.p` to its end, and report where the copy lies.
    Move {
        /// The source position of the message.
        position: u64,
        /// Where the body or report lies.
        from: u64,
        /// The token of this storing: the acknowledgement turns it into the answer, [`Input::GivenUp`] gives it back.
        storing: Storing,
    },
    /// Append these chunks of a snapshot to `hold.p`, one after another, and report where all of them lie.
    StoreChunks {
        /// The token of this storing: the acknowledgement turns it into the answer, [`Input::GivenUp`] gives it back.
        storing: Storing,
        /// The chunks; each is made when it is asked for.
        chunks: Box<Chunks>,
    },
    /// Read these chunks of a snapshot in `hold.p`, and report them before any further record of the journal.
    ReadChunks {
        /// To be given back with the answer.
        position: u64,
        /// Where the chunks lie.
        chunks: Vec<u64>,
    },
    /// Forget `hold.p` below this position. A driver may do so late, or not at all.
    CutHold {
        /// The first position to keep.
        below: u64,
    },
    /// Forget the journal below this position. A driver may do so late, or not at all.
    Cut {
        /// The first position to keep.
        below: u64,
    },
    /// Start nothing more, hand over what running handlers finish, and then report [`Input::Quiet`].
    Drain,
    /// This process does not own the partition, or not any more: drop everything of it, confirm the assignment anew,
    /// then report [`Input::Confirmed`].
    StepBack(StepBack),
    /// This process will not own the partition again: drop everything of it, and this owner.
    Stop(Stop),
}
