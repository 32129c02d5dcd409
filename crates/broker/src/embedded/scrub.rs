//! The scrubber: rereads full segments slowly, again and again, to find damage while a backup still has the damaged
//! messages, and before a reader needs them.
//!
//! In: an open folder. Out: figures, and a list of damage. The newest segment of a log is not read, because its
//! messages are read anyway. The scrubber waits after each piece, so that it takes only a small part of the disk's
//! throughput. Closing the folder ends it at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::disk::Piecewise;
use super::failure::{Action, Failure};
use super::folder::Folder;
use super::lock;
use super::segment::{Extent, ReadHeader, Segment, SegmentHeader, scan};
use crate::contract::{BrokerError, Scrubbed};
use crate::threads::{AGAIN, BEGUN_ANEW};

/// The name of the thread that reads.
pub(super) const NAME: &str = "log-scrub";
/// Bytes read per second at most: a terabyte takes three days, and a slow disk gives a hundred times as much.
const BYTES_PER_SECOND: u64 = 4 << 20;
/// The scrubber waits each time it has read this many bytes.
const PIECE_BYTES: u64 = 256 << 10;
/// The pause between two rounds, because segments that were just found whole need no check at once.
const PAUSE: Duration = Duration::from_secs(3600);
/// How many damaged segments are listed. Further ones are only counted: an operator needs no longer list.
const FOUND_MAX: usize = 100;

/// What the scrubber has read and found so far.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    bytes: AtomicU64,
    damaged: AtomicU64,
    /// Damage by segment. An entry disappears when its segment is freed.
    found: Mutex<Vec<(Weak<Segment>, BrokerError)>>,
    closing: Mutex<bool>,
    closed: Condvar,
}

impl Scrub {
    /// The figures since the folder was opened.
    pub fn figures(&self) -> Scrubbed {
        Scrubbed { bytes: self.bytes.load(Ordering::Relaxed), damaged: self.damaged.load(Ordering::Relaxed) }
    }

    /// The damage in segments that are still part of a log.
    pub fn found(&self) -> Vec<BrokerError> {
        let mut found = lock(&self.found);
        found.retain(|(segment, _)| segment.strong_count() > 0);
        found.iter().map(|(_, what)| what.clone()).collect()
    }

    /// Ends the scrubber.
    pub fn close(&self) {
        *lock(&self.closing) = true;
        self.closed.notify_all();
    }

    /// Waits for `time`. False: the scrubber is to end.
    fn wait(&self, time: Duration) -> bool {
        let closing = lock(&self.closing);
        let waited = self.closed.wait_timeout_while(closing, time, |closing| !*closing);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Reads round after round until the folder is closed. After a panic it begins anew.
    pub fn run(&self, folder: &Folder) {
        let panics = &folder.options.host.panics;
        while panics.watch(NAME, BEGUN_ANEW, || self.rounds(folder)).is_err() && self.wait(AGAIN) {}
    }

    fn rounds(&self, folder: &Folder) {
        let pace = Duration::from_micros(PIECE_BYTES * 1_000_000 / BYTES_PER_SECOND);
        folder.options.host.panics.may_be_struck(NAME);
        while self.round(folder, pace) && self.wait(PAUSE) {}
    }

    /// Reads every full segment once. False: the scrubber is to end.
    pub fn round(&self, folder: &Folder, pace: Duration) -> bool {
        for log in folder.captured() {
            // Weak references, because a round takes hours on a large log, and segments must be freed meanwhile.
            let segments: Vec<_> = log.segments.iter().map(Arc::downgrade).collect();
            drop(log);
            for pair in segments.windows(2) {
                let (Some(segment), next) = (pair[0].upgrade(), pair[1].upgrade()) else {
                    continue;
                };
                let next = next.filter(|next| next.number == segment.number + 1);
                let read = self.segment(&segment, next.as_ref(), pace);
                if !self.wait(Duration::ZERO) {
                    return false;
                }
                // The file may have been recycled while it was being read. Then the segment is no longer part of the
                // log, and the failure means nothing.
                if let Err(failure) = read
                    && folder
                        .captured()
                        .any(|log| log.segments.iter().any(|other| Arc::ptr_eq(other, &segment)))
                {
                    self.tell(&segment, &failure);
                }
            }
        }
        self.wait(Duration::ZERO)
    }

    fn segment(&self, segment: &Segment, next: Option<&Arc<Segment>>, pace: Duration) -> Result<(), Failure> {
        let extent = match next {
            None => Extent::Open,
            Some(next) => match next.file().and_then(|file| {
                SegmentHeader::read(&Piecewise(&*file)).map_err(Failure::io(Action::Read, &next.path))
            }) {
                Ok(ReadHeader::Good(header, _)) => Extent::Sealed(header.previous_end),
                // The next segment's own damage is found when its turn comes.
                Ok(_) | Err(Failure::Damaged { .. }) => Extent::Open,
                Err(failure) => return Err(failure),
            },
        };
        // Unreadable bytes are zeros here, and so count as damage. `tell` drops failures that may pass.
        let opened = segment.file()?;
        let file = Piecewise(&*opened);
        if !matches!(
            SegmentHeader::read(&file).map_err(Failure::io(Action::Read, &segment.path))?,
            ReadHeader::Good(..)
        ) {
            return Err(Failure::damaged(&segment.path, 0, "the segment's header is damaged"));
        }
        let mut since = 0;
        let scanned = scan(segment, &file, extent, None, |header, _, _| {
            let bytes = header.stored_bytes() as u64;
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            since += bytes;
            if since < PIECE_BYTES {
                return Ok(());
            }
            since = 0;
            match self.wait(pace) {
                true => Ok(()),
                false => Err("the folder is closed".to_owned()),
            }
        });
        scanned.map(drop)
    }

    /// Reports damage once per segment. Failures that may pass are left to the reader that meets them.
    fn tell(&self, segment: &Arc<Segment>, failure: &Failure) {
        let mut found = lock(&self.found);
        found.retain(|(segment, _)| segment.strong_count() > 0);
        let is_told = |(told, _): &(Weak<Segment>, _)| std::ptr::eq(told.as_ptr(), Arc::as_ptr(segment));
        if failure.is_harmless() || found.iter().any(is_told) {
            return;
        }
        tracing::error!(%failure, "damage was found before anybody needed what lay there");
        self.damaged.fetch_add(1, Ordering::Relaxed);
        if found.len() < FOUND_MAX {
            found.push((Arc::downgrade(segment), failure.to_broker_error()));
        }
    }
}
