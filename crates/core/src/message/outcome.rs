//! What a handler says about one attempt.

use std::borrow::Cow;
use std::time::Duration;

/// What a handler decided about a message (RTY-1).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Handled. The message is settled once this is on record.
    Done,
    /// Undecided: it is tried again, in its place, before anything later of its key.
    Failed {
        /// What went wrong, for people.
        error: Cow<'static, str>,
        /// The earliest time for the next attempt, if the handler knows.
        retry_after: Option<Duration>,
    },
    /// Void, and decided: the message becomes a dead letter and its successors run.
    Rejected {
        /// Why, for people.
        error: Cow<'static, str>,
    },
}

impl Outcome {
    /// A failure that may be retried when the backoff says so.
    pub fn failed(error: impl Into<Cow<'static, str>>) -> Outcome {
        Outcome::Failed { error: error.into(), retry_after: None }
    }

    /// A message that can never be handled.
    pub fn rejected(error: impl Into<Cow<'static, str>>) -> Outcome {
        Outcome::Rejected { error: error.into() }
    }
}
