//! What an owner is told before it begins: who it is, what it reads, its bounds, and the broker's commit.
//!
//! The broker's commit only mirrors the journal (COM-3). Its metadata says whose it is, so that a journal that was
//! lost or replaced is noticed, and an operator's reset is told apart from our own commit.

use bytes::Bytes;

use crate::journal::Source;
use crate::lanes::Order;
use crate::ledger::RANGE_BYTES_MAX;

/// The largest facts record: small beside any broker's limit, and seconds of completions fit into it.
pub const RECORD_BYTES_MAX: usize = 128 << 10;
/// What a dead letter's entry takes at most: seven numbers of ten bytes, a hash, and ten single bytes.
pub const DEAD_BYTES_MAX: usize = 88;
/// What a held message's entry takes at most: three numbers of ten bytes, one of five, a hash, and five single bytes.
pub const HELD_BYTES_MAX: usize = 48;

/// Ranges that always fit into one record.
pub const RANGES_PER_RECORD_MAX: usize = 2_000;
/// Dead letters that fit beside them, and copies that were moved.
pub const DEAD_PER_RECORD_MAX: usize = 200;
/// Held messages that fit beside them.
pub const HELD_PER_RECORD_MAX: usize = 500;

/// What an owner is told once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Setup {
    /// The random id of this process (`Membership::instance`).
    pub instance: u128,
    /// Who it is, for people.
    pub node: String,
    /// Random, new for each owner: claim ids, a new journal's id and waits are made of it.
    pub seed: u128,
    /// The journal can append on condition; success is then its own read-back.
    pub conditional: bool,
    /// The source as it is now.
    pub source: Source,
    /// Numbers of partitions that it had before, from which the present one was accepted.
    pub former: Vec<u32>,
    /// The newest format of journals that this process reads and writes: [`crate::journal::FORMAT`], but under test.
    pub format: u8,
    /// The order that the pipeline keeps.
    pub order: Order,
    /// Where a new group starts.
    pub start: u64,
    /// How long a handler may run.
    pub handler_timeout_ms: u64,
    /// Sizes and times.
    pub bounds: Bounds,
}

/// Sizes and times. Tests make them small; users have no reason to change them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Completions wait this long for others (COM-2).
    pub batch_ms: u64,
    /// So many completions wait for no others (COM-2).
    pub batch_settlements: u64,
    /// Ranges in one record. A drain goes by [`RANGES_PER_RECORD_MAX`], whatever is set, or by what the journal takes.
    pub ranges_per_record: usize,
    /// Dead letters in one record. A drain goes by [`DEAD_PER_RECORD_MAX`], whatever is set, or by what the journal takes.
    pub dead_per_record: usize,
    /// Held messages in one record. A drain goes by [`HELD_PER_RECORD_MAX`], whatever is set, or by what the journal takes.
    pub held_per_record: usize,
    /// The largest record that the journal takes; see [`Bounds::within`].
    pub record_bytes_max: usize,
    /// A snapshot is due when the journal has grown by more than this; `u64::MAX`: never.
    pub snapshot_after_bytes: u64,
    /// A larger state is not written as a snapshot. To be set below the broker's limit of a journal record.
    pub snapshot_bytes_max: usize,
    /// The largest piece of a snapshot in `hold.p`.
    pub chunk_bytes_max: usize,
    /// `low` goes on record once it can rise by so much.
    pub low_step: u64,
    /// A body that keeps `low` down is moved once so many positions of `hold.p`, and `move_factor` times as many as are
    /// named, are named no more.
    pub move_slack: u64,
    /// See `move_slack`.
    pub move_factor: u64,
    /// What is due, has expired or keeps `low` down is looked for no more often than this.
    pub look_ms: u64,
    /// A running owner that is silent for so long is given up (BRK-7).
    pub silence_ms: u64,
    /// A running owner that is not silent is given up so long after the handler time-out (BRK-7).
    pub grace_ms: u64,
    /// A draining owner writes at least so often; below a third of `silence_ms`, since a write takes time too.
    pub drain_write_ms: u64,
    /// The first wait before claiming again; doubles each time.
    pub step_back_ms: u64,
    /// The longest wait before claiming again.
    pub step_back_ms_max: u64,
}

impl Bounds {
    /// What a record may carry while a partition is drained. A drain is given up at its deadline, and what is finished
    /// and not on record then runs again: so it is written in as few records as it fits into.
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

/// What a record has around its ranges and dead letters.
const AROUND_BYTES: usize = 100;
/// What a moved copy takes at most.
const MOVED_BYTES_MAX: usize = 30;

impl Bounds {
    /// The same, but for records that a journal takes which takes at most `bytes_max`: one that is too large could never
    /// be appended, and its partition would stop for good.
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

/// What the broker says is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Committed {
    /// Nothing, or the broker does not keep metadata, so that nothing can be told from it.
    Unknown,
    /// A mirror of a journal.
    Mirror(Mirror),
    /// A commit without our metadata, on a broker that keeps it: an operator's reset to this position.
    Operator(u64),
}

/// Whose mirror a commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mirror {
    /// The journal's id.
    pub journal: u128,
    /// The epoch that it was written in.
    pub epoch: u64,
}

impl Committed {
    /// Reads a commit as the broker returns it: position and metadata.
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

/// What a commit carries beside its position: text, since some brokers keep nothing else.
pub fn commit_metadata(journal: u128, epoch: u64) -> Bytes {
    format!("keylane1:{journal:032x}:{epoch}").into()
}

/// Reads what [`commit_metadata`] wrote; `None` if it is not ours.
pub fn parse_commit_metadata(metadata: &[u8]) -> Option<Mirror> {
    let (journal, epoch) = std::str::from_utf8(metadata).ok()?.strip_prefix("keylane1:")?.split_once(':')?;
    Some(Mirror { journal: u128::from_str_radix(journal, 16).ok()?, epoch: epoch.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BRK-6, P10: whatever a journal takes, its records and snapshots are not larger.
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
