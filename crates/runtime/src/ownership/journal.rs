//! Reads a partition's journal, and decides what may start while it cannot be read or written (ORD-12).
//!
//! An unread record may be another process's fence. A read that fails is tried again, and the partition is not given up
//! for it. But once a record stands unread for [`UNREAD_MS`], or the owner's last look at the journal is that old, this
//! counts like a pause of the process: nothing starts until the journal was read to its end. Nothing starts either once
//! a record of the owner does not count for [`UNWRITTEN_MS`]: completions do not go on record then, and all of these
//! messages would run again.

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
/// The longest time between two tries to read: a third of the silence after which a claimant fences an owner. So a
/// journal that answers again is read in time, and a draining owner writes before its successor takes it for dead
/// (BRK-7).
const READ_AGAIN_MS_MAX: u64 = 1_000;
/// How long an owner goes on starting messages while it cannot read its journal: a third of the silence after which a
/// claimant fences it, and the length of a pause that must be noticed (ORD-12).
const UNREAD_MS: u64 = 1_000;

/// How long an owner goes on starting messages while its record does not count: longer than a cluster takes to elect
/// another leader, and few enough seconds of work to run again.
const UNWRITTEN_MS: u64 = 10_000;

const UNREAD: &str = "its journal cannot be read; nothing starts until it was read to its end";
const UNWRITTEN: &str = "its journal takes no record; nothing starts until it does";

/// A page of the journal on its way.
pub(super) struct Reading {
    page: BoxFuture<'static, Result<JournalPage, BrokerError>>,
    /// The moment when the page was asked for, and the pauses noticed by then.
    begun: Look,
    from: u64,
    /// How often the owner had asked for the journal's end by then.
    asked: u64,
    /// Reads only what has landed on this node, which may not reach to the journal's end.
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
    /// The count of pauses that had been noticed.
    pauses: u64,
}

/// How an owner follows its journal.
#[derive(Default)]
pub(super) struct Listening {
    /// The last look whose answer was taken in.
    look: Look,
    /// Since when a record may be there that was not read.
    unread_ms: Option<u64>,
    /// The journal is not read before this time, after this many failures.
    again_ms: u64,
    failures: u32,
    /// The number of the record that does not count yet, and since when it was sent.
    unwritten: Option<(u64, u64)>,
    /// The shard was told to start nothing.
    suspended: bool,
    /// The shard would have been told to go on, but a record of its owner does not count yet.
    withheld: bool,
}

impl Listening {
    /// The shard has given the partition up, so there is nothing to suspend.
    pub(super) fn unsuspend(&mut self) {
        (self.suspended, self.withheld, self.unwritten) = (false, false, None);
    }

    /// When the shard must be told to start nothing, if nothing happens before.
    fn suspend_ms(&self) -> u64 {
        let unread_ms = self.unread_ms.map_or(u64::MAX, |since_ms| since_ms + UNREAD_MS);
        unread_ms.min(self.unwritten_ms())
    }

    fn unwritten_ms(&self) -> u64 {
        self.unwritten.map_or(u64::MAX, |(_, since_ms)| since_ms + UNWRITTEN_MS)
    }
}

impl Epoch<'_> {
    /// True if the owner may wait for new records now.
    pub(super) fn listens(&self, now_ms: u64) -> bool {
        self.under_way.reading.is_none() && now_ms >= self.listening.again_ms
    }

    /// When the owner must look after its reading next.
    pub(super) fn listen_ms(&self) -> u64 {
        let listening = &self.listening;
        let again_ms = if self.now_ms() < listening.again_ms { listening.again_ms } else { u64::MAX };
        let suspend_ms = match self.epoch.is_some() && !listening.suspended {
            true => listening.suspend_ms(),
            false => u64::MAX,
        };
        again_ms.min(suspend_ms)
    }

    /// Reads on to the journal's end, unless a read is under way or failed just now.
    pub(super) fn read(&mut self) {
        self.read_some(false);
    }

    /// Reads on. With `landed`, reads only what is at hand: enough to see what counts, but not to go on after a pause.
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

    /// A record landed that was not read.
    pub(super) fn landed(&mut self, landed: Result<(), BrokerError>) -> Result<Action, Ended> {
        match landed {
            Ok(()) => {
                // A take-over must read to the journal's end: a later fence may stand there.
                self.read_some(self.epoch.is_some());
                Ok(self.tick())
            }
            Err(error) => self.read_failed(error),
        }
    }

    /// Takes in a page, or the failure to read it.
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
                // The owner's own append may have been acknowledged meanwhile, at a position beyond the page.
                let next = self.owner.next();
                let fresh = !landed && asked == self.owner.asked() && (next == from || next <= page.end);
                Ok(self.take_in(&page, fresh))
            }
            Err(error) => self.read_failed(error),
        }
    }

    /// Tells the owner each record of a page. `fresh` if nothing has asked for a newer page meanwhile.
    fn take_in(&mut self, page: &JournalPage, fresh: bool) -> Action {
        for (position, bytes) in &page.records {
            let action = match self.owner.decode(bytes) {
                Ok(record) => {
                    let bytes = bytes.len();
                    self.step(Input::Read { position: *position, record: &record, bytes })
                }
                Err(error) => self.step(Input::Unreadable { position: *position, error }),
            };
            // Core does not repeat this action, so it is carried out now; the rest of the page is read again.
            if !matches!(action, Action::Wait { .. } | Action::Read { .. }) {
                if *position + 1 < page.end {
                    // If the process slept behind its own fence, a later fence may stand in the rest. With `UNSURE` the
                    // shard starts nothing until the journal was read to its end (ORD-12).
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

    /// The journal was not read. A claimant starts over. An owner tries again and keeps its running attempts: only
    /// another process's fence takes the partition from it.
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

    /// Tells the shard to start nothing, once the journal was unread or a record did not count for too long.
    pub(super) fn suspend(&mut self) -> Option<Action> {
        self.epoch?;
        let deaf = self.own.subscription.flaws.deaf_while_appending();
        let (now_ms, under_way) = (self.now_ms(), self.owner.under_way().filter(|_| !deaf));
        let listening = &mut self.listening;
        let known = listening.unwritten.filter(|(number, _)| under_way == Some(*number));
        listening.unwritten = known.or(under_way.map(|number| (number, now_ms)));
        if now_ms < listening.suspend_ms() {
            // The missing record counts now. The journal is read once more before the shard goes on.
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

    /// The journal says that this process is still the owner. If the look that says so began long ago, looks once more.
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
            // When the group has answered, the journal is read once more.
            return None;
        }
        self.listening.suspended = false;
        self.own.view.hold(None);
        let pauses = self.listening.look.pauses;
        self.tell(|partition, epoch| ShardCommand::Verified { partition, epoch, pauses });
        None
    }

    /// True if the last look at the journal may still be relied on: a process that claimed after it has not waited long
    /// enough yet to fence. The shard notices a pause in between by itself. The limit is not shorter, since it could
    /// then never be met where one read takes that long.
    fn is_sure(&self) -> bool {
        self.now_ms() < self.listening.look.at_ms + self.own.subscription.bounds.silence_ms
    }

    /// The count of pauses as of the last look at the journal; `UNSURE` if that look was long ago.
    pub(super) fn sure_pauses(&self) -> u64 {
        match self.is_sure() {
            true => self.listening.look.pauses,
            false => Pauses::UNSURE,
        }
    }
}
