//! Writes diagnostics to standard error, as text for people or as JSON for programs.
//!
//! Invariant: each diagnostic is exactly one line. A control character from a message, a key or an error never reaches
//! the terminal and cannot forge another line (SEC-5).

use std::io::{self, Write};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::Failure;
use crate::show::harmless;

/// Format of the diagnostics.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LogFormat {
    /// Each diagnostic is a line of text
    Text,
    /// Each diagnostic is a JSON object on one line
    Json,
}

/// Starts to write the diagnostics that `events` selects: a level, or levels by module.
pub fn start(format: LogFormat, events: &str) -> Result<(), Failure> {
    // A filter with fields of spans (`[...]`) may contain commas, so only the library can split and check it.
    let is_plain = !events.contains('[');
    if let Some(part) = events.split(',').map(str::trim).find(|part| is_plain && !is_directive(part)) {
        return Err(Failure::Wrong(format!(
            "--log (or RUST_LOG): {part:?} is neither a level ({}) nor a level of a module, such as `keylane=debug`",
            LEVELS.join(", ")
        )));
    }
    let filter = EnvFilter::try_new(events)
        .map_err(|error| Failure::Wrong(format!("--log {events:?} (or RUST_LOG): {error}")))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(Stderr);
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Failure::Failed(format!("cannot start telemetry: {error}")))
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Whether a part of `--log` selects anything. The library takes any word for the name of a module: a mistyped level
/// would turn off all diagnostics without an error.
fn is_directive(part: &str) -> bool {
    let is_level = |text: &str| LEVELS.iter().any(|level| text.eq_ignore_ascii_case(level));
    let is_module = |text: &str| {
        !text.is_empty()
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.'))
    };
    is_level(part) || part.split_once('=').is_some_and(|(m, l)| is_module(m) && is_level(l))
}

struct Stderr;

impl MakeWriter<'_> for Stderr {
    type Writer = Harmless<io::Stderr>;

    fn make_writer(&self) -> Harmless<io::Stderr> {
        Harmless(io::stderr())
    }
}

/// Writes each diagnostic as one line without control characters. The library passes each diagnostic in one call.
struct Harmless<W>(W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let mut line = harmless(text.trim_end_matches('\n'));
        line.push('\n');
        self.0.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ADM-8: a mistyped level is told instead of turning all events off.
    #[test]
    fn what_says_nothing_is_refused_as_a_choice_of_events() {
        for good in ["info", "WARN", "info,keylane=debug", "keylane_broker::kafka=trace,off"] {
            assert!(good.split(',').all(is_directive), "{good}");
        }
        for bad in ["foo bar", "inf", "keylane", "keylane=loud", "=info", "", "keylane debug"] {
            assert!(!is_directive(bad), "{bad}");
        }
    }

    /// SEC-5.
    #[test]
    fn an_event_cannot_forge_another_line() {
        let mut out = Harmless(Vec::new());
        out.write_all(b"ERROR key=a\nINFO all is well\x1b[1A\n").expect("memory takes it");
        assert_eq!(out.0, b"ERROR key=a\\nINFO all is well\\u001b[1A\n");
    }
}
