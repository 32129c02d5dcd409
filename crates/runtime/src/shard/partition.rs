//! One owned partition, as its shard sees it: from its reader to the next delivery that may run.
//!
//! Batches come in from the reader whenever the bounds allow one more. Deliveries go out in order, without those that
//! are on record as settled. Invariants: if a delivery's lane is full, the delivery stays here and nothing behind it is
//! read (ORD-6, overflow `pause`); and everything that was read and is not finished counts toward the bounds (BPR-1).

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

/// Bytes asked of a reader at a time: about a thousand ordinary messages. Larger batches cost no less per message.
pub(crate) const BATCH_BYTES: usize = 256 * 1024;

/// The states of a partition at its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartState {
    /// The partition is read, and its messages are handled.
    Running,
    /// After a pause of the process: nothing starts until the owner has verified that the partition is its own
    /// (ORD-12).
    Verifying,
    /// Nothing more of the partition starts (ORD-9).
    Draining,
    /// The partition cannot be read, and its owner was told.
    Broken,
}

/// What may still be done with a partition's messages. A thread asks before it polls an attempt that was given to it:
/// while the thread waited for a core, the partition may have gone to another process (P9).
#[derive(Debug, Default)]
pub(super) struct Standing(AtomicU8);

impl Standing {
    const STARTS: u8 = 0;
    const STARTS_NOTHING: u8 = 1;
    const GONE: u8 = 2;

    fn set(&self, standing: u8) {
        self.0.store(standing, Ordering::SeqCst);
    }

    /// True if an attempt may be polled now. An attempt that has not `begun` may begin only while the partition runs.
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
    /// The number of its attempts in flight.
    pub(super) running: usize,
    /// Rejected messages whose lanes wait until they are on record: position, lane and size.
    pub(super) burying: HashMap<u64, (LaneId, usize)>,
    /// Since when a completion waits to be handed over.
    pub(super) fresh_since_ms: Option<u64>,
    /// The partition is on the list of those that have something to hand over (`handover.rs`).
    pub(super) hands_over: bool,
    /// The partition drains, and its owner was told that nothing of it runs.
    pub(super) said_quiet: bool,
    /// The messages that were read of the partition and are not finished.
    pub(super) load: Load,
    /// The partition is not read because the bounds do not allow it (BPR-2).
    pub(super) stopped: bool,
    /// The partition is on the list of those that may have something to read (`pick.rs`).
    pub(super) has_turn: bool,
    shown: Pause,
    waker: Arc<ListWaker>,
    reader: Box<dyn Reader>,
    cursor: Option<BatchCursor>,
    next: u64,
    stalled: Option<(Delivery, LaneKey)>,
}

/// The result of looking for the next message.
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

    /// Changes the partition's state. Returns the state before.
    pub(super) fn enter(&mut self, state: PartState) -> PartState {
        self.standing.set(match state {
            PartState::Running => Standing::STARTS,
            PartState::Verifying | PartState::Draining | PartState::Broken => Standing::STARTS_NOTHING,
        });
        std::mem::replace(&mut self.state, state)
    }

    /// The next message of the current batch. `shard` is what the whole shard has in memory.
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
            // This message is on record already.
            self.load.sub(1, found.size());
            shard.sub(1, found.size());
        }
        self.cursor = None;
        self.ledger.passed(self.next);
        Read::BatchEnd
    }

    /// The batch in which `next_found` found a message.
    #[inline(always)]
    pub(super) fn batch(&self) -> &BatchCursor {
        self.cursor.as_ref().expect("kept until its end is found")
    }

    /// Asks the reader for one more batch. False: the reader has none now, and wakes the shard when it has one.
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

    /// Keeps a delivery whose lane is full. Until there is room, nothing behind it is read, or it would be overtaken.
    pub(super) fn stall(&mut self, delivery: Delivery, lane: LaneKey) {
        self.stalled = Some((delivery, lane));
    }

    /// The lane for which the stalled delivery waits.
    #[inline]
    pub(super) fn stalled_on(&self) -> Option<LaneKey> {
        self.stalled.as_ref().map(|(_, lane)| *lane)
    }

    /// Takes the stalled delivery, once its lane has room.
    pub(super) fn unstall(&mut self) -> Option<Delivery> {
        self.stalled.take().map(|(delivery, _)| delivery)
    }

    /// Updates what status queries see: why nothing more is read, or that the partition is read.
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

    /// Asks the owner to read the journal to its end, since the process was paused for this long.
    pub(super) fn ask_to_verify(&self, paused_ms: u64) {
        self.link.leave(|mail| mail.verify = mail.verify.max(Some(paused_ms)));
    }

    /// Gives up everything that was read and not begun: it is left to the next owner.
    pub(super) fn stop_reading(&mut self) {
        self.cursor = None;
        self.stalled = None;
    }
}

impl Part {
    /// From here on no thread polls an attempt on a message of this partition.
    pub(super) fn is_gone(&self) {
        self.standing.set(Standing::GONE);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.is_gone();
    }
}
