//! The rule that every error code is a variant of one enum, has a page, and belongs to an error; and that every page
//! has a code.
//!
//! An operator who meets `KL-` and four digits looks them up under `docs/errors/`. Code names an error code by its
//! variant, so that a mistyped text cannot decide anything; messages and comments may mention codes that exist.

use std::collections::BTreeMap;

use crate::tidy::Report;
use crate::tree::Tree;

const FOLDER: &str = "docs/errors/";
/// The file that declares all codes, one line each: `Variant = "KL-1234",`.
const CODES: &str = "crates/core/src/error_code.rs";
/// The file that embeds the pages, and so has to list the codes as text; a test compares it with the folder.
const PAGES: &str = "crates/server/src/http/error_pages.rs";

/// A declared code.
struct Code {
    line: usize,
    variant: String,
}

pub fn check(tree: &Tree, report: &mut Report) {
    let declared = declared(tree);
    for (code, Code { line, variant }) in &declared {
        let page = format!("{FOLDER}{code}.md");
        match tree.text(&page) {
            None => {
                let found = format!("{code} has no page");
                report.find(CODES, *line, "error page", found, format!("write {page}"));
            }
            Some(text) if !text.starts_with(&format!("# {code}")) => {
                let remedy = format!("begin the page with `# {code}` and what went wrong");
                report.find(&page, 1, "error page", "the page does not begin with its code".into(), remedy);
            }
            Some(_) => {}
        }
        let mut users = tree.rust.iter().filter(|source| source.path != CODES);
        if !users.any(|source| !source.find_code(&["ErrorCode", "::", variant]).is_empty()) {
            let remedy = "delete code and page, or give the error its code";
            report.find(CODES, *line, "error code", format!("nothing answers {code}"), remedy);
        }
    }
    mentions(tree, &declared, report);
    for page in tree.ending(".md").filter(|page| page.path.starts_with(FOLDER)) {
        let code = page.path[FOLDER.len()..].trim_end_matches(".md");
        if code.starts_with("KL-") && !declared.contains_key(code) {
            let remedy = format!("delete the page, or declare the code in {CODES}");
            report.find(&page.path, 1, "error page", format!("{code} is not declared"), remedy);
        }
    }
}

fn declared(tree: &Tree) -> BTreeMap<String, Code> {
    let mut declared = BTreeMap::new();
    for source in tree.rust.iter().filter(|source| source.path == CODES) {
        for text in source.strings.iter().filter(|text| is_code(&text.text)) {
            let variant = source.tokens.iter().find(|token| token.line == text.line);
            let variant = variant.map_or_else(String::new, |token| token.text.clone());
            declared.insert(text.text.clone(), Code { line: text.line, variant });
        }
    }
    declared
}

/// Finds codes that are written as text elsewhere, tests apart, and mentions of codes that do not exist.
fn mentions(tree: &Tree, declared: &BTreeMap<String, Code>, report: &mut Report) {
    let elsewhere = |path: &str| path != CODES && path != PAGES && !path.starts_with("xtask/");
    for source in tree.rust.iter().filter(|source| elsewhere(&source.path)) {
        for text in source.strings.iter().filter(|text| is_code(&text.text) && !source.is_test(text.line)) {
            let found = format!("{} is written as text", text.text);
            report.find(&source.path, text.line, "error code", found, "name it by its variant of ErrorCode");
        }
        for piece in source.strings.iter().chain(&source.comments).filter(|at| !source.is_test(at.line)) {
            for code in codes(&piece.text).into_iter().filter(|code| !declared.contains_key(code)) {
                let remedy = format!("declare it in {CODES}, and write {FOLDER}{code}.md");
                report.find(&source.path, piece.line, "error code", format!("there is no {code}"), remedy);
            }
        }
    }
}

fn is_code(text: &str) -> bool {
    text.len() == "KL-1234".len() && !codes(text).is_empty()
}

/// The codes in a text: `KL-` followed by exactly four digits.
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

    const CODE: (&str, &str) = (CODES, "codes! {\n    Full = \"KL-1234\",\n}\n");
    const PAGE: (&str, &str) = ("docs/errors/KL-1234.md", "# KL-1234: the disk is full\n");
    const USER: (&str, &str) = ("crates/a/src/b.rs", "\nlet code = ErrorCode::Full;\n");

    #[test]
    fn a_code_without_a_page_is_found_and_a_page_without_a_code() {
        assert!(found(check, &[CODE, PAGE, USER]).is_empty());
        let other = ("docs/errors/KL-9999.md", "# KL-9999 x\n");
        let want = ["crates/core/src/error_code.rs:2", "docs/errors/KL-9999.md:1"];
        assert_eq!(found(check, &[CODE, USER, other]), want);
    }

    #[test]
    fn a_page_begins_with_its_code() {
        let other = ("docs/errors/KL-1234.md", "# The disk is full\n");
        assert_eq!(found(check, &[CODE, USER, other]), ["docs/errors/KL-1234.md:1"]);
    }

    #[test]
    fn a_code_that_no_error_has_is_found() {
        let test = "#[cfg(test)]\nmod tests {\n    fn a() { ErrorCode::Full; }\n}\n";
        for files in [&[CODE, PAGE][..], &[CODE, PAGE, ("crates/a/src/b.rs", test)]] {
            assert_eq!(found(check, files), ["crates/core/src/error_code.rs:2"]);
        }
    }

    #[test]
    fn a_code_is_named_by_its_variant_and_mentioned_only_if_it_is_there() {
        let text = "// KL-1234\nlet a = \"KL-1234\";\nlet b = \"see KL-1234\";\nlet c = \"see KL-4321\";\n";
        let test = "#[cfg(test)]\nmod tests {\n    const A: &str = \"KL-1234\";\n}\n";
        let files = [CODE, PAGE, USER, ("crates/a/src/c.rs", text), ("crates/a/src/d.rs", test)];
        assert_eq!(found(check, &files), ["crates/a/src/c.rs:2", "crates/a/src/c.rs:4"]);
        assert!(found(check, &[CODE, PAGE, USER, (PAGES, "pages! { \"KL-1234\" }\n")]).is_empty());
    }
}
