//! `cargo xtask tidy`: checks the project against all rules, and prints every finding.
//!
//! A finding has a place, the rule, what was found, and the remedy. Notes are information: they fail nothing.

use std::fmt;
use std::path::Path;

use anyhow::Result;

use crate::rules;
use crate::tree::Tree;

/// A place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub path: String,
    pub line: usize,
    pub rule: &'static str,
    pub found: String,
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { path, line, rule, found, remedy } = self;
        write!(f, "{path}:{line}: {rule}: {found}\n    {remedy}")
    }
}

/// Everything that the rules have found.
#[derive(Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    pub notes: Vec<String>,
}

impl Report {
    pub fn find(
        &mut self,
        path: &str,
        line: usize,
        rule: &'static str,
        found: String,
        remedy: impl Into<String>,
    ) {
        self.findings.push(Finding { path: path.to_owned(), line, rule, found, remedy: remedy.into() });
    }
}

/// Checks the project at `root`; true if there is no finding.
pub fn run(root: &Path) -> Result<bool> {
    let tree = Tree::read(root)?;
    let mut report = Report::default();
    for rule in rules::ALL {
        rule(&tree, &mut report);
    }
    rules::licences::check(root, &tree, &mut report)?;
    report.findings.sort();
    report.findings.dedup();
    for note in &report.notes {
        println!("note: {note}");
    }
    for finding in &report.findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", tree.texts.len(), report.findings.len());
    Ok(report.findings.is_empty())
}
