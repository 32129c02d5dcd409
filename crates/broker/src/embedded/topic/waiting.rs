//! Gathers the messages of the next group commit, already laid out as batches.
//!
//! While the previous group is being synced, each caller that finds room copies its frames, under a short lock,
//! behind those that already wait; so the writer thread spends no time on the layout. Callers without room wait in
//! `entrance`. Positions are given out only when the writer thread takes the group. Until then, a message has a
//! partition and a place in its group.

use std::collections::VecDeque;
use std::sync::Arc;

use keylane_core::{Frames, message::put_frame};
use tokio::sync::oneshot;

use crate::contract::ProduceError;
use crate::embedded::entrance::Gather;
use crate::embedded::segment::{BATCH_HEADER, Kind, Laid};

/// A batch has at most about this many bytes, so that what a reader gets at once is small beside the reader's
/// buffers.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// A batch is allocated with room for at least this many bytes: a few messages of usual size.
const SHARE_BYTES_MIN: usize = 1 << 10;
/// Bounds a group, and all messages that were admitted and are not yet written; further callers wait in `entrance`.
/// Limits both the memory and the duration of one group commit.
pub(crate) const GROUP_KIB_MAX: usize = 64 << 10;

/// The outcome of a group.
#[derive(Debug)]
pub(crate) struct GroupEnd {
    /// For each partition, the first position of the group, and how many of the group's messages are durable.
    pub placed: Vec<(u64, u64)>,
    /// Why the messages behind the durable ones failed.
    pub failure: Option<ProduceError>,
}

/// The answer to a call: the places of its messages in their group, and the outcome of the group.
pub(crate) type Answer = (Seats, Arc<GroupEnd>);

/// A call of a producer.
#[derive(Debug)]
pub(crate) struct Call {
    pub topic: Arc<str>,
    pub partitions: u32,
    /// The largest frame that the topic takes.
    pub bytes_max: usize,
    pub frames: Frames,
    pub answer: oneshot::Sender<Answer>,
}

/// A caller whose messages are part of a group.
#[derive(Debug)]
pub(crate) struct Caller {
    seats: Seats,
    answer: oneshot::Sender<Answer>,
}

impl Caller {
    /// Sends the outcome of the group to the caller.
    pub fn tell(self, end: &Arc<GroupEnd>) {
        // A caller that went away has dropped its end of the channel.
        let _gone = self.answer.send((self.seats, Arc::clone(end)));
    }
}

impl Gather for Waiting {
    type Call = Call;

    fn admit(&mut self, call: Call) {
        let seats = self.add(&call.topic, call.partitions, call.bytes_max, &call.frames);
        self.callers.push(Caller { seats, answer: call.answer });
    }
}

/// The places of a call's messages in their group, in the order of the call. Kept small, as there is one per message.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// Partition, and place among the group's messages of that partition; [`REFUSED`] for a message that was not
    /// taken.
    places: Vec<(u32, u32)>,
    /// The reason for each message that was not taken.
    refused: VecDeque<ProduceError>,
}

const REFUSED: u32 = u32::MAX;

impl Seats {
    /// The outcome of each message of the call.
    pub fn results(mut self, end: &GroupEnd) -> Vec<Result<u64, ProduceError>> {
        let unknown = || ProduceError::Unavailable("it was not written".to_owned());
        let mut results = Vec::with_capacity(self.places.len());
        for (partition, place) in self.places {
            results.push(match end.placed.get(partition as usize) {
                Some((base, durable)) if u64::from(place) < *durable => Ok(base + u64::from(place)),
                Some(_) => Err(end.failure.clone().unwrap_or_else(unknown)),
                None => Err(self.refused.pop_front().unwrap_or_else(unknown)),
            });
        }
        results
    }
}

/// The group that gathers.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    partitions: Vec<Queued>,
    touched: Vec<u32>,
    pub callers: Vec<Caller>,
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Queued {
    batches: Vec<Laid>,
    count: u64,
}

impl Waiting {
    /// True if no call is in the group.
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    /// Lays out the frames behind those that already wait.
    fn add(&mut self, topic: &str, partitions: u32, bytes_max: usize, frames: &Frames) -> Seats {
        self.partitions.resize_with(partitions as usize, Queued::default);
        // A vector that grows step by step would copy the batch once more than necessary.
        let share = (frames.bytes() / partitions as usize).clamp(SHARE_BYTES_MIN, BATCH_BYTES_MAX);
        let mut seats = Seats { places: Vec::with_capacity(frames.len()), refused: VecDeque::new() };
        for (partition, frame) in frames.iter() {
            if frame.len() <= bytes_max && partition < partitions {
                let place = self.put(partition, frame, share);
                seats.places.push((partition, place));
                continue;
            }
            seats.places.push((REFUSED, 0));
            seats.refused.push_back(match frame.len() > bytes_max {
                true => ProduceError::TooLarge { topic: topic.to_owned(), bytes: frame.len(), bytes_max },
                false => ProduceError::UnknownTopic(format!("{topic}/{partition}")),
            });
        }
        for (partition, _) in &seats.places {
            let queued = self.partitions.get_mut(*partition as usize);
            queued.and_then(|queued| queued.batches.last_mut()).map(Laid::sum);
        }
        seats
    }

    fn put(&mut self, partition: u32, frame: &[u8], share: usize) -> u32 {
        self.bytes += frame.len() as u64;
        let queued = &mut self.partitions[partition as usize];
        if queued.count == 0 {
            self.touched.push(partition);
        }
        let full =
            |batch: &Laid| batch.payload_bytes() > 0 && batch.payload_bytes() + frame.len() > BATCH_BYTES_MAX;
        if queued.batches.last().is_none_or(full) {
            // Until the group is taken, the base is an offset from the first position of the group.
            let mut batch = Laid::new(partition, queued.count, Kind::Messages);
            batch.bytes.reserve_exact(share + frame.len());
            queued.batches.push(batch);
        }
        // The place fits into 32 bits: a group has at most GROUP_KIB_MAX, or is a single larger call.
        let place = queued.count as u32;
        if let Some(batch) = queued.batches.last_mut() {
            put_frame(&mut batch.bytes, frame, batch.count);
            batch.count += 1;
            queued.count += 1;
        }
        place
    }

    /// Gives the batches their positions, and returns them with the outcome that the group has if everything
    /// succeeds.
    pub fn lay_out(&mut self, next: impl Fn(u32) -> u64) -> (Vec<Laid>, Vec<(u64, u64)>) {
        let mut ends = vec![(0, 0); self.partitions.len()];
        let mut batches = Vec::with_capacity(self.touched.len());
        self.touched.sort_unstable();
        for partition in self.touched.drain(..) {
            let base = next(partition);
            let queued = std::mem::take(&mut self.partitions[partition as usize]);
            ends[partition as usize] = (base, queued.count);
            batches.extend(queued.batches.into_iter().map(|mut batch| {
                batch.base += base;
                batch
            }));
        }
        (batches, ends)
    }
}

/// Upper bound of the bytes that the group takes in the log, for the check against the topic's bound.
pub(crate) fn group_bytes(waiting: &Waiting) -> u64 {
    let batches: usize = waiting.partitions.iter().map(|queued| queued.batches.len()).sum();
    waiting.bytes + (batches * (BATCH_HEADER + 8)) as u64
}
