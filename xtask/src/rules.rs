//! The house rules of `tidy`, one file each. CONTRIBUTING.md describes them for people.
//!
//! Each rule takes the whole project and adds its findings to the report. A new rule needs a file here, a line in
//! [`ALL`], and a test with a snippet that breaks it.

pub mod channels;
pub mod codes;
pub mod headers;
pub mod imports;
pub mod leftovers;
pub mod lengths;
pub mod licences;
pub mod links;
pub mod manifests;
pub mod names;
pub mod places;
pub mod provenance;
pub mod repeats;
pub mod requirements;
pub mod rooms;

use crate::tidy::Report;
use crate::tree::Tree;

/// A rule: checks the project and adds findings to the report.
pub type Rule = fn(&Tree, &mut Report);

/// Every rule that needs nothing but the project's files.
pub const ALL: &[Rule] = &[
    channels::check,
    codes::check,
    headers::check,
    imports::check,
    leftovers::check,
    lengths::check,
    links::check,
    manifests::check,
    names::check,
    places::check,
    provenance::check,
    repeats::check,
    requirements::check,
    rooms::check,
];

/// What a rule finds in a project of these files, as `path:line`.
#[cfg(test)]
pub fn found(rule: Rule, files: &[(&str, &str)]) -> Vec<String> {
    let owned = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    let mut report = Report::default();
    rule(&Tree::new(owned.collect()), &mut report);
    report.findings.sort();
    report.findings.into_iter().map(|f| format!("{}:{}", f.path, f.line)).collect()
}
