//! A topic's group commit: what its writer does with what waits.
//!
//! In: [`Waiting`], taken whole. Out: positions to callers, batches to readers, old segments to be used again. The
//! order is the promise: room is made, the group is written and synced, readers see it, callers are told. A group that
//! would pass the topic's bound is refused as a whole, and only if what stands in the way is not settled.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::appender::{Laid, Placed};
use super::entrance::Entrance;
use super::failure::Failure;
use super::lock;
use super::retention;
use super::segment::BATCH_HEADER;
use super::stored::Stored;
use super::topic_log::{TopicLog, Writer};
use super::waiting::{GroupEnd, Waiting, group_bytes};
use super::writer::Drive;
use crate::contract::{BrokerError, ProduceError};

impl TopicLog {
    /// Writes a group, lets readers see it, tells its callers, and gives its room to those who wait outside.
    fn commit(&self, writer: &mut Writer, mut waiting: Waiting, kib: usize) {
        let callers = std::mem::take(&mut waiting.callers);
        let end = Arc::new(self.write(writer, waiting));
        // Before callers are told: one that comes back at once finds room.
        self.queue.change(|entrance| entrance.written(kib));
        callers.into_iter().for_each(|caller| caller.tell(&end));
        if self.host.flaw(|flaws| flaws.acknowledge_before_sync)
            && let Err(failure) = writer.appender.sync()
        {
            self.stop(failure.to_broker_error());
        }
    }

    fn write(&self, writer: &mut Writer, mut waiting: Waiting) -> GroupEnd {
        let incoming = group_bytes(&waiting);
        let failure = match self.stopped.get() {
            Some(why) => Some(ProduceError::Unavailable(why.to_string())),
            None => self.make_room(writer, incoming),
        };
        let table = &writer.appender.table;
        let (mut batches, placed) =
            waiting.lay_out(|partition| table.get(&partition).map_or(0, |ends| ends.next));
        let mut end = GroupEnd { placed, failure };
        if end.failure.is_some() {
            end.placed.iter_mut().for_each(|(_, durable)| *durable = 0);
            return end;
        }
        let (written, failure) = writer.appender.write(&mut batches, self.host.now_ms());
        if let Some(failure) = failure {
            end.failure = Some(failure.to_produce_error());
            for batch in &batches[written.len()..] {
                end.placed[batch.stream as usize].1 -= u64::from(batch.count);
            }
            if !failure.is_harmless() {
                self.stop(failure.to_broker_error());
            }
        }
        self.publish(writer, written, batches);
        end
    }

    fn publish(&self, writer: &mut Writer, written: Vec<Placed>, batches: Vec<Laid>) {
        for (placed, batch) in written.iter().zip(batches) {
            let partition = batch.stream;
            let held = batch.bytes.capacity();
            let frames = BATCH_HEADER..BATCH_HEADER + placed.header.payload_bytes as usize;
            let stored = Stored::new(&placed.header, Bytes::from(batch.bytes).slice(frames));
            let mut tail = lock(&self.tails[partition as usize]);
            tail.end = stored.next;
            tail.batches.push_back(stored);
            let waiting = std::mem::take(&mut tail.waiting);
            drop(tail);
            waiting.into_iter().for_each(|(_, waker)| waker.wake());
            writer.in_tails.push_back((partition, held));
            writer.tail_bytes += held;
        }
        // Behind the tails: a reader that found a batch here before its tail has an end behind it would look for the
        // position beyond the end. Before tails are cut, so that what leaves memory is found on the disk.
        {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            for placed in &written {
                index.add(&placed.segment, &placed.header, placed.offset);
            }
        }
        while writer.tail_bytes > self.tail_bytes_max
            && let Some((partition, held)) = writer.in_tails.pop_front()
        {
            lock(&self.tails[partition as usize]).batches.pop_front();
            writer.tail_bytes -= held;
        }
    }

    /// Frees what may go. An answer says why `incoming` bytes cannot be taken.
    fn make_room(&self, writer: &mut Writer, incoming: u64) -> Option<ProduceError> {
        let spec = self.spec();
        let (plan, bytes, segments) = {
            let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
            let bytes = index.bytes();
            let oldest_is_fine = spec.retention_bytes.is_none_or(|max| bytes + incoming <= max)
                && spec.retention_ms.is_none_or(|age| {
                    let oldest = index.segments.front().map_or(0, |oldest| oldest.newest_ms);
                    oldest.saturating_add(age) >= self.host.now_ms()
                });
            if oldest_is_fine {
                return None;
            }
            let settled = self.groups.settled(&self.topic.name, self.topic.partitions, self.host.now_ms());
            let plan = retention::plan(
                index.segments.iter(),
                bytes,
                incoming,
                &spec,
                self.host.now_ms(),
                settled.as_deref(),
            );
            (plan, bytes, index.segments.len())
        };
        if let Err(failure) = self.free(writer, plan.free, segments) {
            if !failure.is_harmless() {
                self.stop(failure.to_broker_error());
            }
            return Some(failure.to_produce_error());
        }
        let bytes_max = spec.retention_bytes.filter(|_| plan.full)?;
        Some(ProduceError::Full { topic: self.topic.name.clone(), bytes, bytes_max })
    }

    fn free(&self, writer: &mut Writer, count: usize, segments: usize) -> Result<(), Failure> {
        if count == segments && count > 0 {
            // Positions go on where they are: the next segment's table says so.
            writer.appender.roll(0)?;
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            index.begin(writer.appender.active());
        }
        for _ in 0..count {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            let Some(oldest) = index.segments.pop_front() else {
                break;
            };
            let starts = index.starts();
            drop(index);
            for (partition, start) in starts.into_iter().enumerate() {
                lock(&self.tails[partition]).start = start;
                if let Some(ends) = writer.appender.table.get_mut(&(partition as u32)) {
                    ends.start = start;
                }
            }
            writer.appender.retire(oldest.segment);
        }
        writer.appender.recycle()
    }
}

impl Drive for TopicLog {
    fn commit_once(&self) {
        let mut writer = lock(&self.writer);
        let (waiting, kib) = self.queue.take(Entrance::take);
        match waiting.is_empty() {
            true => {
                self.make_room(&mut writer, 0);
            }
            false => self.commit(&mut writer, waiting, kib),
        }
        if self.stopped.get().is_some() {
            return;
        }
        let looked_after = writer.appender.recycle().and_then(|()| writer.appender.prepare());
        if let Err(failure) = looked_after
            && !failure.is_harmless()
        {
            self.stop(failure.to_broker_error());
        }
    }

    fn finish(&self) {
        let mut writer = lock(&self.writer);
        // A group at a time, with those who wait outside: they came before the close.
        loop {
            let (waiting, kib) = self.queue.take(Entrance::take);
            if waiting.is_empty() {
                break;
            }
            self.commit(&mut writer, waiting, kib);
        }
        if self.stopped.get().is_none() {
            // From here on nothing is a tail: whatever is bad or missing before this end is damage.
            if let Err(failure) = writer.appender.record_close() {
                tracing::warn!(topic = %self.topic.name, %failure, "the log was not marked as closed");
            }
        }
        writer.appender.finish();
        drop(writer);
        self.stop(BrokerError::Closed);
    }

    fn wait(&self, gather: Duration) -> bool {
        self.queue.wait(gather)
    }

    fn abandon(&self) {
        self.queue.close();
        self.stop(BrokerError::Stopped("its writer ended unexpectedly".to_owned()));
        // Whoever waits is told by the end of its channel.
        self.queue.change(|entrance| {
            entrance.clear();
            false
        });
    }
}
