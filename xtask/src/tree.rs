//! Reads all files of the project, once.
//!
//! The project's root comes in; its text files come out, and its Rust files as [`Source`]s, in a stable order. Files
//! are found by walking the folders, so no list has to be kept up to date for new files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::source::Source;

/// A text file, Rust or not.
#[derive(Debug)]
pub struct Text {
    /// The path from the project's root, with `/`.
    pub path: String,
    pub text: String,
}

/// All files of the project.
#[derive(Debug, Default)]
pub struct Tree {
    pub rust: Vec<Source>,
    /// Every text file, Rust files included.
    pub texts: Vec<Text>,
}

/// Folders that builds and runs make, not people.
const MADE: [&str; 4] = ["target", "keylane-data", "node_modules", ".git"];
const EXTENSIONS: [&str; 19] = [
    "rs", "toml", "md", "yaml", "yml", "json", "sh", "ts", "svelte", "html", "css", "lua", "service", "py",
    "js", "go", "java", "xml", "txt",
];
const NAMES: [&str; 4] = ["Makefile", "Dockerfile", "LICENSE", ".gitignore"];

impl Tree {
    /// Reads every text file below `root`.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut files = Vec::new();
        walk(root, "", &mut files)?;
        files.sort();
        let mut texts = Vec::new();
        for path in files {
            let text = fs::read_to_string(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
            texts.push((path, text));
        }
        Ok(Tree::new(texts))
    }

    pub fn new(files: Vec<(String, String)>) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            if path.ends_with(".rs") {
                tree.rust.push(Source::new(&path, &text));
            }
            tree.texts.push(Text { path, text });
        }
        tree.mark_test_modules();
        tree
    }

    /// Marks a file as test code if its module is declared for tests, and every file below it.
    fn mark_test_modules(&mut self) {
        let (mut tests, mut support) = (Vec::new(), Vec::new());
        for source in &self.rust {
            let folder = module_folder(&source.path);
            tests.extend(source.test_modules.iter().map(|name| format!("{folder}{name}")));
            support.extend(source.support_modules.iter().map(|name| format!("{folder}{name}")));
        }
        for source in &mut self.rust {
            source.all_test |= tests.iter().any(|stem| is_module(&source.path, stem));
            source.for_tests |= support.iter().any(|stem| is_module(&source.path, stem));
        }
    }

    /// The text of the file at `path`.
    pub fn text(&self, path: &str) -> Option<&str> {
        let found = self.texts.iter().find(|text| text.path == path);
        found.map(|text| text.text.as_str())
    }

    /// True if there is such a file, or a folder of that name with files in it.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.texts.iter().any(|text| text.path == path || text.path.starts_with(&folder))
    }

    /// The files whose paths end in `ending`.
    pub fn ending<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = &'a Text> {
        self.texts.iter().filter(move |text| text.path.ends_with(ending))
    }
}

/// True if `path` is `stem.rs`, or lies in the folder `stem`.
pub fn is_module(path: &str, stem: &str) -> bool {
    path.strip_prefix(stem).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// The folder in which the modules of a file lie, with its slash.
fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{folder}/"),
        _ => format!("{}/", path.trim_end_matches(".rs")),
    }
}

fn walk(root: &Path, below: &str, files: &mut Vec<String>) -> Result<()> {
    let folder = root.join(below);
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            if !MADE.contains(&name.as_str()) {
                walk(root, &path, files)?;
            }
        } else if is_text(&path, &name) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_text(path: &str, name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let is_script = !name.contains('.') && (path.starts_with("dev/") || path.starts_with(".ci/"));
    EXTENSIONS.contains(&extension) || NAMES.contains(&name) || is_script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_declared_for_tests_is_test_code_in_its_own_file() {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let tree = Tree::new(vec![
            file(
                "crates/a/src/lib.rs",
                "#[cfg(test)]\nmod model;\nmod b;\n#[cfg(feature = \"testing\")]\nmod memory;\n",
            ),
            file("crates/a/src/model.rs", "fn x() {}\n"),
            file("crates/a/src/b.rs", "#[cfg(test)]\nmod cases;\n"),
            file("crates/a/src/b/cases.rs", "fn y() {}\n"),
            file("crates/a/src/memory/node.rs", "fn z() {}\n"),
        ]);
        let tests: Vec<_> = tree.rust.iter().filter(|s| s.all_test).map(|s| s.path.as_str()).collect();
        assert_eq!(tests, ["crates/a/src/model.rs", "crates/a/src/b/cases.rs"]);
        let support: Vec<_> = tree.rust.iter().filter(|s| s.for_tests).map(|s| s.path.as_str()).collect();
        assert_eq!(support, ["crates/a/src/memory/node.rs"]);
    }

    #[test]
    fn the_project_itself_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it has one");
        let tree = Tree::read(root).expect("readable");
        assert!(tree.has("Cargo.toml") && tree.has("xtask/src") && !tree.has("target"));
    }
}
