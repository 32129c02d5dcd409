//! Takes the mail that a shard left for its owner, and watches whether the shard moves at all.

use keylane_broker::BrokerError;
use keylane_core::{Action, Death, Input, Ranges};

use super::epoch::Epoch;
use super::event::Sure;
use super::task::{Ended, SHARD_EVERY_MS};
use crate::shard::Mail;

/// A shard that has not ticked for this long loses its partitions (ORD-12).
const STALLED_MS: u64 = 60_000;
/// After a pause longer than this, a third of the session, the assignment is confirmed anew (ORD-12).
const CONFIRM_AFTER_MS: u64 = 10_000;
/// How long a drain waits for the bodies of dead letters once all else is done: a hold that does not answer must not
/// keep the partition. A message whose body was not stored is not settled, and the next owner runs it again (DLQ-4).
const BURIED_BY_MS: u64 = 5_000;

const VERIFIES: &str = "the process was paused; nothing starts until its journal was read to its end";

/// News from the mail that the owner was not told yet. The owner is told one thing at a time, since its answer must be
/// carried out before it hears the next.
#[derive(Default)]
pub(super) struct Letters {
    /// Nothing of the partition runs any more.
    quiet: bool,
    /// The process was paused for this many ms.
    paused_ms: Option<u64>,
    /// Why the partition cannot be read.
    pub(super) broken: Option<BrokerError>,
    /// The owner was told that it must end because the partition cannot be read.
    ending: bool,
    /// Nothing runs any more, but bodies are still being stored: until when they are waited for.
    buried_by_ms: Option<u64>,
}

impl Letters {
    /// Forgets all news of this epoch except why the partition cannot be read.
    pub(super) fn forget(&mut self) {
        (self.quiet, self.paused_ms, self.buried_by_ms) = (false, None, None);
    }

    pub(super) fn wakes_ms(&self) -> u64 {
        self.buried_by_ms.unwrap_or(u64::MAX)
    }
}

impl Epoch<'_> {
    /// Takes the mail. Completions go to the owner at once. The bodies of rejected messages are stored first, by a task
    /// of their own; their entries come back as [`super::event::Event::Buried`].
    pub(super) fn mail(&mut self) -> Result<Action, Ended> {
        let Mail { done, rejected, quiet, verify, broken, gone } = self.link.take();
        if let Some(why) = gone {
            // Messages whose completion was not on record run again.
            return Err(Ended::Again(why));
        }
        if !rejected.is_empty() {
            let journal = self.state().journal.expect("an owned journal has an id");
            self.burials.add(&mut self.owner, journal, rejected);
        }
        let letters = &mut self.letters;
        letters.broken = letters.broken.take().or(broken);
        letters.quiet |= quiet;
        letters.paused_ms = letters.paused_ms.max(verify);
        Ok(self.finished(&done, &[]))
    }

    /// The next news that the owner must be told before it waits.
    pub(super) fn before_waiting(&mut self) -> Result<Option<Action>, Ended> {
        self.look_at_shard()?;
        let rest = self.rest_of_mail();
        Ok(rest.or_else(|| self.suspend()))
    }

    /// The next piece of news from the mail.
    fn rest_of_mail(&mut self) -> Option<Action> {
        let paused_ms = self.letters.paused_ms.take();
        if paused_ms.is_some() {
            self.own.view.hold(Some(VERIFIES));
        }
        match paused_ms {
            Some(paused_ms) if paused_ms <= CONFIRM_AFTER_MS => return Some(self.step(Input::Paused)),
            Some(_) => self.confirm(Sure::Paused),
            None => {}
        }
        if self.letters.broken.is_some() && !std::mem::replace(&mut self.letters.ending, true) {
            // The completions go on record first; then the owner ends with the error.
            return Some(self.step(Input::Revoked));
        }
        if !self.letters.quiet {
            return None;
        }
        if !self.burials.is_empty() {
            let now_ms = self.now_ms();
            if now_ms < *self.letters.buried_by_ms.get_or_insert(now_ms + BURIED_BY_MS) {
                return None;
            }
            tracing::warn!(
                partition = self.own.partition,
                unstored = self.burials.len(),
                "dead letters were not stored in time; the next owner handles these messages again"
            );
            self.burials.forget();
        }
        self.letters.forget();
        Some(self.step(Input::Quiet))
    }

    /// True if the assignment is being confirmed or must be: until then nothing starts, whatever the journal says.
    pub(super) fn is_to_confirm(&self) -> bool {
        let paused_ms = self.letters.paused_ms.max(self.link.paused_ms());
        self.under_way.confirming.is_some() || paused_ms > Some(CONFIRM_AFTER_MS)
    }

    pub(super) fn finished(&mut self, done: &Ranges, dead: &[Death]) -> Action {
        match self.epoch {
            Some(epoch) if !done.is_empty() || !dead.is_empty() => {
                self.step(Input::Finished { epoch, done, dead })
            }
            _ => self.tick(),
        }
    }
}

/// Whether a shard moves. Time in which the owner did not look does not count, since then the whole process slept.
#[derive(Debug, Default)]
pub(super) struct Alive {
    ticked_ms: u64,
    since_ms: u64,
    looked_ms: u64,
}

impl Alive {
    /// When to look next.
    pub(super) fn look_ms(&self) -> u64 {
        self.looked_ms + SHARD_EVERY_MS
    }

    /// True if the shard has not ticked for [`STALLED_MS`], though the owner looked all the time.
    pub(super) fn stalled(&mut self, ticked_ms: u64, now_ms: u64) -> bool {
        if ticked_ms != self.ticked_ms || now_ms > self.looked_ms + 2 * SHARD_EVERY_MS {
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
        (from_ms..=until_ms).step_by(SHARD_EVERY_MS as usize).find(|now_ms| alive.stalled(ticked_ms, *now_ms))
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
        assert!((0..100).all(|round| !alive.stalled(round, round * SHARD_EVERY_MS)));
        // The minute begins with the shard's last tick, not with the first look.
        assert_eq!(
            look(&mut alive, 99, 100 * SHARD_EVERY_MS, 1_000 * SHARD_EVERY_MS),
            Some(106 * SHARD_EVERY_MS)
        );
    }

    /// ORD-12: the owner slept with its shard.
    #[test]
    fn time_in_which_the_owner_did_not_look_does_not_count() {
        let mut alive = Alive::default();
        assert_eq!(look(&mut alive, 5, 0, 5 * SHARD_EVERY_MS), None);
        let awake_ms = 10 * STALLED_MS;
        assert!(!alive.stalled(5, awake_ms), "the shard has had no time to tick");
        assert_eq!(
            look(&mut alive, 5, awake_ms, 20 * STALLED_MS),
            Some(awake_ms + STALLED_MS + SHARD_EVERY_MS)
        );
    }
}
