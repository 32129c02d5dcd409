//! The rule about names: one word for each concept, and no name that says nothing.
//!
//! Types must not end in words that fit anything, modules must not be drawers, and a concept must have the word of
//! CONTRIBUTING.md's table. Only names that are declared in this project are checked: other crates have their own
//! words.

use crate::source::{Declared, Source};
use crate::tidy::Report;
use crate::tree::Tree;

const ENDINGS: [&str; 7] = ["Manager", "Helper", "Util", "Processor", "HandlerImpl", "Data", "Info"];
const DRAWERS: [&str; 8] = ["common", "util", "utils", "type_defs", "types", "helper", "helpers", "misc"];
const TYPES: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// Words that a reader would have to translate, and the project's word for each. Words that also have a meaning of
/// their own (event, record, task, queue, result, status, version, store, lock, close) only a reader can judge.
const WORDS: [(&str, &str); 14] = [
    ("backend", "broker"),
    ("transport", "broker"),
    ("subscriber", "pipeline"),
    ("envelope", "delivery"),
    ("worker", "shard"),
    ("actor", "shard"),
    ("processor", "lane"),
    ("tracker", "ledger"),
    ("park", "hold"),
    ("parked", "held"),
    ("quarantine", "hold"),
    ("requeue", "replay"),
    ("fallback", "spill"),
    ("changelog", "journal"),
];

pub fn check(tree: &Tree, report: &mut Report) {
    for source in &tree.rust {
        drawers(source, report);
        for declared in source.declared() {
            endings(source, &declared, report);
            words(source, &declared, report);
        }
    }
}

fn drawers(source: &Source, report: &mut Report) {
    let parts = source.path.trim_end_matches(".rs").split('/');
    let inline = source.declared().into_iter().filter(|d| d.kind == "mod").map(|d| (d.line, d.name));
    let names = parts.map(|part| (1, part.to_owned())).chain(inline);
    for (line, name) in names.filter(|(_, name)| DRAWERS.contains(&name.as_str())) {
        let remedy = "name it by the one thing that lives there";
        report.find(&source.path, line, "module name", format!("`{name}` is a drawer"), remedy);
    }
}

fn endings(source: &Source, declared: &Declared, report: &mut Report) {
    if !TYPES.contains(&declared.kind.as_str()) {
        return;
    }
    if let Some(ending) = ENDINGS.iter().find(|ending| declared.name.ends_with(**ending)) {
        let found = format!("`{}` ends in {ending}", declared.name);
        report.find(&source.path, declared.line, "type name", found, "name it by what it is");
    }
}

fn words(source: &Source, declared: &Declared, report: &mut Report) {
    if source.is_test(declared.line) {
        return;
    }
    for part in parts(&declared.name) {
        if let Some((word, ours)) = WORDS.iter().find(|(word, _)| *word == part) {
            let found = format!("`{}` says {word}", declared.name);
            report.find(&source.path, declared.line, "vocabulary", found, format!("the word here is {ours}"));
        }
    }
}

/// Splits `SomeName` and `some_name` into `some` and `name`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for (at, sign) in name.char_indices() {
        let starts = sign.is_uppercase() && name[..at].ends_with(|before: char| before.is_lowercase());
        if sign == '_' || starts {
            parts.push(String::new());
        }
        if sign != '_' {
            parts.last_mut().expect("never empty").extend(sign.to_lowercase());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn empty_names_are_found() {
        let text = "struct OffsetManager;\nenum JournalInfo {}\nmod util {}\nstruct Informed;\nlet x: OtherData = y;\n";
        let files = [("a.rs", text), ("crates/core/src/common/b.rs", ""), ("helpers.rs", "")];
        let want = ["a.rs:1", "a.rs:2", "a.rs:3", "crates/core/src/common/b.rs:1", "helpers.rs:1"];
        assert_eq!(found(check, &files), want);
    }

    #[test]
    fn words_of_others_are_found_in_what_is_declared() {
        let text = "struct ShardWorker;\nfn requeue_all() {}\nfn a() { tokio_worker(); }\nstruct Workers;\n";
        assert_eq!(found(check, &[("a.rs", text)]), ["a.rs:1", "a.rs:2"]);
    }

    #[test]
    fn a_name_falls_into_its_words() {
        assert_eq!(parts("SomeHTTPName_x"), ["some", "httpname", "x"]);
    }
}
