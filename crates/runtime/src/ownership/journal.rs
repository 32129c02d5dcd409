//! Reading the journal, and what an owner may do while it cannot (ORD-12).
//!
//! What an owner has not read may be another's fence. A read that fails is tried again, and nothing is given up for it;
//! but once something stands in the journal unread for [`UNREAD_MS`], or an owner knows it only as it was so long ago,
//! that is as good as a pause of the process: nothing starts until the journal was read to its end. Nor does anything while a
//! record does not count for [`UNWRITTEN_MS`]: nothing that is done goes on record then, and all of it would run again.

use std::future::pending;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use keylane_broker::{BrokerError, JournalPage};
use keylane_core::{Action, Input};

use super::epoch::Epoch;
use super::task::{AGAIN_MS, Ended, ended, passes};
use crate::shard::{Pauses, ShardCommand};

/// Bytes of a journal read at a time: a take-over reads one snapshot and about as much again.
const PAGE_BYTES: usize = 512 * 1024;
/// The longest time between two tries to read: a third of the silence after which a claimant fences an owner. A journal that
/// answers again is so read in time, and an owner that drains is heard before its successor takes it for dead (BRK-7).
const READ_AGAIN_MS_MAX: u64 = 1_000;
/// For so long an owner starts messages on a journal that it could not read on: a third of the silence after which a
/// claimant fences it, and the pause of a process that must be noticed (ORD-12).
const UNREAD_MS: u64 = 1_000;

/// For so long an owner starts messages while a record of its does not count: longer than a cluster takes to find another
/// leader, and few seconds of work to run again.
const UNWRITTEN_MS: u64 = 10_000;

const UNREAD: &str = "its journal cannot be read; nothing starts until it was read to its end";
const UNWRITTEN: &str = "its journal takes no record; nothing starts until it does";

/// A page on its way.
pub(super) struct Reading {
    page: BoxFuture<'static, Result<JournalPage, BrokerError>>,
    /// When it was asked for, and what was known then.
    begun: Look,
    from: u64,
    /// How often the owner had asked for the journal's end.
    asked: u64,
    /// Only what has landed here, which may not reach to the journal's end.
    landed: bool,
}

impl Reading {
    /// The page, if one is on its way. Cancel safe.
    pub(super) async fn answer(reading: &mut Option<Reading>) -> Result<JournalPage, BrokerError> {
        match reading {
            Some(reading) => (&mut reading.page).await,
            None => pending().await,
        }
    }
}

/// The moment at which a look at the journal began.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    at_ms: u64,
    /// Pauses that had been noticed.
    pauses: u64,
}

/// How an owner follows its journal.
#[derive(Default)]
pub(super) struct Listening {
    /// The last look whose answer was taken in.
    look: Look,
    /// Since when something is there that was not read.
    unread_ms: Option<u64>,
    /// Nothing is read before this time, after so many failures.
    again_ms: u64,
    failures: u32,
    /// The record that does not count yet, by its number, and since when.
    unwritten: Option<(u64, u64)>,
    /// The shard was told to start nothing.
    suspended: bool,
    /// It could have been told to go on, but for a record that does not count.
    withheld: bool,
}

impl Listening {
    /// The shard has nothing any more.
    pub(super) fn unsuspend(&mut self) {
        (self.suspended, self.withheld, self.unwritten) = (false, false, None);
    }

    /// When nothing may start any more, if nothing happens before.
    fn suspend_ms(&self) -> u64 {
        let unread_ms = self.unread_ms.map_or(u64::MAX, |since_ms| since_ms + UNREAD_MS);
        unread_ms.min(self.unwritten_ms())
    }

    fn unwritten_ms(&self) -> u64 {
        self.unwritten.map_or(u64::MAX, |(_, since_ms)| since_ms + UNWRITTEN_MS)
    }
}

impl Epoch<'_> {
    /// True if it is time to wait for what is new.
    pub(super) fn listens(&self, now_ms: u64) -> bool {
        self.under_way.reading.is_none() && now_ms >= self.listening.again_ms
    }

    /// When to look after the reading next.
    pub(super) fn listen_ms(&self) -> u64 {
        let listening = &self.listening;
        let again_ms = if self.now_ms() < listening.again_ms { listening.again_ms } else { u64::MAX };
        let suspend_ms = match self.epoch.is_some() && !listening.suspended {
            true => listening.suspend_ms(),
            false => u64::MAX,
        };
        again_ms.min(suspend_ms)
    }

    /// Reads on from where the owner is to the end, unless it does already, or failed just now.
    pub(super) fn read(&mut self) {
        self.read_some(false);
    }

    /// Reads on; `landed`: what is at hand is enough to see what counts, and not enough to go on after a pause.
    fn read_some(&mut self, landed: bool) {
        let now_ms = self.now_ms();
        if !self.listens(now_ms) {
            return;
        }
        self.listening.unread_ms.get_or_insert(now_ms);
        let (journal, from) = (Arc::clone(&self.journal), self.owner.next());
        self.under_way.reading = Some(Reading {
            page: Box::pin(async move {
                match landed {
                    true => journal.read_landed(from, PAGE_BYTES).await,
                    false => journal.read(from, PAGE_BYTES).await,
                }
            }),
            begun: Look { at_ms: now_ms, pauses: self.own.pauses.count() },
            from,
            asked: self.owner.asked(),
            landed,
        });
    }

    /// Something landed that was not read.
    pub(super) fn landed(&mut self, landed: Result<(), BrokerError>) -> Result<Action, Ended> {
        match landed {
            Ok(()) => {
                // A take-over goes on only from where the journal ends.
                self.read_some(self.epoch.is_some());
                Ok(self.tick())
            }
            Err(error) => self.read_failed(error),
        }
    }

    /// A page was read, or was not.
    pub(super) fn page(&mut self, page: Result<JournalPage, BrokerError>) -> Result<Action, Ended> {
        let Some(Reading { begun, from, asked, landed, .. }) = self.under_way.reading.take() else {
            return Ok(self.tick());
        };
        match page {
            Ok(page) => {
                self.listening.failures = 0;
                if !landed {
                    self.listening.look = begun;
                }
                // An append of its own may have been acknowledged meanwhile, beyond where the page ends.
                let next = self.owner.next();
                let fresh = !landed && asked == self.owner.asked() && (next == from || next <= page.end);
                Ok(self.take_in(&page, fresh))
            }
            Err(error) => self.read_failed(error),
        }
    }

    /// Tells the owner what stands on a page; `fresh` if nothing has asked for a newer one meanwhile.
    fn take_in(&mut self, page: &JournalPage, fresh: bool) -> Action {
        for (position, bytes) in &page.records {
            let action = match self.owner.decode(bytes) {
                Ok(record) => {
                    let bytes = bytes.len();
                    self.step(Input::Read { position: *position, record: &record, bytes })
                }
                Err(error) => self.step(Input::Unreadable { position: *position, error }),
            };
            // What is not asked for again must be done now; the rest of the page is read again.
            if !matches!(action, Action::Wait { .. } | Action::Read { .. }) {
                if *position + 1 < page.end {
                    // A later fence may stand in the rest, if the process slept behind its own: what starts now starts
                    // nothing until the end was read (ORD-12).
                    self.listening.look.pauses = Pauses::UNSURE;
                } else {
                    self.listening.unread_ms = None;
                }
                return action;
            }
        }
        if self.owner.next() < page.end {
            return self.tick();
        }
        self.listening.unread_ms = None;
        match fresh {
            true => {
                let now_ms = self.now_ms();
                self.step(Input::CaughtUp { start: page.start, end: page.end, now_ms })
            }
            false => self.tick(),
        }
    }

    /// The journal was not read. Whoever owns nothing starts over; an owner tries again, and keeps what runs: only
    /// another's fence takes the partition from it.
    fn read_failed(&mut self, error: BrokerError) -> Result<Action, Ended> {
        if self.epoch.is_none() || !passes(&error) {
            return Err(ended(error));
        }
        let now_ms = self.now_ms();
        let listening = &mut self.listening;
        if listening.failures == 0 {
            tracing::warn!(partition = self.own.partition, %error, "a journal cannot be read; trying again");
        }
        listening.unread_ms.get_or_insert(now_ms);
        listening.again_ms = now_ms + (AGAIN_MS << listening.failures.min(10)).min(READ_AGAIN_MS_MAX);
        listening.failures += 1;
        Ok(self.tick())
    }

    /// Stops what starts once the journal was unread, or a record did not count, for too long.
    pub(super) fn suspend(&mut self) -> Option<Action> {
        self.epoch?;
        let deaf = self.own.subscription.flaws.deaf_while_appending();
        let (now_ms, under_way) = (self.now_ms(), self.owner.under_way().filter(|_| !deaf));
        let listening = &mut self.listening;
        let known = listening.unwritten.filter(|(number, _)| under_way == Some(*number));
        listening.unwritten = known.or(under_way.map(|number| (number, now_ms)));
        if now_ms < listening.suspend_ms() {
            // What it waited for is there: the journal is read once more, and then it goes on.
            return std::mem::take(&mut listening.withheld).then(|| self.step(Input::Paused));
        }
        if std::mem::replace(&mut listening.suspended, true) {
            return None;
        }
        let why = if now_ms < listening.unwritten_ms() { UNREAD } else { UNWRITTEN };
        tracing::warn!(partition = self.own.partition, why, "a partition starts nothing for now");
        self.own.view.hold(Some(why));
        self.tell(|partition, epoch| ShardCommand::Suspend { partition, epoch });
        Some(self.step(Input::Paused))
    }

    /// Still the owner, as of the look that says so. If that began long ago, it is looked at once more.
    pub(super) fn resume(&mut self) -> Option<Action> {
        if !self.is_sure() {
            return Some(self.step(Input::Paused));
        }
        if self.now_ms() >= self.listening.unwritten_ms() {
            self.own.view.hold(Some(UNWRITTEN));
            self.listening.withheld = true;
            return None;
        }
        if self.is_to_confirm() {
            // The journal is read once more when that is answered.
            return None;
        }
        self.listening.suspended = false;
        self.own.view.hold(None);
        let pauses = self.listening.look.pauses;
        self.tell(|partition, epoch| ShardCommand::Verified { partition, epoch, pauses });
        None
    }

    /// True if what was seen when the journal was looked at last may be relied on: whoever claimed since then has not lost
    /// its patience yet. A pause in between is noticed by the shard. Less than that would never be true where one reading
    /// takes as long.
    fn is_sure(&self) -> bool {
        self.now_ms() < self.listening.look.at_ms + self.own.subscription.bounds.silence_ms
    }

    /// The pauses that had been noticed when the journal was looked at last; a look that is long past is none.
    pub(super) fn sure_pauses(&self) -> u64 {
        match self.is_sure() {
            true => self.listening.look.pauses,
            false => Pauses::UNSURE,
        }
    }
}
