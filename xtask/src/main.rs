//! The project's own tool: checks the house rules, runs the tests, and measures a build from nothing.
//!
//! `tidy` reads every file of the project and checks it against the rules of CONTRIBUTING.md; it fails with file, line,
//! rule and remedy. `test` runs the tests and ends with how many passed and failed. `cold-build` prints how long a build
//! takes and how large its binary is. Nothing here is part of a build for users.

mod bench;
mod lex;
mod rules;
mod runner;
mod source;
mod tidy;
mod tree;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy | test [ARGUMENTS OF CARGO TEST] | cold-build";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the project's root");
    let ended = match arguments.split_first() {
        Some((command, [])) if command == "tidy" => tidy::run(root),
        Some((command, [])) if command == "cold-build" => bench::run(root),
        Some((command, rest)) if command == "test" => runner::run(root, rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
