//! [`Outcome`]: what a handler says about one attempt.

use std::borrow::Cow;
use std::time::Duration;

/// A handler's answer about a message (RTY-1).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The message is handled. It is settled once a record says so.
    Done,
    /// The message is undecided: it is tried again, before any later message of its key.
    Failed {
        /// What went wrong, for people.
        error: Cow<'static, str>,
        /// The earliest time for the next attempt, if the handler knows.
        retry_after: Option<Duration>,
    },
    /// The message is void, for good: it becomes a dead letter, and its successors run.
    Rejected {
        /// Why, for people.
        error: Cow<'static, str>,
    },
}

impl Outcome {
    /// A failure whose retry comes when the backoff says so.
    pub fn failed(error: impl Into<Cow<'static, str>>) -> Outcome {
        Outcome::Failed { error: error.into(), retry_after: None }
    }

    /// A rejection: the message can never be handled.
    pub fn rejected(error: impl Into<Cow<'static, str>>) -> Outcome {
        Outcome::Rejected { error: error.into() }
    }
}
