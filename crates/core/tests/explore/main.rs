//! The explorer: runs every interleaving of small cases, on the core's own `apply` and `Owner` (docs/protocol.md).
//!
//! Needs the feature `flaws` and an optimised profile. `scopes.rs` has the cases. Those of `make test` run one after
//! another, so that they share the memory; the larger ones are ignored here, and `make explore` runs them.

mod scope;
mod scopes;
mod search;
mod world;

use scope::Scope;
use search::{explore, wander};

/// Explores a scope, which must keep every promise.
fn holds(scope: &Scope) {
    let found = explore(scope);
    println!("{}: {} worlds, {} steps deep", scope.name, found.worlds, found.depth);
    if let Some((violation, path)) = found.violation {
        panic!("{}: {violation}\n{}", scope.name, numbered(&path));
    }
}

fn numbered(path: &[String]) -> String {
    path.iter().enumerate().map(|(at, step)| format!("{:4} {step}\n", at + 1)).collect()
}

/// P1, P2, P4, P9, COM-1, COM-3, ORD-9, BRK-6, BRK-7, by the checks L, O, C, D, W, T, R of docs/protocol.md.
#[test]
fn small_cases_keep_every_promise_in_every_interleaving() {
    let only = std::env::var("SCOPE").unwrap_or_default();
    scopes::small().iter().filter(|scope| scope.name.starts_with(&only)).for_each(holds);
}

/// The same with held messages and dead letters: DLQ-5, DLQ-7, MSG-6, BRK-6, by the check K as well.
#[test]
fn what_is_held_and_dead_keeps_every_promise_in_every_interleaving() {
    let only = std::env::var("SCOPE").unwrap_or_default();
    scopes::holds().iter().filter(|scope| scope.name.starts_with(&only)).for_each(holds);
}

/// The same in combinations that take longer.
#[test]
#[ignore = "takes long; run by make explore"]
fn explore_larger_cases_in_every_interleaving() {
    let only = std::env::var("SCOPE").unwrap_or_default();
    scopes::large().iter().filter(|scope| scope.name.starts_with(&only)).for_each(holds);
}

/// With each rule left out, the explorer finds the violation that the protocol predicts: so the explorer can find it,
/// and the rule is needed.
#[test]
fn every_rule_left_out_is_missed() {
    let only = std::env::var("SCOPE").unwrap_or_default();
    let mut missed = Vec::new();
    for (scope, violation_of) in
        scopes::flawed().into_iter().filter(|(scope, _)| scope.name.starts_with(&only))
    {
        let found = explore(&scope);
        match found.violation {
            Some((violation, path)) if violation.starts_with(violation_of) => {
                println!("{} ({} steps): {violation}\n{}", scope.name, path.len(), numbered(&path));
            }
            Some((violation, path)) => {
                missed.push(format!("{}: {violation}\n{}", scope.name, numbered(&path)));
            }
            None => missed.push(format!("{}: no violation in {} worlds", scope.name, found.worlds)),
        }
        holds(&Scope { rules: keylane_core::Rules::ALL, ..scope });
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// All faults at once along long random paths. Prints the seed; `EXPLORE_SEED` and `EXPLORE_RUNS` choose other seeds.
#[test]
fn random_deep_runs_keep_every_promise_and_end() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (first, runs) = (number("EXPLORE_SEED", 1), number("EXPLORE_RUNS", 3_000));
    println!("seeds {first} to {}", first + runs - 1);
    let mut steps = 0;
    for scope in scopes::deep() {
        for seed in first..first + runs {
            match wander(&scope, seed, 5_000) {
                Ok(taken) => steps += taken,
                Err((violation, path)) => {
                    panic!("{}, EXPLORE_SEED={seed}: {violation}\n{}", scope.name, numbered(&path))
                }
            }
        }
    }
    println!("{steps} steps");
}
