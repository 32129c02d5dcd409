//! One Rust file as the rules see it.
//!
//! On top of the tokens of [`crate::lex`], this tells which lines are tests, what is declared, how long functions are,
//! and which paths are named. Test code is code under `#[cfg(test)]`, in a module declared under it, or in a folder of
//! tests, benchmarks or examples.

use crate::lex::{At, lex};

/// A Rust file.
#[derive(Debug)]
pub struct Source {
    /// The path from the project's root, with `/`.
    pub path: String,
    pub tokens: Vec<At>,
    pub comments: Vec<At>,
    pub strings: Vec<At>,
    pub line_count: usize,
    /// True if the first line is a `//!` comment.
    pub has_header: bool,
    /// True if the whole file is test code.
    pub all_test: bool,
    /// True if the whole file needs the feature `testing`: it is no test, but is only there for tests.
    pub for_tests: bool,
    /// Modules in files of their own that this file declares under `#[cfg(test)]`.
    pub test_modules: Vec<String>,
    /// Modules in files of their own that this file declares under `#[cfg(feature = "testing")]`.
    pub support_modules: Vec<String>,
    test_lines: Vec<bool>,
}

/// An item that the file declares.
#[derive(Debug, PartialEq, Eq)]
pub struct Declared {
    pub line: usize,
    /// `struct`, `enum`, `union`, `trait`, `type`, `mod`, `fn`, `const`, `static`.
    pub kind: String,
    pub name: String,
}

/// A function, and how many lines it has.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub line: usize,
    pub name: String,
    pub lines: usize,
}

const KINDS: [&str; 9] = ["struct", "enum", "union", "trait", "type", "mod", "fn", "const", "static"];
const TEST_FOLDERS: [&str; 3] = ["tests", "benches", "examples"];

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let lexed = lex(text);
        let line_count = text.lines().count();
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let mut source = Source {
            path: path.to_owned(),
            tokens: lexed.tokens,
            comments: lexed.comments,
            strings: lexed.strings,
            line_count,
            has_header: first.starts_with("//!"),
            all_test: in_test_folder(path),
            for_tests: false,
            test_modules: Vec::new(),
            support_modules: Vec::new(),
            test_lines: vec![false; line_count + 2],
        };
        source.mark_tests();
        source
    }

    /// True if the line is test code.
    pub fn is_test(&self, line: usize) -> bool {
        self.all_test || self.test_lines.get(line).copied().unwrap_or(false)
    }

    /// How many lines are outside of tests.
    pub fn code_lines(&self) -> usize {
        if self.all_test {
            return 0;
        }
        (1..=self.line_count).filter(|line| !self.is_test(*line)).count()
    }

    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| token.text.as_str())
    }

    /// The indices of the tokens at which `words` stand one after another.
    pub fn find(&self, words: &[&str]) -> Vec<usize> {
        (0..self.tokens.len())
            .filter(|at| words.iter().enumerate().all(|(n, word)| self.text(at + n) == *word))
            .collect()
    }

    /// The lines outside of tests at which `words` stand one after another.
    pub fn find_code(&self, words: &[&str]) -> Vec<usize> {
        let lines = self.find(words).into_iter().map(|at| self.tokens[at].line);
        lines.filter(|line| !self.is_test(*line)).collect()
    }

    fn mark_tests(&mut self) {
        for at in self.find(&["#", "!", "[", "cfg", "(", "test", ")"]) {
            self.all_test |= at == 0;
        }
        for at in self.find(&["#", "[", "cfg", "("]) {
            let Some(end) = self.closing(at + 1) else { continue };
            let Some(last) = self.item_end(end + 1) else {
                continue;
            };
            let module = self.file_module(end + 1, last);
            if self.is_feature(at, end, "testing") {
                self.support_modules.extend(module);
                continue;
            }
            let words: Vec<&str> = (at..end).map(|n| self.text(n)).collect();
            if !words.contains(&"test") || words.contains(&"not") {
                continue;
            }
            self.test_modules.extend(module);
            let (from, to) = (self.tokens[at].line, self.tokens[last].line);
            self.test_lines[from..=to].fill(true);
        }
    }

    /// True if the attribute between two tokens asks for this feature, and for nothing else.
    fn is_feature(&self, start: usize, end: usize, feature: &str) -> bool {
        let words: Vec<&str> = (start..end).map(|n| self.text(n)).collect();
        let line = self.tokens[start].line;
        words == ["#", "[", "cfg", "(", "feature", "=", "\"", ")"]
            && self.strings.iter().any(|string| string.line == line && string.text == feature)
    }

    /// The name in `mod NAME;`, if the item is such a declaration.
    fn file_module(&self, start: usize, last: usize) -> Option<String> {
        let at = (start..last).find(|at| self.text(*at) == "mod")?;
        (self.text(at + 2) == ";").then(|| self.text(at + 1).to_owned())
    }

    /// The index of the token that closes the first bracket at or behind `at`.
    fn closing(&self, at: usize) -> Option<usize> {
        let mut depth = 0usize;
        for n in at..self.tokens.len() {
            match self.text(n) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => {
                    depth = depth.checked_sub(1)?;
                    if depth == 0 {
                        return Some(n);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The index of the last token of the item at `at`: a `;`, or the brace that closes the item's body.
    fn item_end(&self, at: usize) -> Option<usize> {
        let mut n = at;
        while n < self.tokens.len() {
            match self.text(n) {
                ";" => return Some(n),
                "{" => return self.closing(n),
                "(" | "[" => n = self.closing(n)? + 1,
                _ => n += 1,
            }
        }
        None
    }

    /// Every item that the file declares, tests included.
    pub fn declared(&self) -> Vec<Declared> {
        let mut found = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let name = self.text(at + 1);
            let named = name.starts_with(|sign: char| sign.is_alphabetic() || sign == '_');
            // In `const fn`, `*const T` and the like that word declares nothing.
            let is_other = KINDS.contains(&name) || matches!(name, "unsafe" | "async" | "extern" | "mut");
            let is_pointer = at > 0 && self.text(at - 1) == "*";
            if KINDS.contains(&token.text.as_str()) && named && !is_other && !is_pointer {
                found.push(Declared { line: token.line, kind: token.text.clone(), name: name.to_owned() });
            }
        }
        found
    }

    /// Every function with a body, tests included.
    pub fn functions(&self) -> Vec<Function> {
        let mut found = Vec::new();
        for at in self.find(&["fn"]) {
            let is_type = self.text(at + 1) == "(";
            let Some(end) = self.item_end(at + 1).filter(|_| !is_type) else {
                continue;
            };
            if self.text(end) == "}" {
                let line = self.tokens[at].line;
                found.push(Function {
                    line,
                    name: self.text(at + 1).to_owned(),
                    lines: self.tokens[end].line - line + 1,
                });
            }
        }
        found
    }

    /// Every path that the file names: `use` trees branch by branch, and paths within code.
    pub fn paths(&self) -> Vec<At> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            if self.text(at) == "use" {
                at = self.use_tree(at + 1, "", &mut found);
            } else if self.text(at + 1) == "::" && self.text(at) != "::" {
                at = self.plain_path(at, &mut found);
            } else {
                at += 1;
            }
        }
        found
    }

    fn plain_path(&self, start: usize, found: &mut Vec<At>) -> usize {
        let mut at = start;
        let mut path = self.text(at).to_owned();
        while self.text(at + 1) == "::"
            && self.text(at + 2).starts_with(|s: char| s.is_alphabetic() || s == '_')
        {
            path.push_str("::");
            path.push_str(self.text(at + 2));
            at += 2;
        }
        let line = self.tokens[start].line;
        found.push(At { line, text: path });
        at + 1
    }

    /// Reads the branches of a `use` tree from `start` on; returns the index behind them.
    fn use_tree(&self, start: usize, prefix: &str, found: &mut Vec<At>) -> usize {
        let (mut at, mut path) = (start, prefix.to_owned());
        let mut fresh = false;
        while at < self.tokens.len() {
            match self.text(at) {
                "{" => {
                    at = self.use_tree(at + 1, &path, found);
                    (path, fresh) = (prefix.to_owned(), false);
                    continue;
                }
                end @ ("," | "}" | ";") => {
                    if fresh {
                        let line = self.tokens[at - 1].line;
                        found.push(At { line, text: path });
                    }
                    (path, fresh) = (prefix.to_owned(), false);
                    if end != "," {
                        return at + 1;
                    }
                }
                "::" if path.is_empty() => {}
                "as" => at += 1,
                part => {
                    path.push_str(part);
                    fresh = part != "::";
                }
            }
            at += 1;
        }
        at
    }
}

fn in_test_folder(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let folders = path.strip_suffix(name).unwrap_or_default();
    folders.split('/').any(|folder| TEST_FOLDERS.contains(&folder)) || name == "tests.rs"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_modules_are_told_from_code() {
        let source = Source::new(
            "crates/core/src/a.rs",
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { x.unwrap() }\n}\nfn c() {}\n#[cfg(test)]\nmod slow;\n",
        );
        let tests: Vec<_> = (1..=8).filter(|line| source.is_test(*line)).collect();
        assert_eq!(tests, [2, 3, 4, 5, 7, 8]);
        assert_eq!((source.code_lines(), source.test_modules.as_slice()), (2, &["slow".to_owned()][..]));
    }

    #[test]
    fn what_is_compiled_without_tests_is_code() {
        let source =
            Source::new("a.rs", "#[cfg(not(test))]\nfn a() {}\n#[cfg(feature = \"test\")]\nfn b() {}\n");
        assert_eq!(source.code_lines(), 4);
    }

    #[test]
    fn what_comes_with_the_testing_feature_is_told_apart() {
        let source = Source::new(
            "a.rs",
            "#[cfg(feature = \"testing\")]\npub mod memory;\n#[cfg(feature = \"flaws\")]\nmod b;\n",
        );
        assert_eq!((source.support_modules.as_slice(), source.code_lines()), (&["memory".to_owned()][..], 4));
    }

    #[test]
    fn files_of_tests_are_tests() {
        for path in ["tests/promises/p1.rs", "crates/a/tests/b.rs", "crates/a/benches/c.rs", "examples/01.rs"]
        {
            assert!(Source::new(path, "").all_test, "{path}");
        }
        assert!(!Source::new("crates/a/src/testing.rs", "").all_test);
    }

    #[test]
    fn functions_are_measured_from_their_name_to_their_brace() {
        let source = Source::new(
            "a.rs",
            "fn a(x: [u8; 3])\nwhere\n{\n    let f: fn(u8) = g;\n    \"}\"; // }\n}\ntrait T { fn b(); }\n",
        );
        let want = Function { line: 1, name: "a".into(), lines: 6 };
        assert_eq!(source.functions(), [want]);
    }

    #[test]
    fn use_trees_are_read_branch_by_branch() {
        let source = Source::new(
            "a.rs",
            "use crate::{a, b::{C, d as e}, f::*};\nuse ::std::io;\nlet x = g::h::<T>();",
        );
        let paths: Vec<_> = source.paths().into_iter().map(|path| path.text).collect();
        assert_eq!(paths, ["crate::a", "crate::b::C", "crate::b::d", "crate::f::*", "std::io", "g::h"]);
    }

    #[test]
    fn declarations_are_found_and_uses_are_not() {
        let source = Source::new("a.rs", "pub struct A;\nconst fn b(p: *const u8) {}\nlet t: C = D;\n");
        let names: Vec<_> = source.declared().into_iter().map(|d| d.kind + " " + &d.name).collect();
        assert_eq!(names, ["struct A", "fn b"]);
    }
}
