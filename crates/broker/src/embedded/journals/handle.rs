//! Maps journals, holds and commits of the contract to streams of a journals' log, and gives access to one stream.
//!
//! The name of a stream consists of a letter (`J` a journal or hold, `C` a group's commit, `K` a known group), the
//! partition as u32, the length of the group's name as u16, the group, and the topic.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{BufMut, Bytes};

use super::log::JournalLog;
use super::streams::read_run;
use crate::contract::{AppendError, BrokerError, Commit, Journal, JournalName, JournalPage};
use crate::embedded::failure::Failure;
use crate::embedded::lock;
use crate::embedded::segment::{u32_at, u64_at};

/// Longer groups and topics are refused, because every segment begins with all names.
const NAME_BYTES_MAX: usize = 1024;

/// What a stream is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Journal,
    Commit,
    Known,
}

/// Builds the name of a stream.
pub(crate) fn stream_name(
    role: Role,
    group: &str,
    topic: &str,
    partition: u32,
) -> Result<Vec<u8>, BrokerError> {
    if group.len() > NAME_BYTES_MAX || topic.len() > NAME_BYTES_MAX {
        let text = format!("a group and a topic have at most {NAME_BYTES_MAX} bytes each");
        return Err(BrokerError::Invalid(text));
    }
    let mut name = vec![match role {
        Role::Journal => b'J',
        Role::Commit => b'C',
        Role::Known => b'K',
    }];
    name.put_u32_le(partition);
    name.put_u16_le(group.len() as u16);
    name.put_slice(group.as_bytes());
    name.put_slice(topic.as_bytes());
    Ok(name)
}

/// Splits the name of a stream into role, group, topic and partition.
pub(crate) fn parse_name(name: &[u8]) -> Option<(Role, &str, &str, u32)> {
    let role = match name.first()? {
        b'J' => Role::Journal,
        b'C' => Role::Commit,
        b'K' => Role::Known,
        _ => return None,
    };
    let group_bytes = usize::from(u16::from_le_bytes([*name.get(5)?, *name.get(6)?]));
    let group = std::str::from_utf8(name.get(7..7 + group_bytes)?).ok()?;
    let topic = std::str::from_utf8(&name[7 + group_bytes..]).ok()?;
    Some((role, group, topic, u32_at(name, 1)))
}

/// A commit as a record: the position as u64, then the metadata.
pub(crate) fn commit_record(commit: &Commit) -> Bytes {
    let mut record = Vec::with_capacity(8 + commit.metadata.len());
    record.put_u64_le(commit.position);
    record.put_slice(&commit.metadata);
    record.into()
}

/// Reads a commit from its record. A record that is too short means that there is no commit.
pub(crate) fn parse_commit(record: &Bytes) -> Option<Commit> {
    (record.len() >= 8).then(|| Commit { position: u64_at(record, 0), metadata: record.slice(8..) })
}

/// The last record of each stream with this role.
pub(crate) fn latest(log: &JournalLog, role: Role) -> Result<Vec<(Vec<u8>, Bytes)>, Failure> {
    let streams = lock(&log.streams);
    let mut found = Vec::new();
    for (number, stream) in streams.iter() {
        let wanted = parse_name(&stream.name).is_some_and(|(other, ..)| other == role);
        if !wanted || stream.next == stream.start {
            continue;
        }
        for (run, segment) in streams.runs(number, stream.next - 1, 0) {
            if run.lost {
                // The commit can be written anew, because the group's journal says how far the group is.
                tracing::warn!("what is known of a group was lost, and a repair has skipped it");
                continue;
            }
            let last = read_run(&run, &segment)?.pop();
            found.extend(last.map(|(_, record)| (stream.name.clone(), record)));
        }
    }
    Ok(found)
}

/// The numbers of all streams of a group and topic in this log.
pub(crate) fn streams_of(log: &JournalLog, group: &str, topic: &str) -> Vec<u32> {
    let streams = lock(&log.streams);
    let theirs = |name: &[u8]| parse_name(name).is_some_and(|(_, g, t, _)| (g, t) == (group, topic));
    streams.iter().filter(|(_, stream)| theirs(&stream.name)).map(|(number, _)| number).collect()
}

/// One journal or hold, as the contract has it.
pub(crate) struct JournalHandle {
    log: Arc<JournalLog>,
    stream: u32,
}

impl JournalHandle {
    pub fn open(log: &Arc<JournalLog>, name: &JournalName) -> Result<JournalHandle, BrokerError> {
        let name = stream_name(Role::Journal, &name.group, &name.topic, name.partition)?;
        let stream = lock(&log.streams).number(&name);
        Ok(JournalHandle { log: Arc::clone(log), stream })
    }
}

#[async_trait]
impl Journal for JournalHandle {
    async fn append(&self, record: Bytes, expect_end: Option<u64>) -> Result<u64, AppendError> {
        self.log.append(self.stream, record, expect_end).await
    }

    fn conditional(&self) -> bool {
        true
    }

    async fn read(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        let (start, end, from, runs) = {
            let streams = lock(&self.log.streams);
            let (start, end) = streams.get(self.stream).map_or((0, 0), |stream| (stream.start, stream.next));
            let from = from.max(start);
            let runs = match from < end {
                true => streams.runs(self.stream, from, bytes_max),
                false => Vec::new(),
            };
            (start, end, from, runs)
        };
        let mut page = JournalPage { start, end, records: Vec::new() };
        if runs.is_empty() {
            return Ok(page);
        }
        let read = move || {
            let mut bytes = 0;
            let mut records = Vec::new();
            for (run, segment) in runs {
                for (position, record) in read_run(&run, &segment)? {
                    if position < from {
                        continue;
                    }
                    bytes += record.len();
                    if bytes > bytes_max && !records.is_empty() {
                        return Ok(records);
                    }
                    records.push((position, record));
                }
            }
            Ok::<_, Failure>(records)
        };
        page.records = self.log.host.blocking(read).await??;
        Ok(page)
    }

    async fn beyond(&self, end: u64) -> Result<(), BrokerError> {
        let tail = {
            let streams = lock(&self.log.streams);
            streams.get(self.stream).map(|stream| stream.tail.subscribe())
        };
        let Some(mut tail) = tail else {
            return Err(BrokerError::Closed);
        };
        let reached = tail
            .wait_for(|tail| tail.end > end || tail.stopped.is_some())
            .await
            .map_err(|_| BrokerError::Closed)?;
        match &reached.stopped {
            Some(why) if reached.end <= end => Err(why.clone()),
            _ => Ok(()),
        }
    }

    async fn cut(&self, below: u64) -> Result<(), BrokerError> {
        self.log.cut(self.stream, below).await
    }
}
