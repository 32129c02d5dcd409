//! The rule that a test cites every requirement that is due.
//!
//! `docs/requirements.md` has a row for each requirement: its id, the issue since which it is due, and what it asks
//! for. A test cites the id in a comment; a figure (PRF) is cited by the benchmark that measures it, since no test is
//! timed. Requirements that are not due yet are listed as notes. Citing an id that does not exist is a finding.

use std::collections::{BTreeMap, BTreeSet};

use crate::lex::At;
use crate::source::Source;
use crate::tidy::Report;
use crate::tree::{Tree, is_module};

/// The project's issues, in the order in which they are built.
const ISSUES: [&str; 14] = ["A", "B", "M1", "M2", "M3", "C1", "C2", "C3", "D1", "D2", "E", "F", "G", "H"];
/// The issue that the tree has reached: requirements of this and earlier issues must be cited.
const DUE: &str = "M2";
const CONFORMANCE: &str = "crates/broker/src/testing/conformance";
const PAGE: &str = "docs/requirements.md";

struct Requirement {
    line: usize,
    /// The index in [`ISSUES`] of the requirement's issue.
    due: usize,
}

/// The index of an issue in [`ISSUES`].
fn place(issue: &str) -> Option<usize> {
    ISSUES.iter().position(|known| *known == issue)
}

pub fn check(tree: &Tree, report: &mut Report) {
    let Some(page) = tree.text(PAGE) else {
        return report.find(
            PAGE,
            1,
            "requirements",
            "the page is missing".into(),
            "write a row for each requirement",
        );
    };
    let known = read(page, report);
    let cited = cited(tree);
    let now = place(DUE).expect("the tree is at a known issue");
    let mut later: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (id, requirement) in known.iter().filter(|(id, _)| !cited.contains(*id)) {
        if requirement.due <= now {
            let by = if id.starts_with("PRF") { "benchmark" } else { "test" };
            let remedy = format!("write the {by} and cite the id in its comment");
            report.find(PAGE, requirement.line, "requirements", format!("no {by} cites {id}"), remedy);
        } else {
            later.entry(requirement.due).or_default().push(id);
        }
    }
    for (due, ids) in later {
        report.notes.push(format!("due with {}, not cited yet: {}", ISSUES[due], ids.join(" ")));
    }
    unknown(tree, &known, report);
}

fn read(page: &str, report: &mut Report) -> BTreeMap<String, Requirement> {
    let mut known = BTreeMap::new();
    for (n, line) in page.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, id, due, text, ..] = cells[..] else {
            continue;
        };
        if !is_id(id) {
            continue;
        }
        let due = place(due).filter(|_| !text.is_empty());
        if due.is_none() {
            let remedy = format!("a row is: id, one of {}, what it asks for", ISSUES.join(" "));
            report.find(PAGE, n + 1, "requirements", format!("the row of {id} is not complete"), remedy);
        }
        let requirement = Requirement { line: n + 1, due: due.unwrap_or(0) };
        if known.insert(id.to_owned(), requirement).is_some() {
            report.find(PAGE, n + 1, "requirements", format!("{id} stands here twice"), "keep one row");
        }
    }
    known
}

fn cited(tree: &Tree) -> BTreeSet<String> {
    let mut cited = BTreeSet::new();
    for source in &tree.rust {
        // The conformance suite is a library, but of tests, which each broker's tests call.
        let suite = is_module(&source.path, CONFORMANCE);
        let of_tests = |comment: &&At| suite || source.is_test(comment.line);
        for comment in source.comments.iter().filter(of_tests) {
            cited.extend(ids(&comment.text).filter(|id| !id.starts_with("PRF")));
        }
        if is_benchmark(source) {
            let pieces = source.comments.iter().chain(&source.strings);
            cited.extend(pieces.flat_map(|piece| ids(&piece.text)).filter(|id| id.starts_with("PRF")));
        }
    }
    cited
}

fn is_benchmark(source: &Source) -> bool {
    let mut parts = source.path.trim_end_matches(".rs").split('/');
    parts.any(|part| matches!(part, "bench" | "benches"))
}

/// Finds cited ids whose letters are known but whose number is not.
fn unknown(tree: &Tree, known: &BTreeMap<String, Requirement>, report: &mut Report) {
    let families: BTreeSet<&str> =
        known.keys().filter_map(|id| id.split_once('-')).map(|(letters, _)| letters).collect();
    for source in tree.rust.iter().filter(|source| !source.path.starts_with("xtask/")) {
        for comment in &source.comments {
            for id in ids(&comment.text).filter(|id| !known.contains_key(id)) {
                if id.split_once('-').is_some_and(|(letters, _)| families.contains(letters)) {
                    let found = format!("there is no requirement {id}");
                    report.find(
                        &source.path,
                        comment.line,
                        "requirements",
                        found,
                        format!("look it up in {PAGE}"),
                    );
                }
            }
        }
    }
}

fn ids(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '-');
    words.filter(|word| is_id(word)).map(str::to_owned)
}

/// True for an id such as `ORD-3` or `P1`.
fn is_id(word: &str) -> bool {
    let number = |text: &str| (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    match word.split_once('-') {
        Some((letters, digits)) => {
            letters.len() == 3 && letters.bytes().all(|byte| byte.is_ascii_uppercase()) && number(digits)
        }
        None => word.strip_prefix('P').is_some_and(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    const TABLE: (&str, &str) = (
        PAGE,
        "| id | due | what |\n|---|---|---|\n| P1 | A | a |\n| ORD-1 | A | b |\n| ORD-2 | H | c |\n| PRF-1 | A | d |\n",
    );

    #[test]
    fn what_is_due_and_not_cited_is_found() {
        let code = ("crates/core/src/lanes/lane.rs", "//! ORD-1, P1.\n");
        assert_eq!(found(check, &[TABLE, code]), [3, 4, 6].map(|n| format!("{PAGE}:{n}")));
    }

    #[test]
    fn tests_cite_rules_and_benchmarks_cite_figures() {
        let files = [
            TABLE,
            ("tests/promises/p1.rs", "//! P1, PRF-1.\n"),
            (
                "crates/core/src/lanes/lane.rs",
                "#[cfg(test)]\nmod tests {\n    /// ORD-1.\n    #[test]\n    fn a() {}\n}\n",
            ),
        ];
        assert_eq!(found(check, &files), [format!("{PAGE}:6")]);
        let bench = ("crates/cli/src/bench/dispatch.rs", "const ID: &str = \"PRF-1\";\n");
        assert!(found(check, &[files[0], files[1], files[2], bench]).is_empty());
    }

    #[test]
    fn an_id_that_does_not_exist_is_found() {
        let done = ("tests/a.rs", "// P1, ORD-1\n// ORD-9, UTF-8, SHA-1\n");
        let bench = ("bench/a.rs", "// PRF-1\n");
        assert_eq!(found(check, &[TABLE, done, bench]), ["tests/a.rs:2"]);
    }

    #[test]
    fn rows_are_complete_and_stand_once() {
        let page = "| P1 | A | a |\n| P1 | Z | a |\n";
        let test = ("tests/a.rs", "// P1\n");
        assert_eq!(found(check, &[(PAGE, page), test]), [format!("{PAGE}:2"), format!("{PAGE}:2")]);
    }
}
