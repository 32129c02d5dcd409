//! Journals on Kafka: partition p of a topic of our own stands beside source partition p (BRK-6).
//!
//! Kafka cannot append on condition, so what counts is decided by reading back. A journal is never compacted: what
//! counts depends on records that compaction would drop. It is cut by deleting records, and is otherwise kept for ever.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::admin::{Admin, check_name};
use super::clients::Clients;
use super::feed::{Feed, Item};
use super::lock;
use super::produce::KafkaProducer;
use super::wire::AROUND;
use crate::contract::{
    AppendError, BrokerError, Journal, JournalName, JournalPage, LogKind, NO_POSITION, ProduceError, Topic,
    TopicSpec,
};

/// Bytes read ahead of who reads a journal.
const AHEAD_BYTES: usize = 4 << 20;

/// How much larger a record may be than the message in it.
const BODY: usize = 2;

/// How long a record that is there may take to be read.
const READ: Duration = Duration::from_secs(10);

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

/// The topics of a group's holds and journals.
pub(crate) fn topics_of(group: &str, topic: &str) -> Result<[String; 2], BrokerError> {
    let name = |kind| JournalName { group: group.to_owned(), topic: topic.to_owned(), partition: 0, kind };
    Ok([topic_of(&name(LogKind::Hold))?, topic_of(&name(LogKind::Journal))?])
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
        if self.reading() == Some(from) {
            return Ok(());
        }
        *self = Ahead::default();
        self.feed = Some(Feed::start(&journal.clients, &journal.topic, journal.name.partition, from)?);
        self.next = from;
        Ok(())
    }

    /// Where it reads on, if it reads.
    fn reading(&self) -> Option<u64> {
        let first = self.records.front().map_or(self.next, |(position, _)| *position);
        self.feed.is_some().then_some(first)
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
            // It was there: not one that was never written.
            Err(BrokerError::UnknownTopic(topic)) => Err(BrokerError::Unavailable(format!(
                "the journal {topic} is not there any more, or not yet again"
            ))),
            Err(error) => Err(error),
        }
    }

    /// A journal has as many partitions as its topic had when it was made; one that was added since has none. A hold is
    /// made later than its journal, if ever: it is not asked about at each take-over, which would then wait for whoever
    /// is asked.
    pub(crate) async fn check_partition(&self) -> Result<(), BrokerError> {
        // What is known may be from before somebody accepted more partitions.
        let there = match self.admin.known(&self.topic) {
            Some(there) if self.name.partition < there.partitions => Some(there),
            None if self.name.kind == LogKind::Hold => None,
            _ => self.admin.topic(&self.topic).await?,
        };
        match there {
            Some(there) if self.name.partition >= there.partitions => Err(BrokerError::Invalid(format!(
                "partition {} of topic {} was added: {} is kept for {} partitions, and keys have moved between them; \
                 `keylane topics accept TOPIC` goes on",
                self.name.partition, self.name.topic, self.topic, there.partitions
            ))),
            _ => Ok(()),
        }
    }

    /// Makes its topic, with as many partitions and copies as the source has.
    async fn make(&self) -> Result<(), BrokerError> {
        if self.admin.known(&self.topic).is_none() {
            let source = self.admin.existing(&self.name.topic).await?;
            let spec = TopicSpec { partitions: source.partitions, ..source.spec };
            self.admin.make(&self.topic, &spec, &settings_of(&spec)).await?;
        }
        // Also one that another made before.
        match self.admin.known(&self.topic) {
            Some(there) => self.follow(&there).await,
            None => Ok(()),
        }
    }

    /// One that is there is kept as safe as its source has become since, and takes messages as large: whoever went from
    /// one broker to a cluster, or raised a limit, did so by config. Not above the copies that there are, or nothing
    /// could be appended any more.
    async fn follow(&self, there: &Topic) -> Result<(), BrokerError> {
        let Some(source) = self.admin.known(&self.name.topic) else {
            return Ok(());
        };
        let has = &there.spec;
        let copies = source.spec.min_insync.min(has.replicas).max(has.min_insync);
        let bytes = (BODY * source.spec.message_bytes_max).max(has.message_bytes_max);
        if (has.min_insync, has.message_bytes_max) == (copies, bytes) {
            return Ok(());
        }
        let spec = TopicSpec { min_insync: copies, message_bytes_max: bytes / BODY, ..source.spec };
        match self.admin.alter(&self.topic, &settings_of(&spec)).await {
            Ok(_) => tracing::info!(topic = self.topic, copies, "a journal follows its topic's limits"),
            // What it has served until now; whoever may not change it is not stopped by that.
            Err(error @ BrokerError::Denied { .. }) => {
                tracing::warn!(topic = self.topic, %error, "a journal does not follow its topic's limits");
                let spec = TopicSpec { min_insync: copies, message_bytes_max: bytes, ..there.spec.clone() };
                self.admin.suppose(Topic { spec, ..there.clone() });
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.admin.topic(&self.topic).await.map(drop)
    }

    /// One try at a page.
    #[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
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
            let read = tokio::time::timeout(READ, next).await.unwrap_or_else(|_| {
                // Its leader may be gone, and the client wait for it.
                *lock(&self.ahead) = Ahead::default();
                let text = format!("{}/{} was not read in time", self.topic, self.name.partition);
                Err(BrokerError::Unavailable(text))
            });
            let (position, record) = read?;
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
        ("max.message.bytes", (BODY * spec.message_bytes_max + AROUND).to_string()),
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
            // A source that is unknown for a moment is not gone, and brokers that are missing may come.
            Err(
                error @ (BrokerError::Unavailable(_)
                | BrokerError::UnknownTopic(_)
                | BrokerError::Replicas { .. }),
            ) => {
                return Err(unknown(error.to_string()));
            }
            Err(error) => return Err(AppendError::Stopped(error.to_string())),
        }
        let answer = self.producer.append(&self.topic, self.name.partition, &record).await;
        match answer.ok().and_then(|mut results| results.pop()) {
            // It is there, and where is found by reading.
            Some(Ok(NO_POSITION)) => Err(unknown("the record's place was not told".to_owned())),
            Some(Ok(position)) => Ok(position),
            Some(Err(error @ (ProduceError::Unavailable(_) | ProduceError::UnknownTopic(_)))) => {
                Err(unknown(error.to_string()))
            }
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
        let read = lock(&self.ahead).reading();
        let from = match read {
            // Read ahead, or beyond.
            Some(at) if at > end => return Ok(()),
            Some(at) => at,
            None => {
                self.make().await?;
                match self.ends().await? {
                    Some((_, now)) if now > end => return Ok(()),
                    Some((_, now)) => now,
                    None => 0,
                }
            }
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
