//! What is to be kept, and who waits for it.

use std::sync::Arc;

use keylane_core::Frames;
use tokio::sync::oneshot;

use super::way::{Way, WhenAway};
use super::{Results, Stored};
use crate::produce::call::Target;
use crate::produce::in_flight::Room;

/// Messages that are to be kept.
pub(crate) struct Job {
    pub(crate) target: Arc<Target>,
    pub(crate) frames: Frames,
    pub(crate) answer: Answer,
    pub(super) way: Way,
}

/// Who produces, and how.
pub(crate) struct Caller {
    /// What the call takes of what may be in flight: for as long as its messages are here.
    pub(crate) _room: Room,
    pub(crate) when_away: WhenAway,
}

/// What a caller waits for: results, of which some are still open.
pub(crate) struct Answer {
    results: Results,
    open: Vec<usize>,
    done: oneshot::Sender<Results>,
    caller: Arc<Caller>,
}

impl Answer {
    /// Nothing is known of any of `count` messages.
    pub(crate) fn of_all(count: usize, caller: &Arc<Caller>) -> (Answer, oneshot::Receiver<Results>) {
        let (done, answered) = oneshot::channel();
        let (results, open) = (vec![Ok(Stored::Here); count], (0..count).collect());
        (Answer { results, open, done, caller: Arc::clone(caller) }, answered)
    }

    pub(super) fn may_be_kept(&self) -> bool {
        self.caller.when_away == WhenAway::Keep
    }

    /// All is known but what is `open`.
    pub(super) fn of_some(self, results: Results, open: Vec<usize>) -> Answer {
        Answer { results, open, ..self }
    }

    /// Fills in what was open, and answers.
    pub(crate) fn answer(mut self, kept: Results) {
        for (index, result) in self.open.into_iter().zip(kept) {
            self.results[index] = result;
        }
        // First, so that who hears of it finds room.
        drop(self.caller);
        let _nobody_waits = self.done.send(self.results);
    }
}
