//! Messages that wait for the next group commit, laid out as they come.
//!
//! A caller that finds room copies its frames behind those that wait already, under a short lock, while the last group
//! is being synced: so layout costs the writer's thread nothing. Who finds none waits outside (`entrance`). Positions are given out only when the group is taken: until
//! then a message knows its partition and its place behind the others of the group.

use std::collections::VecDeque;
use std::sync::Arc;

use keylane_core::{Frames, message::put_frame};
use tokio::sync::oneshot;

use crate::contract::ProduceError;
use crate::embedded::entrance::Gather;
use crate::embedded::segment::{BATCH_HEADER, Kind, Laid};

/// A batch has at most about this many bytes: what a reader gets at once must stay small beside its buffers.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// A batch begins with room for so much: a few messages of usual size.
const SHARE_BYTES_MIN: usize = 1 << 10;
/// A group is at most so large, and what was admitted and is not written yet is so in all; more callers wait outside.
/// Bounds memory, and how long one group commit can take.
pub(crate) const GROUP_KIB_MAX: usize = 64 << 10;

/// What became of a group.
#[derive(Debug)]
pub(crate) struct GroupEnd {
    /// For each partition, where the group's messages begin and how many of them are durable.
    pub placed: Vec<(u64, u64)>,
    /// Why those behind are not.
    pub failure: Option<ProduceError>,
}

/// What a call is told: where its messages are in their group, and what became of that.
pub(crate) type Answer = (Seats, Arc<GroupEnd>);

/// A call that wants messages written.
#[derive(Debug)]
pub(crate) struct Call {
    pub topic: Arc<str>,
    pub partitions: u32,
    /// The largest frame that is taken.
    pub bytes_max: usize,
    pub frames: Frames,
    pub answer: oneshot::Sender<Answer>,
}

/// A call that is part of a group.
#[derive(Debug)]
pub(crate) struct Caller {
    seats: Seats,
    answer: oneshot::Sender<Answer>,
}

impl Caller {
    /// Tells it what became of its group.
    pub fn tell(self, end: &Arc<GroupEnd>) {
        // One that went away does not want to know.
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

/// Where the messages of a call are in their group, in the order given. Small, because there are as many as messages.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// Partition, and place behind the first of the group; [`REFUSED`] for one that was not taken.
    places: Vec<(u32, u32)>,
    /// Why, for each that was not taken.
    refused: VecDeque<ProduceError>,
}

const REFUSED: u32 = u32::MAX;

impl Seats {
    /// What became of each message.
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

/// Messages that wait.
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
    /// True if nobody waits.
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    /// Adds the frames behind what waits.
    fn add(&mut self, topic: &str, partitions: u32, bytes_max: usize, frames: &Frames) -> Seats {
        self.partitions.resize_with(partitions as usize, Queued::default);
        // Grown step by step, a batch would be copied once more than it need be.
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
            // The base is counted from the group's until the group is taken.
            let mut batch = Laid::new(partition, queued.count, Kind::Messages);
            batch.bytes.reserve_exact(share + frame.len());
            queued.batches.push(batch);
        }
        // Fits: a group has at most GROUP_KIB_MAX, or is one call that is larger.
        let place = queued.count as u32;
        if let Some(batch) = queued.batches.last_mut() {
            put_frame(&mut batch.bytes, frame, batch.count);
            batch.count += 1;
            queued.count += 1;
        }
        place
    }

    /// The batches of the group, at their positions, and the group's end as it will be if all goes well.
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

/// Bytes that a batch of such frames takes at most, for bounds.
pub(crate) fn group_bytes(waiting: &Waiting) -> u64 {
    let batches: usize = waiting.partitions.iter().map(|queued| queued.batches.len()).sum();
    waiting.bytes + (batches * (BATCH_HEADER + 8)) as u64
}
