//! The rule that every file begins with `//!` lines that say what the file is for.

use crate::tidy::Report;
use crate::tree::Tree;

pub fn check(tree: &Tree, report: &mut Report) {
    for source in &tree.rust {
        if !source.has_header {
            let remedy =
                "begin with `//!`: what lives here, what comes in, what goes out, which invariants it keeps";
            report.find(&source.path, 1, "header", "the file has no header".into(), remedy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn a_file_without_a_header_is_found() {
        let files = [("a.rs", "//! Room.\nfn a() {}\n"), ("b.rs", "// Room.\nfn b() {}\n"), ("c.rs", "")];
        assert_eq!(found(check, &files), ["b.rs:1", "c.rs:1"]);
    }
}
