//! The errors of a config. All problems are reported at once, each with its place, the expected value and a remedy.

use std::fmt;

use keylane::ErrorCode;

/// A place in a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the file; both count from 1.
    File {
        /// The line.
        line: u64,
        /// The column, in characters.
        column: u64,
    },
    /// In an environment variable that overrides a setting.
    Variable(String),
    /// The file as a whole.
    Whole,
}

/// One mistake in a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The code under which `docs/errors/` explains it.
    pub code: ErrorCode,
    /// Where the mistake is.
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// How to repair it.
    pub help: String,
}

/// Why a config was refused. Displayed as a block of text for each problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The name of the config in messages: its path.
    pub name: String,
    /// The problems; never empty.
    pub problems: Vec<ConfigProblem>,
}

impl ConfigError {
    pub(super) fn one(name: &str, problem: ConfigProblem) -> ConfigError {
        ConfigError { name: name.to_owned(), problems: vec![problem] }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match &problem.place {
                Place::File { line, column } => write!(f, "{}:{line}:{column}", self.name)?,
                Place::Variable(variable) => write!(f, "environment variable {variable}")?,
                Place::Whole => write!(f, "{}", self.name)?,
            }
            write!(f, ": {} [{}]\n  help: {}", problem.what, problem.code, problem.help)?;
        }
        Ok(())
    }
}

/// The known name nearest to `name`, if it is near enough that `name` may be a typing mistake.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).max(2);
    known
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Number of edits between two words. An edit inserts, removes or replaces a letter, or swaps two neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let other = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = other.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_found_and_another_word_is_not() {
        let known = ["concurrency", "shards", "topic", "order"];
        assert_eq!(nearest("concurency", known.into_iter()), Some("concurrency"));
        assert_eq!(nearest("tpoic", known.into_iter()), Some("topic"));
        assert_eq!(nearest("Order", known.into_iter()), Some("order"));
        assert_eq!(nearest("dedication", known.into_iter()), None);
        assert_eq!(nearest("", known.into_iter()), None);
    }
}
