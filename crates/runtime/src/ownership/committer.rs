//! The broker's own commit, once a second, for all partitions of a pipeline in one call (COM-2).
//!
//! Comes in: where the commit of each partition is to follow to, from their owners. Goes out: one call of the newest of
//! all. What fails is tried again with the next, unless there is something newer, or its owner has given it up: a commit
//! that is made late could go back behind the next owner's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use keylane_broker::{BrokerError, Commit};
use tokio::sync::{Notify, oneshot};

use crate::pipeline::Subscription;
use crate::tasks::TaskKind;

/// Between two calls (COM-2): the journal is the truth, and the broker's commit is for who looks at the group.
const COMMIT_MS: u64 = 1_000;

/// What is to be committed. One of a pipeline.
#[derive(Default)]
pub(crate) struct Committer {
    due: Mutex<Due>,
    more: Notify,
}

#[derive(Default)]
struct Due {
    waiting: BTreeMap<u32, Follow>,
    /// What the call under way commits, unless it was given up.
    under_way: BTreeMap<u32, Follow>,
    /// Somebody waits for it.
    hurry: bool,
    /// When the next call may be made.
    next_ms: u64,
}

struct Follow {
    commit: Commit,
    /// Who waits until it is made, or has failed.
    told: Vec<oneshot::Sender<()>>,
}

impl Committer {
    /// A partition's commit is to follow to this.
    pub(crate) fn follow(&self, partition: u32, commit: Commit) {
        let mut due = self.due();
        match due.waiting.get_mut(&partition) {
            Some(waiting) => waiting.commit = commit,
            None => {
                due.waiting.insert(partition, Follow { commit, told: Vec::new() });
            }
        }
        drop(due);
        self.more.notify_one();
    }

    /// A partition is given up: nothing more is committed for it.
    pub(crate) fn forget(&self, partition: u32) {
        let mut due = self.due();
        due.waiting.remove(&partition);
        due.under_way.remove(&partition);
    }

    /// Commits a partition as soon as can be, and says when; `None` if there is nothing to commit.
    pub(crate) fn hurry(&self, partition: u32) -> Option<oneshot::Receiver<()>> {
        let (told, followed) = oneshot::channel();
        let mut due = self.due();
        if let Some(waiting) = due.waiting.get_mut(&partition) {
            waiting.told.push(told);
            due.hurry = true;
        } else {
            due.under_way.get_mut(&partition)?.told.push(told);
        }
        drop(due);
        self.more.notify_one();
        Some(followed)
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().expect("no holder panics")
    }

    /// What the next call commits, once it is time.
    async fn next(&self, at: &Subscription) -> Vec<(u32, Commit)> {
        loop {
            let next_ms = {
                let mut due = self.due();
                let now_ms = at.clock.now_ms();
                if !due.waiting.is_empty() && (due.hurry || now_ms >= due.next_ms) {
                    due.hurry = false;
                    due.under_way = std::mem::take(&mut due.waiting);
                    let commits = due.under_way.iter();
                    return commits.map(|(partition, follow)| (*partition, follow.commit.clone())).collect();
                }
                if due.waiting.is_empty() { None } else { Some(due.next_ms) }
            };
            tokio::select! {
                biased;
                () = self.more.notified() => {}
                () = wait_until(at, next_ms) => {}
            }
        }
    }

    /// Nobody knows how the call under way went.
    fn begin_anew(&self) {
        let mut due = self.due();
        for (partition, follow) in std::mem::take(&mut due.under_way) {
            due.waiting.entry(partition).or_insert(follow);
        }
    }

    /// How the call went.
    fn done(&self, at: &Subscription, partitions: &[u32], results: Vec<Result<(), BrokerError>>) {
        let mut due = self.due();
        due.next_ms = at.clock.now_ms() + COMMIT_MS;
        let mut under_way = std::mem::take(&mut due.under_way);
        for (partition, result) in partitions.iter().zip(results) {
            let Err(error) = result else {
                at.counters.commit_done();
                continue;
            };
            at.counters.commit_failed();
            tracing::warn!(partition, %error, "the broker's commit did not follow; it is tried again");
            if let Some(Follow { commit, .. }) = under_way.remove(partition) {
                due.waiting.entry(*partition).or_insert(Follow { commit, told: Vec::new() });
            }
        }
        drop(due);
        // Whoever waits hears it by losing its sender.
        drop(under_way);
    }
}

/// Commits for a pipeline, until it is dropped.
pub(crate) async fn keep_committing(at: Arc<Subscription>) {
    while at.tasks.supervise(TaskKind::Committer, commit_all(&at)).await.is_err() {
        let until = at.clock.instant(at.clock.now_ms() + COMMIT_MS);
        tokio::time::sleep_until(until).await;
        at.committer.begin_anew();
    }
}

async fn commit_all(at: &Subscription) {
    loop {
        let commits = at.committer.next(at).await;
        let partitions: Vec<u32> = commits.iter().map(|(partition, _)| *partition).collect();
        let results = at.broker.commit_all(&at.group, &at.topic, commits).await;
        at.committer.done(at, &partitions, results);
    }
}

async fn wait_until(at: &Subscription, at_ms: Option<u64>) {
    match at_ms {
        Some(at_ms) => tokio::time::sleep_until(at.clock.instant(at_ms)).await,
        None => std::future::pending().await,
    }
}
