//! Stores dead letters: body and report go to `hold.p` and are acknowledged before a journal record names them (BRK-6).
//!
//! Rejected messages come in from the shard; the journal entries that name their stored bodies go out, to the owner. A
//! task of its own does the storing, so that the owner hears everything else however long a hold takes. Of a lane only
//! the first message can be here, since the lane waits until its dead letter counts. Invariant: a message whose body is
//! not stored yet is not settled (DLQ-4). It counts toward the pipeline's buffer, and is forgotten with the epoch; the
//! next owner then handles it again.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use keylane_broker::BrokerError;
use keylane_core::{DeadEffect, DeadReason, Death, Owner, Storing, key_hash};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::hold::{Hold, Kind};
use crate::pipeline::Subscription;
use crate::shard::Rejection;
use crate::tasks::TaskKind;

/// Messages of a partition that are stored at the same time, so that they share a log's syncs.
const STORING_MAX: usize = 256;
/// The bytes of messages being stored, of which each is copied once: another message is taken only below this.
const STORING_BYTES_MAX: usize = 8 << 20;
/// The priority of a dead letter (DLQ-3).
const PRIORITY: u8 = 5;

/// An owner's dead letters on their way to its hold.
pub(crate) struct Burials {
    subscription: Arc<Subscription>,
    hold: Hold,
    /// The task that stores. Started with the first rejected message: most partitions never need it.
    task: Option<Burying>,
    /// Messages for which the task has no room yet: bounded by the pipeline's buffer, toward which they count.
    waiting: VecDeque<Burial>,
    /// The number of messages that the task has.
    taken: usize,
}

/// A message that was rejected, and its owner's leave to store its body and its report.
struct Burial {
    rejection: Rejection,
    body: Storing,
    report: Storing,
}

/// The task that stores, with its channels.
struct Burying {
    rejections: mpsc::Sender<Burial>,
    stored: mpsc::Receiver<Result<Death, BrokerError>>,
    task: JoinHandle<Result<(), String>>,
}

impl Drop for Burying {
    fn drop(&mut self) {
        // The task may wait for a hold that never answers.
        self.task.abort();
    }
}

impl Burials {
    pub(crate) fn new(subscription: Arc<Subscription>, hold: Hold) -> Burials {
        Burials { subscription, hold, task: None, waiting: VecDeque::new(), taken: 0 }
    }

    /// Starts storing these messages, for the journal with this id. Those of an ended epoch are left to the next owner.
    pub(crate) fn add(&mut self, owner: &mut Owner, journal: u128, rejections: Vec<Rejection>) {
        let (subscription, hold) = (&self.subscription, &self.hold);
        self.waiting.extend(rejections.into_iter().filter_map(|rejection| {
            let (body, report) = (owner.storing()?, owner.storing()?);
            subscription.rejections.tell(subscription, &rejection);
            Some(Burial { rejection, body, report })
        }));
        self.task.get_or_insert_with(|| {
            let (to, rejections) = mpsc::channel(STORING_MAX);
            let (stored, from) = mpsc::channel(STORING_MAX);
            let (subscription, hold) = (Arc::clone(subscription), hold.clone());
            let tasks = subscription.tasks.clone();
            let burying = bury(subscription, hold, journal, rejections, stored);
            // If the task panics, the owner's receiver ends, and the owner starts the partition over.
            let task = tasks.clone().spawn(async move { tasks.supervise(TaskKind::Burial, burying).await });
            Burying { rejections: to, stored: from, task }
        });
    }

    /// The number of messages that are not stored yet.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives up the messages that are not stored yet.
    pub(crate) fn forget(&mut self) {
        (self.task, self.taken) = (None, 0);
        self.waiting.clear();
    }

    /// The entry of the next stored dead letter, or why there will be none; `None` if the task has ended. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Result<Death, BrokerError>> {
        let task = self.task.as_mut()?;
        loop {
            tokio::select! {
                biased;
                stored = task.stored.recv() => {
                    self.taken -= usize::from(stored.is_some());
                    return stored;
                }
                Ok(room) = task.rejections.reserve(), if !self.waiting.is_empty() => {
                    room.send(self.waiting.pop_front().expect("just seen"));
                    self.taken += 1;
                }
            }
        }
    }
}

/// Stores rejected messages, some at a time, and sends back each entry when its dead letter is stored.
async fn bury(
    subscription: Arc<Subscription>,
    hold: Hold,
    journal: u128,
    mut rejections: mpsc::Receiver<Burial>,
    stored: mpsc::Sender<Result<Death, BrokerError>>,
) {
    let mut storing = FuturesUnordered::new();
    let mut bytes = 0;
    loop {
        let room = storing.len() < STORING_MAX && bytes < STORING_BYTES_MAX;
        tokio::select! {
            biased;
            Some((size, entry)) = storing.next() => {
                bytes -= size;
                if stored.send(entry).await.is_err() {
                    return;
                }
            }
            burial = rejections.recv(), if room => {
                let Some(burial) = burial else { return };
                let (subscription, hold) = (&subscription, &hold);
                let size = burial.rejection.delivery.size();
                bytes += size;
                storing.push(async move { (size, store(hold, subscription, journal, burial).await) });
            }
        }
    }
}

/// The report of a dead letter: what is known about its failure.
#[derive(Debug, Serialize)]
struct Report<'a> {
    dead_letter_id: String,
    message_id: &'a str,
    failure_reason: &'static str,
    failure_details: &'a str,
    failure_time: u64,
    node_id: &'a str,
    retry_count: u32,
    source_topic: &'a str,
    source_partition: u32,
    source_offset: u64,
    source_timestamp: u64,
}

/// Stores a rejected message and its report. Returns the entry that names both.
async fn store(
    hold: &Hold,
    subscription: &Subscription,
    journal: u128,
    burial: Burial,
) -> Result<Death, BrokerError> {
    let Burial { rejection, body, report: of_report } = burial;
    let delivery = &rejection.delivery;
    let position = delivery.position();
    let report = Report {
        dead_letter_id: format!(
            "{}/{}/{}/{position}",
            subscription.pipeline,
            subscription.topic,
            delivery.partition()
        ),
        message_id: delivery.id(),
        failure_reason: "rejected",
        failure_details: &rejection.error,
        failure_time: subscription.clock.wall_ms(),
        node_id: &subscription.node,
        retry_count: rejection.attempt - 1,
        source_topic: &subscription.topic,
        source_partition: delivery.partition(),
        source_offset: position,
        source_timestamp: delivery.appended_ms(),
    };
    let report = serde_json::to_vec(&report).expect("numbers and text are JSON");
    let body = body.acknowledged(hold.store(Kind::Body, position, delivery.frame()).await?);
    let report = of_report.acknowledged(hold.store(Kind::Report, position, &report).await?);
    Ok(Death {
        position,
        key_hash: subscription.order.ordered_by(delivery.key()).map(|key| key_hash(journal, key)),
        effect: DeadEffect::Passed,
        reason: DeadReason::Rejected,
        body: Some(body),
        report: Some(report),
        tries: rejection.attempt,
        due_ms: None,
        expires_ms: None,
        priority: PRIORITY,
        command: None,
    })
}
