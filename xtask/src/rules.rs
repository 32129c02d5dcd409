//! The rules, a file each. CONTRIBUTING.md says them to people.
//!
//! Each takes the whole project and adds to the report. To add one: a file here, a line in [`ALL`], a test with a
//! snippet that breaks it.

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

/// A rule over the project.
pub type Rule = fn(&Tree, &mut Report);

/// All rules that need nothing but the files.
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

/// What a rule finds in a project of the given files: `path:line` each.
#[cfg(test)]
pub fn found(rule: Rule, files: &[(&str, &str)]) -> Vec<String> {
    let owned = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    let mut report = Report::default();
    rule(&Tree::new(owned.collect()), &mut report);
    report.findings.sort();
    report.findings.into_iter().map(|f| format!("{}:{}", f.path, f.line)).collect()
}
