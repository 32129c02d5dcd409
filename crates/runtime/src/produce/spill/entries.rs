//! Messages of the spill, one by one, for who looks.

use keylane_core::Delivery;

use super::partitions::READ_BYTES;
use super::status::{SpillEntry, SpillEntryState, entry};
use super::store::{Kind, Place};
use super::{Spill, lock, refused};
use crate::Error;

impl Spill {
    /// Messages of the spill, the oldest of each partition first: at most `limit` of those in `state`, or of all.
    pub(crate) async fn entries(
        &self,
        state: Option<SpillEntryState>,
        limit: usize,
    ) -> Result<Vec<SpillEntry>, Error> {
        let (waiting, aside) = {
            let parts = self.parts.read().expect("no holder panics");
            (parts.waiting(), parts.refused.clone())
        };
        let wanted = |is: SpillEntryState| state.is_none_or(|state| state == is);
        let mut entries = Vec::new();
        if wanted(SpillEntryState::Failed) {
            for (place, refused) in aside {
                let (low, end) = (refused.drained.low(), refused.end);
                self.read_entries(Kind::Refused, &place, low..end, limit, &mut entries, |message| {
                    let gone = refused.drained.above().contains(message.position());
                    let failed = entry(&place.topic, message, SpillEntryState::Failed);
                    (!gone).then(|| SpillEntry { last_error: refused::why(message), ..failed })
                })
                .await?;
            }
        }
        if wanted(SpillEntryState::Pending) || wanted(SpillEntryState::Retrying) {
            for part in waiting {
                let tries = lock(&part.tries).clone();
                let range = part.drained()..part.end();
                let topic = &part.place.topic;
                self.read_entries(Kind::Waiting, &part.place, range, limit, &mut entries, |message| {
                    let tried = tries.failed > 0 && message.position() < tries.tried_to;
                    let is = if tried { SpillEntryState::Retrying } else { SpillEntryState::Pending };
                    let retries = if tried { tries.failed } else { 0 };
                    let last_error = tries.error.clone();
                    wanted(is).then(|| SpillEntry { retries, last_error, ..entry(topic, message, is) })
                })
                .await?;
            }
        }
        if wanted(SpillEntryState::Success) {
            let recent = lock(&self.recent);
            entries.extend(recent.drained.iter().rev().take(limit.saturating_sub(entries.len())).cloned());
        }
        Ok(entries)
    }

    #[allow(clippy::too_many_arguments, reason = "where to read, how much, and what of it")]
    async fn read_entries(
        &self,
        kind: Kind,
        place: &Place,
        range: std::ops::Range<u64>,
        limit: usize,
        entries: &mut Vec<SpillEntry>,
        shown: impl Fn(&Delivery) -> Option<SpillEntry>,
    ) -> Result<(), Error> {
        if range.is_empty() || entries.len() >= limit {
            return Ok(());
        }
        let mut reading = self.store.read(kind, place, range.start).await?;
        let mut at = range.start;
        while at < range.end && entries.len() < limit {
            let (messages, next) = reading.next(READ_BYTES).await?;
            let room = limit - entries.len();
            entries.extend(messages.iter().filter_map(&shown).take(room));
            at = next;
        }
        Ok(())
    }
}
