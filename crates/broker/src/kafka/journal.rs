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

use super::lock;
use super::options::BATCH_BYTES;
use super::read::{Feed, Item};
use super::topics::{Admin, Journals};
use crate::contract::{
    AppendError, BrokerError, Journal, JournalName, JournalPage, LogKind, NO_POSITION, ProduceError,
};

/// Bytes read ahead of who reads a journal.
const AHEAD_BYTES: usize = 1 << 20;

/// How long a record that is there may take to be read, the first time. Each time that it was too long, the next may take
/// twice as long: a quota makes a cluster wait for a minute and more before it gives out anything, and who begins
/// anew would never get to the end.
const READ: Duration = Duration::from_secs(10);
/// How often that doubles.
const SLOW_MAX: u32 = 4;

/// How often a journal may be cut while a page of it is read.
const CUTS_MAX: u32 = 10;

/// One partition's journal.
pub(crate) struct KafkaJournal {
    journals: Arc<Journals>,
    name: JournalName,
    topic: String,
    ahead: Mutex<Ahead>,
    /// Where it began when that was asked last; it may begin later by now, which is then found by reading.
    start: Mutex<Option<u64>>,
    /// Held while a record is under way to a topic that takes less than a batch: two would go in one.
    alone: tokio::sync::Mutex<()>,
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
        if self.is_at(from) {
            return Ok(());
        }
        *self = Ahead::default();
        self.feed =
            Some(Feed::start(&journal.journals.clients, &journal.topic, journal.name.partition, from)?);
        self.next = from;
        Ok(())
    }

    /// Whether what comes next is at `from`, or behind it with nothing left out.
    fn is_at(&mut self, from: u64) -> bool {
        while self.records.front().is_some_and(|(position, _)| *position < from) {
            self.pop();
        }
        self.reading() == Some(from)
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
    pub(crate) fn new(journals: &Arc<Journals>, name: JournalName, topic: String) -> KafkaJournal {
        let (journals, alone) = (Arc::clone(journals), tokio::sync::Mutex::default());
        KafkaJournal { journals, name, topic, ahead: Mutex::default(), start: Mutex::default(), alone }
    }

    fn admin(&self) -> &Admin {
        &self.journals.admin
    }

    /// Makes sure that a client is there for whoever is about to read from `from`: under the lock there is no time to
    /// make one.
    async fn make_room(&self, from: u64) -> Result<(), BrokerError> {
        if lock(&self.ahead).is_at(from) {
            return Ok(());
        }
        self.journals.clients.make_room(&self.topic, self.name.partition).await
    }

    /// Where it begins and ends; nothing, if it was never written. One question less if it is known where it begins.
    async fn ends(&self) -> Result<Option<(u64, u64)>, BrokerError> {
        if self.admin().known(&self.topic).is_none() && self.admin().topic(&self.topic).await?.is_none() {
            return Ok(None);
        }
        let known = *lock(&self.start);
        let partition = vec![self.name.partition];
        let asked = match known {
            Some(start) => {
                let ends = self.admin().tails(&self.topic, partition).await;
                ends.map(|ends| ends.first().map(|end| (start, *end)))
            }
            None => {
                let ends = self.admin().ends(&self.topic, partition).await;
                ends.map(|ends| ends.first().map(|ends| (ends.start, ends.end)))
            }
        };
        match asked {
            Ok(ends) => {
                *lock(&self.start) = ends.map(|(start, _)| start);
                Ok(ends)
            }
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
        let there = match self.admin().known(&self.topic) {
            Some(there) if self.name.partition < there.partitions => Some(there),
            None if self.name.kind == LogKind::Hold => None,
            _ => self.admin().topic(&self.topic).await?,
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

    /// Makes its topic, or has it follow its source.
    pub(crate) async fn make(&self) -> Result<(), BrokerError> {
        self.journals.make(&self.topic, &self.name.topic).await
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
            self.make_room(at).await?;
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
            let slow = self.journals.slow(&self.topic, self.name.partition);
            let read = tokio::time::timeout(READ * 2u32.pow(slow), next).await.unwrap_or_else(|_| {
                self.journals.set_slow(&self.topic, self.name.partition, (slow + 1).min(SLOW_MAX));
                // Its leader may be gone, and the client wait for it.
                *lock(&self.ahead) = Ahead::default();
                let text = format!("{}/{} was not read in time", self.topic, self.name.partition);
                Err(BrokerError::Unavailable(text))
            });
            let (position, record) = read?;
            bytes += record.len();
            page.records.push((position, record));
        }
        self.journals.set_slow(&self.topic, self.name.partition, 0);
        Ok(page)
    }
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
            // A source that is unknown for a moment is not gone, brokers that are missing may come, and a log-in that
            // was refused is tried again.
            Err(
                error @ (BrokerError::Unavailable(_)
                | BrokerError::Credentials(_)
                | BrokerError::UnknownTopic(_)
                | BrokerError::Replicas { .. }),
            ) => {
                return Err(unknown(error.to_string()));
            }
            Err(error) => return Err(AppendError::Stopped(error.to_string())),
        }
        let (bytes, bytes_max) = (record.len(), self.bytes_max());
        if bytes > bytes_max {
            return Err(AppendError::Stopped(format!(
                "a record of {bytes} bytes does not fit into topic {}, which takes {bytes_max}; raise max.message.bytes on it",
                self.topic
            )));
        }
        let _alone = match bytes_max < BATCH_BYTES {
            true => Some(self.alone.lock().await),
            false => None,
        };
        let answer = self.journals.producer.append(&self.topic, self.name.partition, &record).await;
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

    fn bytes_max(&self) -> usize {
        self.journals.bytes_max(&self.topic, &self.name.topic)
    }

    async fn read(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        let mut tries = 0;
        loop {
            match self.page(from, bytes_max).await {
                // Whoever owns it by now has cut it while it was read: what is left tells all.
                Err(BrokerError::OutOfRange { .. }) if tries < CUTS_MAX => {
                    *lock(&self.start) = None;
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    async fn read_landed(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        let mut page = JournalPage { start: from, end: from, records: Vec::new() };
        let mut bytes = 0;
        self.make_room(from).await?;
        let at_hand = poll_fn(|cx| {
            let mut ahead = lock(&self.ahead);
            let mut more = ahead.seek(self, from);
            while more.is_ok() && bytes < bytes_max {
                if let Some((position, record)) = ahead.pop() {
                    bytes += record.len();
                    page.end = position + 1;
                    page.records.push((position, record));
                    continue;
                }
                match ahead.poll_more(cx) {
                    Poll::Pending => break,
                    Poll::Ready(read) => more = read,
                }
            }
            Poll::Ready(more)
        });
        match at_hand.await {
            // Also if reading went wrong behind them: who reads on is told.
            _ if !page.records.is_empty() => Ok(page),
            Ok(()) => Ok(page),
            // It was cut, and only its end says what that leaves.
            Err(BrokerError::OutOfRange { .. }) => self.read(from, bytes_max).await,
            Err(error) => Err(error),
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
        self.make_room(at).await?;
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
        *lock(&self.start) = None;
        match below.min(end) {
            below if below <= start => Ok(()),
            below => self.admin().cut(&self.topic, self.name.partition, below).await,
        }
    }
}
