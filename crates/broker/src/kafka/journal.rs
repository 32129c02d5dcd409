//! Journals on Kafka: partition p of a topic of our own stands beside source partition p (BRK-6).
//!
//! Kafka cannot append on condition, so what counts is decided by reading back. A journal is never compacted: what
//! counts depends on records that compaction would drop. It is cut by deleting records, and is otherwise kept for ever.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;

use super::admin::{Admin, check_name};
use super::clients::Clients;
use super::feed::{Feed, Item};
use super::lock;
use super::produce::KafkaProducer;
use super::wire::AROUND;
use crate::contract::{
    AppendError, BrokerError, Journal, JournalName, JournalPage, LogKind, ProduceError, Topic, TopicSpec,
};

/// Bytes read ahead of who reads a journal.
const AHEAD_BYTES: usize = 4 << 20;

/// How often a journal may be cut while a page of it is read.
const CUTS_MAX: u32 = 10;

/// A journal's topic.
pub(crate) fn topic_of(name: &JournalName) -> Result<String, BrokerError> {
    let kind = match name.kind {
        LogKind::Journal => "journal",
        LogKind::Hold => "hold",
    };
    let topic = format!("_keylane.{kind}.{}.{}", name.group, name.topic);
    check_name(&topic)?;
    Ok(topic)
}

/// One partition's journal.
pub(crate) struct KafkaJournal {
    pub(crate) admin: Arc<Admin>,
    pub(crate) producer: Arc<KafkaProducer>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) name: JournalName,
    pub(crate) topic: String,
    pub(crate) ahead: Mutex<Ahead>,
}

/// What was read ahead.
#[derive(Default)]
pub(crate) struct Ahead {
    feed: Option<Feed>,
    /// Behind the last record that the feed gave.
    next: u64,
    records: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Ahead {
    /// Makes sure that what comes next is at `from` or behind it, with nothing left out.
    fn seek(&mut self, journal: &KafkaJournal, from: u64) -> Result<(), BrokerError> {
        while self.records.front().is_some_and(|(position, _)| *position < from) {
            self.pop();
        }
        let first = self.records.front().map_or(self.next, |(position, _)| *position);
        if self.feed.is_some() && first == from {
            return Ok(());
        }
        *self = Ahead::default();
        self.feed = Some(Feed::start(&journal.clients, &journal.topic, journal.name.partition, from)?);
        self.next = from;
        Ok(())
    }

    fn pop(&mut self) -> Option<(u64, Bytes)> {
        let popped = self.records.pop_front();
        self.bytes -= popped.as_ref().map_or(0, |(_, record)| record.len());
        popped
    }

    /// Reads on. Pending if nothing more is there now, or enough was read.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BrokerError>> {
        let Some(feed) = self.feed.as_mut().filter(|_| self.bytes < AHEAD_BYTES) else {
            return Poll::Pending;
        };
        match feed.poll_next(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => {
                *self = Ahead::default();
                Poll::Ready(Err(error))
            }
            Poll::Ready(Ok(Item::End(_))) => Poll::Ready(Ok(())),
            Poll::Ready(Ok(Item::Record(record))) => {
                let (position, bytes) = (record.offset(), record.payload().unwrap_or_default());
                if position >= self.next {
                    self.records.push_back((position, Bytes::copy_from_slice(bytes)));
                    self.bytes += bytes.len();
                    self.next = position + 1;
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl KafkaJournal {
    /// Where it begins and ends; nothing, if it was never written.
    async fn ends(&self) -> Result<Option<(u64, u64)>, BrokerError> {
        if self.admin.known(&self.topic).is_none() && self.admin.topic(&self.topic).await?.is_none() {
            return Ok(None);
        }
        match self.admin.ends(&self.topic, vec![self.name.partition]).await {
            Ok(ends) => Ok(ends.first().map(|ends| (ends.start, ends.end))),
            Err(BrokerError::UnknownTopic(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A journal has as many partitions as its topic had when it was made; one that was added since has none.
    pub(crate) async fn check_partition(&self) -> Result<(), BrokerError> {
        let there = match self.admin.known(&self.topic) {
            Some(there) => Some(there),
            None => self.admin.topic(&self.topic).await?,
        };
        match there {
            Some(there) if self.name.partition >= there.partitions => Err(BrokerError::Invalid(format!(
                "partition {} of topic {} was added: {} is kept for {} partitions, and keys have moved between them; \
                 make a new topic, and let this one be handled to its end",
                self.name.partition, self.name.topic, self.topic, there.partitions
            ))),
            _ => Ok(()),
        }
    }

    /// Makes its topic, with as many partitions and copies as the source has.
    async fn make(&self) -> Result<(), BrokerError> {
        if let Some(there) = self.admin.known(&self.topic) {
            return self.follow(&there).await;
        }
        let source = self.admin.existing(&self.name.topic).await?;
        let spec = TopicSpec { partitions: source.partitions, ..source.spec };
        self.admin.make(&self.topic, &spec, &settings_of(&spec)).await
    }

    /// One that is there is kept as safe as its source has become since: whoever went from one broker to a cluster has
    /// raised that by config. Not above the copies that there are, or nothing could be appended any more.
    async fn follow(&self, there: &Topic) -> Result<(), BrokerError> {
        let Some(source) = self.admin.known(&self.name.topic) else {
            return Ok(());
        };
        let wanted = source.spec.min_insync.min(there.spec.replicas);
        if there.spec.min_insync >= wanted {
            return Ok(());
        }
        let spec = TopicSpec { min_insync: wanted, ..source.spec };
        self.admin.alter(&self.topic, &settings_of(&spec)).await?;
        tracing::info!(topic = self.topic, copies = wanted, "a journal asks for as many copies as its topic");
        self.admin.topic(&self.topic).await.map(drop)
    }

    /// One try at a page.
    async fn page(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        let Some((start, end)) = self.ends().await? else {
            return Ok(JournalPage { start: 0, end: 0, records: Vec::new() });
        };
        let from = from.max(start);
        let mut page = JournalPage { start, end, records: Vec::new() };
        let mut bytes = 0;
        // All below `end` is there, so that waiting for it is not waiting for somebody to write.
        while page.records.last().map_or(from, |(position, _)| position + 1) < end && bytes < bytes_max {
            let at = page.records.last().map_or(from, |(position, _)| position + 1);
            let next = poll_fn(|cx| {
                let mut ahead = lock(&self.ahead);
                if let Err(error) = ahead.seek(self, at) {
                    return Poll::Ready(Err(error));
                }
                loop {
                    if let Some(record) = ahead.pop() {
                        return Poll::Ready(Ok(record));
                    }
                    match ahead.poll_more(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Ready(Ok(())) => {}
                    }
                }
            });
            let (position, record) = next.await?;
            bytes += record.len();
            page.records.push((position, record));
        }
        Ok(page)
    }
}

/// Settings of a journal beside a topic like this.
fn settings_of(spec: &TopicSpec) -> [(&'static str, String); 7] {
    let forever = || "-1".to_owned();
    [
        ("cleanup.policy", "delete".to_owned()),
        ("retention.ms", forever()),
        ("retention.bytes", forever()),
        ("segment.bytes", (16 << 20).to_string()),
        ("min.insync.replicas", spec.min_insync.to_string()),
        ("max.message.bytes", (2 * spec.message_bytes_max + AROUND).to_string()),
        ("message.timestamp.type", "LogAppendTime".to_owned()),
    ]
}

#[async_trait]
impl Journal for KafkaJournal {
    async fn append(&self, record: Bytes, expect_end: Option<u64>) -> Result<u64, AppendError> {
        if expect_end.is_some() {
            return Err(AppendError::Unconditional);
        }
        let unknown = |text: String| AppendError::Unknown(text);
        match self.make().await {
            Ok(()) => {}
            Err(BrokerError::Unavailable(text)) => return Err(unknown(text)),
            Err(error) => return Err(AppendError::Stopped(error.to_string())),
        }
        let answer = self.producer.append(&self.topic, self.name.partition, &record).await;
        match answer.ok().and_then(|mut results| results.pop()) {
            Some(Ok(position)) => Ok(position),
            Some(Err(ProduceError::Unavailable(text))) => Err(unknown(text)),
            Some(Err(error)) => Err(AppendError::Stopped(error.to_string())),
            None => Err(unknown("the producer ended".to_owned())),
        }
    }

    fn conditional(&self) -> bool {
        false
    }

    async fn read(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        let mut tries = 0;
        loop {
            match self.page(from, bytes_max).await {
                // Whoever owns it by now has cut it while it was read: what is left tells all.
                Err(BrokerError::OutOfRange { .. }) if tries < CUTS_MAX => tries += 1,
                other => return other,
            }
        }
    }

    async fn beyond(&self, end: u64) -> Result<(), BrokerError> {
        self.make().await?;
        let from = match self.ends().await? {
            Some((_, now)) if now > end => return Ok(()),
            Some((_, now)) => now,
            None => 0,
        };
        let mut at = from;
        poll_fn(|cx| {
            let mut ahead = lock(&self.ahead);
            if let Err(error) = ahead.seek(self, at) {
                return Poll::Ready(Err(error));
            }
            loop {
                // What is below `end` was not asked for, but has to come first.
                while ahead.records.front().is_some_and(|(position, _)| *position < end) {
                    at = ahead.pop().map_or(at, |(position, _)| position + 1);
                }
                if !ahead.records.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                match ahead.poll_more(cx) {
                    Poll::Pending => return Poll::Pending,
                    // Cut meanwhile, so that something has landed.
                    Poll::Ready(Err(BrokerError::OutOfRange { .. })) => return Poll::Ready(Ok(())),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) => {}
                }
            }
        })
        .await
    }

    async fn cut(&self, below: u64) -> Result<(), BrokerError> {
        let Some((start, end)) = self.ends().await? else {
            return Ok(());
        };
        match below.min(end) {
            below if below <= start => Ok(()),
            below => self.admin.cut(&self.topic, self.name.partition, below).await,
        }
    }
}
