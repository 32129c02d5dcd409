//! PRF-19: how long a build for users takes on a fresh checkout, and how large its binary is.
//!
//! The figures are of the last commit, cloned into a temporary folder, with nothing built before. Packages are fetched
//! before the clock starts: how fast a network is says nothing about the project. It prints rows for
//! docs/performance.md.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// What a build may take on two cores, in seconds.
const SECONDS_MAX: f64 = 300.0;
/// What a binary may have, in bytes.
const BYTES_MAX: u64 = 40_000_000;

/// Builds the last commit from nothing, and prints how long that took and what came of it; true if both are within
/// their targets.
#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub fn run(root: &Path) -> Result<bool> {
    let folder = std::env::temp_dir().join(format!("keylane-cold-build-{}", std::process::id()));
    let (clone, target) = (folder.join("clone"), folder.join("target"));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let measured = measure(root, &clone, &target);
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    let (seconds, bytes) = measured?;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let row = |what: &str, value: String, target: &str, met: bool| {
        println!(
            "| PRF-19 | {what} | {value} | – | – | {target} | {} | {cores} cores |",
            if met { "yes" } else { "NO" }
        );
    };
    row("cold build of `make run`", format!("{seconds:.0} s"), "≤ 300 s", seconds <= SECONDS_MAX);
    row("size of the binary", format!("{:.1} MB", bytes as f64 / 1e6), "≤ 40 MB", bytes <= BYTES_MAX);
    Ok(seconds <= SECONDS_MAX && bytes <= BYTES_MAX)
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn measure(root: &Path, clone: &Path, target: &Path) -> Result<(f64, u64)> {
    succeeds(Command::new("git").args(["clone", "--quiet"]).arg(root).arg(clone))?;
    succeeds(Command::new("cargo").args(["fetch", "--quiet", "--locked"]).current_dir(clone))?;
    let begin = Instant::now();
    succeeds(Command::new("make").arg("build").current_dir(clone).env("CARGO_TARGET_DIR", target))?;
    let seconds = begin.elapsed().as_secs_f64();
    let binary = target.join("release").join("keylane");
    let built = std::fs::metadata(&binary).with_context(|| format!("{} was not built", binary.display()))?;
    Ok((seconds, built.len()))
}

fn succeeds(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
