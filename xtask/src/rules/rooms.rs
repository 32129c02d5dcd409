//! The rule about modules: a folder is a room, and its `mod.rs` is the door.
//!
//! A module file beside a folder of the same name gives a reader two places to look, and a folder without a `mod.rs`
//! has no head that says what it is for.

use std::collections::BTreeSet;

use crate::tidy::Report;
use crate::tree::Tree;

/// The source folders that must be laid out like this.
const LAID_OUT: [&str; 5] = [
    "crates/core/src/",
    "crates/broker/src/",
    "crates/runtime/src/",
    "crates/server/src/",
    "crates/cli/src/",
];

pub fn check(tree: &Tree, report: &mut Report) {
    let sources = tree.rust.iter().filter(|source| LAID_OUT.iter().any(|root| source.path.starts_with(root)));
    let paths: BTreeSet<&str> = sources.map(|source| source.path.as_str()).collect();
    let is_root = |folder: &str| LAID_OUT.iter().any(|root| root.trim_end_matches('/') == folder);
    let folders: BTreeSet<&str> = paths
        .iter()
        .filter_map(|path| path.rsplit_once('/'))
        .map(|(folder, _)| folder)
        .filter(|folder| !is_root(folder))
        .collect();
    for folder in folders {
        let (door, beside) = (format!("{folder}/mod.rs"), format!("{folder}.rs"));
        if paths.contains(beside.as_str()) {
            let found = format!("the module lies beside its folder {folder}/");
            report.find(&beside, 1, "rooms", found, format!("move it to {door}"));
        } else if !paths.contains(door.as_str()) {
            let found = "the folder has no door".to_owned();
            let remedy = "say there what the room is for, and show what others may use";
            report.find(&door, 1, "rooms", found, remedy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn a_module_beside_its_folder_and_a_folder_without_a_door_are_found() {
        let files = [
            ("crates/core/src/lib.rs", ""),
            ("crates/core/src/lanes/mod.rs", ""),
            ("crates/core/src/lanes/lane.rs", ""),
            ("crates/core/src/owner.rs", ""),
            ("crates/core/src/owner/decide.rs", ""),
            ("crates/core/src/ledger/block.rs", ""),
        ];
        let want = ["crates/core/src/ledger/mod.rs:1", "crates/core/src/owner.rs:1"];
        assert_eq!(found(check, &files), want);
    }
}
