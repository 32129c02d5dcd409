//! From how an attempt ended to what becomes of its message.
//!
//! In: what the handler said, or that it did not get to say anything. Out: a [`Settlement`]. A time-out is a failure,
//! as a panic is (ORD-7): undecided, so the message keeps its place in its lane. Only a handler's own word makes a
//! message void.

use std::borrow::Cow;

use crate::message::Outcome;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The handler said so, or panicked, which is a failure whose error is the panic's text.
    Said(Outcome),
    /// The handler had not answered after so long, and was dropped.
    TimedOut {
        /// How long it was given.
        after_ms: u64,
    },
}

/// What becomes of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// Finished: the ledger's, and its lane goes on.
    Done,
    /// Undecided: the lane waits, and the message is its head again.
    Again {
        /// What went wrong, for people.
        error: Cow<'static, str>,
        /// What the handler asked for.
        retry_after_ms: Option<u64>,
    },
    /// Void: its body is stored and named as dead, passed. Its lane waits until that counts: after a take-over it would
    /// otherwise run again, behind its successor.
    Dead {
        /// Why, for people.
        error: Cow<'static, str>,
    },
}

/// What becomes of a message whose attempt ended like this.
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
