//! Everything that happened in a run, in order, as one number: two runs of one seed must give the same.

use std::collections::VecDeque;
use std::fmt::Arguments;

/// Lines kept to be shown when something went wrong.
const SHOWN_MAX: usize = 400;

/// Everything that happened in one run.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    count: u64,
    last: VecDeque<String>,
    all: bool,
}

impl Trace {
    /// A trace that prints each line as it comes, to look at one run; or one that keeps only the newest lines.
    pub fn new(all: bool) -> Trace {
        Trace { all, ..Trace::default() }
    }

    /// Adds one line, at a simulated time.
    pub fn add(&mut self, at_ms: u64, what: Arguments<'_>) {
        let line = format!("{:>10.3} {what}", at_ms as f64 / 1000.0);
        for byte in line.bytes() {
            // FNV-1a: the order matters, and the hash has no random seed.
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.count += 1;
        if self.all {
            println!("{line}");
            return;
        }
        if self.last.len() == SHOWN_MAX {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    /// The hash of all lines.
    pub fn hash(&self) -> u64 {
        self.hash ^ self.count
    }

    /// How many lines there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The newest lines.
    pub fn tail(&self, lines: usize) -> String {
        let skip = self.last.len().saturating_sub(lines);
        self.last.iter().skip(skip).cloned().collect::<Vec<_>>().join("\n")
    }
}
