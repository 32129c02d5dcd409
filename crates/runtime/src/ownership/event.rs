//! The one place where an owner waits, for everything at once (ORD-9).
//!
//! Invariant: no call that an owner has under way keeps it from hearing the rest. News of its assignment comes first,
//! then its journal, in which a foreign claim or fence may stand. A call to the broker that is never answered delays
//! only its own purpose.

use std::future::pending;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use keylane_broker::{BrokerError, Commit, JournalPage, Reader};
use keylane_core::owner::StoredChunks;
use keylane_core::{Action, Appended, Committed, Death, Input, Ranges, Stored, Storing};

use super::assignment::Assignment;
use super::epoch::Epoch;
use super::hold::HoldEvent;
use super::journal::Reading;
use super::task::{AGAIN_MS, Ended, ended};

/// A call under way, if there is one.
pub(super) type Call<T> = Option<BoxFuture<'static, T>>;

/// A reader that was opened, and the epoch for which it was opened.
type Opened = (u64, Box<dyn Reader>);

/// All calls that an owner may have under way, one of each kind.
#[derive(Default)]
pub(super) struct UnderWay {
    pub(super) appending: Call<Result<Appended, Ended>>,
    pub(super) reading: Option<Reading>,
    /// Reads the broker's commit.
    pub(super) asking: Call<Result<Option<Commit>, BrokerError>>,
    pub(super) cutting: Call<()>,
    pub(super) cutting_hold: Call<()>,
    /// Store or read the pieces of a snapshot.
    pub(super) storing_pieces: Call<Result<StoredChunks, BrokerError>>,
    pub(super) reading_pieces: Call<Result<Pieces, BrokerError>>,
    /// Copies a body to the end of `hold.p`.
    pub(super) moving: Call<Result<Moved, BrokerError>>,
    /// Opens the reader of the source, for this epoch.
    pub(super) starting: Call<Result<Opened, BrokerError>>,
    pub(super) confirming: Call<(Sure, bool)>,
    /// Asks whether the broker proves the predecessor dead.
    pub(super) proving: Call<Option<u128>>,
    /// When `proving` is asked next.
    pub(super) prove_ms: u64,
}

impl UnderWay {
    /// Forgets what was being stored for an epoch that ended.
    pub(super) fn forget_stored(&mut self) {
        (self.storing_pieces, self.moving, self.cutting_hold) = (None, None, None);
    }
}

/// The pieces of the snapshot at `position` of the journal, if all of them are there.
pub(super) struct Pieces {
    pub(super) position: u64,
    pub(super) pieces: Option<Vec<Bytes>>,
}

/// A body that was copied, or that could not be read.
pub(super) struct Moved {
    pub(super) position: u64,
    pub(super) from: u64,
    pub(super) to: Result<Stored, Storing>,
}

/// The message to the owner once the group has confirmed the assignment.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sure {
    /// The partition may be claimed again.
    Confirmed,
    /// The process was paused for a long time.
    Paused,
}

/// The events that an owner may hear.
pub(super) enum Event {
    Assignment(Assignment),
    Appended(Result<Appended, Ended>),
    Page(Result<JournalPage, BrokerError>),
    Landed(Result<(), BrokerError>),
    Commit(Result<Option<Commit>, BrokerError>),
    Started(Result<Opened, BrokerError>),
    Confirmed(Sure, bool),
    Proven(Option<u128>),
    Buried(Option<Result<Death, BrokerError>>),
    Hold(HoldEvent),
    Mail,
    /// A call ended whose answer the owner need not know.
    Done,
    Time,
}

impl Epoch<'_> {
    /// Waits for an event, or until a time. An owner waits nowhere else.
    pub(super) async fn event(&mut self, until_ms: u64) -> Event {
        self.ask_whether_dead();
        let clock = self.own.subscription.clock;
        let now_ms = clock.now_ms();
        let until = clock.instant(until_ms.min(self.wakes_ms()).max(now_ms + 1));
        let next = self.owner.next();
        let listens = self.listens(now_ms);
        if self.own.subscription.flaws.deaf_while_storing() && !self.burials.is_empty() {
            return Event::Buried(self.burials.next().await);
        }
        let deaf = self.under_way.appending.is_some() && self.own.subscription.flaws.deaf_while_appending();
        // Records behind a snapshot cannot be applied before the snapshot's pieces were read.
        let wants_pieces = self.under_way.reading_pieces.is_some();
        let calls = &mut self.under_way;
        tokio::select! {
            biased;
            assignment = self.own.assignment.next() => Event::Assignment(assignment),
            appended = answer(&mut calls.appending) => Event::Appended(appended),
            read = answer(&mut calls.reading_pieces) => HoldEvent::Read(read).into(),
            page = Reading::answer(&mut calls.reading), if !wants_pieces => Event::Page(page),
            landed = self.journal.beyond(next), if listens && !deaf && !wants_pieces => Event::Landed(landed),
            commit = answer(&mut calls.asking) => Event::Commit(commit),
            started = answer(&mut calls.starting) => Event::Started(started),
            (sure, assigned) = answer(&mut calls.confirming) => Event::Confirmed(sure, assigned),
            proven = answer(&mut calls.proving) => Event::Proven(proven),
            () = self.outbox.sends(), if !self.outbox.is_empty() => Event::Done,
            () = self.link.arrives(), if self.epoch.is_some() => Event::Mail,
            buried = self.burials.next(), if !self.burials.is_empty() => Event::Buried(buried),
            stored = answer(&mut calls.storing_pieces) => HoldEvent::Stored(stored).into(),
            moved = answer(&mut calls.moving) => HoldEvent::Moved(moved).into(),
            () = answer(&mut calls.cutting) => Event::Done,
            () = answer(&mut calls.cutting_hold) => Event::Done,
            () = tokio::time::sleep_until(until) => Event::Time,
        }
    }

    /// Tells `keylane_core::Owner` of the event.
    pub(super) fn happened(&mut self, event: Event) -> Result<Action, Ended> {
        match event {
            Event::Assignment(assignment) => Ok(self.reassigned(assignment)),
            Event::Appended(appended) => Ok(self.step(Input::Appended(appended?))),
            Event::Page(page) => self.page(page),
            Event::Landed(landed) => self.landed(landed),
            Event::Commit(commit) => {
                let commit = commit.map_err(ended)?;
                self.mirror.mirrored = commit.as_ref().map(|commit| commit.position);
                // Every supported broker keeps metadata. Otherwise a commit without ours would prove nothing.
                let read = commit.as_ref().map(|commit| (commit.position, &commit.metadata[..]));
                Ok(self.step(Input::Committed(Committed::read(read, true))))
            }
            Event::Started(started) => {
                let (epoch, reader) = started.map_err(ended)?;
                Ok(self.start(epoch, reader))
            }
            // The partition was revoked, which the owner knows: running attempts still finish and go on record (ORD-9).
            Event::Confirmed(_, false) if self.own.assignment.given_up() => Ok(self.tick()),
            Event::Confirmed(_, false) => Ok(self.step(Input::Lost)),
            Event::Confirmed(Sure::Confirmed, true) => Ok(self.step(Input::Confirmed)),
            Event::Confirmed(Sure::Paused, true) => Ok(self.step(Input::Paused)),
            Event::Proven(proven) => {
                // Also if the predecessor is dead: other steps may come first, and asking again at once would never
                // end.
                self.under_way.prove_ms = self.now_ms() + AGAIN_MS;
                Ok(match proven {
                    Some(predecessor) => self.step(Input::PredecessorDead(predecessor)),
                    None => self.tick(),
                })
            }
            Event::Buried(Some(Ok(dead))) => Ok(self.finished(&Ranges::new(), &[dead])),
            Event::Buried(Some(Err(error))) => Err(ended(error)),
            Event::Buried(None) => Err(Ended::Again("nobody stores its dead letters any more".to_owned())),
            Event::Hold(event) => self.hold_answered(event).map_err(ended),
            Event::Mail => self.mail(),
            Event::Done | Event::Time => Ok(self.tick()),
        }
    }

    /// When the owner must wake for something that core does not wait for. A time in the past is returned only if
    /// `before_waiting` or `event` does what was due then; otherwise the owner would spin.
    fn wakes_ms(&self) -> u64 {
        let proves_ms = match self.owner.predecessor() {
            Some(_) if self.under_way.proving.is_none() => self.under_way.prove_ms,
            _ => u64::MAX,
        };
        let look_ms = if self.epoch.is_some() { self.alive.look_ms() } else { u64::MAX };
        proves_ms.min(look_ms).min(self.listen_ms()).min(self.letters.wakes_ms())
    }

    /// Asks the broker whether it can prove the predecessor dead, which would end the wait for it.
    fn ask_whether_dead(&mut self) {
        let Some(predecessor) = self.owner.predecessor() else {
            return;
        };
        if self.under_way.proving.is_some() || self.now_ms() < self.under_way.prove_ms {
            return;
        }
        let asks = self.own.asks.clone();
        let asked = async move { asks.proves_dead(predecessor).await.then_some(predecessor) };
        self.under_way.proving = Some(Box::pin(asked));
    }
}

/// Waits for a call, or for ever if none is under way. Clears the call once it is answered. Cancel safe.
async fn answer<T>(call: &mut Call<T>) -> T {
    match call {
        Some(under_way) => {
            let answer = under_way.await;
            *call = None;
            answer
        }
        None => pending().await,
    }
}
