//! A scope of the explorer: what may happen in a small world, and how often; and the steps that can happen.

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
    /// Messages, as bits, whose dead letters their successors pass; all other dead letters hold their key.
    pub passed: u8,
    /// Messages, as bits, that are scheduled, and due when time passes for the first time.
    pub scheduled: u8,
    /// How often a message is copied to hold although its lane is not held.
    pub overflows: u8,
    /// Which commands operators may send.
    pub kinds: &'static [CommandKind],
    pub commands: u8,
    /// How often a body is moved within `hold.p`.
    pub moved: u8,
    /// How often time passes: entries that are due may then run.
    pub times: u8,
    /// Acknowledgements from `hold.p` arrive in a step of their own, after the body has landed.
    pub late_acks: bool,
    /// The source is read message by message; otherwise all of it is read at the start.
    pub reader: bool,
    /// `hold.p` is cut as soon as it may be.
    pub low: bool,
    /// Snapshots are always in chunks.
    pub chunks: bool,
    /// Both processes believe that the partition is assigned to them.
    pub believers: bool,
    pub crashes: u8,
    /// Planned hand-overs.
    pub moves: u8,
    /// How often a claimant gives up on an owner that is alive.
    pub impatience: u8,
    /// How often the fate of an append stays unknown, so that it is sent again.
    pub unknowns: u8,
    /// How often an append lands twice.
    pub repeats: u8,
    /// How often an operator asks for the next format. If this is above 0, process 1 can read that format and process 0
    /// cannot.
    pub upgrades: u8,
    /// A snapshot is due when the journal grew by more records than this; `None` for never.
    pub snapshot_after: Option<u64>,
    pub ranges_per_record: usize,
    /// Keeps even records and bodies that can have no effect any more.
    pub full: bool,
    /// Process 0 owns the partition at the start; other scopes cover how it came to own it.
    pub warm: bool,
    /// The letters of the promises that are checked.
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

    /// The newest format that a process can read.
    pub fn reads(&self, process: usize) -> u8 {
        if self.upgrades > 0 && process == 1 { FORMAT + 1 } else { FORMAT }
    }

    pub fn messages(&self) -> u8 {
        self.keys.len() as u8
    }

    /// The key hash of a message.
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
    /// A process to which the partition is assigned begins, and claims.
    Begin(usize),
    /// A process reads the next record of the journal.
    Read(usize),
    /// A process learns that it has read to the journal's end.
    CaughtUp(usize),
    /// An append lands, and its sender hears of it. True: the append will land once more.
    Land(usize, bool),
    /// The sender of an append gives up waiting for the answer.
    Forget(usize),
    /// A process reads the next message of the source.
    Source(usize),
    /// A handler starts.
    Start(usize, u8),
    /// A handler succeeds.
    Finish(usize, u8),
    /// A handler fails for good. The body goes on its way to `hold.p`, unless it lies there already.
    Fail(usize, u8),
    /// A message that waits in memory begins to be copied to hold.
    Copy(usize, u8),
    /// A body lands in `hold.p`, and its sender hears of it. True: the body will land once more.
    Store(usize, bool),
    /// The sender of a body that has landed hears of it.
    Acknowledge(usize),
    /// An owner begins to move a body within `hold.p`.
    Move(usize),
    /// A cut of the journal that an owner allowed is carried out.
    Cut(usize),
    /// A cut of `hold.p` that an owner allowed is carried out.
    CutHold(usize),
    /// A commit lands. Only in scopes where the commits are taken for the truth.
    Commit(usize),
    /// The coordinator assigns the partition to the other process.
    Assign,
    /// An operator sends a command about a message.
    Command(CommandKind, u8),
    /// The same, but a process obeys the command before it is in the journal.
    Call(usize, CommandKind, u8),
    /// Time passes.
    Time,
    /// An operator asks for the next format.
    Upgrade,
    /// A process learns that the partition is no longer assigned to it.
    Revoke(usize),
    /// A process that stepped back learns that the partition is assigned to it, and its wait is over.
    Confirm(usize),
    /// A claimant has waited for long enough.
    GiveUp(usize),
    /// A process dies. True: the partition is assigned to the other process.
    Crash(usize, bool),
}
