//! Known flaws, put back one at a time: the simulation must find each, and say which promise it breaks.

use keylane::testing::Flaws;
use keylane_core::Rules;

use crate::seeds::run_watched;

/// Each flaw must be found within this many seeds. The rarest shows in one run of one or two thousand.
const SEEDS_MAX: u64 = 5_000;

/// P4: below the highest finished position not everything was done.
#[test]
fn a_commit_of_the_highest_finished_is_found() {
    let mut flaws = Flaws::default();
    flaws.ledger.commit_highest = true;
    find("commit of the highest finished", flaws, &["P4"]);
}

/// P2, RTY-2.
#[test]
fn a_retry_at_the_tail_is_found() {
    let mut flaws = Flaws::default();
    flaws.engine.retry_at_tail = true;
    find("retry at the tail", flaws, &["P2"]);
}

/// P1, ORD-5.
#[test]
fn an_idle_lane_that_drops_its_queue_is_found() {
    let mut flaws = Flaws::default();
    flaws.engine.idle_drops_queue = true;
    find("idle lane drops its queue", flaws, &["ends", "P1", "P2"]);
}

/// P9, BRK-7: records that count for the flawed owner do not count for others.
#[test]
fn a_stale_epoch_that_is_accepted_is_found() {
    let flaws = Flaws { rules: Rules { epoch_check: false, ..Rules::ALL }, ..Flaws::default() };
    find("stale epoch accepted", flaws, &["P4", "P9", "P2", "ends"]);
}

/// ORD-9, P2: an owner that does not read its journal while an append of its own is under way.
#[test]
fn an_owner_that_is_deaf_while_it_appends_is_found() {
    let flaws = Flaws { deaf_while_appending: true, ..Flaws::default() };
    find("deaf while it appends", flaws, &["P2", "P4", "P9", "ORD-12"]);
}

/// ORD-9, P2: an owner that hears nothing while the body of a dead letter is being stored.
#[test]
fn an_owner_that_is_deaf_while_it_stores_is_found() {
    let flaws = Flaws { deaf_while_storing: true, ..Flaws::default() };
    find("deaf while it stores", flaws, &["P2", "P4", "P9", "ORD-12", "ends"]);
}

/// ORD-9, W: a claimant that does not wait.
#[test]
fn a_claimant_that_does_not_wait_is_found() {
    let flaws = Flaws { rules: Rules { wait_for_released: false, ..Rules::ALL }, ..Flaws::default() };
    find("no wait for released", flaws, &["W", "P2"]);
}

fn find(name: &str, flaws: Flaws, properties: &[&str]) {
    for seed in 1..=SEEDS_MAX {
        let Some(violation) = run_watched(seed, flaws, false).violation else {
            continue;
        };
        println!("{name}: seed {seed}, {violation}");
        assert!(
            properties.contains(&violation.property),
            "{name} should break one of {properties:?}: {violation}"
        );
        let sound = run_watched(seed, Flaws::default(), false).violation;
        assert_eq!(sound, None, "{name}: seed {seed} without the flaw");
        return;
    }
    panic!("{name}: not found within {SEEDS_MAX} seeds");
}
