//! A scope: what may happen in a world, and how often.

use keylane_core::Rules;
use keylane_core::journal::FORMAT;

/// What may happen, and how often.
#[derive(Debug, Clone)]
pub struct Scope {
    pub name: &'static str,
    /// The key of each message.
    pub keys: &'static [u8],
    pub conditional: bool,
    pub rejections: u8,
    pub crashes: u8,
    /// Planned hand-overs.
    pub moves: u8,
    /// How often a claimant gives up an owner that lives.
    pub impatience: u8,
    /// How often the fate of an append stays unknown, and it is sent again.
    pub unknowns: u8,
    /// How often an append lands twice.
    pub repeats: u8,
    /// How often an operator asks for the next format. Where it is asked for, process 1 reads it and process 0 does not.
    pub upgrades: u8,
    /// A snapshot is due when the journal grew by more records than this.
    pub snapshot_after: Option<u64>,
    pub ranges_per_record: usize,
    /// Nothing is dropped because it can have no effect.
    pub full: bool,
    /// Process 0 owns the partition already; how it came to that is left to other scopes.
    pub warm: bool,
    /// The first letters of what is checked.
    pub checks: &'static str,
    pub rules: Rules,
}

impl Scope {
    pub const fn new(name: &'static str, keys: &'static [u8]) -> Scope {
        Scope {
            name,
            keys,
            conditional: false,
            rejections: 0,
            crashes: 0,
            moves: 0,
            impatience: 0,
            unknowns: 0,
            repeats: 0,
            upgrades: 0,
            snapshot_after: None,
            ranges_per_record: 8,
            full: false,
            warm: false,
            checks: "LOCDWTR",
            rules: Rules::ALL,
        }
    }

    pub fn checks(&self, what: char) -> bool {
        self.checks.contains(what)
    }

    /// The newest format that a process reads.
    pub fn reads(&self, process: usize) -> u8 {
        if self.upgrades > 0 && process == 1 { FORMAT + 1 } else { FORMAT }
    }

    pub fn messages(&self) -> u8 {
        self.keys.len() as u8
    }

    pub fn same_key(&self, left: u8, right: u8) -> bool {
        self.keys[usize::from(left)] == self.keys[usize::from(right)]
    }
}

/// One step of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A process that the partition is assigned to begins, and claims.
    Begin(usize),
    /// The next record is read.
    Read(usize),
    /// There is nothing more to read.
    CaughtUp(usize),
    /// An append lands, and its sender learns it. True: it will land once more.
    Land(usize, bool),
    /// The sender of an append gives up waiting for its answer.
    Forget(usize),
    /// A handler starts.
    Start(usize, u8),
    /// A handler succeeds.
    Finish(usize, u8),
    /// A handler rejects its message; the body is on its way to `hold.p`.
    Reject(usize, u8),
    /// A body lands in `hold.p`, and its sender learns it.
    Store(usize),
    /// A cut that was allowed is made.
    Cut(usize),
    /// The coordinator gives the partition to the other process.
    Move,
    /// An operator asks for the next format.
    Upgrade,
    /// A process learns that the partition is not its own any more.
    Revoke(usize),
    /// A process that stepped back learns that the partition is its own, and its wait is over.
    Confirm(usize),
    /// A claimant has waited long enough.
    GiveUp(usize),
    /// A process dies. True: the partition goes to the other one.
    Crash(usize, bool),
}
