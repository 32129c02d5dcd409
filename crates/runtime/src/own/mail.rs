//! What a shard left for its owner, and whether the shard moves at all.

use futures_util::future::try_join_all;
use keylane_core::{Action, Input, Ranges};

use super::{Ended, Epoch, LOOK_MS, ended};
use crate::bury;
use crate::link::Mail;

/// A shard that has not ticked for so long gives its partitions up (ORD-12).
const STALLED_MS: u64 = 60_000;
/// After a pause of a third of the session, the assignment is confirmed anew (ORD-12).
const CONFIRM_AFTER_MS: u64 = 10_000;

impl Epoch<'_> {
    /// What the shard left: stores the bodies of what died, then hands all over.
    pub(super) async fn mail(&mut self) -> Result<Action, Ended> {
        let Mail { done, rejected, quiet, verify, broken, gone } = self.link.take();
        if let Some(why) = gone {
            // What was not on record runs again.
            return Err(Ended::Again(why));
        }
        let journal = self.state().journal.expect("an owned journal has an id");
        // All at once, so that they share the log's syncs: meanwhile this owner hears nothing.
        let storing = rejected
            .iter()
            .map(|rejection| bury::store(&*self.hold, &self.own.subscription, journal, rejection));
        let dead = try_join_all(storing).await.map_err(ended)?;
        self.broken = self.broken.take().or(broken);
        // One thing at a time: what the owner answers must be done before it hears more.
        self.quiet |= quiet;
        self.paused_ms = self.paused_ms.max(verify);
        Ok(self.finished(&done, &dead))
    }

    /// What is still to be said of the last mail.
    pub(super) async fn rest_of_mail(&mut self) -> Option<Action> {
        if let Some(paused_ms) = self.paused_ms.take() {
            return Some(match paused_ms <= CONFIRM_AFTER_MS {
                true => self.step(Input::Paused),
                false => self.confirm(Input::Paused).await,
            });
        }
        if self.broken.is_some() && !std::mem::replace(&mut self.ending, true) {
            // What handlers did goes on record first; then it ends with the error.
            return Some(self.step(Input::Revoked));
        }
        std::mem::take(&mut self.quiet).then(|| self.step(Input::Quiet))
    }

    fn finished(&mut self, done: &Ranges, dead: &[keylane_core::DeadEntry]) -> Action {
        match self.epoch {
            Some(epoch) if !done.is_empty() || !dead.is_empty() => {
                self.step(Input::Finished { epoch, done, dead })
            }
            _ => self.tick(),
        }
    }
}

/// Whether a shard moves. Time in which the owner itself did not look does not count: the whole process slept.
#[derive(Debug, Default)]
pub(super) struct Alive {
    ticked_ms: u64,
    since_ms: u64,
    looked_ms: u64,
}

impl Alive {
    /// True if the shard has not ticked for [`STALLED_MS`], though the owner looked all the time.
    pub(super) fn stalled(&mut self, ticked_ms: u64, now_ms: u64) -> bool {
        if ticked_ms != self.ticked_ms || now_ms > self.looked_ms + 2 * LOOK_MS {
            (self.ticked_ms, self.since_ms) = (ticked_ms, now_ms);
        }
        self.looked_ms = now_ms;
        now_ms > self.since_ms + STALLED_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks as often as an owner does, until `until_ms`, at a shard that last ticked at `ticked_ms`.
    fn look(alive: &mut Alive, ticked_ms: u64, from_ms: u64, until_ms: u64) -> Option<u64> {
        (from_ms..=until_ms).step_by(LOOK_MS as usize).find(|now_ms| alive.stalled(ticked_ms, *now_ms))
    }

    /// ORD-12.
    #[test]
    fn a_shard_that_stands_still_for_a_minute_has_stalled() {
        let mut alive = Alive::default();
        assert_eq!(look(&mut alive, 5, 0, STALLED_MS), None, "not yet a minute");
        assert!(!alive.stalled(5, STALLED_MS));
        assert!(alive.stalled(5, STALLED_MS + 1));
    }

    /// ORD-12.
    #[test]
    fn a_shard_that_ticks_has_not_stalled() {
        let mut alive = Alive::default();
        assert!((0..100).all(|round| !alive.stalled(round, round * LOOK_MS)));
        // Its minute begins with its last tick, not with the first look.
        assert_eq!(look(&mut alive, 99, 100 * LOOK_MS, 1_000 * LOOK_MS), Some(106 * LOOK_MS));
    }

    /// ORD-12: the owner slept with its shard.
    #[test]
    fn time_in_which_the_owner_did_not_look_does_not_count() {
        let mut alive = Alive::default();
        assert_eq!(look(&mut alive, 5, 0, 5 * LOOK_MS), None);
        let awake_ms = 10 * STALLED_MS;
        assert!(!alive.stalled(5, awake_ms), "the shard has had no time to tick");
        assert_eq!(look(&mut alive, 5, awake_ms, 20 * STALLED_MS), Some(awake_ms + STALLED_MS + LOOK_MS));
    }
}
