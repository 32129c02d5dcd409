//! What a topic's writer thread does with the messages that wait: the group commit.
//!
//! In: [`Waiting`], taken as a whole. Out: positions to callers, batches to readers, files of old segments for reuse.
//! The order keeps the promise: old segments are freed, the group is written and synced, readers see it, callers are
//! answered. If the group does not fit below the topic's size bound, and unsettled messages are in the way, the whole
//! group is refused.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::index::SegmentIndex;
use super::log::{TopicLog, Writer};
use super::stored::Stored;
use super::waiting::{GroupEnd, Waiting, group_bytes};
use super::{age, retention};
use crate::contract::{BrokerError, ProduceError};
use crate::embedded::entrance::Entrance;
use crate::embedded::failure::Failure;
use crate::embedded::lock;
use crate::embedded::segment::{BATCH_HEADER, Laid, Placed};
use crate::embedded::writer::Drive;

impl TopicLog {
    /// Writes a group, shows it to readers, answers its callers, and gives its room to callers in `entrance`.
    fn commit(&self, writer: &mut Writer, mut waiting: Waiting, kib: usize) {
        let callers = std::mem::take(&mut waiting.callers);
        let end = Arc::new(self.write(writer, waiting));
        // Room is given back before the callers are answered, so that a caller that returns at once finds room.
        let mut last = 0;
        self.queue.change(|entrance| {
            last = entrance.last();
            entrance.written(kib)
        });
        callers.into_iter().for_each(|caller| caller.tell(&end));
        if let Some(ProduceError::Unavailable(_)) = &end.failure {
            self.refuse_waiting(&end, last);
        }
        if self.host.flaw(|flaws| flaws.acknowledge_before_sync)
            && let Err(failure) = writer.appender.sync()
        {
            self.stop(failure.to_broker_error());
        }
    }

    /// Refuses all calls that were under way when a group failed, that is, all that entered up to `last`. A part of
    /// the failed group may be on the disk. If a later message of the same producer were acknowledged now, the
    /// producer would send the failed one again, behind its successors (P2). Calls that enter after `last` are not
    /// refused: their producers have heard of the failure or had nothing under way; and since producers return at
    /// once, refusing would never end.
    fn refuse_waiting(&self, failed: &GroupEnd, last: u64) {
        loop {
            let mut taken = None;
            self.queue.change(|entrance| {
                taken = entrance.take_up_to(last);
                false
            });
            let Some((waiting, kib)) = taken else { return };
            let placed = vec![(0, 0); self.topic.partitions as usize];
            let end = Arc::new(GroupEnd { placed, failure: failed.failure.clone() });
            self.queue.change(|entrance| entrance.written(kib));
            waiting.callers.into_iter().for_each(|caller| caller.tell(&end));
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
        match failure {
            None => self.refusal.end(&self.topic.name),
            Some(failure) => {
                end.failure = Some(failure.to_produce_error());
                for batch in &batches[written.len()..] {
                    end.placed[batch.stream as usize].1 -= u64::from(batch.count);
                }
                self.refuse(&failure);
            }
        }
        self.publish(writer, written, batches);
        end
    }

    /// Notes a failed write: the log refuses for now if the failure may pass, and stops for good otherwise.
    fn refuse(&self, failure: &Failure) {
        match failure.is_harmless() {
            true => self.refusal.begin(&self.topic.name, failure),
            false => self.stop(failure.to_broker_error()),
        }
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
        // The index follows after the tails: a reader that finds a batch in the index before the tail knows its end
        // would ask for a position beyond the end. The index comes before the tails are trimmed, so that a batch that
        // leaves memory is found on the disk.
        {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            for placed in &written {
                index.add(&placed.segment, &placed.header, placed.offset);
            }
            // An empty segment is entered too. A segment that the index does not know is in no backup and is never
            // freed; and once its predecessor is freed, the log has a hole on either side of it.
            index.begin(writer.appender.active());
        }
        self.trim(writer);
    }

    /// Frees the segments that may go, and begins another segment if this one has been in use for too long. The
    /// answer is the reason why `incoming` bytes cannot be taken, if there is one.
    fn make_room(&self, writer: &mut Writer, incoming: u64) -> Option<ProduceError> {
        if self.groups.stands_still() {
            // While a backup is made nothing is freed, and the topic may grow beyond its bound.
            return None;
        }
        let spec = self.spec();
        let (now_ms, uptime_ms) = (self.host.now_ms(), self.host.uptime_ms());
        let believed = writer.age.believed(now_ms, uptime_ms, spec.retention_ms.unwrap_or(u64::MAX));
        let (plan, bytes, segments, is_aged) = {
            let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
            let bytes = index.bytes();
            let is_aged = |newest: &SegmentIndex| {
                let aged = |age| age::is_aged(newest.oldest_ms, newest.newest_ms, now_ms, age);
                incoming > 0 && newest.bytes > 0 && spec.retention_ms.is_some_and(aged)
            };
            let is_aged = index.segments.back().is_some_and(is_aged);
            let is_young = |(now_ms, age): (u64, u64)| {
                let oldest = index.segments.front().map_or(0, |oldest| oldest.newest_ms);
                oldest <= now_ms && oldest.saturating_add(age) >= now_ms
            };
            let oldest_is_fine = spec.retention_bytes.is_none_or(|max| bytes + incoming <= max)
                && believed.zip(spec.retention_ms).is_none_or(is_young);
            if oldest_is_fine && !is_aged {
                return None;
            }
            // While the clock is not believed, no group has been without a pipeline for too long either.
            let settled = self.groups.settled(&self.topic.name, self.topic.partitions, believed.unwrap_or(0));
            let segments = index.segments.iter();
            let plan = retention::plan(segments, bytes, incoming, &spec, believed, settled.as_deref());
            (plan, bytes, index.segments.len(), is_aged)
        };
        if let Err(failure) = self.free(writer, plan.free, segments, incoming) {
            self.refuse(&failure);
            return Some(failure.to_produce_error());
        }
        if is_aged && plan.free < segments {
            // On a full disk no segment is begun, and the next messages go into the old one.
            match self.begin_segment(writer) {
                Err(failure) if !failure.is_harmless() => {
                    self.refuse(&failure);
                    return Some(failure.to_produce_error());
                }
                _ => {}
            }
        }
        let bytes_max = spec.retention_bytes.filter(|_| plan.full)?;
        Some(ProduceError::Full { topic: self.topic.name.clone(), bytes, bytes_max })
    }

    /// Begins the next segment early. Positions continue, because the new segment's table contains them.
    fn begin_segment(&self, writer: &mut Writer) -> Result<(), Failure> {
        writer.appender.roll_early()?;
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.begin(writer.appender.active());
        Ok(())
    }

    /// Frees the oldest segments. If all of them are to go, a new segment is made before the last one goes, after the
    /// others have given their space back, because the disk may be full. If no segment can be made even then, the
    /// last one stays beyond its time and takes further messages: refusing messages for which there is room would
    /// help no producer.
    fn free(&self, writer: &mut Writer, count: usize, segments: usize, incoming: u64) -> Result<(), Failure> {
        let all = count == segments && count > 0;
        self.free_oldest(writer, count - usize::from(all))?;
        if !all {
            return Ok(());
        }
        match self.begin_segment(writer) {
            Err(failure) if failure.is_harmless() && self.is_within_bound(incoming) => {
                self.upkeep.put_off(&self.topic.name, &failure, self.host.uptime_ms());
                Ok(())
            }
            begun => begun.and_then(|()| self.free_oldest(writer, 1)),
        }
    }

    /// True if the topic's size bound has room for `incoming` bytes.
    fn is_within_bound(&self, incoming: u64) -> bool {
        let bytes = self.index.read().unwrap_or_else(PoisonError::into_inner).bytes();
        self.spec().retention_bytes.is_none_or(|bytes_max| bytes + incoming <= bytes_max)
    }

    fn free_oldest(&self, writer: &mut Writer, count: usize) -> Result<(), Failure> {
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
        match writer.appender.recycle() {
            // The files are freed later; no producer waits for that.
            Err(failure) if failure.is_harmless() => {
                self.upkeep.put_off(&self.topic.name, &failure, self.host.uptime_ms());
                Ok(())
            }
            freed => freed,
        }
    }
}

impl Drive for TopicLog {
    fn commit_once(&self) {
        let mut writer = lock(&self.writer);
        let (waiting, kib) = self.queue.take(Entrance::take);
        match waiting.is_empty() {
            true => {
                self.make_room(&mut writer, 0);
                self.trim(&mut writer);
                // Producers may stay away while health reports a refusal, so an idle log checks itself whether it can
                // write again.
                if self.refusal.now().is_some() && writer.appender.can_roll().is_ok() {
                    self.refusal.end(&self.topic.name);
                }
            }
            false => self.commit(&mut writer, waiting, kib),
        }
        if self.stopped.get().is_some() {
            return;
        }
        match writer.appender.recycle().and_then(|()| writer.appender.prepare()) {
            Err(failure) if failure.is_harmless() => {
                self.upkeep.put_off(&self.topic.name, &failure, self.host.uptime_ms());
            }
            Err(failure) => self.stop(failure.to_broker_error()),
            Ok(()) => {}
        }
    }

    fn finish(&self) {
        let mut writer = lock(&self.writer);
        // Group by group, because callers that wait in `entrance` came before the close, and are admitted as room is
        // freed.
        loop {
            let (waiting, kib) = self.queue.take(Entrance::take);
            if waiting.is_empty() {
                break;
            }
            self.commit(&mut writer, waiting, kib);
        }
        if self.stopped.get().is_none() {
            // From here on a bad batch before this end counts as damage and never as a torn tail.
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
        // Clearing drops the senders of the answers, so that every caller that waits gets an error.
        self.queue.change(|entrance| {
            entrance.clear();
            false
        });
    }
}
