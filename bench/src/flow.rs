//! The tap between a source and the side that is measured: says how far each partition may be read, and notices when
//! the last message of a round was handled.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use keylane_broker::{BrokerError, Reader};
use keylane_core::Batch;
use tokio::sync::Notify;

use crate::machine::WORKERS;
use crate::source::{BATCH, PARTITIONS, Source};

/// One step of the tap: partitions may be read below `limit`, and new messages carry `stamp`.
#[derive(Debug, Clone, Copy)]
struct Step {
    limit: u64,
    stamp: u64,
}

/// How far each partition may be read. The same for all partitions.
#[derive(Default)]
pub(crate) struct Flow {
    limit: AtomicU64,
    steps: Mutex<Vec<Step>>,
    waiting: Mutex<Vec<Waker>>,
    /// Partitions of this round whose last message was not handled yet.
    open: AtomicU64,
    done: Notify,
}

impl Flow {
    /// Lets `more` messages of each partition through, all with the same stamp.
    pub(crate) fn open(&self, more: u64, stamp: u64) {
        let limit = self.limit.load(Ordering::Relaxed) + more;
        self.open.store(u64::from(PARTITIONS), Ordering::Relaxed);
        self.steps.lock().expect("no holder panics").push(Step { limit, stamp });
        self.limit.store(limit, Ordering::Release);
        let waiting = std::mem::take(&mut *self.waiting.lock().expect("no holder panics"));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// A message was handled. Cheap enough for every message: it only compares positions with the limit.
    #[inline]
    pub(crate) fn handled(&self, position: u64) {
        if position + 1 == self.limit.load(Ordering::Relaxed) && self.open.fetch_sub(1, Ordering::AcqRel) == 1
        {
            self.done.notify_one();
        }
    }

    /// Waits until the last message of each partition was handled.
    pub(crate) async fn drained(&self) {
        self.done.notified().await;
    }

    /// The range that a partition may read from `from` on, in the first step that it has not read.
    fn next(&self, from: u64, step: &mut usize) -> Option<(u64, u64)> {
        if from >= self.limit.load(Ordering::Acquire) {
            return None;
        }
        let steps = self.steps.lock().expect("no holder panics");
        while steps[*step].limit <= from {
            *step += 1;
        }
        let Step { limit, stamp } = steps[*step];
        Some((limit.min(from + BATCH), stamp))
    }
}

/// Reads one partition of a source, as far as the flow allows.
pub(crate) struct FlowReader {
    flow: Arc<Flow>,
    source: Arc<Source>,
    partition: u32,
    next: u64,
    step: usize,
}

/// Readers, from the start, of the partitions that one of the [`WORKERS`] tasks of a raw limit has.
pub(crate) fn readers_of(worker: usize, flow: &Arc<Flow>, source: &Arc<Source>) -> Vec<FlowReader> {
    let partitions = (0..PARTITIONS).filter(|partition| *partition as usize % WORKERS == worker);
    partitions.map(|partition| FlowReader::new(flow, source, partition, 0)).collect()
}

/// The next batch of any of the readers, which take turns.
pub(crate) async fn next_batch(readers: &mut [FlowReader]) -> Batch {
    std::future::poll_fn(|cx| {
        readers.rotate_left(1);
        for reader in readers.iter_mut() {
            if let Poll::Ready(Ok(batch)) = reader.poll_batch(cx, usize::MAX) {
                return Poll::Ready(batch);
            }
        }
        Poll::Pending
    })
    .await
}

impl FlowReader {
    pub(crate) fn new(flow: &Arc<Flow>, source: &Arc<Source>, partition: u32, from: u64) -> FlowReader {
        FlowReader { flow: Arc::clone(flow), source: Arc::clone(source), partition, next: from, step: 0 }
    }

    fn take(&mut self) -> Option<Batch> {
        let (to, stamp) = self.flow.next(self.next, &mut self.step)?;
        let batch = self.source.batch(self.partition, self.next, to, stamp);
        self.next = to;
        Some(batch)
    }
}

impl Reader for FlowReader {
    fn poll_batch(&mut self, cx: &mut Context<'_>, _bytes_max: usize) -> Poll<Result<Batch, BrokerError>> {
        if let Some(batch) = self.take() {
            return Poll::Ready(Ok(batch));
        }
        let mut waiting = self.flow.waiting.lock().expect("no holder panics");
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        drop(waiting);
        // The tap may have been opened since the first look.
        match self.take() {
            Some(batch) => Poll::Ready(Ok(batch)),
            None => Poll::Pending,
        }
    }
}
