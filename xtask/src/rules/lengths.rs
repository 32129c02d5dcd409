//! The rule about lengths: of files, of functions, and of the files on the message's way, which a newcomer reads in an
//! afternoon.
//!
//! Tests are not counted: they do not make a file long.

use crate::tidy::Report;
use crate::tree::Tree;

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// The limit for files that a newcomer reads from top to bottom.
const WAY_LINES_MAX: usize = 299;
/// The message's way as ARCHITECTURE.md follows it: the file or the folder of each name.
const WAY: [&str; 6] = [
    "crates/core/src/lanes",
    "crates/core/src/ledger",
    "crates/server/src/ingest",
    "crates/runtime/src/produce",
    "crates/runtime/src/shard",
    "crates/runtime/src/dead",
];

pub fn check(tree: &Tree, report: &mut Report) {
    for source in &tree.rust {
        let lines = source.code_lines();
        let (lines_max, what) = match on_the_way(&source.path) {
            true => (WAY_LINES_MAX, "a file of the message's way"),
            false => (FILE_LINES_MAX, "a file"),
        };
        if lines > lines_max {
            let found = format!("{lines} lines without tests; {what} has at most {lines_max}");
            report.find(&source.path, 1, "file length", found, "split it by what its parts know");
        }
        for function in source.functions() {
            if function.lines > FUNCTION_LINES_MAX && !source.is_test(function.line) {
                let found =
                    format!("`{}` has {} lines; at most {FUNCTION_LINES_MAX}", function.name, function.lines);
                report.find(&source.path, function.line, "function length", found, "give its steps names");
            }
        }
    }
}

fn on_the_way(path: &str) -> bool {
    let stem = path.trim_end_matches(".rs");
    WAY.iter().any(|way| stem.strip_prefix(way).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn a_long_file_is_found_and_its_tests_do_not_count() {
        let code = "\n".repeat(FILE_LINES_MAX);
        let tests = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
        let long = format!("{code}fn a() {{}}\n");
        assert_eq!(found(check, &[("a.rs", &long), ("b.rs", &tests), ("tests/c.rs", &long)]), ["a.rs:1"]);
    }

    #[test]
    fn files_of_the_way_are_shorter() {
        let code = "\n".repeat(WAY_LINES_MAX + 1);
        let files = [
            ("crates/runtime/src/shard/pass.rs", code.as_str()),
            ("crates/core/src/lanes/guard/rate.rs", &code),
            ("crates/core/src/lanes_of_others.rs", &code),
        ];
        assert_eq!(
            found(check, &files),
            ["crates/core/src/lanes/guard/rate.rs:1", "crates/runtime/src/shard/pass.rs:1"]
        );
    }

    #[test]
    fn a_long_function_is_found() {
        let body = "    a();\n".repeat(FUNCTION_LINES_MAX - 2);
        let fits = format!("fn fits() {{\n{body}}}\n");
        let long = format!("fn long() {{\n{body}    b();\n}}\n");
        let line = format!("a.rs:{}", FUNCTION_LINES_MAX + 1);
        assert_eq!(found(check, &[("a.rs", &(fits + &long))]), [line]);
    }
}
