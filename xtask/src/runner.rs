//! `cargo xtask test`: runs the tests, and ends with how many passed and failed.
//!
//! Cargo runs one test binary after another and prints a line of counts for each, so a failure in the middle is easily
//! overlooked. The output is passed on as it comes, and the sums stand at the end, together with the tools that are
//! missing on this machine.
//!
//! The binary that black-box tests start is built first, on its own, and copied aside, because the tests' own build has
//! features that put flaws back and would overwrite it. The tests find the copy through `KEYLANE_BIN`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const PROFILE: &str = "checked";
const BINARY: &str = "keylane";
const BINARY_PACKAGE: &str = "keylane-cli";
/// The file in which `dev/tools` lists what it could not install here, one line each.
const MISSING: &str = "missing-tools";

/// The sums of what the test binaries counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Runs `cargo test` with `arguments`; true if nothing failed.
pub fn run(root: &Path, arguments: &[String]) -> Result<bool> {
    let metadata = metadata(root)?;
    let target = metadata["target_directory"].as_str().map(PathBuf::from);
    let target = target.context("cargo metadata names no target folder")?;
    let binary = clean_binary(root, &metadata, &target)?;
    let (sums, ended_well) = tests(root, arguments, binary.as_deref())?;
    let missing = std::fs::read_to_string(target.join(MISSING)).unwrap_or_default();
    for tool in missing.lines() {
        println!("NOT TESTED HERE: {tool}");
    }
    println!("tests: {} passed, {} failed, {} ignored", sums.passed, sums.failed, sums.ignored);
    // A filter that matches no test must not look like success.
    ensure!(sums.passed + sums.failed > 0, "no test ran: {}", arguments.join(" "));
    Ok(ended_well && sums.failed == 0)
}

fn metadata(root: &Path) -> Result<Value> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1"];
    let output = Command::new("cargo").current_dir(root).args(arguments).output();
    let output = output.context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata printed something else than JSON")
}

/// Builds the binary as users get it, but with all checks on, and copies it to where no test build overwrites it.
fn clean_binary(root: &Path, metadata: &Value, target: &Path) -> Result<Option<PathBuf>> {
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    if !packages.any(|package| package["name"] == BINARY_PACKAGE) {
        return Ok(None);
    }
    let arguments = ["build", "--locked", "--profile", PROFILE, "--package", BINARY_PACKAGE, "--bins"];
    let status = Command::new("cargo").current_dir(root).args(arguments).status();
    ensure!(status.context("cannot start cargo")?.success(), "{BINARY_PACKAGE} does not build");
    let folder = target.join("black-box");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let copy = folder.join(BINARY);
    // Removed first: copying over a binary that still runs somewhere is refused.
    let _ = std::fs::remove_file(&copy);
    let built = target.join(PROFILE).join(BINARY);
    std::fs::copy(&built, &copy).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(Some(copy))
}

fn tests(root: &Path, arguments: &[String], binary: Option<&Path>) -> Result<(Sums, bool)> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["test", "--locked", "--no-fail-fast", "--profile", PROFILE]);
    cargo.args(arguments);
    if let Some(binary) = binary {
        cargo.env("KEYLANE_BIN", binary);
    }
    let mut child = cargo.stdout(Stdio::piped()).spawn().context("cannot start cargo test")?;
    let output = child.stdout.take().expect("asked for above");
    let mut sums = Sums::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("cannot read what the tests print")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        sums.add(&line);
    }
    Ok((sums, child.wait()?.success()))
}

impl Sums {
    /// Adds the last line of a test binary: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            return;
        };
        for count in counts.split([';', '.']) {
            let mut words = count.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runners_counts_are_summed() {
        let mut sums = Sums::default();
        sums.add(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s",
        );
        sums.add("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.5s");
        sums.add("5 passed; said a test");
        assert_eq!(sums, Sums { passed: 7, failed: 2, ignored: 1 });
    }
}
