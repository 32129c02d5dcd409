//! The scopes that are explored: `small` and `holds` have one feature each, `large` combines them, and `flawed` leaves
//! out one rule at a time.
//!
//! A name begins with how the world starts: `cold` with an empty journal, `warm` with process 0 as the owner. It says
//! `on condition` if appends are conditional.

use keylane_core::Rules;
use keylane_core::journal::CommandKind::{Discard, Edit, Release, Retry, Skip};

use crate::scope::Scope;

const ONE: &[u8] = &[0];
const TWO: &[u8] = &[0, 0];
const THREE: &[u8] = &[0, 1, 0];
const SAME: &[u8] = &[0, 0, 0];
const APART: &[u8] = &[0, 1];
/// All messages, as bits.
const ALL: u8 = 0xff;

fn warm(name: &'static str, keys: &'static [u8]) -> Scope {
    Scope { warm: true, ..Scope::new(name, keys) }
}

/// One feature each, without holding. Takes about half a minute on one core.
pub fn small() -> Vec<Scope> {
    vec![
        Scope { moves: 1, impatience: 1, ..Scope::new("cold: hand-over, impatience", ONE) },
        Scope {
            moves: 2,
            impatience: 1,
            failures: 1,
            passed: ALL,
            ..warm("warm: there and back, rejection", TWO)
        },
        Scope { crashes: 1, ..Scope::new("cold: crash", TWO) },
        Scope { moves: 1, failures: 1, passed: ALL, ..warm("warm: rejection, hand-over", TWO) },
        Scope {
            moves: 1,
            failures: 1,
            passed: ALL,
            impatience: 1,
            full: true,
            ..warm("warm: rejection, sleeper", TWO)
        },
        Scope { moves: 1, failures: 1, passed: ALL, crashes: 1, ..warm("warm: rejection, crash", TWO) },
        Scope { moves: 1, failures: 1, passed: ALL, ..warm("warm: two keys", THREE) },
        Scope {
            moves: 1,
            impatience: 1,
            ranges_per_record: 1,
            ..warm("warm: split records, sleeper", THREE)
        },
        Scope {
            moves: 1,
            impatience: 1,
            unknowns: 1,
            full: true,
            ..warm("warm: unknown fates, sleeper", ONE)
        },
        Scope { moves: 1, impatience: 1, repeats: 1, full: true, ..warm("warm: repeats, sleeper", ONE) },
        Scope { moves: 2, impatience: 1, ..warm("warm: there and back", ONE) },
        Scope { moves: 1, impatience: 1, snapshot_after: Some(1), ..warm("warm: snapshots, sleeper", TWO) },
        Scope {
            moves: 1,
            failures: 1,
            passed: ALL,
            snapshot_after: Some(2),
            ..warm("warm: snapshots, rejection", TWO)
        },
        Scope {
            moves: 1,
            unknowns: 1,
            snapshot_after: Some(1),
            ..warm("warm: snapshots, unknown fates", ONE)
        },
        Scope { moves: 1, repeats: 1, snapshot_after: Some(1), ..warm("warm: snapshots, repeats", ONE) },
        Scope { crashes: 1, snapshot_after: Some(1), ..warm("warm: snapshots, crash", ONE) },
        Scope { moves: 1, upgrades: 1, ..Scope::new("cold: upgrade, hand-over", ONE) },
        Scope { moves: 2, upgrades: 1, ..warm("warm: upgrade, there and back", ONE) },
        Scope { moves: 1, upgrades: 1, crashes: 1, ..warm("warm: upgrade, crash", ONE) },
        Scope { moves: 1, upgrades: 1, impatience: 1, full: true, ..warm("warm: upgrade, sleeper", ONE) },
        Scope { moves: 1, upgrades: 1, snapshot_after: Some(1), ..warm("warm: upgrade, snapshots", ONE) },
        on_condition(Scope { moves: 1, upgrades: 1, ..warm("warm, on condition: upgrade", TWO) }),
        on_condition(Scope {
            moves: 1,
            failures: 1,
            passed: ALL,
            impatience: 1,
            full: true,
            ..warm("warm, on condition: rejection, sleeper", TWO)
        }),
        on_condition(Scope {
            moves: 1,
            failures: 1,
            passed: ALL,
            crashes: 1,
            ..warm("warm, on condition: rejection, crash", TWO)
        }),
        on_condition(Scope {
            moves: 1,
            impatience: 1,
            unknowns: 1,
            full: true,
            ..warm("warm, on condition: unknown fates, sleeper", ONE)
        }),
        on_condition(Scope {
            moves: 1,
            impatience: 1,
            snapshot_after: Some(1),
            ..warm("warm, on condition: snapshots, sleeper", ONE)
        }),
    ]
}

/// Held messages and dead letters: each feature by itself, and with one thing that may go wrong.
pub fn holds() -> Vec<Scope> {
    vec![
        Scope { failures: 1, commands: 1, kinds: &[Retry], ..warm("hold: retry", TWO) },
        Scope { failures: 2, commands: 2, kinds: &[Retry, Discard, Release], ..warm("hold: commands", TWO) },
        Scope { failures: 1, overflows: 1, ..warm("hold: overflow", TWO) },
        Scope { failures: 1, overflows: 1, moves: 1, ..warm("hold: overflow, hand-over", TWO) },
        Scope { overflows: 1, crashes: 1, ..warm("hold: overflow, crash", TWO) },
        Scope { overflows: 1, crashes: 1, reader: true, ..warm("hold: overflow, reader, crash", TWO) },
        Scope { failures: 1, moves: 1, commands: 1, kinds: &[Retry], ..warm("hold: retry, hand-over", TWO) },
        Scope {
            failures: 1,
            commands: 1,
            kinds: &[Discard, Release],
            crashes: 1,
            ..warm("hold: discard, release, crash", TWO)
        },
        Scope { failures: 2, times: 2, ..warm("hold: due", TWO) },
        Scope { failures: 1, times: 1, crashes: 1, passed: 0b11, ..warm("hold: due, passed, crash", TWO) },
        Scope { scheduled: 0b01, times: 1, crashes: 1, ..warm("hold: scheduled, crash", TWO) },
        Scope { scheduled: 0b01, times: 1, moves: 1, ..warm("hold: scheduled, hand-over", TWO) },
        Scope { failures: 1, commands: 1, kinds: &[Edit], moved: 1, ..warm("hold: edit, move", ONE) },
        Scope {
            failures: 2,
            commands: 2,
            kinds: &[Edit, Retry],
            ..warm("hold: an edit meets an attempt", ONE)
        },
        Scope { overflows: 1, commands: 1, kinds: &[Skip, Discard], ..warm("hold: skip", TWO) },
        Scope {
            failures: 1,
            overflows: 1,
            commands: 1,
            kinds: &[Edit],
            low: true,
            moved: 1,
            ..warm("hold: cuts, edit, move", APART)
        },
        Scope { overflows: 2, low: true, late_acks: true, ..warm("hold: cuts, late acknowledgements", TWO) },
        Scope { overflows: 1, low: true, moves: 1, ..warm("hold: cuts, hand-over", ONE) },
        Scope {
            failures: 1,
            commands: 1,
            kinds: &[Retry],
            chunks: true,
            snapshot_after: Some(1),
            ..warm("hold: chunks, retry", ONE)
        },
        Scope {
            overflows: 1,
            chunks: true,
            low: true,
            snapshot_after: Some(1),
            ..warm("hold: chunks, cuts", ONE)
        },
        Scope { chunks: true, snapshot_after: Some(1), moves: 1, ..warm("hold: chunks, hand-over", ONE) },
        Scope { failures: 2, commands: 1, kinds: &[Retry], repeats: 1, ..warm("hold: retry, repeats", ONE) },
        Scope { overflows: 1, repeats: 1, ..warm("hold: overflow, repeats", TWO) },
        Scope { overflows: 2, failures: 1, ..warm("hold: three of a key", SAME) },
        on_condition(Scope {
            failures: 1,
            overflows: 1,
            moves: 1,
            ..warm("hold, on condition: overflow, hand-over", TWO)
        }),
    ]
}

fn on_condition(scope: Scope) -> Scope {
    Scope { conditional: true, ..scope }
}

/// Combinations of features, which take longer.
pub fn large() -> Vec<Scope> {
    vec![
        Scope {
            failures: 1,
            overflows: 1,
            commands: 1,
            kinds: &[Retry, Discard, Release],
            moves: 1,
            ..warm("hold, large: overflow, command, hand-over", TWO)
        },
        Scope {
            failures: 1,
            overflows: 1,
            commands: 1,
            kinds: &[Retry, Discard, Release],
            crashes: 1,
            ..warm("hold, large: overflow, command, crash", TWO)
        },
        Scope {
            failures: 2,
            commands: 2,
            kinds: &[Retry, Discard, Release],
            crashes: 1,
            ..warm("hold, large: two commands, crash", TWO)
        },
        Scope {
            failures: 2,
            commands: 2,
            kinds: &[Retry, Edit],
            times: 1,
            moves: 1,
            ..warm("hold, large: edits, due, hand-over", ONE)
        },
        Scope {
            failures: 1,
            overflows: 2,
            reader: true,
            crashes: 1,
            ..warm("hold, large: three of a key, reader, crash", SAME)
        },
        Scope {
            failures: 1,
            overflows: 1,
            moves: 1,
            impatience: 1,
            full: true,
            ..warm("hold, large: overflow, sleeper", TWO)
        },
        Scope {
            overflows: 1,
            moves: 1,
            impatience: 1,
            low: true,
            late_acks: true,
            moved: 1,
            full: true,
            ..warm("hold, large: cuts, move, sleeper", ONE)
        },
        Scope {
            failures: 1,
            commands: 1,
            kinds: &[Edit, Skip, Discard],
            overflows: 1,
            low: true,
            moved: 1,
            crashes: 1,
            ..warm("hold, large: cuts, edit, move, crash", APART)
        },
        Scope {
            overflows: 1,
            chunks: true,
            low: true,
            snapshot_after: Some(2),
            moves: 1,
            ..warm("hold, large: chunks, cuts, hand-over", ONE)
        },
        Scope {
            scheduled: 0b001,
            failures: 1,
            times: 2,
            crashes: 1,
            ..warm("hold, large: scheduled, due, crash", SAME)
        },
        Scope {
            failures: 1,
            overflows: 1,
            commands: 1,
            kinds: &[Retry],
            repeats: 1,
            moves: 1,
            ..warm("hold, large: repeats, hand-over", TWO)
        },
        Scope { moves: 1, unknowns: 1, ..Scope::new("cold: hand-over, unknown fates", ONE) },
        Scope { moves: 1, repeats: 1, ..Scope::new("cold: hand-over, repeats", ONE) },
        Scope { moves: 1, crashes: 1, ..Scope::new("cold: hand-over, crash", ONE) },
        Scope { moves: 2, ..Scope::new("cold: there and back", ONE) },
        Scope { moves: 2, snapshot_after: Some(1), ..warm("warm: snapshots, there and back in peace", ONE) },
        Scope { crashes: 1, moves: 1, ranges_per_record: 1, ..warm("warm: split records, crash", THREE) },
        on_condition(Scope { moves: 1, unknowns: 1, ..Scope::new("cold, on condition: hand-over", ONE) }),
        Scope { moves: 1, impatience: 1, repeats: 1, ..Scope::new("cold: repeats, sleeper", ONE) },
        Scope {
            moves: 1,
            failures: 1,
            passed: ALL,
            crashes: 1,
            impatience: 1,
            ranges_per_record: 1,
            ..warm("warm: all of three", THREE)
        },
        Scope {
            moves: 1,
            failures: 1,
            passed: ALL,
            impatience: 1,
            unknowns: 1,
            full: true,
            ..warm("warm: unknown fates, rejection, sleeper", TWO)
        },
        Scope {
            moves: 1,
            failures: 1,
            passed: ALL,
            impatience: 1,
            repeats: 1,
            full: true,
            ..warm("warm: repeats, rejection, sleeper", TWO)
        },
        Scope {
            moves: 2,
            impatience: 1,
            snapshot_after: Some(1),
            ..warm("warm: snapshots, there and back", ONE)
        },
        // With a planned hand-over as well, this scope would have more worlds than fit into memory.
        Scope {
            crashes: 1,
            impatience: 1,
            snapshot_after: Some(1),
            ..warm("warm: snapshots, crash, sleeper", ONE)
        },
        on_condition(Scope {
            moves: 1,
            failures: 1,
            passed: ALL,
            impatience: 1,
            unknowns: 1,
            full: true,
            ..warm("warm, on condition: unknown fates, rejection, sleeper", TWO)
        }),
        on_condition(Scope {
            moves: 2,
            impatience: 1,
            snapshot_after: Some(1),
            ..warm("warm, on condition: snapshots, there and back", ONE)
        }),
    ]
}

/// One rule left out at a time, with the first letter of the promise that breaks.
pub fn flawed() -> Vec<(Scope, &'static str)> {
    let all = Rules::ALL;
    let sleeper = |name, keys| Scope { moves: 1, impatience: 1, full: true, ..warm(name, keys) };
    vec![
        (
            Scope {
                failures: 1,
                passed: ALL,
                checks: "O",
                rules: Rules { read_back: false, ..all },
                ..sleeper("without read-back, order", TWO)
            },
            "O",
        ),
        (
            Scope { rules: Rules { read_back: false, ..all }, ..sleeper("without read-back, commit", ONE) },
            "C",
        ),
        (
            Scope {
                crashes: 1,
                checks: "D",
                rules: Rules { epoch_check: false, ..all },
                ..sleeper("without the epoch check", ONE)
            },
            "D",
        ),
        (
            Scope {
                moves: 1,
                rules: Rules { wait_for_released: false, ..all },
                ..warm("without waiting for released", ONE)
            },
            "W",
        ),
        (
            Scope {
                moves: 1,
                rules: Rules { newest_claim: false, ..all },
                ..Scope::new("without the newest claim", ONE)
            },
            "W",
        ),
        (
            Scope {
                moves: 1,
                repeats: 1,
                rules: Rules { claim_position: false, ..all },
                ..Scope::new("without the claim's position", ONE)
            },
            "W",
        ),
        (
            Scope {
                snapshot_after: Some(1),
                rules: Rules { cut_after_read_back: false, ..all },
                ..sleeper("without read-back before a cut", ONE)
            },
            "R",
        ),
        (
            Scope {
                snapshot_after: Some(1),
                rules: Rules { as_of: false, ..all },
                ..sleeper("without as of", ONE)
            },
            "R",
        ),
        (Scope { repeats: 1, rules: Rules { seq: false, ..all }, ..Scope::new("without seq", ONE) }, "C"),
        (
            Scope {
                moves: 2,
                checks: "D",
                rules: Rules { journal_is_truth: false, ..all },
                ..warm("without the journal", ONE)
            },
            "D",
        ),
        (
            Scope {
                moves: 1,
                snapshot_after: Some(1),
                impatience: 1,
                rules: Rules { not_below_start: false, ..all },
                ..warm("with snapshots from before the start", ONE)
            },
            "R",
        ),
        (
            Scope {
                believers: true,
                rules: Rules { wait_before_claiming: false, ..all },
                ..Scope::new("without a wait before claiming again", ONE)
            },
            "T",
        ),
        (
            Scope {
                failures: 1,
                moves: 1,
                checks: "O",
                rules: Rules { key_hash_on_record: false, ..all },
                ..warm("without the key's hash on record", TWO)
            },
            "O",
        ),
        (
            Scope {
                overflows: 1,
                rules: Rules { copy_counts_first: false, ..all },
                ..warm("running past a copy", TWO)
            },
            "O",
        ),
        (
            Scope {
                failures: 1,
                passed: 0b11,
                rules: Rules { dead_counts_first: false, ..all },
                ..warm("running past a dead letter", TWO)
            },
            "O",
        ),
        (
            Scope {
                overflows: 1,
                crashes: 1,
                checks: "L",
                rules: Rules { one_by_one: false, ..all },
                ..warm("with the highest position of a key", TWO)
            },
            "L",
        ),
        (
            Scope {
                overflows: 1,
                crashes: 1,
                reader: true,
                rules: Rules { wait_for_reader: false, ..all },
                ..warm("without waiting for the reader", TWO)
            },
            "O",
        ),
        (
            Scope {
                overflows: 1,
                rules: Rules { name_after_acknowledgement: false, ..all },
                ..warm("naming before the acknowledgement", ONE)
            },
            "L",
        ),
        (
            Scope {
                overflows: 1,
                moves: 1,
                impatience: 1,
                crashes: 1,
                checks: "D",
                rules: Rules { named_by_journal: false, ..all },
                ..warm("with copies that nothing names", ONE)
            },
            "D",
        ),
        (
            Scope {
                failures: 1,
                commands: 1,
                kinds: &[Retry],
                rules: Rules { escalated_holds: false, ..all },
                ..warm("passing what is escalated", TWO)
            },
            "O",
        ),
        (
            Scope {
                failures: 1,
                commands: 2,
                kinds: &[Discard, Retry],
                rules: Rules { commands_by_journal: false, ..all },
                ..warm("obeying a call", TWO)
            },
            "O",
        ),
        (
            Scope {
                failures: 2,
                commands: 2,
                kinds: &[Retry, Discard],
                rules: Rules { commands_by_state: false, ..all },
                ..warm("commands whatever the state", ONE)
            },
            "K",
        ),
        (
            Scope {
                failures: 2,
                times: 1,
                commands: 1,
                kinds: &[Retry],
                rules: Rules { answers_newest: false, ..all },
                ..warm("answering what was not seen, by itself", ONE)
            },
            "K",
        ),
        (
            Scope {
                failures: 2,
                commands: 2,
                kinds: &[Retry],
                rules: Rules { answers_newest: false, ..all },
                ..warm("answering what was not seen, twice", ONE)
            },
            "K",
        ),
        (
            Scope {
                failures: 2,
                commands: 2,
                kinds: &[Retry, Edit],
                rules: Rules { answers_newest: false, ..all },
                ..warm("answering an edit that was not seen", ONE)
            },
            "K",
        ),
        (
            Scope {
                failures: 1,
                commands: 1,
                kinds: &[Edit],
                moved: 1,
                rules: Rules { moved_names_from: false, ..all },
                ..warm("moving what is not named", ONE)
            },
            "K",
        ),
        (
            Scope {
                failures: 1,
                commands: 1,
                kinds: &[Edit],
                overflows: 1,
                low: true,
                moved: 1,
                rules: Rules { low_is_capped: false, ..all },
                ..warm("without a cap of low", APART)
            },
            "L",
        ),
        (
            Scope {
                overflows: 2,
                low: true,
                moves: 1,
                impatience: 1,
                rules: Rules { cut_by_counted_low: false, ..all },
                ..warm("cutting before low counts", APART)
            },
            "L",
        ),
        (
            Scope {
                overflows: 2,
                low: true,
                late_acks: true,
                rules: Rules { low_waits_for_copies: false, ..all },
                ..warm("raising low past a copy", APART)
            },
            "L",
        ),
        (
            Scope {
                upgrades: 1,
                rules: Rules { upgrade_when_readable: false, ..all },
                ..warm("with an upgrade that the owner cannot read", ONE)
            },
            "R",
        ),
        (
            Scope {
                crashes: 1,
                ranges_per_record: 1,
                rules: Rules { ascending: false, ..all },
                ..warm("without ascending completions", THREE)
            },
            "D",
        ),
    ]
}

/// All faults at once, for random runs.
pub fn deep() -> Vec<Scope> {
    const FIVE: &[u8] = &[0, 1, 0, 1, 0];
    let all = |name| Scope {
        failures: 3,
        crashes: 3,
        moves: 3,
        impatience: 2,
        unknowns: 3,
        repeats: 3,
        ranges_per_record: 1,
        full: true,
        ..Scope::new(name, FIVE)
    };
    let kept = |name| Scope {
        passed: 0b10100,
        overflows: 3,
        commands: 4,
        kinds: &[Retry, Discard, Release, Edit, Skip],
        moved: 2,
        times: 2,
        late_acks: true,
        reader: true,
        low: true,
        ..all(name)
    };
    vec![
        kept("deep, holds"),
        Scope { scheduled: 0b00010, ..kept("deep, holds, scheduled") },
        Scope { chunks: true, snapshot_after: Some(3), ..kept("deep, holds, chunks") },
        on_condition(Scope { snapshot_after: Some(2), ..kept("deep, on condition, holds") }),
        all("deep"),
        Scope { snapshot_after: Some(2), ..all("deep, snapshots") },
        on_condition(all("deep, on condition")),
        on_condition(Scope { snapshot_after: Some(2), ..all("deep, on condition, snapshots") }),
    ]
}
