//! How a shard and the owner of one of its partitions talk to each other.
//!
//! From shard to owner: the shard leaves [`Mail`] in a [`Link`]: positions that its handlers finished, messages that
//! they rejected, and the news that nothing runs any more. The owner's task takes the mail when it can put it on
//! record. From owner to shard: [`ShardCommand`]s, over a bounded channel. Invariant: at most one lot of completions
//! lies in the mail. The shard keeps further completions in its ledger until the lot was taken, so nothing piles up.

use std::borrow::Cow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use keylane_broker::{BrokerError, Reader};
use keylane_core::{Delivery, Ranges, Settled};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

use super::batch_times::BatchTimes;
use crate::status::{LaneSort, LaneStatus};

/// Commands on their way to a shard. Each partition has a few under way at most, and queries are rare; senders wait.
pub(crate) const COMMANDS_MAX: usize = 256;

/// A command to a shard.
pub(crate) enum ShardCommand {
    /// This process owns a partition: read and handle it.
    Start(Box<Start>),
    /// A lot that was handed over, or a dead letter, counts now.
    Counted {
        /// The partition.
        partition: u32,
        /// The epoch in which it counts.
        epoch: u64,
        /// Positions that are on record as dead, whose lanes wait for this.
        dead: Vec<u64>,
    },
    /// After a pause of the process: the journal was read to its end, and this process still owns the partition.
    Verified {
        /// The partition.
        partition: u32,
        /// Its epoch.
        epoch: u64,
        /// The count of [`Pauses`] before the owner began that reading.
        pauses: u64,
    },
    /// Start nothing until [`ShardCommand::Verified`] comes: the owner cannot read its journal (ORD-12).
    Suspend {
        /// The partition.
        partition: u32,
        /// Its epoch.
        epoch: u64,
    },
    /// Start nothing more of the partition, and leave [`Mail::quiet`] when nothing of it runs.
    Drain {
        /// The partition.
        partition: u32,
        /// Its epoch.
        epoch: u64,
    },
    /// Forget the partition at once, attempts included.
    Drop {
        /// The partition.
        partition: u32,
        /// Its epoch.
        epoch: u64,
    },
    /// Forget a partition whose owner's task is gone, whatever the epoch.
    Forget {
        /// The partition.
        partition: u32,
    },
    /// The pipeline has ended.
    End,
    /// Show lanes.
    Lanes {
        /// Which lanes come first.
        sort: LaneSort,
        /// The most lanes to show.
        limit: usize,
        /// Where the answer goes.
        reply: oneshot::Sender<Vec<LaneStatus>>,
        /// Held until the shard takes the command: so only one status query at a time takes up room in the channel.
        turn: Option<OwnedSemaphorePermit>,
    },
}

/// What a shard needs to start a partition.
pub(crate) struct Start {
    pub(crate) partition: u32,
    pub(crate) epoch: u64,
    pub(crate) settled: Settled,
    pub(crate) reader: Box<dyn Reader>,
    pub(crate) link: std::sync::Arc<Link>,
    /// The count of [`Pauses`] before the owner last read the journal.
    pub(crate) pauses: u64,
}

/// How often a shard has noticed that the process was paused (ORD-12). An owner takes the count before it reads the
/// journal, and sends it along with what it concludes. If the count differs by then, the process was paused in between,
/// and the conclusion may be outdated.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    noticed: AtomicU64,
    beats: AtomicU64,
}

impl Pauses {
    /// A count that never matches: a conclusion that is sent along with it must be verified.
    pub(crate) const UNSURE: u64 = u64::MAX;

    pub(crate) fn count(&self) -> u64 {
        self.noticed.load(Ordering::SeqCst)
    }

    pub(crate) fn noticed(&self) {
        self.noticed.fetch_add(1, Ordering::SeqCst);
    }

    /// The watchdog is awake: a shard in the middle of a pass looks at the clock.
    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the watchdog was awake.
    #[inline]
    pub(crate) fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }
}

/// How much of a handler's error is kept, in bytes: enough for a long stack trace. A report must fit into one record of
/// any broker; otherwise the partition could not put the message on record, and would stop.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// A message that was rejected. Its lane waits until it is on record as dead.
#[derive(Debug, Clone)]
pub(crate) struct Rejection {
    pub(crate) delivery: Delivery,
    pub(crate) attempt: u32,
    pub(crate) error: String,
}

impl Rejection {
    pub(crate) fn new(delivery: Delivery, attempt: u32, error: &str) -> Rejection {
        let error = cut(Cow::Borrowed(error), ERROR_BYTES_MAX).into_owned();
        Rejection { delivery, attempt, error }
    }
}

/// A handler's error, cut to `bytes_max` bytes if it is longer, which it then says. Memory beyond that is freed.
pub(crate) fn cut(words: Cow<'_, str>, bytes_max: usize) -> Cow<'_, str> {
    if words.len() > bytes_max {
        let kept = &words[..words.floor_char_boundary(bytes_max)];
        return format!("{kept} … (cut, of {} bytes)", words.len()).into();
    }
    match words {
        Cow::Owned(words) if words.capacity() > bytes_max => words.as_str().to_owned().into(),
        words => words,
    }
}

/// The mail that a shard left for an owner.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    /// Positions that were handled, ascending: one whole lot, or none.
    pub(crate) done: Ranges,
    /// Messages that were rejected.
    pub(crate) rejected: Vec<Rejection>,
    /// The partition drains and nothing of it runs any more: this mail is the last.
    pub(crate) quiet: bool,
    /// The process was paused for this many ms: nothing starts until the owner has read the journal to its end.
    pub(crate) verify: Option<u64>,
    /// The partition cannot be read.
    pub(crate) broken: Option<BrokerError>,
    /// The shard fell, and nothing of the partition runs any more; this is the reason.
    pub(crate) gone: Option<String>,
}

/// The mailbox of one owned partition, from its shard to its owner, with figures that status queries read.
#[derive(Debug, Default)]
pub(crate) struct Link {
    mail: Mutex<Mail>,
    there: AtomicBool,
    done_there: AtomicBool,
    notify: Notify,
    ticked_ms: AtomicU64,
    paused: AtomicU8,
    read: Mutex<BatchTimes>,
    read_to: AtomicU64,
}

/// Why a shard does not read on in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Pause {
    /// The shard reads on.
    None,
    /// A lane is full (ORD-6).
    FullLane,
    /// The pipeline's buffer is full (BPR-2).
    FullBuffer,
}

impl Link {
    /// Changes the mail and wakes the owner.
    pub(crate) fn leave(&self, change: impl FnOnce(&mut Mail)) {
        let mut mail = self.mail.lock().expect("no holder panics");
        change(&mut mail);
        self.done_there.store(!mail.done.is_empty(), Ordering::Release);
        self.there.store(true, Ordering::Release);
        drop(mail);
        self.notify.notify_one();
    }

    /// True if the owner has taken the last lot of completions.
    pub(crate) fn has_room(&self) -> bool {
        !self.done_there.load(Ordering::Acquire)
    }

    /// Waits for mail. Cancel safe.
    pub(crate) async fn arrives(&self) {
        while !self.there.load(Ordering::Acquire) {
            self.notify.notified().await;
        }
    }

    /// For how long the process was paused, if the mail says that it was.
    pub(crate) fn paused_ms(&self) -> Option<u64> {
        self.mail.lock().expect("no holder panics").verify
    }

    /// Takes the mail.
    pub(crate) fn take(&self) -> Mail {
        let mut mail = self.mail.lock().expect("no holder panics");
        self.there.store(false, Ordering::Release);
        self.done_there.store(false, Ordering::Release);
        std::mem::take(&mut mail)
    }

    /// The shard is alive (ORD-12).
    #[inline]
    pub(crate) fn tick(&self, now_ms: u64) {
        self.ticked_ms.store(now_ms, Ordering::Relaxed);
    }

    /// When the shard last said that it is alive.
    pub(crate) fn ticked_ms(&self) -> u64 {
        self.ticked_ms.load(Ordering::Relaxed)
    }

    /// The shard has read a batch that begins at `position`, ends before `next` and was appended at `appended_ms`.
    pub(crate) fn read(&self, position: u64, next: u64, appended_ms: u64) {
        self.read.lock().expect("no holder panics").push(position, appended_ms);
        self.read_to.store(next, Ordering::Relaxed);
    }

    /// The position behind everything that the shard has read; 0 before the first batch.
    pub(crate) fn read_to(&self) -> u64 {
        self.read_to.load(Ordering::Relaxed)
    }

    /// When the message at `low`, below which everything is settled, was appended; none if its batch was not read yet.
    pub(crate) fn appended_ms(&self, low: u64) -> Option<u64> {
        self.read.lock().expect("no holder panics").at(low)
    }

    /// Stores why the partition is not read, or that it is, for status queries.
    pub(crate) fn show_pause(&self, pause: Pause) {
        self.paused.store(pause as u8, Ordering::Relaxed);
    }

    /// Why the partition is not read, if it is not.
    pub(crate) fn pause(&self) -> Option<&'static str> {
        match self.paused.load(Ordering::Relaxed) {
            pause if pause == Pause::FullLane as u8 => {
                Some("a lane is full; it goes on when the lane is half empty")
            }
            pause if pause == Pause::FullBuffer as u8 => {
                Some("the buffer is full; it goes on when it has room")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DLQ-1, P10: a handler's text about a rejection is cut where it would not fit into a record, and says so.
    #[test]
    fn a_rejection_of_many_megabytes_is_cut_and_says_so() {
        let delivery = || {
            let mut frames = keylane_core::Frames::default();
            frames.push(0, &keylane_core::Draft { id: "m", ..Default::default() }).expect("a valid draft");
            frames.messages().next().expect("just pushed").expect("just encoded")
        };
        let long = "é".repeat(3 << 20);
        let cut = Rejection::new(delivery(), 1, &long).error;
        assert!(cut.len() < ERROR_BYTES_MAX + 100, "{} bytes are kept", cut.len());
        assert!(cut.starts_with("éé") && cut.ends_with(&format!("(cut, of {} bytes)", long.len())), "{cut}");
        assert_eq!(Rejection::new(delivery(), 1, "short").error, "short");
    }
}
