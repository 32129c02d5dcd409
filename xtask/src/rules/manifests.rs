//! The rule about `Cargo.toml` files: dependencies run one way, and features for tests stay out of builds for users.
//!
//! Sections are read line by line; a dependency is a line `name = …` or `name.workspace = true` in `[dependencies]`.

use crate::tidy::Report;
use crate::tree::{Text, Tree};

/// The crates from the inside out: each may depend only on those before it.
const RANKS: [&str; 5] = ["keylane-core", "keylane-broker", "keylane", "keylane-server", "keylane-cli"];
/// The only dependencies of the core besides the standard library.
const CORE_KNOWS: [&str; 4] = ["bytes", "foldhash", "siphasher", "thiserror"];
/// The only crates of Keylane that its services may use: what any user could use.
const APPS_KNOW: [&str; 2] = ["keylane", "keylane-server"];
/// Libraries, which have error types of their own and must not use `anyhow`.
const LIBRARIES: [&str; 4] = ["keylane-core", "keylane-broker", "keylane", "keylane-server"];
/// The features that put flaws back or bring in test brokers.
const TEST_FEATURES: [&str; 2] = ["\"flaws\"", "\"testing\""];

pub fn check(tree: &Tree, report: &mut Report) {
    for manifest in tree.ending("/Cargo.toml") {
        let package = package_name(&manifest.text);
        for (line, dependency, text) in dependencies(&manifest.text) {
            if let Some((found, remedy)) = judge(manifest, &package, &dependency) {
                report.find(&manifest.path, line, "dependencies", found, remedy);
            }
            let shipped = ["crates/", "apps/"].iter().any(|folder| manifest.path.starts_with(folder));
            if shipped && TEST_FEATURES.iter().any(|feature| text.contains(feature)) {
                let remedy = "turn it on for tests only: in [dev-dependencies], or on the command line";
                let found = format!("`{dependency}` with a feature for tests");
                report.find(&manifest.path, line, "dependencies", found, remedy);
            }
        }
        default_features(manifest, report);
    }
}

fn judge(manifest: &Text, package: &str, dependency: &str) -> Option<(String, &'static str)> {
    let rank = |name: &str| RANKS.iter().position(|ranked| *ranked == name);
    let ours = rank(dependency);
    let found = || format!("{package} depends on {dependency}");
    if let (Some(own), Some(other)) = (rank(package), ours)
        && other >= own
    {
        return Some((found(), "dependencies run one way: core, broker, runtime, server, cli"));
    }
    if package == "keylane-core" && !CORE_KNOWS.contains(&dependency) {
        return Some((found(), "the core knows std, bytes, a hasher and thiserror"));
    }
    if manifest.path.starts_with("apps/") && ours.is_some() && !APPS_KNOW.contains(&dependency) {
        return Some((found(), "a service uses keylane and keylane-server, as any user could"));
    }
    if dependency == "anyhow" && LIBRARIES.contains(&package) {
        return Some((found(), "a library has thiserror enums; anyhow is for binaries"));
    }
    None
}

/// Finds features for tests that are on by default.
fn default_features(manifest: &Text, report: &mut Report) {
    for (n, line) in manifest.text.lines().enumerate() {
        let is_default =
            line.trim_start().strip_prefix("default").is_some_and(|rest| rest.trim_start().starts_with('='));
        if is_default && TEST_FEATURES.iter().any(|feature| line.contains(feature)) {
            let remedy = "no build for users has it";
            report.find(
                &manifest.path,
                n + 1,
                "dependencies",
                "a feature for tests is on by default".into(),
                remedy,
            );
        }
    }
}

fn package_name(text: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix("name = "));
    line.unwrap_or_default().trim().trim_matches('"').to_owned()
}

/// The line, name and text of each dependency that a build for users has.
fn dependencies(text: &str) -> Vec<(usize, String, &str)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (n, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim_end().ends_with("dependencies]")
                && !line.contains("dev-")
                && !line.contains("build-");
        } else if inside && line.starts_with(|sign: char| sign.is_alphabetic()) {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            found.push((n + 1, name.to_owned(), line));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn dependencies_run_one_way() {
        let text = "[package]\nname = \"keylane-broker\"\n[dependencies]\nkeylane-core.workspace = true\nkeylane = { path = \"..\" }\n";
        assert_eq!(found(check, &[("crates/broker/Cargo.toml", text)]), ["crates/broker/Cargo.toml:5"]);
    }

    #[test]
    fn the_core_knows_little_and_its_tests_more() {
        let text = "[package]\nname = \"keylane-core\"\n[dependencies]\nbytes = \"1\"\ntokio.workspace = true\n\
                    [dev-dependencies]\nproptest = \"1\"\n";
        assert_eq!(found(check, &[("crates/core/Cargo.toml", text)]), ["crates/core/Cargo.toml:5"]);
    }

    #[test]
    fn flaws_are_for_tests() {
        let text = "[package]\nname = \"keylane-cli\"\n[features]\ndefault = [\"flaws\"]\n[dependencies]\n\
                    keylane = { workspace = true, features = [\"flaws\"] }\n[dev-dependencies]\n\
                    keylane-broker = { workspace = true, features = [\"testing\"] }\n";
        let want = ["crates/cli/Cargo.toml:4", "crates/cli/Cargo.toml:6"];
        assert_eq!(found(check, &[("crates/cli/Cargo.toml", text)]), want);
    }

    #[test]
    fn libraries_have_their_own_errors_and_services_use_the_public_crates() {
        let server = "[package]\nname = \"keylane-server\"\n[dependencies]\nanyhow = \"1\"\n";
        let users =
            "[package]\nname = \"keylane-users\"\n[dependencies]\nanyhow = \"1\"\nkeylane-core = \"0\"\n";
        let files = [("crates/server/Cargo.toml", server), ("apps/users/Cargo.toml", users)];
        assert_eq!(found(check, &files), ["apps/users/Cargo.toml:5", "crates/server/Cargo.toml:4"]);
    }
}
