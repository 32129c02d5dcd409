//! Says in the log that messages were rejected: which ones, and why (ING-5).
//!
//! Comes in: each rejection as its owner takes it, before it is stored. Goes out: a warning for each, up to a bound a
//! minute and pipeline, and then one with the number of those that were left out.

use std::sync::Mutex;

use super::Subscription;
use crate::seldom::Seldom;
use crate::shard::Rejection;

/// Characters of what a handler said that a log line shows. All of it is kept with the dead letter.
const ERROR_CHARS_MAX: usize = 300;

/// What was told of one pipeline's rejections.
#[derive(Debug, Default)]
pub(crate) struct Rejections(Mutex<Seldom>);

impl Rejections {
    /// Tells of one.
    pub(crate) fn tell(&self, at: &Subscription, rejection: &Rejection) {
        let now_ms = at.clock.now_ms();
        let mut seldom = self.0.lock().expect("no holder panics");
        let (left_out, may_tell) = (seldom.left_out(now_ms), seldom.may_tell(now_ms));
        drop(seldom);
        tell_left_out(at, left_out);
        if may_tell {
            let delivery = &rejection.delivery;
            tracing::warn!(
                pipeline = &*at.pipeline,
                partition = delivery.partition(),
                offset = delivery.position(),
                id = delivery.id(),
                attempt = rejection.attempt,
                answer = beginning(&rejection.error),
                "a message was rejected: it is kept as a dead letter, and the next one of its key is handled"
            );
        }
    }

    /// Tells how many were left out, once a minute is over.
    pub(crate) fn tell_rest(&self, at: &Subscription) {
        let left_out = self.0.lock().expect("no holder panics").left_out(at.clock.now_ms());
        tell_left_out(at, left_out);
    }

    /// Tells how many were left out, now: the pipeline has ended.
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

/// The beginning of what a handler said, on one line: no control character of it reaches a log.
pub(crate) fn beginning(error: &str) -> String {
    let mut shown: String =
        error.chars().take(ERROR_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if error.chars().nth(ERROR_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
