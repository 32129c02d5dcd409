//! The rule that the tree names nothing of the machine it was written on, nor of how it came about.

use crate::tidy::Report;
use crate::tree::Tree;

/// Folders of a machine. Each is written in halves, so that this file does not name it.
const FOLDERS: [&str; 6] = [
    concat!("/wo", "rk/"),
    concat!("/fa", "rm/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("bash", "_jobs"),
];
const WORDS: [&str; 10] = [
    concat!("cla", "ude"),
    concat!("anth", "ropic"),
    concat!("chat", "gpt"),
    concat!("open", "ai"),
    concat!("co", "pilot"),
    concat!("ll", "m"),
    concat!("ai", " agent"),
    concat!("this", " session"),
    concat!("steering", " repo"),
    concat!("developers", ".md"),
];

pub fn check(tree: &Tree, report: &mut Report) {
    for text in tree.texts.iter().filter(|text| text.path != "Cargo.lock") {
        for (n, line) in text.text.lines().enumerate() {
            for folder in FOLDERS.iter().filter(|folder| line.contains(**folder)) {
                let remedy = "use a path relative to the project, or a temporary folder";
                report.find(&text.path, n + 1, "machine path", format!("`{folder}`"), remedy);
            }
            let lower = line.to_lowercase();
            for word in WORDS.iter().filter(|word| has_word(&lower, word)) {
                let remedy = "say what the code does, not how it was made";
                report.find(&text.path, n + 1, "provenance", format!("`{word}`"), remedy);
            }
        }
    }
}

fn has_word(line: &str, word: &str) -> bool {
    let is_word = |sign: char| sign.is_alphanumeric() || sign == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn paths_of_a_machine_and_words_about_the_making_are_found() {
        let text = format!("fine\ncd {}x\nBy {} itself\n", FOLDERS[0], WORDS[0]);
        assert_eq!(found(check, &[("a.md", &text)]), ["a.md:2", "a.md:3"]);
    }

    #[test]
    fn a_word_within_another_is_none() {
        assert!(found(check, &[("a.md", &format!("x{}y, all meant well\n", WORDS[5]))]).is_empty());
    }
}
