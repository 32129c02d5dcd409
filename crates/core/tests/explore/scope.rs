//! A scope: what may happen in a world, and how often.

use keylane_core::Rules;
use keylane_core::journal::{CommandKind, FORMAT};

/// What may happen, and how often.
#[derive(Debug, Clone)]
pub struct Scope {
    pub name: &'static str,
    /// The key of each message.
    pub keys: &'static [u8],
    pub conditional: bool,
    /// How often a handler fails for good.
    pub failures: u8,
    /// Messages, as bits, whose dead letters are passed; the others hold their key.
    pub passed: u8,
    /// Messages, as bits, that are scheduled for the next time.
    pub scheduled: u8,
    /// How often a message is copied to hold without a cause.
    pub overflows: u8,
    /// What operators ask for, and how often.
    pub kinds: &'static [CommandKind],
    pub commands: u8,
    /// How often a body is moved within hold.
    pub moved: u8,
    /// How often time passes: what is due then runs.
    pub times: u8,
    /// Acknowledgements of hold come later than what they acknowledge.
    pub late_acks: bool,
    /// The source is read message by message; otherwise all of it at the start.
    pub reader: bool,
    /// Hold is cut as soon as it may be.
    pub low: bool,
    /// Snapshots are in chunks.
    pub chunks: bool,
    /// Both processes believe that the partition is theirs.
    pub believers: bool,
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
            failures: 0,
            passed: 0,
            scheduled: 0,
            overflows: 0,
            kinds: &[],
            commands: 0,
            moved: 0,
            times: 0,
            late_acks: false,
            reader: false,
            low: false,
            chunks: false,
            believers: false,
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
            checks: "LOCDWTRK",
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

    /// The hash of a message's key.
    pub fn hash(&self, message: u8) -> Option<u64> {
        Some(u64::from(self.keys[usize::from(message)]) + 1)
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
    /// The next message of the source is read.
    Source(usize),
    /// A handler starts.
    Start(usize, u8),
    /// A handler succeeds.
    Finish(usize, u8),
    /// A handler fails for good; the body is on its way to `hold.p`, unless it lies there.
    Fail(usize, u8),
    /// A message that waits in memory is copied to hold.
    Copy(usize, u8),
    /// A body lands in `hold.p`, and its sender learns it. True: it will land once more.
    Store(usize, bool),
    /// The sender of a body that landed learns it.
    Acknowledge(usize),
    /// A body is moved within `hold.p`.
    Move(usize),
    /// A cut of the journal that was allowed is made.
    Cut(usize),
    /// A cut of `hold.p` that was allowed is made.
    CutHold(usize),
    /// A commit lands. Only where commits are taken for the truth.
    Commit(usize),
    /// The coordinator gives the partition to the other process.
    Assign,
    /// An operator asks for something of a message.
    Command(CommandKind, u8),
    /// The same, and a process obeys before the command is in the journal.
    Call(usize, CommandKind, u8),
    /// Time passes.
    Time,
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
