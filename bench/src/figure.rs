//! One measured figure beside its raw limit and its target, and all figures as a table.

use std::fmt::{self, Display, Write};

use serde::{Serialize, Serializer};

/// The bound that a figure should keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// The value itself, at most.
    AtMost(f64),
    /// The value itself, at least.
    AtLeast(f64),
    /// The value as a multiple of the raw limit, at most.
    RatioAtMost(f64),
    /// The value as a multiple of the raw limit, at least.
    RatioAtLeast(f64),
}

/// A measured figure (SPEC's PRF table).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The figure's id in the table.
    pub id: &'static str,
    /// What was measured.
    pub what: String,
    /// The value that Keylane reaches.
    pub value: f64,
    /// The value that the raw limit reaches, in the same process and run.
    pub raw: Option<f64>,
    /// The value as a multiple of the raw limit.
    pub ratio: Option<f64>,
    /// The bound that the figure should keep.
    pub target: Target,
    /// Whether the figure keeps it.
    pub met: bool,
    /// The unit of value and raw limit.
    pub unit: &'static str,
    /// Further observations.
    pub note: String,
}

impl Figure {
    /// A figure without a raw limit.
    pub(crate) fn alone(
        id: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        value: f64,
        target: Target,
    ) -> Figure {
        Figure::new(id, what, unit, value, None, target)
    }

    /// A figure beside its raw limit.
    pub(crate) fn beside(
        id: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        value: f64,
        raw: f64,
        target: Target,
    ) -> Figure {
        Figure::new(id, what, unit, value, Some(raw), target)
    }

    fn new(
        id: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        value: f64,
        raw: Option<f64>,
        target: Target,
    ) -> Figure {
        let ratio = raw.map(|raw| value / raw);
        let by_raw = ratio.unwrap_or(f64::NAN);
        let met = match target {
            Target::AtMost(bound) => value <= bound,
            Target::AtLeast(bound) => value >= bound,
            Target::RatioAtMost(bound) => by_raw <= bound,
            Target::RatioAtLeast(bound) => by_raw >= bound,
        };
        Figure { id, what: what.into(), value, raw, ratio, target, met, unit, note: String::new() }
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Figure {
        self.note = note.into();
        self
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::AtMost(bound) => write!(f, "≤ {}", short(*bound)),
            Target::AtLeast(bound) => write!(f, "≥ {}", short(*bound)),
            Target::RatioAtMost(bound) => write!(f, "≤ {}×", short(*bound)),
            Target::RatioAtLeast(bound) => write!(f, "≥ {}×", short(*bound)),
        }
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Display for Figure {
    /// One row of the table, see [`table`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = self.raw.map_or_else(|| "–".to_owned(), short);
        let ratio = self.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}×"));
        write!(
            f,
            "| {:<6} | {:<46} | {:>9} | {:>9} | {:>7} | {:>9} | {:<3} | {}{}{} |",
            self.id,
            self.what,
            short(self.value),
            raw,
            ratio,
            self.target.to_string(),
            if self.met { "yes" } else { "NO" },
            self.unit,
            if self.note.is_empty() { "" } else { "; " },
            self.note
        )
    }
}

/// The head of the table whose rows figures are.
pub const HEAD: &str = "\
| id     | what                                           |     value |       raw |   ratio |    target | met | unit, note |
|--------|------------------------------------------------|-----------|-----------|---------|-----------|-----|------------|";

/// All figures as a table.
pub fn table(figures: &[Figure]) -> String {
    let mut table = String::from(HEAD);
    for figure in figures {
        let _ = write!(table, "\n{figure}");
    }
    table
}

/// A number with about three digits.
fn short(value: f64) -> String {
    let (value, sign) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, " G"),
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{sign}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_knows_whether_its_target_is_met() {
        let cost = |value| Figure::beside("PRF-1", "cost", "ns", value, 10.0, Target::RatioAtMost(1.6));
        assert!(cost(16.0).met);
        assert!(!cost(16.1).met);
        let rate = |value| Figure::alone("PRF-1", "rate", "a second", value, Target::AtLeast(5e6));
        assert!(rate(5e6).met);
        assert!(!rate(4.9e6).met);
    }

    #[test]
    fn numbers_are_shown_with_about_three_digits() {
        let shown: Vec<String> = [5e6, 0.03, 61.27, 1.6, 12_345.0, 0.0].map(short).into();
        assert_eq!(shown, ["5 M", "0.03", "61.3", "1.6", "12.3 k", "0"]);
    }
}
