//! The rule that every channel is bounded by a named constant that says why.
//!
//! A channel without a bound lets a slow reader use up the memory; a bare number as the bound hides why it has that
//! value.

use crate::source::Source;
use crate::tidy::Report;
use crate::tree::Tree;

const UNBOUNDED: [&str; 4] = ["unbounded_channel", "unbounded", "UnboundedSender", "UnboundedReceiver"];
const BOUNDED: [&str; 3] = ["channel", "sync_channel", "bounded"];
const REMEDY: &str = "bound it by a named constant whose comment gives the reason for its value";

pub fn check(tree: &Tree, report: &mut Report) {
    for source in &tree.rust {
        for (at, token) in source.tokens.iter().enumerate() {
            if source.is_test(token.line) {
                continue;
            }
            let text = token.text.as_str();
            if UNBOUNDED.contains(&text) || is_std_channel(source, at) {
                report.find(&source.path, token.line, "channel", format!("`{text}` has no bound"), REMEDY);
            } else if BOUNDED.contains(&text) && !follows(source, at, "watch") && has_number(source, at + 1) {
                report.find(&source.path, token.line, "channel", "a bare number as a bound".into(), REMEDY);
            }
        }
    }
}

fn text(source: &Source, at: usize) -> &str {
    source.tokens.get(at).map_or("", |token| token.text.as_str())
}

/// True if `module::` stands before the token at `at`.
fn follows(source: &Source, at: usize, module: &str) -> bool {
    at >= 2 && text(source, at - 1) == "::" && text(source, at - 2) == module
}

/// `mpsc::channel()` without an argument is the standard library's channel, which has no bound.
fn is_std_channel(source: &Source, at: usize) -> bool {
    let open = behind_generics(source, at + 1);
    text(source, at) == "channel"
        && follows(source, at, "mpsc")
        && text(source, open) == "("
        && text(source, open + 1) == ")"
}

fn has_number(source: &Source, at: usize) -> bool {
    let open = behind_generics(source, at);
    text(source, open) == "(" && text(source, open + 1).starts_with(|sign: char| sign.is_ascii_digit())
}

/// The index behind `::<…>`, if that stands at `at`.
fn behind_generics(source: &Source, at: usize) -> usize {
    if text(source, at) != "::" || text(source, at + 1) != "<" {
        return at;
    }
    let (mut n, mut depth) = (at + 1, 0);
    loop {
        match text(source, n) {
            "<" => depth += 1,
            ">" => depth -= 1,
            "" => return n,
            _ => {}
        }
        n += 1;
        if depth == 0 {
            return n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn channels_without_a_bound_or_with_a_bare_number_are_found() {
        let text = "\
let a = tokio::sync::mpsc::unbounded_channel();
let b = std::sync::mpsc::channel();
let c = mpsc::channel::<Vec<u8>>(16);
let d = sync_channel(1);
let e = mpsc::channel(BATCHES_MAX);
let f = watch::channel(0);
let g = oneshot::channel();
// unbounded_channel()
";
        let want = ["a.rs:1", "a.rs:2", "a.rs:3", "a.rs:4"];
        assert_eq!(found(check, &[("a.rs", text)]), want);
    }

    #[test]
    fn tests_may_have_any_channel() {
        let text = "#[cfg(test)]\nmod tests {\n    fn a() { mpsc::channel(3); }\n}\n";
        assert!(found(check, &[("a.rs", text)]).is_empty());
    }
}
