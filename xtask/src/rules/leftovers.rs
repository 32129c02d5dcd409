//! The rule that nothing is left for later unnoticed: no marks, no stubs, no bare `unwrap`, no test that is off without
//! a reason.

use crate::lex::At;
use crate::source::Source;
use crate::tidy::Report;
use crate::tree::Tree;

const MARKS: [&str; 3] = ["TODO", "FIXME", "XXX"];
const STUBS: [&str; 3] = ["todo", "unimplemented", "dbg"];
/// Tests that `make test` leaves out must have one of these words in their names: `make explore` and `make chaos`
/// select by them.
const OTHER_RUNS: [&str; 2] = ["explore", "chaos"];
/// The one exception: another test starts this one as a process, and kills it.
const KILLED: &str = "appends_until_it_is_killed";

pub fn check(tree: &Tree, report: &mut Report) {
    for source in &tree.rust {
        marks(&source.path, &source.comments, report);
        stubs(source, report);
        unwraps(source, report);
        switched_off(source, report);
    }
    for text in tree.texts.iter().filter(|text| !text.path.ends_with(".rs")) {
        let lines = text.text.lines().enumerate();
        let lines: Vec<At> = lines.map(|(n, line)| At { line: n + 1, text: line.to_owned() }).collect();
        marks(&text.path, &lines, report);
    }
}

fn marks(path: &str, lines: &[At], report: &mut Report) {
    for line in lines {
        let mut words = line.text.split(|sign: char| !sign.is_alphanumeric() && sign != '_');
        if let Some(word) = words.find(|word| MARKS.contains(word)) {
            report.find(
                path,
                line.line,
                "leftover",
                format!("a {word} mark"),
                "do it now, or make it an issue",
            );
        }
    }
}

fn stubs(source: &Source, report: &mut Report) {
    for stub in STUBS {
        for at in source.find(&[stub, "!"]) {
            let line = source.tokens[at].line;
            let remedy = "what is not built is absent, not pretended";
            report.find(&source.path, line, "leftover", format!("`{stub}!`"), remedy);
        }
    }
}

fn unwraps(source: &Source, report: &mut Report) {
    for line in source.find_code(&[".", "unwrap", "(", ")"]) {
        let remedy = "return the error, or `expect` the invariant that rules it out";
        report.find(&source.path, line, "unwrap", "`unwrap()` outside of tests".into(), remedy);
    }
}

fn switched_off(source: &Source, report: &mut Report) {
    for at in source.find(&["#", "[", "ignore", "]"]) {
        let line = source.tokens[at].line;
        let remedy = "say why it does not run with the others: `#[ignore = \"…\"]`";
        report.find(&source.path, line, "ignored test", "a test is off without a reason".into(), remedy);
    }
    for at in source.find(&["#", "[", "ignore", "="]) {
        let mut rest = source.tokens[at..].iter().skip_while(|token| token.text != "fn");
        let Some(name) = rest.nth(1) else { continue };
        if name.text != KILLED && !OTHER_RUNS.iter().any(|run| name.text.contains(run)) {
            let found = format!("`{}` is off, and nothing runs it", name.text);
            let remedy = "put `explore` or `chaos` in its name: make explore and make chaos run those";
            report.find(&source.path, source.tokens[at].line, "ignored test", found, remedy);
        }
    }
    for at in source.find(&["allow", "(", "dead_code"]) {
        let line = source.tokens[at].line;
        report.find(
            &source.path,
            line,
            "dead code",
            "`allow(dead_code)`".into(),
            "delete what nothing reaches",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn marks_are_found_in_comments_and_texts_and_not_in_strings() {
        let mark = MARKS[0];
        let rust = format!("// {mark}: later\nlet a = \"{mark}\";\nlet {mark}X = 1;\n");
        let text = format!("fine\n# {} here\n", MARKS[1]);
        assert_eq!(found(check, &[("a.rs", &rust), ("b.toml", &text)]), ["a.rs:1", "b.toml:2"]);
    }

    #[test]
    fn stubs_and_unwraps_are_found_in_code() {
        let text = "fn a() { todo!() }\nfn b() { c.unwrap(); }\nfn d() { e.unwrap_or(1); }\n// f.unwrap()\n";
        assert_eq!(found(check, &[("a.rs", text)]), ["a.rs:1", "a.rs:2"]);
    }

    #[test]
    fn tests_may_unwrap_but_not_be_off_without_a_reason() {
        let text =
            "#[test]\n#[ignore]\nfn a() { b.unwrap(); }\n#[ignore = \"takes an hour\"]\nfn chaos() {}\n";
        assert_eq!(found(check, &[("tests/a.rs", text)]), ["tests/a.rs:2"]);
    }

    #[test]
    fn a_test_that_is_off_has_a_name_that_another_run_picks() {
        let off = |name: &str| format!("#[test]\n#[ignore = \"long\"]\nfn {name}() {{}}\n");
        let text = [off("chaos_of_one_kind"), off("explore_all"), off(KILLED), off("larger_cases")].concat();
        assert_eq!(found(check, &[("tests/a.rs", &text)]), ["tests/a.rs:11"]);
    }

    #[test]
    fn dead_code_is_not_allowed_away() {
        assert_eq!(found(check, &[("a.rs", "\n#[allow(dead_code)]\nfn a() {}\n")]), ["a.rs:2"]);
    }
}
