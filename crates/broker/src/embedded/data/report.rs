//! What a look at a data folder finds, in words that an operator can act on.

use std::path::PathBuf;

/// What was found in a data folder.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The journals, the holds, then each topic.
    pub logs: Vec<LogReport>,
    /// What concerns a log as a whole, which no repair can mend: each says where, what, and what to do.
    pub troubles: Vec<String>,
    /// Files that are not Keylane's. They are left alone.
    pub foreign: Vec<PathBuf>,
    /// What earlier repairs gave up, oldest first: when (milliseconds since 1970), the place, and what was lost.
    pub given_up: Vec<String>,
}

impl Report {
    /// True if every byte that Keylane has written is as it was written.
    pub fn is_whole(&self) -> bool {
        self.troubles.is_empty() && self.logs.iter().all(|log| log.damages.is_empty())
    }

    /// All damage that has a word.
    pub fn damages(&self) -> impl Iterator<Item = &Damage> {
        self.logs.iter().flat_map(|log| &log.damages)
    }
}

/// One log: a topic, all journals, or all holds.
#[derive(Debug, Clone, Default)]
pub struct LogReport {
    /// Its folder within the data folder: `journals`, `holds`, `topics/NAME`.
    pub name: String,
    /// Its segments, oldest first.
    pub segments: Vec<SegmentReport>,
    /// First position kept and the next to be given out, for each partition; empty for journals and holds.
    pub ends: Vec<(u64, u64)>,
    /// What is damaged.
    pub damages: Vec<Damage>,
}

/// One segment.
#[derive(Debug, Clone, Default)]
pub struct SegmentReport {
    /// Its number; its file has it in hexadecimal digits.
    pub number: u64,
    /// How long the file is.
    pub file_bytes: u64,
    /// How far it is written.
    pub used_bytes: u64,
    /// Batches whose checksums are good.
    pub batches: u64,
}

/// A place that is not as it was written.
#[derive(Debug, Clone)]
pub struct Damage {
    /// Names it for `keylane data repair --skip`: log, segment and byte.
    pub word: String,
    /// The file.
    pub file: PathBuf,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// What is wrong there.
    pub what: String,
    /// What lay there.
    pub lost: Vec<Lost>,
    /// Whether `repair` can skip it.
    pub can_be_skipped: bool,
}

/// Positions that are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// `partition 3`, or `the journal of group billing, topic orders, partition 3`.
    pub of: String,
    /// The first.
    pub from: u64,
    /// The one behind the last.
    pub to: u64,
    /// It is not known whether any is gone; at most these.
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
