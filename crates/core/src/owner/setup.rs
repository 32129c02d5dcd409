//! The settings of an owner, and how the broker's commit is read and written.
//!
//! The broker's commit only mirrors the journal (COM-3). Its metadata names the journal and the epoch, so that a lost
//! or replaced journal is noticed, and an operator's reset is told apart from a commit of Keylane's own.

use bytes::Bytes;

use crate::journal::Source;
use crate::lanes::Order;
use crate::ledger::RANGE_BYTES_MAX;

/// The largest facts record: small beside any broker's limit, but large enough for seconds of completions.
pub const RECORD_BYTES_MAX: usize = 128 << 10;
/// The most bytes of a dead letter in a record: seven numbers of ten bytes, a hash, and ten single bytes.
pub const DEAD_BYTES_MAX: usize = 88;
/// The most bytes of a held message in a record: three numbers of ten bytes, one of five, a hash, and five single
/// bytes.
pub const HELD_BYTES_MAX: usize = 48;

/// How many ranges always fit into one record.
pub const RANGES_PER_RECORD_MAX: usize = 2_000;
/// How many dead letters, and as many moved copies, always fit beside those ranges.
pub const DEAD_PER_RECORD_MAX: usize = 200;
/// How many held messages always fit beside those.
pub const HELD_PER_RECORD_MAX: usize = 500;

/// The settings of one owner, fixed when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Setup {
    /// The random id of this process (`Membership::instance`).
    pub instance: u128,
    /// The node's name, for people.
    pub node: String,
    /// Random, new for each owner: the source of claim ids, a new journal's id and random waits.
    pub seed: u128,
    /// True if the journal can append on condition; a successful append is then its own read-back.
    pub conditional: bool,
    /// The source topic as it is now.
    pub source: Source,
    /// Earlier numbers of partitions from which operators have accepted the present one.
    pub former: Vec<u32>,
    /// The newest format of journals that this process reads and writes: [`crate::journal::FORMAT`], except in tests.
    pub format: u8,
    /// The order that the pipeline keeps.
    pub order: Order,
    /// The position at which a new group starts.
    pub start: u64,
    /// How long a handler may run.
    pub handler_timeout_ms: u64,
    /// Sizes and times.
    pub bounds: Bounds,
}

/// Sizes and times of an owner. Tests make them small; users have no reason to change them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// How long a completion waits for others before it goes on record (COM-2).
    pub batch_ms: u64,
    /// With this many completions the record is sent at once (COM-2).
    pub batch_settlements: u64,
    /// The most ranges in one record. A drain uses [`RANGES_PER_RECORD_MAX`] if that is more, within what the journal
    /// takes.
    pub ranges_per_record: usize,
    /// The most dead letters in one record. A drain uses [`DEAD_PER_RECORD_MAX`] if that is more, within what the
    /// journal takes.
    pub dead_per_record: usize,
    /// The most held messages in one record. A drain uses [`HELD_PER_RECORD_MAX`] if that is more, within what the
    /// journal takes.
    pub held_per_record: usize,
    /// The largest record that the journal takes; see [`Bounds::within`].
    pub record_bytes_max: usize,
    /// A snapshot is due when the journal has grown by more than this; `u64::MAX`: never.
    pub snapshot_after_bytes: u64,
    /// A larger state does not go into a single snapshot record. Must be below the broker's limit for a journal record.
    pub snapshot_bytes_max: usize,
    /// The largest chunk of a snapshot in `hold.p`.
    pub chunk_bytes_max: usize,
    /// `low` goes on record once it can rise by this much.
    pub low_step: u64,
    /// A body that keeps `low` down is moved once this many positions of `hold.p` above it, and `move_factor` times as
    /// many as are named, are garbage.
    pub move_slack: u64,
    /// How many times as many positions as are named must be garbage, too; see `move_slack`.
    pub move_factor: u64,
    /// Due entries, expired entries and bodies that keep `low` down are looked for no more often than this.
    pub look_ms: u64,
    /// A running owner that writes nothing for this long is given up (BRK-7).
    pub silence_ms: u64,
    /// A running owner that does write is given up this long after the handler time-out (BRK-7).
    pub grace_ms: u64,
    /// A draining owner writes at least this often. Below a third of `silence_ms`, because a write takes time too.
    pub drain_write_ms: u64,
    /// The first wait before claiming again; each further wait doubles.
    pub step_back_ms: u64,
    /// The longest wait before claiming again.
    pub step_back_ms_max: u64,
}

impl Bounds {
    /// The bounds of a record while a partition is drained. A drain that is not through at its deadline is given up,
    /// and finished messages that are not on record then run again; so a drain uses as few records as possible.
    pub(crate) fn draining(&self) -> Bounds {
        let most = Bounds {
            ranges_per_record: self.ranges_per_record.max(RANGES_PER_RECORD_MAX),
            dead_per_record: self.dead_per_record.max(DEAD_PER_RECORD_MAX),
            held_per_record: self.held_per_record.max(HELD_PER_RECORD_MAX),
            ..self.clone()
        };
        most.within(self.record_bytes_max)
    }
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            batch_ms: 1_000,
            batch_settlements: 1_000,
            ranges_per_record: RANGES_PER_RECORD_MAX,
            dead_per_record: DEAD_PER_RECORD_MAX,
            held_per_record: HELD_PER_RECORD_MAX,
            record_bytes_max: usize::MAX,
            snapshot_after_bytes: 256 << 10,
            snapshot_bytes_max: 900 << 10,
            chunk_bytes_max: 512 << 10,
            low_step: 1_000,
            move_slack: 10_000,
            move_factor: 3,
            look_ms: 100,
            silence_ms: 3_000,
            grace_ms: 5_000,
            drain_write_ms: 700,
            step_back_ms: 100,
            step_back_ms_max: 10_000,
        }
    }
}

/// The most bytes of a record beside its ranges, dead letters, moved and held messages.
const AROUND_BYTES: usize = 100;
/// The most bytes of a moved copy in a record.
const MOVED_BYTES_MAX: usize = 30;

impl Bounds {
    /// These bounds for a journal that takes records of at most `bytes_max`. A larger record could never be appended,
    /// and its partition would stop for good.
    pub fn within(&self, bytes_max: usize) -> Bounds {
        let part = bytes_max.saturating_sub(AROUND_BYTES) / 3;
        let (ranges, dead, held) = match bytes_max < RECORD_BYTES_MAX {
            true => {
                (part / RANGE_BYTES_MAX, part / (DEAD_BYTES_MAX + MOVED_BYTES_MAX), part / HELD_BYTES_MAX)
            }
            false => (usize::MAX, usize::MAX, usize::MAX),
        };
        Bounds {
            ranges_per_record: self.ranges_per_record.min(ranges.saturating_sub(1).max(1)),
            dead_per_record: self.dead_per_record.min(dead.max(1)),
            held_per_record: self.held_per_record.min(held.max(1)),
            record_bytes_max: self.record_bytes_max.min(bytes_max),
            snapshot_bytes_max: self.snapshot_bytes_max.min(bytes_max.saturating_sub(AROUND_BYTES)),
            chunk_bytes_max: self.chunk_bytes_max.min(bytes_max.saturating_sub(AROUND_BYTES)),
            ..self.clone()
        }
    }
}

const _: () = assert!(
    (RANGES_PER_RECORD_MAX + 1) * RANGE_BYTES_MAX
        + DEAD_PER_RECORD_MAX * (DEAD_BYTES_MAX + MOVED_BYTES_MAX)
        + HELD_PER_RECORD_MAX * HELD_BYTES_MAX
        + AROUND_BYTES
        <= RECORD_BYTES_MAX,
    "the default bounds keep every record below its largest size"
);

/// What the broker returns as the group's commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Committed {
    /// There is no commit, or the broker does not keep metadata, so that the commit says nothing.
    Unknown,
    /// A commit of Keylane's own: a mirror of a journal.
    Mirror(Mirror),
    /// A commit without Keylane's metadata on a broker that keeps metadata: an operator's reset to this position.
    Operator(u64),
}

/// Which journal and epoch a commit mirrors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mirror {
    /// The journal's id.
    pub journal: u128,
    /// The epoch in which the commit was made.
    pub epoch: u64,
}

impl Committed {
    /// Interprets a commit as the broker returns it: position and metadata.
    pub fn read(commit: Option<(u64, &[u8])>, keeps_metadata: bool) -> Committed {
        match commit {
            Some((position, metadata)) => match parse_commit_metadata(metadata) {
                Some(mirror) => Committed::Mirror(mirror),
                None if keeps_metadata => Committed::Operator(position),
                None => Committed::Unknown,
            },
            None => Committed::Unknown,
        }
    }
}

/// The metadata of a commit: text, since some brokers keep nothing else.
pub fn commit_metadata(journal: u128, epoch: u64) -> Bytes {
    format!("keylane1:{journal:032x}:{epoch}").into()
}

/// Reads what [`commit_metadata`] wrote; `None` if the metadata is not Keylane's.
pub fn parse_commit_metadata(metadata: &[u8]) -> Option<Mirror> {
    let (journal, epoch) = std::str::from_utf8(metadata).ok()?.strip_prefix("keylane1:")?.split_once(':')?;
    Some(Mirror { journal: u128::from_str_radix(journal, 16).ok()?, epoch: epoch.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BRK-6, P10: whatever size of record a journal takes, the owner's records and snapshots are no larger.
    #[test]
    fn records_are_bounded_by_what_a_journal_takes() {
        let bounds = Bounds::default();
        assert_eq!(bounds.within(usize::MAX), bounds);
        let large = Bounds { record_bytes_max: 1 << 20, ..bounds.clone() };
        assert_eq!(bounds.within(1 << 20), large);
        for bytes_max in [1_000, 4_000, 32 << 10, RECORD_BYTES_MAX - 1] {
            let within = bounds.within(bytes_max);
            assert_eq!(within.draining(), within, "a drain too");
            let ranges = (within.ranges_per_record + 1) * RANGE_BYTES_MAX;
            let dead = within.dead_per_record * (DEAD_BYTES_MAX + MOVED_BYTES_MAX);
            let record = ranges + dead + within.held_per_record * HELD_BYTES_MAX + AROUND_BYTES;
            assert!(record <= bytes_max, "{record} of {bytes_max}");
            assert!(within.snapshot_bytes_max < bytes_max);
            assert!(within.ranges_per_record > 0 && within.dead_per_record > 0 && within.held_per_record > 0);
        }
    }
}
