//! The rule about dependencies: their licences are allowed, and they come from the registry (SEC-6).
//!
//! The allow list of `deny.toml` is compared with the dependency tree as cargo reports it, so that this is checked even
//! where cargo-deny is not installed. Advisories need a network; cargo-deny checks those.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::tidy::Report;
use crate::tree::Tree;

const POLICY: &str = "deny.toml";
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub fn check(root: &Path, tree: &Tree, report: &mut Report) -> Result<()> {
    let allowed = allowed(tree.text(POLICY).unwrap_or_default());
    if allowed.is_empty() {
        report.find(POLICY, 1, "licences", "no licence is allowed".into(), "fill `[licenses] allow`");
        return Ok(());
    }
    judge(&metadata(root)?, &allowed, report);
    Ok(())
}

fn metadata(root: &Path) -> Result<Value> {
    let arguments = ["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform"];
    let output = Command::new("cargo").current_dir(root).args(arguments).arg(host()?).output();
    let output = output.context("cannot start cargo metadata")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata failed (`cargo fetch --locked` may help): {errors}");
    serde_json::from_slice(&output.stdout).context("cargo metadata printed something else than JSON")
}

/// The platform of this machine: packages for other platforms need not be downloaded.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}

fn judge(metadata: &Value, allowed: &[String], report: &mut Report) {
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        match package["source"].as_str() {
            None | Some(REGISTRY) => {}
            Some(other) => {
                let remedy = "take it from the registry";
                report.find("Cargo.lock", 1, "sources", format!("{name} comes from {other}"), remedy);
            }
        }
        // Cargo still accepts `/` in place of `OR`.
        let licence = text("license").replace('/', " OR ");
        if !Expression::allows(&licence, allowed) {
            let found = format!("{name} has the licence `{licence}`");
            let remedy = format!("do without it, or allow the licence in {POLICY} with a reason");
            report.find("Cargo.lock", 1, "licences", found, remedy);
        }
    }
}

/// The strings of `allow = […]` in the section `[licenses]` of the policy.
fn allowed(policy: &str) -> Vec<String> {
    let Some((_, section)) = policy.split_once("[licenses]") else {
        return Vec::new();
    };
    let Some((_, list)) = section.split_once("allow = [") else {
        return Vec::new();
    };
    let list = list.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut names = Vec::new();
    for line in list {
        let (inside, ends) = match line.split_once(']') {
            Some((inside, _)) => (inside, true),
            None => (line, false),
        };
        names.extend(inside.split('"').skip(1).step_by(2).map(str::to_owned));
        if ends {
            break;
        }
    }
    names
}

/// An SPDX licence expression, read from left to right; AND binds tighter than OR.
struct Expression<'a> {
    words: Vec<&'a str>,
    at: usize,
    allowed: &'a [String],
}

impl Expression<'_> {
    fn allows(text: &str, allowed: &[String]) -> bool {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let words = spaced.split_whitespace().collect();
        let mut expression = Expression { words, at: 0, allowed };
        let value = expression.any();
        value && expression.at == expression.words.len()
    }

    fn word(&self) -> &str {
        self.words.get(self.at).copied().unwrap_or_default()
    }

    fn any(&mut self) -> bool {
        let mut value = self.all();
        while self.word() == "OR" {
            self.at += 1;
            value |= self.all();
        }
        value
    }

    fn all(&mut self) -> bool {
        let mut value = self.one();
        while self.word() == "AND" {
            self.at += 1;
            value &= self.one();
        }
        value
    }

    fn one(&mut self) -> bool {
        if self.word() == "(" {
            self.at += 1;
            let value = self.any();
            self.at += 1;
            return value;
        }
        let mut name = self.word().to_owned();
        self.at += 1;
        if self.word() == "WITH" {
            name = format!("{name} WITH {}", self.words.get(self.at + 1).copied().unwrap_or_default());
            self.at += 2;
        }
        self.allowed.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY_TEXT: &str =
        "[graph]\n[licenses]\nallow = [\n  \"MIT\", # short\n  \"ISC\",\n  \"A WITH e\",\n]\nx = [\"GPL\"]\n";

    #[test]
    fn expressions_are_held_against_the_list() {
        let list = allowed(POLICY_TEXT);
        assert_eq!(list, ["MIT", "ISC", "A WITH e"]);
        for (text, want) in [
            ("MIT", true),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(MIT OR GPL-3.0) AND ISC", true),
            ("MIT OR GPL-3.0 AND ISC", true),
            ("A WITH e OR B", true),
            ("A", false),
            ("", false),
        ] {
            assert_eq!(Expression::allows(text, &list), want, "{text}");
        }
    }

    /// SEC-6.
    #[test]
    fn foreign_licences_and_sources_are_found() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "version": "1", "license": "MIT/GPL", "source": REGISTRY},
            {"name": "b", "version": "1", "license": null, "source": REGISTRY},
            {"name": "c", "version": "1", "license": "ISC", "source": "git+https://example.com/c"},
            {"name": "d", "version": "1", "license": "ISC", "source": null},
        ]});
        let mut report = Report::default();
        judge(&metadata, &allowed(POLICY_TEXT), &mut report);
        let rules: Vec<_> = report.findings.iter().map(|f| (f.rule, &f.found[..1])).collect();
        assert_eq!(rules, [("licences", "b"), ("sources", "c")]);
    }
}
