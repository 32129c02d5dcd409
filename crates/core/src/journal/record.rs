//! The records of a partition's journal, and their bytes.
//!
//! In comes a [`Record`], out come its bytes, and back. A record is a format version, a kind, then fields as (tag,
//! length, bytes) in ascending tags. Every kind and field of the protocol has its place from the start; which of them
//! this version carries out is decided by [`apply`](super::apply()). A version, kind or field that is not known is an
//! error that stops the partition: a newer version wrote it, and to skip it would be to disagree about what counts.
//! Only fields from [`SKIPPABLE`](super::SKIPPABLE) on are skipped when they are not known.
//!
//! A journal has a format in use, a number that stands in its fences: owners write facts and snapshots in that format
//! and in no newer one, so that every node of a fleet of mixed versions can read them. [`CommandKind::Upgrade`] raises
//! it. Claims, fences, identities and commands are how nodes of different versions learn of each other: they are
//! always written in the first format.

use siphasher::sip::SipHasher24;

use super::encoding::Malformed;
use super::growth::Acceptance;
use super::state::State;
use crate::lanes::Order;
use crate::ledger::Ranges;

/// The newest format of journals that this version reads and writes.
pub const FORMAT: u8 = 3;
/// The format of journals whose fences name none: they were written before formats had numbers.
pub const FORMAT_FIRST: u8 = 1;
/// The format that a journal gets from the first fence that names one. It may stay below [`FORMAT`] for some releases:
/// a new group's journal must be readable for the oldest version that runs beside this one.
pub const FORMAT_NEW: u8 = 3;
/// The first format in which something can be held, dead letters can hold their key, and commands reach them.
pub const FORMAT_HOLD: u8 = 3;

/// A record of `journal.p`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// Names the journal; the first counts.
    Identity {
        /// Random.
        journal: u128,
    },
    /// Asks for the partition.
    Claim(Claim),
    /// Starts an epoch: its position.
    Fence(Fence),
    /// What was settled.
    Facts(Facts),
    /// The whole state.
    Snapshot(Snapshot),
    /// What a person or a job wants of a dead letter.
    Command(Command),
}

/// Asks for the partition. The newest claim is the one that may fence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Random, one for each claim.
    pub id: u128,
    /// Random, one for each process: some brokers can prove that a process is dead.
    pub instance: u128,
    /// Who it is, for people.
    pub node: String,
    /// The newest format that the claimant reads and writes; [`FORMAT_FIRST`] if it does not say.
    pub format: u8,
}

/// Starts an epoch, if its claim is the newest, at that position, and was not fenced before, and it names the format in
/// use.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The claim's id.
    pub claim: u128,
    /// Where the claimant read its claim: a late repeat of the claim elsewhere does not revive this fence.
    pub claim_position: u64,
    /// The journal that the claimant read.
    pub journal: u128,
    /// The source that the claimant reads.
    pub source: Source,
    /// The format in use; none in fences that were written before formats had numbers.
    pub format: Option<u8>,
    /// The order that the claimant keeps; none in fences that were written before it stood there.
    pub order: Option<Order>,
}

/// What the source partition belongs to; both stop a partition when they change (BRK-10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    /// The topic's incarnation: one that was made again has another.
    pub incarnation: u128,
    /// How many partitions the topic has.
    pub partitions: u32,
}

/// What an owner puts on record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The writer's epoch.
    pub epoch: u64,
    /// One more than the epoch's last record.
    pub seq: u64,
    /// Where a new group starts.
    pub start: Option<u64>,
    /// Where an operator moved the group.
    pub reset: Option<u64>,
    /// Finished positions, and gaps that the reader passed.
    pub done: Ranges,
    /// Messages whose copies wait in `hold.p`.
    pub held: Vec<Held>,
    /// Copies that were moved within `hold.p`.
    pub moved: Vec<Moved>,
    /// Messages that became dead letters.
    pub dead: Vec<DeadEntry>,
    /// Done positions that are to be run again.
    pub again: Ranges,
    /// Newest version by key hash.
    pub versions: Vec<(u64, u64)>,
    /// Key hashes whose versions were forgotten.
    pub forgotten: Vec<u64>,
    /// How far dead letters were published.
    pub published: Option<u64>,
    /// The position of `control` that the owner acted on.
    pub control: Option<u64>,
    /// No position of `hold.p` below it is named, or will be by this owner.
    pub low: Option<u64>,
    /// The epoch ends: nothing runs, and all is on record.
    pub released: bool,
}

/// A message whose copy waits in `hold.p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// Its source position.
    pub position: u64,
    /// Its key's hash; `None` without a key.
    pub key_hash: Option<u64>,
    /// Where its copy lies in `hold.p`.
    pub body: u64,
    /// When it may run, ms since 1970.
    pub due_ms: Option<u64>,
    /// Its successors need not wait for it.
    pub passes: bool,
    /// The guards have decided about it already.
    pub judged: bool,
    /// Its priority.
    pub priority: u8,
    /// Attempts so far.
    pub tries: u32,
}

/// A copy that was moved within `hold.p`; counts only if `from` is still what the state names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moved {
    /// The message's source position.
    pub position: u64,
    /// Where its copy lay.
    pub from: u64,
    /// Where it lies now.
    pub to: u64,
}

/// A message that became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeadEntry {
    /// Its source position.
    pub position: u64,
    /// Its key's hash, by [`key_hash`]; `None` without a key.
    pub key_hash: Option<u64>,
    /// What it does to its key.
    pub effect: DeadEffect,
    /// Why it died.
    pub reason: DeadReason,
    /// Where its body lies in `hold.p`; stored and acknowledged before this is put on record.
    pub body: u64,
    /// Where the report of its failure lies in `hold.p`.
    pub report: Option<u64>,
    /// Attempts so far.
    pub tries: u32,
    /// When it is tried again by itself, ms since 1970.
    pub due_ms: Option<u64>,
    /// When it expires, ms since 1970. Journals of older formats do not say.
    pub expires_ms: Option<u64>,
    /// Its priority.
    pub priority: u8,
    /// The newest command that the attempt had read when it began, as a journal position.
    pub command: Option<u64>,
}

/// What a dead letter does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadEffect {
    /// Its successors run.
    Passed,
    /// Its successors wait for it.
    Holding,
    /// Its successors wait for it until a person decides.
    Halting,
}

impl DeadEffect {
    pub(super) fn code(self) -> u8 {
        match self {
            DeadEffect::Passed => 0,
            DeadEffect::Holding => 1,
            DeadEffect::Halting => 2,
        }
    }

    pub(super) fn of_code(code: u8) -> Result<DeadEffect, Malformed> {
        match code {
            0 => Ok(DeadEffect::Passed),
            1 => Ok(DeadEffect::Holding),
            2 => Ok(DeadEffect::Halting),
            _ => Err(Malformed("an effect of a dead letter that this version does not know")),
        }
    }
}

/// Why a message died (DLQ-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are the reasons of DLQ-2")]
pub enum DeadReason {
    RateLimited,
    UserBlocked,
    CircuitOpen,
    QueueFull,
    ProcessTimeout,
    KafkaFailure,
    InvalidMessage,
    DownstreamError,
    SystemOverload,
    Rejected,
    VersionGap,
    Poison,
    Expired,
    Skipped,
}

pub(super) const REASONS: [(DeadReason, u8, &str); 14] = [
    (DeadReason::RateLimited, 1, "rate_limited"),
    (DeadReason::UserBlocked, 2, "user_blocked"),
    (DeadReason::CircuitOpen, 3, "circuit_open"),
    (DeadReason::QueueFull, 4, "queue_full"),
    (DeadReason::ProcessTimeout, 5, "process_timeout"),
    (DeadReason::KafkaFailure, 6, "kafka_failure"),
    (DeadReason::InvalidMessage, 7, "invalid_message"),
    (DeadReason::DownstreamError, 8, "downstream_error"),
    (DeadReason::SystemOverload, 9, "system_overload"),
    (DeadReason::Rejected, 10, "rejected"),
    (DeadReason::VersionGap, 11, "version_gap"),
    (DeadReason::Poison, 12, "poison"),
    (DeadReason::Expired, 13, "expired"),
    (DeadReason::Skipped, 14, "skipped"),
];

impl DeadReason {
    /// Its name, as people and the API see it.
    pub fn name(self) -> &'static str {
        REASONS.iter().find(|row| row.0 == self).map_or("", |row| row.2)
    }

    pub(super) fn code(self) -> u8 {
        REASONS.iter().find(|row| row.0 == self).map_or(0, |row| row.1)
    }
}

/// The whole state as of what its writer had read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The writer's epoch.
    pub epoch: u64,
    /// One more than the epoch's last record.
    pub seq: u64,
    /// The state is that of all records below this journal position, not of where the snapshot lands.
    pub as_of: u64,
    /// The state, or where it is.
    pub body: SnapshotBody,
}

/// A snapshot's state, or where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SnapshotBody {
    /// In the record itself.
    State(Box<State>),
    /// In chunks, at these positions of `hold.p`.
    Chunks(Vec<u64>),
}

/// What a person or a job wants of messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Command {
    /// Random; one seen before is ignored.
    pub id: u128,
    /// What is asked for.
    pub kind: CommandKind,
    /// Of which source positions.
    pub positions: Ranges,
    /// The journal position as of which they were shown; what changed since is left out.
    pub as_of: Option<u64>,
    /// Where an edited body lies in `hold.p`.
    pub body: Option<u64>,
    /// What is accepted, in the journal of partition 0.
    pub accept: Option<Acceptance>,
    /// How many partitions the topic has.
    pub partitions: Option<u32>,
    /// The format to be used from here on.
    pub format: Option<u8>,
    /// Who asks.
    pub who: String,
    /// When, ms since 1970.
    pub when_ms: u64,
}

/// What a command asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub enum CommandKind {
    Retry,
    Discard,
    Release,
    Edit,
    Expire,
    Skip,
    /// In flight when a process died, beside others.
    Suspect,
    /// In flight when a process died, and alone.
    SuspectAlone,
    /// The topic's new number of partitions is to be gone on with.
    Accept,
    /// The topic has more partitions: nobody goes by the old number any more.
    Widen,
    /// All that stood before so many partitions were accepted is settled.
    Open,
    /// All nodes read a newer format: owners write it from here on.
    Upgrade,
}

pub(super) const COMMANDS: [(CommandKind, u8); 12] = [
    (CommandKind::Retry, 1),
    (CommandKind::Discard, 2),
    (CommandKind::Release, 3),
    (CommandKind::Edit, 4),
    (CommandKind::Expire, 5),
    (CommandKind::Skip, 6),
    (CommandKind::Suspect, 7),
    (CommandKind::SuspectAlone, 8),
    (CommandKind::Accept, 9),
    (CommandKind::Widen, 10),
    (CommandKind::Open, 11),
    (CommandKind::Upgrade, 12),
];

/// Why bytes are no record that this version knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RecordError {
    /// Another format.
    #[error("format version {0}")]
    Version(u8),
    /// Another kind.
    #[error("record kind {0}")]
    Kind(u8),
    /// Anything else, a field that is not known included.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The hash of a key as records have it: stable, and nobody outside can make keys collide.
pub fn key_hash(journal: u128, key: &[u8]) -> u64 {
    SipHasher24::new_with_keys(journal as u64, (journal >> 64) as u64).hash(key)
}
