//! The `log` handler: prints each message on a line of its own, for trying Keylane out.

use std::io::Write;

use keylane_core::Outcome;

use crate::{Attempt, Handler};

/// How many bytes of a payload are shown: enough for a glance.
const SHOWN_MAX: usize = 200;

/// Prints each message to standard output.
#[derive(Debug, Default)]
pub struct LogHandler {}

impl Handler for LogHandler {
    async fn handle(&self, attempt: Attempt<'_>) -> Outcome {
        let key = attempt.key().map_or("-".into(), escaped);
        let payload = attempt
            .payload()
            .map_or("null".into(), |payload| escaped(&payload[..payload.len().min(SHOWN_MAX)]));
        let line =
            format!("{}/{}@{} {key} {payload}\n", attempt.topic(), attempt.partition(), attempt.position());
        match std::io::stdout().lock().write_all(line.as_bytes()) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::failed(format!("standard output: {error}")),
        }
    }
}

/// Control characters must not reach a terminal (SEC-5).
fn escaped(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}
