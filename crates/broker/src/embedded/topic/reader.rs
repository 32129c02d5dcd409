//! Reads one partition in order, for the contract.
//!
//! At the end of the log batches come from memory, without a system call. Behind, a span is read and checked on the
//! blocking pool, so that a cold disk stops no shard, and while its batches are handed out the next one is read.
//! Whoever does not poll holds at most two spans.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use keylane_core::Batch;
use tokio::task::JoinHandle;

use super::index::Span;
use super::log::{Found, TopicLog};
use super::stored::{SpanBatches, Stored};
use crate::contract::{BrokerError, Reader};
use crate::threads;

type Loaded = Result<Arc<SpanBatches>, BrokerError>;

/// A span on its way.
enum Loading {
    Done(Option<Loaded>),
    Elsewhere(JoinHandle<Loaded>),
}

impl Loading {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Loaded> {
        match self {
            Loading::Done(loaded) => Poll::Ready(loaded.take().unwrap_or(Err(BrokerError::Closed))),
            // A panic comes out as an error of the read: what is not joined ended with the runtime.
            Loading::Elsewhere(task) => {
                Pin::new(task).poll(cx).map(|joined| joined.unwrap_or(Err(BrokerError::Closed)))
            }
        }
    }
}

/// Reads one partition.
pub(crate) struct PartitionReader {
    log: Arc<TopicLog>,
    /// False in a simulation: reads happen here.
    threads: bool,
    id: u64,
    partition: u32,
    /// The next position to hand out.
    position: u64,
    /// Read, and not handed out.
    ready: VecDeque<Stored>,
    loading: Option<Loading>,
    /// What is ready came from the disk, so the next will too.
    behind: bool,
}

impl PartitionReader {
    /// A reader from `position` on, which must be in the log or at its end (BRK-10).
    pub fn open(
        log: Arc<TopicLog>,
        threads: bool,
        partition: u32,
        position: u64,
    ) -> Result<PartitionReader, BrokerError> {
        static READERS: AtomicU64 = AtomicU64::new(0);
        log.find(partition, position, None)?;
        Ok(PartitionReader {
            log,
            threads,
            id: READERS.fetch_add(1, Ordering::Relaxed),
            partition,
            position,
            ready: VecDeque::new(),
            loading: None,
            behind: false,
        })
    }

    fn load(&mut self, span: Span) {
        self.behind = true;
        if let Some(loaded) = self.log.loaded(&span) {
            self.loading = Some(Loading::Done(Some(Ok(loaded))));
            return;
        }
        let log = Arc::clone(&self.log);
        self.loading = Some(match self.threads {
            true => Loading::Elsewhere(threads::blocking(move || log.load_watched(&span))),
            false => Loading::Done(Some(log.load(&span))),
        });
    }

    /// Begins to read what comes behind all that is ready.
    fn read_ahead(&mut self) {
        let Some(last) = self.ready.back() else { return };
        if let Ok(Found::OnDisk(span)) = self.log.find(self.partition, last.next, None) {
            self.load(span);
        }
    }

    /// Takes in the partition's batches, up to the first that is missing. An error if that is the one wanted now.
    fn take_in(&mut self, batches: &SpanBatches) -> Result<(), BrokerError> {
        let mut from = self.ready.back().map_or(self.position, |last| last.next);
        for batch in batches.whole.iter().filter(|batch| batch.partition == self.partition) {
            if batch.base > from {
                break;
            }
            if batch.next > from {
                from = batch.next;
                self.ready.push_back(batch.clone());
            }
        }
        if !self.ready.is_empty() {
            return Ok(());
        }
        let at = format!("position {} of {}/{}", self.position, self.log.topic.name, self.partition);
        Err(BrokerError::Damaged(match &batches.damaged {
            Some(failure) => format!("{at} cannot be read: {failure}"),
            None => format!("{at} is not where the index says"),
        }))
    }

    fn hand_out(&mut self, bytes_max: usize) -> Option<Batch> {
        let first = self.ready.front_mut()?;
        let batch = match first.whole(self.position, bytes_max) {
            Some(batch) => {
                self.ready.pop_front();
                batch
            }
            None => {
                let batch = first.take(self.position, bytes_max);
                if first.frames.is_empty() {
                    self.ready.pop_front();
                }
                batch
            }
        };
        self.position = batch.next;
        Some(batch)
    }
}

impl Reader for PartitionReader {
    fn poll_batch(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>> {
        loop {
            if self.behind && self.loading.is_none() && self.ready.len() <= 1 {
                self.read_ahead();
            }
            if let Some(batch) = self.hand_out(bytes_max) {
                return Poll::Ready(Ok(batch));
            }
            if let Some(loading) = &mut self.loading {
                let Poll::Ready(loaded) = loading.poll(cx) else {
                    return Poll::Pending;
                };
                self.loading = None;
                self.take_in(&*loaded?)?;
                continue;
            }
            self.behind = false;
            match self.log.find(self.partition, self.position, Some((self.id, cx.waker())))? {
                Found::InMemory(batch) => self.ready.push_back(batch),
                Found::OnDisk(span) => self.load(span),
                Found::Later => return Poll::Pending,
            }
        }
    }
}

impl Drop for PartitionReader {
    fn drop(&mut self) {
        self.log.unwatch(self.partition, self.id);
    }
}
