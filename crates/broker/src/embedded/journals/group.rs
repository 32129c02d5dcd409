//! Lays out the next group of a journals' log: turns what callers want of several streams into batches, in the order
//! in which the requests came.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::streams::{Run, Streams, put_record};
use crate::contract::AppendError;
use crate::embedded::segment::{Kind, Laid};

/// A batch of records has at most about this many bytes, because a read returns a whole batch.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// A caller's request to one stream.
#[derive(Debug)]
pub(crate) struct Request {
    pub stream: u32,
    pub want: Want,
    pub answer: oneshot::Sender<Result<u64, AppendError>>,
}

/// What a caller wants done to a stream.
#[derive(Debug)]
pub(crate) enum Want {
    Append { record: Bytes, expect_end: Option<u64> },
    Replace(Bytes),
    Cut(u64),
    Forget,
}

/// The next group of the log, while it is laid out.
#[derive(Default)]
pub(crate) struct Group {
    pub batches: Vec<Laid>,
    /// For each stream of the group, its last batch, and where the stream will end.
    open: HashMap<u32, (Option<usize>, u64)>,
    /// The streams that this group forgets, each with the batch that says so. No later request may write to such a
    /// stream.
    forgotten: HashMap<u32, usize>,
    /// The answers to the callers, in the order of their requests.
    pub answers: Vec<Answer>,
}

/// The answer to a caller if everything succeeds, and the batch that must be durable before the caller is told.
pub(crate) struct Answer {
    pub caller: oneshot::Sender<Result<u64, AppendError>>,
    pub result: Result<u64, AppendError>,
    pub batch: Option<usize>,
}

impl Group {
    /// Adds a request and decides its caller's answer. The answer is sent only once the group is durable.
    pub fn add(&mut self, streams: &Streams, request: Request) {
        let number = request.stream;
        let Some(stream) = streams.get(number) else {
            return;
        };
        if let Some(gone) = self.forgotten.get(&number) {
            let (result, batch) = match request.want {
                Want::Forget => (Ok(stream.next), Some(*gone)),
                _ => (Err(AppendError::Unknown("the group was forgotten just now".to_owned())), None),
            };
            self.answers.push(Answer { caller: request.answer, result, batch });
            return;
        }
        if let Want::Cut(below) = request.want
            && below <= stream.start
        {
            let result = Ok(stream.start);
            self.answers.push(Answer { caller: request.answer, result, batch: None });
            return;
        }
        if !stream.named && !self.open.contains_key(&number) {
            let mut name = Laid::new(number, 0, Kind::Name);
            name.bytes.extend_from_slice(&stream.name);
            self.batches.push(name);
        }
        let (_, end) = *self.open.entry(number).or_insert((None, stream.next));
        let (result, batch) = match request.want {
            Want::Append { expect_end, .. } if expect_end.is_some_and(|expected| expected != end) => {
                (Err(AppendError::Moved { end }), None)
            }
            Want::Append { record, .. } => (Ok(end), Some(self.record(number, &record))),
            Want::Replace(record) => {
                let batch = self.begin(number, Kind::Latest, end);
                put_record(&mut self.batches[batch].bytes, &record);
                self.batches[batch].count = 1;
                self.open.insert(number, (None, end + 1));
                (Ok(end), Some(batch))
            }
            Want::Cut(below) => {
                let batch = self.begin(number, Kind::Cut, below.min(end));
                self.open.insert(number, (None, end));
                (Ok(end), Some(batch))
            }
            Want::Forget => {
                let batch = self.begin(number, Kind::Gone, 0);
                self.forgotten.insert(number, batch);
                (Ok(end), Some(batch))
            }
        };
        self.answers.push(Answer { caller: request.answer, result, batch });
    }

    fn begin(&mut self, stream: u32, kind: Kind, base: u64) -> usize {
        self.batches.push(Laid::new(stream, base, kind));
        self.batches.len() - 1
    }

    /// Adds a record to the stream's last batch, or begins another batch.
    fn record(&mut self, stream: u32, record: &[u8]) -> usize {
        let (open, end) = self.open.get(&stream).copied().unwrap_or_default();
        let room = |batch: &usize| {
            let bytes = self.batches[*batch].payload_bytes();
            bytes == 0 || bytes + record.len() <= BATCH_BYTES_MAX
        };
        let batch = match open.filter(room) {
            Some(batch) => batch,
            None => self.begin(stream, Kind::Records, end),
        };
        put_record(&mut self.batches[batch].bytes, record);
        self.batches[batch].count += 1;
        self.open.insert(stream, (Some(batch), end + 1));
        batch
    }
}

/// The live records of a run, as a batch that is appended at the end of the log.
pub(crate) fn copy_of(stream: u32, start: u64, run: &Run, records: Vec<(u64, Bytes)>) -> Laid {
    if run.lost {
        // A gap is copied too: otherwise positions that an operator skipped would look like missing records.
        let mut copy = Laid::new(stream, run.base, Kind::Lost);
        copy.count = run.count;
        return copy;
    }
    let mut copy = Laid::new(stream, run.base.max(start), Kind::Copies);
    for (_, record) in records.iter().filter(|(position, _)| *position >= start) {
        put_record(&mut copy.bytes, record);
        copy.count += 1;
    }
    copy
}
