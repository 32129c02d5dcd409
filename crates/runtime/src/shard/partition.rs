//! Reading: one owned partition as its shard sees it, from the reader to the next delivery whose turn it may be.
//!
//! Comes in: batches of a reader, when the bounds allow one more. Goes out: deliveries, in order, those on record as
//! settled left out. A delivery whose lane is full stays here, and nothing behind it is read (ORD-6, overflow
//! `pause`). Everything read and not finished counts toward the bounds (BPR-1).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use futures_util::task::waker_ref;
use keylane_broker::{BrokerError, Reader};
use keylane_core::{BatchCursor, Delivery, Found, LaneId, LaneKey, Ledger, Load};

use super::mailbox::{Link, Pause, Start};
use super::wake::{ListWaker, Wakes};
use crate::flaws::Flaws;
use crate::tasks::{TaskKind, Tasks};

/// Bytes asked of a reader at a time: about a thousand ordinary messages, which is where batches stop getting cheaper.
pub(crate) const BATCH_BYTES: usize = 256 * 1024;

/// What a partition is doing at its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartState {
    /// Read and handled.
    Running,
    /// After a pause of the process: starts nothing until its owner says so (ORD-12).
    Verifying,
    /// Starts nothing more (ORD-9).
    Draining,
    /// Cannot be read; its owner was told.
    Broken,
}

/// What may still be done of a partition, for threads that come to its attempts late: one that waits for a core may find
/// that the partition is another's by now (P9).
#[derive(Debug, Default)]
pub(super) struct Standing(AtomicU8);

impl Standing {
    const STARTS: u8 = 0;
    const STARTS_NOTHING: u8 = 1;
    const GONE: u8 = 2;

    fn set(&self, standing: u8) {
        self.0.store(standing, Ordering::SeqCst);
    }

    /// True if an attempt may be polled now. One that has not begun begins only where messages may start.
    pub(super) fn allows(&self, begun: bool) -> bool {
        match self.0.load(Ordering::SeqCst) {
            Standing::STARTS => true,
            Standing::STARTS_NOTHING => begun,
            _ => false,
        }
    }
}

/// A partition that this shard owns.
pub(super) struct Part {
    pub(super) partition: u32,
    pub(super) epoch: u64,
    pub(super) state: PartState,
    pub(super) standing: Arc<Standing>,
    pub(super) ledger: Ledger,
    pub(super) link: Arc<Link>,
    /// Attempts in flight.
    pub(super) running: usize,
    /// Rejected messages whose lanes wait until they are on record.
    pub(super) burying: HashMap<u64, (LaneId, usize)>,
    /// Since when something finished is not handed over.
    pub(super) fresh_since_ms: Option<u64>,
    /// It is among those that have something to hand over (`handover.rs`).
    pub(super) hands_over: bool,
    /// Draining, and the owner knows that nothing runs.
    pub(super) said_quiet: bool,
    /// What was read of it and is not finished.
    pub(super) load: Load,
    /// Not read, for the bounds' sake (BPR-2).
    pub(super) stopped: bool,
    /// It is among those that may have something to read (`pick.rs`).
    pub(super) has_turn: bool,
    shown: Pause,
    waker: Arc<ListWaker>,
    reader: Box<dyn Reader>,
    cursor: Option<BatchCursor>,
    next: u64,
    stalled: Option<(Delivery, LaneKey)>,
}

/// What reading came to.
pub(super) enum Read {
    /// The next message that is not settled yet.
    Found(Found),
    /// The batch is used up.
    BatchEnd,
    /// A frame or the log cannot be read: the partition stops (P10).
    Broken(BrokerError),
}

impl Part {
    pub(super) fn new(start: Start, flaws: Flaws, wakes: &Arc<Wakes>, now_ms: u64) -> Part {
        start.link.tick(now_ms);
        Part {
            waker: ListWaker::partition(wakes, start.partition),
            partition: start.partition,
            epoch: start.epoch,
            state: PartState::Running,
            standing: Arc::default(),
            ledger: flaws.ledger(&start.settled),
            next: start.settled.low(),
            link: start.link,
            running: 0,
            burying: HashMap::new(),
            fresh_since_ms: None,
            hands_over: false,
            said_quiet: false,
            load: Load::default(),
            stopped: false,
            has_turn: false,
            shown: Pause::None,
            reader: start.reader,
            cursor: None,
            stalled: None,
        }
    }

    /// Does something else from here on. Returns what it did.
    pub(super) fn enter(&mut self, state: PartState) -> PartState {
        self.standing.set(match state {
            PartState::Running => Standing::STARTS,
            PartState::Verifying | PartState::Draining | PartState::Broken => Standing::STARTS_NOTHING,
        });
        std::mem::replace(&mut self.state, state)
    }

    /// The next message of the batch at hand. `shard` is what its shard has in memory.
    #[inline(always)]
    pub(super) fn next_found(&mut self, shard: &mut Load) -> Read {
        let Some(cursor) = &mut self.cursor else {
            return Read::BatchEnd;
        };
        while let Some(found) = cursor.find_next() {
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    return Read::Broken(BrokerError::Damaged(format!(
                        "partition {}, in the batch before position {}: {error}",
                        self.partition, self.next
                    )));
                }
            };
            if self.ledger.arrived(found.position()) {
                return Read::Found(found);
            }
            // On record already.
            self.load.sub(1, found.size());
            shard.sub(1, found.size());
        }
        self.cursor = None;
        self.ledger.passed(self.next);
        Read::BatchEnd
    }

    /// The batch that `next_found` found something in.
    #[inline(always)]
    pub(super) fn batch(&self) -> &BatchCursor {
        self.cursor.as_ref().expect("kept until its end is found")
    }

    /// Asks the reader for one more batch. False: it has none now, and will say when it has.
    pub(super) fn poll_batch(
        &mut self,
        tasks: &Tasks,
        shard: &mut Load,
        bytes_max: usize,
    ) -> Result<bool, BrokerError> {
        self.waker.rearm();
        let waker = waker_ref(&self.waker);
        let mut cx = Context::from_waker(&waker);
        let read = tasks.supervise_now(TaskKind::Reader, || self.reader.poll_batch(&mut cx, bytes_max));
        match read.unwrap_or_else(|why| Poll::Ready(Err(BrokerError::Unavailable(why)))) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(batch)) => {
                self.load.add(batch.count as usize, batch.frames.len());
                shard.add(batch.count as usize, batch.frames.len());
                self.link.read(self.next, batch.next, batch.appended_ms);
                self.next = batch.next;
                self.cursor = Some(batch.cursor(self.epoch));
                Ok(true)
            }
        }
    }

    /// Keeps a delivery whose lane is full; nothing behind it is read.
    pub(super) fn stall(&mut self, delivery: Delivery, lane: LaneKey) {
        self.stalled = Some((delivery, lane));
    }

    /// The lane that the stalled delivery waits for.
    #[inline]
    pub(super) fn stalled_on(&self) -> Option<LaneKey> {
        self.stalled.as_ref().map(|(_, lane)| *lane)
    }

    /// Takes the stalled delivery, now that there is room.
    pub(super) fn unstall(&mut self) -> Option<Delivery> {
        self.stalled.take().map(|(delivery, _)| delivery)
    }

    /// Shows why nothing more is read, if so.
    pub(super) fn show_pause(&mut self) {
        let pause = match (&self.stalled, self.stopped) {
            (Some(_), _) => Pause::FullLane,
            (None, true) => Pause::FullBuffer,
            (None, false) => Pause::None,
        };
        if pause != self.shown {
            self.shown = pause;
            self.link.show_pause(pause);
        }
    }

    /// One message of `bytes` no longer counts toward the bounds.
    #[inline]
    pub(super) fn forget(&mut self, shard: &mut Load, bytes: usize) {
        self.load.sub(1, bytes);
        shard.sub(1, bytes);
    }

    /// Has its owner read the journal to its end: the process was paused for so long.
    pub(super) fn ask_to_verify(&self, paused_ms: u64) {
        self.link.leave(|mail| mail.verify = mail.verify.max(Some(paused_ms)));
    }

    /// Gives up all that was read and not begun: it is the next owner's.
    pub(super) fn stop_reading(&mut self) {
        self.cursor = None;
        self.stalled = None;
    }
}

impl Part {
    /// Nothing of it is polled any more.
    pub(super) fn is_gone(&self) {
        self.standing.set(Standing::GONE);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.is_gone();
    }
}
