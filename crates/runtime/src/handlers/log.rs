//! The `log` handler: prints each message on a line of its own, for trying Keylane out.

use std::io::Write;

use keylane_core::Outcome;

use crate::harmless::harmless;
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

/// What bytes say, with nothing in it that a terminal obeys (SEC-5).
fn escaped(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEC-5: what turns text around could show a message as another one.
    #[test]
    fn no_character_that_a_terminal_obeys_is_printed() {
        assert_eq!(escaped(b"a\x1b[2J\n\xff"), "a\\u001b[2J\\n\u{fffd}");
        assert_eq!(escaped("user-\u{202e}1".as_bytes()), "user-\\u202e1");
    }
}
