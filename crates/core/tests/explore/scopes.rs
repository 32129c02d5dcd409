//! The cases that are explored: one feature a scope in `small`, combinations in `large`, each rule left out in `flawed`.
//!
//! Names begin with how the world starts: `cold`, with an empty journal, or `warm`, with process 0 as the owner; and
//! say where appends are conditional (`on condition`).

use keylane_core::Rules;

use crate::scope::Scope;

const ONE: &[u8] = &[0];
const TWO: &[u8] = &[0, 0];
const THREE: &[u8] = &[0, 1, 0];

fn warm(name: &'static str, keys: &'static [u8]) -> Scope {
    Scope { warm: true, ..Scope::new(name, keys) }
}

/// About three minutes and 4 GB on one core.
pub fn small() -> Vec<Scope> {
    vec![
        Scope { moves: 1, unknowns: 1, ..Scope::new("cold: hand-over, unknown fates", ONE) },
        Scope { moves: 1, impatience: 1, ..Scope::new("cold: hand-over, impatience", ONE) },
        Scope { moves: 1, repeats: 1, ..Scope::new("cold: hand-over, repeats", ONE) },
        Scope { moves: 1, crashes: 1, ..Scope::new("cold: hand-over, crash", ONE) },
        Scope { moves: 2, ..Scope::new("cold: there and back", ONE) },
        Scope { moves: 2, impatience: 1, rejections: 1, ..warm("warm: there and back, rejection", TWO) },
        Scope { moves: 2, snapshot_after: Some(1), ..warm("warm: snapshots, there and back in peace", ONE) },
        Scope { crashes: 1, ..Scope::new("cold: crash", TWO) },
        Scope { moves: 1, rejections: 1, ..warm("warm: rejection, hand-over", TWO) },
        Scope { moves: 1, rejections: 1, impatience: 1, full: true, ..warm("warm: rejection, sleeper", TWO) },
        Scope { moves: 1, rejections: 1, crashes: 1, ..warm("warm: rejection, crash", TWO) },
        Scope { moves: 1, rejections: 1, ..warm("warm: two keys", THREE) },
        Scope { crashes: 1, moves: 1, ranges_per_record: 1, ..warm("warm: split records, crash", THREE) },
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
        Scope { moves: 1, rejections: 1, snapshot_after: Some(2), ..warm("warm: snapshots, rejection", TWO) },
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
        on_condition(Scope { moves: 1, unknowns: 1, ..Scope::new("cold, on condition: hand-over", ONE) }),
        on_condition(Scope {
            moves: 1,
            rejections: 1,
            impatience: 1,
            full: true,
            ..warm("warm, on condition: rejection, sleeper", TWO)
        }),
        on_condition(Scope {
            moves: 1,
            rejections: 1,
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

fn on_condition(scope: Scope) -> Scope {
    Scope { conditional: true, ..scope }
}

/// Combinations.
pub fn large() -> Vec<Scope> {
    vec![
        Scope { moves: 1, impatience: 1, repeats: 1, ..Scope::new("cold: repeats, sleeper", ONE) },
        Scope {
            moves: 1,
            rejections: 1,
            crashes: 1,
            impatience: 1,
            ranges_per_record: 1,
            ..warm("warm: all of three", THREE)
        },
        Scope {
            moves: 1,
            rejections: 1,
            impatience: 1,
            unknowns: 1,
            full: true,
            ..warm("warm: unknown fates, rejection, sleeper", TWO)
        },
        Scope {
            moves: 1,
            rejections: 1,
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
        // With a planned hand-over besides, it has more worlds than fit into memory.
        Scope {
            crashes: 1,
            impatience: 1,
            snapshot_after: Some(1),
            ..warm("warm: snapshots, crash, sleeper", ONE)
        },
        on_condition(Scope {
            moves: 1,
            rejections: 1,
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

/// Each rule left out, and the first letter of what it must violate.
pub fn flawed() -> Vec<(Scope, &'static str)> {
    let all = Rules::ALL;
    let sleeper = |name, keys| Scope { moves: 1, impatience: 1, full: true, ..warm(name, keys) };
    vec![
        (
            Scope {
                rejections: 1,
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
        rejections: 3,
        crashes: 3,
        moves: 3,
        impatience: 2,
        unknowns: 3,
        repeats: 3,
        ranges_per_record: 1,
        full: true,
        ..Scope::new(name, FIVE)
    };
    vec![
        all("deep"),
        Scope { snapshot_after: Some(2), ..all("deep, snapshots") },
        on_condition(all("deep, on condition")),
        on_condition(Scope { snapshot_after: Some(2), ..all("deep, on condition, snapshots") }),
    ]
}
