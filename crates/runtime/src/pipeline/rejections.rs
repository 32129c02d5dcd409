//! Logs which messages were rejected, and why (ING-5).
//!
//! Each rejection comes in when its owner takes it, before its body is stored. Up to a bound for each minute and
//! pipeline, each gets a warning; a last line then counts the others.

use std::sync::Mutex;

use super::Subscription;
use crate::seldom::Seldom;
use crate::shard::Rejection;

/// Characters of a handler's error that a log line shows. The dead letter keeps the whole error.
const ERROR_CHARS_MAX: usize = 300;

/// Counts and limits the log lines about one pipeline's rejections.
#[derive(Debug, Default)]
pub(crate) struct Rejections(Mutex<Seldom>);

impl Rejections {
    /// Logs one rejection, or counts it.
    pub(crate) fn tell(&self, at: &Subscription, rejection: &Rejection) {
        let now_ms = at.clock.now_ms();
        let mut seldom = self.0.lock().expect("no holder panics");
        let (left_out, may_tell) = (seldom.left_out(now_ms), seldom.may_tell(now_ms));
        drop(seldom);
        tell_left_out(at, left_out);
        if may_tell {
            let delivery = &rejection.delivery;
            let key = delivery.key().map(|key| beginning(&crate::percent::encode(key)));
            tracing::warn!(
                pipeline = &*at.pipeline,
                partition = delivery.partition(),
                offset = delivery.position(),
                id = delivery.id(),
                key = key.as_deref().unwrap_or("(none)"),
                attempt = rejection.attempt,
                answer = beginning(&rejection.error),
                "a message was rejected: it is kept as a dead letter, and the next one of its key is handled"
            );
        }
    }

    /// Logs how many were left out, once a minute is over.
    pub(crate) fn tell_rest(&self, at: &Subscription) {
        let left_out = self.0.lock().expect("no holder panics").left_out(at.clock.now_ms());
        tell_left_out(at, left_out);
    }

    /// Logs how many were left out, now, since the pipeline has ended.
    pub(crate) fn end(&self, at: &Subscription) {
        let left_out = self.0.lock().expect("no holder panics").all_left_out();
        tell_left_out(at, left_out);
    }
}

fn tell_left_out(at: &Subscription, left_out: Option<u64>) {
    if let Some(left_out) = left_out {
        tracing::warn!(
            pipeline = &*at.pipeline,
            left_out,
            "further messages were rejected within a minute, and had no line of their own here; all are kept as dead letters"
        );
    }
}

/// The beginning of a handler's error, on one line: none of its control characters may reach a log.
pub(crate) fn beginning(error: &str) -> String {
    let mut shown: String =
        error.chars().take(ERROR_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if error.chars().nth(ERROR_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
