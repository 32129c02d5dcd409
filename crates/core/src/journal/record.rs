//! The records of a partition's journal as Rust types, and the numbers that stand for their kinds in bytes.
//!
//! A record is a format version, a kind, then fields as (tag, length, bytes) in ascending order of tags; `bytes.rs` has
//! the layout. Every kind and field of the protocol has its place from the start; [`apply`](super::apply()) decides
//! which of them this version carries out. A version, kind or field that the reader does not know is an error that
//! stops the partition: a newer version wrote it, and skipping it could make two readers disagree about what counts.
//! Only unknown fields from tag [`SKIPPABLE`](super::SKIPPABLE) on are skipped.
//!
//! A journal has a format in use, a number that stands in its fences. Owners write facts and snapshots in that format
//! and in no newer one, so that every node of a fleet of mixed versions can read them. [`CommandKind::Upgrade`] raises
//! the format. Claims, fences, identities and commands are how nodes of different versions learn of each other, so they
//! are always written in the first format.

use siphasher::sip::SipHasher24;

use super::encoding::Malformed;
use super::growth::Acceptance;
use super::state::State;
use crate::lanes::Order;
use crate::ledger::Ranges;

/// The newest format of journals that this version reads and writes.
pub const FORMAT: u8 = 3;
/// The format of a journal whose fences name none: it was written before formats had numbers.
pub const FORMAT_FIRST: u8 = 1;
/// The format that the first fence of a new group's journal names. It may stay below [`FORMAT`] for some releases,
/// because the oldest version that may run beside this one must be able to read the journal.
pub const FORMAT_NEW: u8 = 3;
/// The first format in which messages can be held, dead letters can hold their key, and commands can name entries.
pub const FORMAT_HOLD: u8 = 3;

/// A record of `journal.p`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// Names the journal; only the first identity counts.
    Identity {
        /// The journal's id, random.
        journal: u128,
    },
    /// A process asks for the partition.
    Claim(Claim),
    /// A claimant becomes the owner: the fence's position is the new epoch.
    Fence(Fence),
    /// An owner says what was settled.
    Facts(Facts),
    /// An owner writes down the whole state, so that the journal before it can be cut.
    Snapshot(Snapshot),
    /// A person or a job asks for something, mostly for dead letters.
    Command(Command),
}

/// A process asks for the partition. Only the process with the newest claim may fence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// A random id, new for each claim.
    pub id: u128,
    /// The random id of the process: some brokers can prove that a process is dead.
    pub instance: u128,
    /// The node's name, for people.
    pub node: String,
    /// The newest format that the claimant can read and write; [`FORMAT_FIRST`] if the claim does not say.
    pub format: u8,
}

/// Starts an epoch if all of this holds: its claim is the newest, stands at the named position and was not fenced
/// before, and the fence names the format in use.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The id of the claim that this fence follows.
    pub claim: u128,
    /// Where the claimant read its own claim. A late repeat of the claim lands elsewhere, and so cannot revive this
    /// fence.
    pub claim_position: u64,
    /// The id of the journal that the claimant read.
    pub journal: u128,
    /// The source topic as the claimant finds it.
    pub source: Source,
    /// The format in use; `None` in fences that were written before formats had numbers.
    pub format: Option<u8>,
    /// The order that the claimant's pipeline keeps; `None` in fences of older versions, which did not write it.
    pub order: Option<Order>,
}

/// Identifies the source topic. A partition stops when either value changes (BRK-10), because positions or keys would
/// mean something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    /// The topic's incarnation: a topic that was deleted and made again has another.
    pub incarnation: u128,
    /// How many partitions the topic has.
    pub partitions: u32,
}

/// What an owner puts on record in one step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The epoch of the owner that writes this.
    pub epoch: u64,
    /// One more than the `seq` of the epoch's last counting record.
    pub seq: u64,
    /// The position at which a new group starts.
    pub start: Option<u64>,
    /// The position to which an operator moved the group.
    pub reset: Option<u64>,
    /// Positions whose messages are finished, and gaps that the reader passed.
    pub done: Ranges,
    /// Messages whose copies lie in `hold.p` and wait.
    pub held: Vec<Held>,
    /// Bodies or reports that were moved within `hold.p`.
    pub moved: Vec<Moved>,
    /// Messages that became dead letters, or dead letters that failed again.
    pub dead: Vec<DeadEntry>,
    /// Done positions that are to be run again.
    pub again: Ranges,
    /// The newest version of each key, by key hash.
    pub versions: Vec<(u64, u64)>,
    /// Key hashes whose versions may be forgotten.
    pub forgotten: Vec<u64>,
    /// How far dead letters were published.
    pub published: Option<u64>,
    /// The position of `control` that the owner acted on.
    pub control: Option<u64>,
    /// No position of `hold.p` below this one is named, or will be named by this owner.
    pub low: Option<u64>,
    /// The last record of an epoch: no handler runs any more, and all their results are on record.
    pub released: bool,
}

/// A message whose copy lies in `hold.p` and waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// The message's source position.
    pub position: u64,
    /// The key hash of the message's lane; `None` if nothing orders the message.
    pub key_hash: Option<u64>,
    /// Where the message's copy lies in `hold.p`.
    pub body: u64,
    /// When the message may run, ms since 1970.
    pub due_ms: Option<u64>,
    /// Successors of the same key need not wait for the message.
    pub passes: bool,
    /// The guards have already decided about the message.
    pub judged: bool,
    /// The message's priority.
    pub priority: u8,
    /// Attempts at the message so far.
    pub tries: u32,
}

/// A body or report that was moved within `hold.p`. Counts only if `from` is still what the state names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moved {
    /// The message's source position.
    pub position: u64,
    /// Where the body or report lay.
    pub from: u64,
    /// Where it lies now.
    pub to: u64,
}

/// A message that became a dead letter, or a dead letter that failed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeadEntry {
    /// The message's source position.
    pub position: u64,
    /// The message's key hash, by [`key_hash`]; `None` if nothing orders the message.
    pub key_hash: Option<u64>,
    /// What the dead letter does to its key.
    pub effect: DeadEffect,
    /// Why the message died.
    pub reason: DeadReason,
    /// Where the body lies in `hold.p`. The body is stored and acknowledged before this entry is written: a named body
    /// must never be missing.
    pub body: u64,
    /// Where the report of its failure lies in `hold.p`.
    pub report: Option<u64>,
    /// Attempts at the message so far.
    pub tries: u32,
    /// When the dead letter is tried again by itself, ms since 1970.
    pub due_ms: Option<u64>,
    /// When the dead letter expires, ms since 1970. Journals of older formats do not say.
    pub expires_ms: Option<u64>,
    /// The message's priority.
    pub priority: u8,
    /// The journal position of the newest command that the attempt had read when it began.
    pub command: Option<u64>,
}

/// What a dead letter does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadEffect {
    /// Successors run past the dead letter.
    Passed,
    /// Successors wait for the dead letter.
    Holding,
    /// Successors wait for the dead letter until a person decides.
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
    /// The reason's name, as people and the API see it.
    pub fn name(self) -> &'static str {
        REASONS.iter().find(|row| row.0 == self).map_or("", |row| row.2)
    }

    pub(super) fn code(self) -> u8 {
        REASONS.iter().find(|row| row.0 == self).map_or(0, |row| row.1)
    }
}

/// The whole state as of the journal position up to which its writer had read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The epoch of the owner that writes this.
    pub epoch: u64,
    /// One more than the `seq` of the epoch's last counting record.
    pub seq: u64,
    /// The state is that of all records below this journal position, which is not the position where the snapshot
    /// lands.
    pub as_of: u64,
    /// The state itself, or where its chunks lie.
    pub body: SnapshotBody,
}

/// A snapshot's state, or where its chunks lie.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SnapshotBody {
    /// The state stands in the record itself.
    State(Box<State>),
    /// The state stands in chunks at these positions of `hold.p`.
    Chunks(Vec<u64>),
}

/// What a person or a job asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Command {
    /// A random id; a second command with the same id is ignored.
    pub id: u128,
    /// What is asked for.
    pub kind: CommandKind,
    /// The source positions of the messages concerned.
    pub positions: Ranges,
    /// The journal position as of which these messages were shown to the sender. A message that has changed since is
    /// left out.
    pub as_of: Option<u64>,
    /// Where the edited body lies in `hold.p`.
    pub body: Option<u64>,
    /// The acceptance, for [`CommandKind::Accept`].
    pub accept: Option<Acceptance>,
    /// The number of partitions, for [`CommandKind::Widen`] and [`CommandKind::Open`].
    pub partitions: Option<u32>,
    /// The format to use from here on, for [`CommandKind::Upgrade`].
    pub format: Option<u8>,
    /// Who asks, for people.
    pub who: String,
    /// When the command was sent, ms since 1970.
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
    /// The messages were in flight, beside others, when their process died.
    Suspect,
    /// The message was in flight, alone, when its process died.
    SuspectAlone,
    /// Goes on with the topic's new number of partitions.
    Accept,
    /// Says that the topic has more partitions: from here on no owner may go by the old number.
    Widen,
    /// Says that every message from before the acceptance of so many partitions is settled.
    Open,
    /// Says that all nodes read a newer format: owners write that format from here on.
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

/// Why bytes are not a record that this version knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RecordError {
    /// A format version that this reader does not know.
    #[error("format version {0}")]
    Version(u8),
    /// A record kind that this version does not know.
    #[error("record kind {0}")]
    Kind(u8),
    /// Malformed bytes, or a field that this version does not know.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The hash of a key as records carry it: the same on every node, and nobody outside can make keys collide, because the
/// journal's random id is the secret.
pub fn key_hash(journal: u128, key: &[u8]) -> u64 {
    SipHasher24::new_with_keys(journal as u64, (journal >> 64) as u64).hash(key)
}
