//! The rule that every link in the documents leads somewhere.
//!
//! Links within the project are checked, headings included. Links to other hosts are not, since a test must not depend
//! on them.

use crate::tidy::Report;
use crate::tree::Tree;

pub fn check(tree: &Tree, report: &mut Report) {
    for page in tree.ending(".md") {
        for (line, target) in links(&page.text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { page.path.clone() } else { resolve(&page.path, file) };
            if !tree.has(&path) {
                let remedy = "name a file that is there, relative to this one";
                report.find(&page.path, line, "link", format!("{target} is not there"), remedy);
            } else if !heading.is_empty() && !tree.text(&path).is_some_and(|text| has_heading(text, heading))
            {
                let remedy = "name a heading in lower case, with - for blanks";
                report.find(&page.path, line, "link", format!("{path} has no heading #{heading}"), remedy);
            }
        }
    }
}

/// The targets of `[…](target)` outside of code, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (n, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Split at backticks, every second piece is code.
        let prose: String = line.split('`').step_by(2).collect();
        for piece in prose.split("](").skip(1) {
            if let Some((target, _)) = piece.split_once(')') {
                found.push((n + 1, target.split_whitespace().next().unwrap_or_default().to_owned()));
            }
        }
    }
    found
}

fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

fn has_heading(text: &str, wanted: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| slug(line.trim_start_matches('#').trim())).any(|slug| slug == wanted)
}

/// The anchor that GitHub makes of a heading.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|sign| sign.is_alphanumeric() || matches!(sign, ' ' | '-' | '_'));
    kept.map(|sign| if sign == ' ' { '-' } else { sign.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::found;

    #[test]
    fn links_that_point_nowhere_are_found() {
        let page = "\
[here](../README.md) and [gone](gone.md)
[folder](errors/), [web](https://example.com/x), [title](../README.md \"t\")
`[code](no.md)`
```
[code](no.md)
```
[part](../README.md#two-words), [no part](../README.md#three), [own](#own)
# Own
";
        let files = [("README.md", "# Two words\n"), ("docs/a.md", page), ("docs/errors/b.md", "")];
        assert_eq!(found(check, &files), ["docs/a.md:1", "docs/a.md:7"]);
    }
}
