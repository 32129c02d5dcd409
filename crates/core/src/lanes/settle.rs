//! Decides what becomes of a message after an attempt.
//!
//! In comes how the attempt ended; out comes a [`Settlement`]. A time-out is a failure, like a panic (ORD-7): the
//! message is undecided and keeps its place in its lane. Only the handler's own word makes a message void.

use std::borrow::Cow;

use crate::message::Outcome;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The handler answered, or panicked; a panic is a failure whose error is the panic's text.
    Said(Outcome),
    /// The handler did not answer within its time-out, and its attempt was dropped.
    TimedOut {
        /// The time-out.
        after_ms: u64,
    },
}

/// What becomes of a message after an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// The message is finished: the ledger notes it, and its lane goes on.
    Done,
    /// The message is undecided: it is the head of its lane again, and the lane waits.
    Again {
        /// What went wrong, for people.
        error: Cow<'static, str>,
        /// The delay that the handler asked for.
        retry_after_ms: Option<u64>,
    },
    /// The message is void: its body is stored, and then a record names it as dead and passed. Its lane waits until
    /// that record counts. Otherwise, after a take-over, the message would run again, behind a successor.
    Dead {
        /// Why, for people.
        error: Cow<'static, str>,
    },
}

/// What becomes of a message whose attempt ended as `end` says.
#[inline]
pub fn settle(end: End) -> Settlement {
    match end {
        End::Said(Outcome::Done) => Settlement::Done,
        End::Said(Outcome::Failed { error, retry_after }) => Settlement::Again {
            error,
            retry_after_ms: retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
        },
        End::Said(Outcome::Rejected { error }) => Settlement::Dead { error },
        End::TimedOut { after_ms } => Settlement::Again {
            error: format!("process_timeout: the handler had not answered after {after_ms} ms").into(),
            retry_after_ms: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// RTY-1.
    #[test]
    fn done_failed_and_rejected_lead_to_done_again_and_dead() {
        assert_eq!(settle(End::Said(Outcome::Done)), Settlement::Done);
        let failed = Outcome::Failed { error: "busy".into(), retry_after: Some(Duration::from_secs(2)) };
        assert_eq!(
            settle(End::Said(failed)),
            Settlement::Again { error: "busy".into(), retry_after_ms: Some(2000) }
        );
        assert_eq!(settle(End::Said(Outcome::rejected("void"))), Settlement::Dead { error: "void".into() });
    }

    /// ORD-7.
    #[test]
    fn a_timeout_is_a_failure() {
        let Settlement::Again { error, retry_after_ms: None } = settle(End::TimedOut { after_ms: 30_000 })
        else {
            panic!("undecided");
        };
        assert!(error.contains("process_timeout") && error.contains("30000"), "{error}");
    }
}
