//! Reads what was written long ago, slowly and again and again, so that damage is found while a backup still has what is
//! gone, and not when somebody needs it.
//!
//! In: a folder that is open. Out: figures, and what is damaged. Only segments that are full are read: the newest is
//! read by everybody. Reading waits between pieces, so that it never takes more than a small part of what a disk gives;
//! closing the folder ends it at once.

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

/// The thread that reads.
pub(super) const NAME: &str = "log-scrub";
/// Bytes read in a second, at most: a terabyte in three days, and a hundredth of what a slow disk gives.
const BYTES_PER_SECOND: u64 = 4 << 20;
/// It waits whenever it has read so much.
const PIECE_BYTES: u64 = 256 << 10;
/// Between two rounds: what was just found whole is not read again at once.
const PAUSE: Duration = Duration::from_secs(3600);
/// Damage that is told apart; of more only the number is known. Whoever has so much of it needs no longer list.
const FOUND_MAX: usize = 100;

/// What was read so far, and what was found.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    bytes: AtomicU64,
    damaged: AtomicU64,
    /// By segment: what lay in one that was freed meanwhile is nobody's trouble any more.
    found: Mutex<Vec<(Weak<Segment>, BrokerError)>>,
    closing: Mutex<bool>,
    closed: Condvar,
}

impl Scrub {
    /// Figures since the folder was opened.
    pub fn figures(&self) -> Scrubbed {
        Scrubbed { bytes: self.bytes.load(Ordering::Relaxed), damaged: self.damaged.load(Ordering::Relaxed) }
    }

    /// What is damaged, and still part of a log.
    pub fn found(&self) -> Vec<BrokerError> {
        let mut found = lock(&self.found);
        found.retain(|(segment, _)| segment.strong_count() > 0);
        found.iter().map(|(_, what)| what.clone()).collect()
    }

    /// Ends it.
    pub fn close(&self) {
        *lock(&self.closing) = true;
        self.closed.notify_all();
    }

    /// Waits; false if it is to end.
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

    /// Reads every full segment once; false if it is to end.
    pub fn round(&self, folder: &Folder, pace: Duration) -> bool {
        for log in folder.captured() {
            // Not held: a segment that is read by nobody may be freed, and a whole log takes hours.
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
                // Its file may have been used again while this began to read it: then it is not part of the log now.
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
                // Its own turn comes.
                Ok(_) | Err(Failure::Damaged { .. }) => Extent::Open,
                Err(failure) => return Err(failure),
            },
        };
        // What cannot be read is damage to whoever will need it; only what may pass is not told (`tell`).
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

    /// Says once what is damaged. What cannot be read now is for whoever needs it to tell: it may pass.
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
