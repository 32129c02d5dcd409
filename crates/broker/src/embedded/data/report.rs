//! The findings of a check of a data folder, in words that an operator can act on.

use std::path::PathBuf;

/// The findings in a data folder.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The journals, the holds, then each topic.
    pub logs: Vec<LogReport>,
    /// Problems of a log as a whole that no repair can mend; each states place, problem and remedy.
    pub troubles: Vec<String>,
    /// Files that are not Keylane's. No command touches them.
    pub foreign: Vec<PathBuf>,
    /// What earlier repairs gave up, oldest first: the time (ms since 1970), the place, and what was lost.
    pub given_up: Vec<String>,
}

impl Report {
    /// True if everything that Keylane wrote is as it was written.
    pub fn is_whole(&self) -> bool {
        self.troubles.is_empty() && self.logs.iter().all(|log| log.damages.is_empty())
    }

    /// All damage that `repair` can be asked to skip.
    pub fn damages(&self) -> impl Iterator<Item = &Damage> {
        self.logs.iter().flat_map(|log| &log.damages)
    }
}

/// One log: a topic, all journals, or all holds.
#[derive(Debug, Clone, Default)]
pub struct LogReport {
    /// The log's folder within the data folder: `journals`, `holds`, `topics/NAME`.
    pub name: String,
    /// The segments, oldest first.
    pub segments: Vec<SegmentReport>,
    /// For each partition, the first position that is kept and the next to be given out; empty for journals and
    /// holds.
    pub ends: Vec<(u64, u64)>,
    /// What is damaged.
    pub damages: Vec<Damage>,
}

/// One segment.
#[derive(Debug, Clone, Default)]
pub struct SegmentReport {
    /// The segment's number, which its file's name has in hexadecimal digits.
    pub number: u64,
    /// The length of the file.
    pub file_bytes: u64,
    /// How far the file is written.
    pub used_bytes: u64,
    /// Batches whose checksums are good.
    pub batches: u64,
}

/// A place that is not as it was written.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The name of the place for `keylane data repair --skip`: log, segment and byte.
    pub word: String,
    /// The damaged file.
    pub file: PathBuf,
    /// The first damaged byte.
    pub offset: u64,
    /// The number of damaged bytes.
    pub bytes: u64,
    /// What is wrong.
    pub what: String,
    /// The positions that lay there.
    pub lost: Vec<Lost>,
    /// Whether `repair` can skip it.
    pub can_be_skipped: bool,
}

/// Positions that are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The stream: `partition 3`, or `the journal of group billing, topic orders, partition 3`.
    pub of: String,
    /// The first position.
    pub from: u64,
    /// The position behind the last.
    pub to: u64,
    /// It is not known how many of these positions are lost, if any.
    pub at_most: bool,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lost { of, from, to, at_most } = self;
        match (at_most, to - from) {
            (true, _) => write!(f, "{of}: perhaps positions {from} to {}", to - 1),
            (false, 1) => write!(f, "{of}: position {from}"),
            (false, _) => write!(f, "{of}: positions {from} to {}", to - 1),
        }
    }
}
