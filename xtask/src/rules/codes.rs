//! Every error code has a page, and every page a code.
//!
//! An operator who meets `KL-` and four digits looks it up under `docs/errors/`. A code counts where code or its
//! comments name it, outside of tests.

use std::collections::BTreeMap;

use crate::tidy::Report;
use crate::tree::Tree;

const FOLDER: &str = "docs/errors/";

pub fn check(tree: &Tree, report: &mut Report) {
    let mut used: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for source in tree.rust.iter().filter(|source| !source.path.starts_with("xtask/")) {
        for piece in source.strings.iter().chain(&source.comments) {
            if !source.is_test(piece.line) {
                for code in codes(&piece.text) {
                    used.entry(code).or_insert((source.path.clone(), piece.line));
                }
            }
        }
    }
    for (code, (path, line)) in &used {
        let page = format!("{FOLDER}{code}.md");
        match tree.text(&page) {
            None => {
                report.find(path, *line, "error page", format!("{code} has no page"), format!("write {page}"))
            }
            Some(text) if !text.starts_with(&format!("# {code}")) => {
                let remedy = format!("begin the page with `# {code}` and what went wrong");
                report.find(&page, 1, "error page", "the page does not begin with its code".into(), remedy);
            }
            Some(_) => {}
        }
    }
    for page in tree.ending(".md").filter(|page| page.path.starts_with(FOLDER)) {
        let code = page.path[FOLDER.len()..].trim_end_matches(".md");
        if code.starts_with("KL-") && !used.contains_key(code) {
            let remedy = "delete the page, or give the error its code";
            report.find(&page.path, 1, "error page", format!("nothing answers {code}"), remedy);
        }
    }
}

/// The codes in a text: `KL-` and exactly four digits.
fn codes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("KL-") {
        let digits: String = text[at + 3..].chars().take_while(char::is_ascii_digit).collect();
        if digits.len() == 4 {
            found.push(format!("KL-{digits}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    const CODE: (&str, &str) = ("crates/a/src/b.rs", "\nconst C: &str = \"KL-1234\";\n");

    #[test]
    fn a_code_without_a_page_is_found_and_a_page_without_a_code() {
        let page = ("docs/errors/KL-9999.md", "# KL-9999 x\n");
        assert_eq!(found(check, &[CODE, page]), ["crates/a/src/b.rs:2", "docs/errors/KL-9999.md:1"]);
    }

    #[test]
    fn a_page_begins_with_its_code() {
        assert!(
            found(check, &[CODE, ("docs/errors/KL-1234.md", "# KL-1234: the disk is full\n")]).is_empty()
        );
        let other = ("docs/errors/KL-1234.md", "# The disk is full\n");
        assert_eq!(found(check, &[CODE, other]), ["docs/errors/KL-1234.md:1"]);
    }
}
