//! The log that all journals and commits share, and likewise the log that all holds share.
//!
//! In: records and cuts, each for a stream. Out: positions once durable. All waiting requests form one group with one
//! sync, whatever the number of streams. The writer thread decides conditions in the order of the requests, so a
//! record appended "if the log ends at 7" lands at 7 or not at all.
//!
//! A full segment that is mostly dead is emptied: its live records are copied to the end of the log, at their
//! positions, and synced; only then the segment is freed. So one long-lived record does not keep a whole segment.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::group::{Group, Request, Want, copy_of};
use super::streams::{Streams, read_run};
use crate::contract::{AppendError, BrokerError};
use crate::embedded::data::Captured;
use crate::embedded::entrance::{Entrance, Gather, Ticket};
use crate::embedded::failure::Failure;
use crate::embedded::lock;
use crate::embedded::options::Host;
use crate::embedded::refusal::Refusal;
use crate::embedded::segment::{Appender, BATCH_HEADER, Laid, Sizes, Table, make, recover};
use crate::embedded::upkeep::Upkeep;
use crate::embedded::writer::{Drive, Queue, Urgency};

/// Requests that were admitted and are not yet written have at most this many KiB; further callers wait in
/// `entrance`.
const WAITING_KIB_MAX: usize = 64 << 10;
/// Emptying a segment copies at most about this many bytes at a time, because appends wait meanwhile.
const COPY_BYTES_MAX: usize = 1 << 20;

/// The log of all journals, or of all holds.
pub(crate) struct JournalLog {
    name: &'static str,
    pub host: Host,
    queue: Queue<Entrance<Vec<Request>>>,
    pub streams: Mutex<Streams>,
    writer: Mutex<Appender>,
    stopped: OnceLock<BrokerError>,
    refusal: Refusal,
    upkeep: Upkeep,
    /// How many backups are under way. While there are any, nothing is cut.
    still: AtomicUsize,
}

impl Gather for Vec<Request> {
    type Call = Request;

    fn admit(&mut self, call: Request) {
        self.push(call);
    }
}

impl JournalLog {
    /// Makes the log of a new folder.
    pub fn create(
        name: &'static str,
        host: &Host,
        dir: &Path,
        log: u128,
        sizes: Sizes,
    ) -> Result<JournalLog, Failure> {
        let appender = make::create(host, dir, log, sizes, Table::new())?;
        let mut streams = Streams::default();
        streams.begin(appender.active());
        Ok(JournalLog::new(name, host, appender, streams))
    }

    /// Opens an existing log. An error if a record that should be kept is missing.
    pub fn open(
        name: &'static str,
        host: &Host,
        dir: &Path,
        log: u128,
        sizes: Sizes,
    ) -> Result<JournalLog, Failure> {
        let mut streams = Streams::default();
        let appender = recover(host, dir, log, sizes, &mut streams)?;
        streams.check().map_err(|what| Failure::damaged(dir, 0, what))?;
        Ok(JournalLog::new(name, host, appender, streams))
    }

    fn new(name: &'static str, host: &Host, appender: Appender, streams: Streams) -> JournalLog {
        JournalLog {
            name,
            host: host.clone(),
            queue: Queue::new(Entrance::new(WAITING_KIB_MAX)),
            streams: Mutex::new(streams),
            writer: Mutex::new(appender),
            stopped: OnceLock::new(),
            refusal: Refusal::default(),
            upkeep: Upkeep::default(),
            still: AtomicUsize::new(0),
        }
    }

    /// Appends a record, and answers with its position once the record is durable.
    pub async fn append(
        &self,
        stream: u32,
        record: Bytes,
        expect_end: Option<u64>,
    ) -> Result<u64, AppendError> {
        let bytes = record.len();
        self.ask(Urgency::Now, bytes, stream, Want::Append { record, expect_end }).await
    }

    /// Appends a record that replaces all earlier records of its stream, durably.
    pub async fn replace(&self, stream: u32, record: Bytes, urgency: Urgency) -> Result<(), BrokerError> {
        let bytes = record.len();
        let replaced = self.ask(urgency, bytes, stream, Want::Replace(record)).await;
        replaced.map(|_| ()).map_err(|error| self.why(error))
    }

    /// Moves the start of the stream up to `below`, durably.
    pub async fn cut(&self, stream: u32, below: u64) -> Result<(), BrokerError> {
        let cut = self.ask(Urgency::Now, 0, stream, Want::Cut(below)).await;
        cut.map(|_| ()).map_err(|error| self.why(error))
    }

    /// Forgets streams durably, all in one group. The caller guarantees that no handle to any of them is in use.
    pub async fn forget(&self, streams: Vec<u32>) -> Result<(), BrokerError> {
        let (mut answers, mut requests) = (Vec::new(), Vec::new());
        for stream in streams {
            let (answer, answered) = oneshot::channel();
            answers.push(answered);
            requests.push(Request { stream, want: Want::Forget, answer });
        }
        self.queue
            .add(Urgency::Now, |entrance| {
                for request in requests {
                    entrance.enter(0, request, false);
                }
            })
            .ok_or_else(|| self.why(self.gone()))?;
        for answered in answers {
            answered.await.unwrap_or_else(|_| Err(self.gone())).map_err(|error| self.why(error))?;
        }
        Ok(())
    }

    /// Begins or ends a time in which nothing is cut or forgotten.
    pub fn stand_still(&self, begins: bool) {
        let _turn = lock(&self.writer);
        match begins {
            true => self.still.fetch_add(1, Ordering::SeqCst),
            false => self.still.fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// A snapshot of the segments and of the end of the log, for a backup or the scrubber.
    pub fn capture(&self) -> Captured {
        let appender = lock(&self.writer);
        let segments = lock(&self.streams).segments();
        Captured { segments, end: appender.reached() }
    }

    /// An error if the log has stopped (P10), or refuses records at this moment (BRK-8).
    pub fn health(&self) -> Result<(), BrokerError> {
        self.stopped.get().cloned().or_else(|| self.refusal.now()).map_or(Ok(()), Err)
    }

    /// Closes the queue. The writer thread writes what still waits, and then ends.
    pub fn close(&self) {
        self.queue.close();
    }

    /// The answer to a request that came too late: if the log stopped after a failure, with the reason (P10).
    fn gone(&self) -> AppendError {
        match self.stopped.get() {
            Some(why) => AppendError::Stopped(why.to_string()),
            None => AppendError::Unknown(BrokerError::Closed.to_string()),
        }
    }

    fn why(&self, error: AppendError) -> BrokerError {
        let stopped = self.stopped.get().cloned();
        stopped.unwrap_or_else(|| BrokerError::Unavailable(error.to_string()))
    }

    async fn ask(&self, urgency: Urgency, bytes: usize, stream: u32, want: Want) -> Result<u64, AppendError> {
        let (answer, answered) = oneshot::channel();
        let request = Request { stream, want, answer };
        let overtake = self.host.flaw(|flaws| flaws.overtake_who_waits);
        let entered = self.queue.add(urgency, |entrance| entrance.enter(bytes, request, overtake));
        let ticket = entered.ok_or_else(|| self.gone())?;
        let mut place = TakenPlace { log: self, ticket: Some(ticket) };
        let answer = answered.await;
        place.ticket = None;
        answer.unwrap_or_else(|_| Err(self.gone()))
    }

    fn stop(&self, why: BrokerError) {
        // The first reason stays, because later ones are only its consequences.
        if self.stopped.set(why.clone()).is_ok() && why != BrokerError::Closed {
            tracing::error!(log = self.name, %why, "the log has stopped: nothing more is recorded in it");
        }
        lock(&self.streams).stop(&why);
    }

    /// Writes a group, answers its callers, and gives its room to callers in `entrance`.
    fn commit(&self, appender: &mut Appender, requests: Vec<Request>, kib: usize) {
        self.write_group(appender, requests);
        self.queue.change(|entrance| entrance.written(kib));
    }

    fn write_group(&self, appender: &mut Appender, requests: Vec<Request>) {
        if let Some(why) = self.stopped.get() {
            for request in requests {
                let stopped = AppendError::Stopped(why.to_string());
                let _gone = request.answer.send(Err(stopped));
            }
            return;
        }
        let mut group = Group::default();
        {
            let streams = lock(&self.streams);
            let still = self.still.load(Ordering::SeqCst) > 0;
            for request in requests {
                if still && matches!(request.want, Want::Cut(_) | Want::Forget) {
                    let wait = "a backup is being made, and nothing is cut or forgotten before it is done";
                    let _gone = request.answer.send(Err(AppendError::Unknown(wait.to_owned())));
                    continue;
                }
                group.add(&streams, request);
            }
        }
        let durable = match self.write(appender, &mut group.batches) {
            Ok(()) => group.batches.len(),
            Err((durable, failure)) => {
                let unknown = AppendError::Unknown(failure.to_string());
                for answer in &mut group.answers {
                    if answer.batch.is_none_or(|batch| batch >= durable) {
                        answer.result = Err(unknown.clone());
                    }
                }
                durable
            }
        };
        debug_assert!(durable <= group.batches.len(), "no more is durable than was asked for");
        for answer in group.answers {
            let _gone = answer.caller.send(answer.result);
        }
        if self.host.flaw(|flaws| flaws.acknowledge_before_sync)
            && let Err(failure) = appender.sync()
        {
            self.stop(failure.to_broker_error());
        }
    }

    /// Writes batches and enters the durable ones in `streams`. An error contains how many are durable.
    fn write(&self, appender: &mut Appender, batches: &mut [Laid]) -> Result<(), (usize, Failure)> {
        let (placed, failure) = appender.write(batches, self.host.now_ms());
        {
            let mut streams = lock(&self.streams);
            for (placed, batch) in placed.iter().zip(batches) {
                let payload = &batch.bytes[BATCH_HEADER..][..placed.header.payload_bytes as usize];
                streams.note(&placed.segment, &placed.header, placed.offset, payload);
            }
            // A new segment is entered while it is still empty: otherwise no backup would contain it.
            streams.begin(appender.active());
        }
        let Some(failure) = failure else {
            self.refusal.end(self.name);
            return Ok(());
        };
        match failure.is_harmless() {
            true => self.refusal.begin(self.name, &failure),
            false => self.stop(failure.to_broker_error()),
        }
        Err((placed.len(), failure))
    }

    /// Frees one dead segment, or copies some live records out of one that is mostly dead. True if there may be more
    /// to do.
    fn tidy(&self, appender: &mut Appender) -> Result<bool, Failure> {
        let Some((number, living)) = ({
            let streams = lock(&self.streams);
            streams
                .mostly_dead(appender.active().number)
                .map(|number| (number, streams.living(number, COPY_BYTES_MAX)))
        }) else {
            appender.recycle()?;
            return Ok(false);
        };
        if living.is_empty() {
            if let Some(segment) = lock(&self.streams).remove(number) {
                appender.retire(segment);
            }
            appender.recycle()?;
            return Ok(true);
        }
        let mut copies = Vec::with_capacity(living.len());
        for (stream, start, run, segment) in living {
            let records = match run.lost {
                true => Ok(Vec::new()),
                false => read_run(&run, &segment),
            };
            let records = match records {
                // Whoever reads the journal of this record gets the error. The other records, and their space, must
                // not wait for this one, so only this segment stays.
                Err(failure @ Failure::Damaged { .. }) => {
                    tracing::error!(log = self.name, %failure, "a record cannot be read, so that its segment is kept");
                    lock(&self.streams).let_stay(number);
                    return Ok(true);
                }
                records => records?,
            };
            copies.push(copy_of(stream, start, &run, records));
        }
        self.write(appender, &mut copies).map_err(|(_, failure)| failure)?;
        Ok(true)
    }
}

/// The place of a call that waits for its answer. Dropping it early gives the place up.
struct TakenPlace<'a> {
    log: &'a JournalLog,
    ticket: Option<Ticket>,
}

impl Drop for TakenPlace<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let forget = self.log.host.flaw(|flaws| flaws.forget_the_cancelled);
            self.log.queue.change(|entrance| entrance.leave(ticket, forget));
        }
    }
}

impl Drive for JournalLog {
    fn commit_once(&self) {
        let mut appender = lock(&self.writer);
        let (requests, kib) = self.queue.take(Entrance::take);
        if !requests.is_empty() {
            self.commit(&mut appender, requests, kib);
        } else if self.refusal.now().is_some() && appender.can_roll().is_ok() {
            // Callers may stay away while health reports a refusal, so an idle log checks itself whether it can write
            // again.
            self.refusal.end(self.name);
        }
        if self.stopped.get().is_some() {
            return;
        }
        // Dead segments are freed before the next file is made, since a full disk may have room only afterwards. The
        // file is made even if the freeing failed.
        let (tidied, prepared) = (self.tidy(&mut appender), appender.prepare());
        if let Ok(true) = tidied {
            self.queue.change(|_| true);
        }
        for failure in [tidied.err(), prepared.err()].into_iter().flatten() {
            match failure.is_harmless() {
                true => self.upkeep.put_off(self.name, &failure, self.host.uptime_ms()),
                false => self.stop(failure.to_broker_error()),
            }
        }
    }

    fn finish(&self) {
        let mut appender = lock(&self.writer);
        // Group by group, because callers that wait in `entrance` came before the close, and are admitted as room is
        // freed.
        loop {
            let (requests, kib) = self.queue.take(Entrance::take);
            if requests.is_empty() {
                break;
            }
            self.commit(&mut appender, requests, kib);
        }
        if self.stopped.get().is_none() {
            // From here on a bad batch before this end counts as damage and never as a torn tail.
            if let Err(failure) = appender.record_close() {
                tracing::warn!(log = self.name, %failure, "the log was not marked as closed");
            }
        }
        appender.finish();
        drop(appender);
        self.stop(BrokerError::Closed);
    }

    fn wait(&self, gather: Duration) -> bool {
        self.queue.wait(gather)
    }

    fn abandon(&self) {
        self.queue.close();
        self.stop(BrokerError::Stopped("its writer ended unexpectedly".to_owned()));
        // Clearing drops the senders of the answers, so that every caller that waits gets an error.
        self.queue.change(|entrance| {
            entrance.clear();
            false
        });
    }
}
