//! Writes lines, tables and JSON to standard output, for all commands.
//!
//! Invariants: no control character from a message, a key or a server reaches the terminal (SEC-5), and a closed pipe
//! ends a command quietly instead of with a panic.

use std::io::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
pub use keylane::raw::harmless;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::failure::Failure;

/// If the terminal has fewer columns, tables are printed unbroken.
const TERMINAL_WIDTH_MIN: u16 = 40;
/// Characters of a long text that a table shows. `--json` has the whole text.
const BEGINNING_CHARS: usize = 160;

/// Writes a line and flushes, so that a program that reads through a pipe sees the line at once.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::output)
}

/// Writes a value as JSON on one line, for programs.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::Failed(format!("cannot write the answer as JSON: {error}")))?;
    line(&text)
}

/// Writes the JSON of a server's answer on one line, for programs.
pub fn raw_json(answer: &RawValue) -> Result<(), Failure> {
    line(&json_on_one_line(answer.get()))
}

/// Writes a table, or the sentence `nothing` if there is no row.
pub fn table(header: &[&str], rows: Vec<Vec<Cell>>, nothing: &str) -> Result<(), Failure> {
    if rows.is_empty() {
        return line(nothing);
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.iter().map(|name| name.to_uppercase()).collect::<Vec<_>>());
    for row in rows {
        table.add_row(row.into_iter().map(comfy_table::Cell::from).collect::<Vec<_>>());
    }
    fit(&mut table);
    line(&table.trim_fmt())
}

/// Breaks long cells so that the table fits into the terminal, unless the terminal is too narrow. Terminals inside
/// editors and scripts may report a width of 0; breaking cells would then make the table unreadable.
fn fit(table: &mut Table) {
    let is_wide = table.width().is_some_and(|width| width >= TERMINAL_WIDTH_MIN);
    let arrangement = if is_wide { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
    table.set_content_arrangement(arrangement);
}

/// A cell of a table.
pub enum Cell {
    /// Text, aligned left.
    Text(String),
    /// A number, aligned right.
    Number(String),
}

impl Cell {
    /// The beginning of a long text, on one line and without control characters; a dash if there is no text.
    pub fn beginning(text: Option<&str>) -> Cell {
        Cell::Text(text.map_or_else(|| "-".to_owned(), beginning))
    }

    /// Text without control characters; a dash if there is no text.
    pub fn text(text: Option<&str>) -> Cell {
        Cell::Text(text.map_or_else(|| "-".to_owned(), harmless))
    }

    /// A number with commas between the thousands.
    pub fn number(number: u64) -> Cell {
        Cell::Number(thousands(number))
    }

    /// Seconds in a unit that keeps the number short; a dash if there is no number.
    pub fn seconds(seconds: Option<f64>) -> Cell {
        Cell::Number(seconds.map_or_else(|| "-".to_owned(), duration))
    }
}

impl From<Cell> for comfy_table::Cell {
    fn from(cell: Cell) -> comfy_table::Cell {
        match cell {
            Cell::Text(text) => comfy_table::Cell::new(text),
            Cell::Number(text) => comfy_table::Cell::new(text).set_alignment(CellAlignment::Right),
        }
    }
}

fn beginning(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String = words.chars().take(BEGINNING_CHARS).collect();
    let dots = if shown.len() < words.len() { "…" } else { "" };
    harmless(&(shown + dots))
}

/// JSON on one line without control characters. The values are not parsed, so numbers keep all their digits.
pub fn json_on_one_line(json: &str) -> String {
    // In valid JSON, a bare line break or tab stands only between tokens, where a space means the same.
    harmless(&json.replace(['\n', '\r', '\t'], " "))
}

/// Shows 1234567 as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Shows a time in ms since 1970 as an RFC 3339 timestamp in UTC.
pub fn time(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| ms.to_string(), |time| format!("{time:.3}"))
}

/// Shows seconds in a unit that keeps the number short.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0}ms", s * 1_000.0),
        s if s < 120.0 => format!("{s:.1}s"),
        s if s < 7_200.0 => format!("{:.0}m", s / 60.0),
        s if s < 172_800.0 => format!("{:.0}h", s / 3_600.0),
        s => format!("{:.0}d", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ADM-8: a terminal that says that it has no columns.
    #[test]
    fn a_table_is_whole_where_the_terminal_has_no_width() {
        let mut table = Table::new();
        table.add_row(["a key of some length", "why it waits, in a sentence of many words"]);
        for width in [0, 5] {
            table.set_width(width);
            fit(&mut table);
            let shown = table.trim_fmt();
            assert!(shown.contains("a key of some length") && shown.contains("of many words"), "{shown}");
        }
        table.set_width(40);
        fit(&mut table);
        assert!(
            !table.trim_fmt().contains("in a sentence of many words"),
            "it is broken where there is room for that"
        );
    }

    /// ADM-8: what a handler answered can be a page of HTML.
    #[test]
    fn of_a_long_text_a_table_shows_the_beginning() {
        let page = format!("answered 500:\n  <html>{}", "<p>x</p>".repeat(300));
        let Cell::Text(shown) = Cell::beginning(Some(&page)) else { panic!("it is text") };
        assert!(shown.starts_with("answered 500: <html><p>") && shown.ends_with('…'), "{shown}");
        assert_eq!(shown.chars().count(), BEGINNING_CHARS + 1);
        assert_eq!(beginning("short"), "short");
    }

    /// SEC-5.
    #[test]
    fn a_harmless_json_line_is_still_json() {
        let line = "{\"a\":\n\t\"x\u{7f}\"}";
        let shown = json_on_one_line(line);
        assert!(!shown.contains(char::is_control));
        let read: serde_json::Value = serde_json::from_str(&shown).expect("still JSON");
        assert_eq!(read["a"], "x\u{7f}");
    }

    #[test]
    fn numbers_have_their_thousands_apart() {
        let shown: Vec<String> = [0, 999, 1_000, 12_345, 1_234_567].into_iter().map(thousands).collect();
        assert_eq!(shown, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn a_duration_has_the_unit_that_fits() {
        let shown: Vec<String> = [0.25, 1.5, 300.0, 10_800.0, 259_200.0].into_iter().map(duration).collect();
        assert_eq!(shown, ["250ms", "1.5s", "5m", "3h", "3d"]);
    }
}
