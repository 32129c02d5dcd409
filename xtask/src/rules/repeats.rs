//! The rule that a simulation can repeat every run from its seed.
//!
//! A `select!` without `biased` looks at its branches in an order that is drawn anew each time, and no seed decides
//! that order: a fault that the simulation found once could not be found again.

use crate::tidy::Report;
use crate::tree::Tree;

pub fn check(tree: &Tree, report: &mut Report) {
    let simulated =
        |path: &str| path.starts_with("crates/runtime/src/") || path.starts_with("crates/core/src/");
    for source in tree.rust.iter().filter(|source| simulated(&source.path) && !source.for_tests) {
        let biased = source.find_code(&["select", "!", "{", "biased"]);
        let all = source.find_code(&["select", "!", "{"]);
        for line in all.into_iter().filter(|line| !biased.contains(line)) {
            report.find(
                &source.path,
                line,
                "repeats itself",
                "a `select!` draws the order of its branches".to_owned(),
                "begin it with `biased;`, and put first what must not be missed",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn a_select_that_is_not_biased_is_found() {
        let text = "fn a() {\n    tokio::select! {\n        biased;\n        () = b => {}\n    }\n    select! {\n        () = b => {}\n    }\n}\n";
        assert_eq!(
            found(check, &[("crates/runtime/src/ownership/task.rs", text)]),
            ["crates/runtime/src/ownership/task.rs:6"]
        );
        assert!(found(check, &[("crates/server/src/serve/listen.rs", text)]).is_empty());
    }
}
