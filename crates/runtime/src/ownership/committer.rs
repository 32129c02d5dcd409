//! Makes the broker's own commits, once a second, for all partitions of a pipeline in one call (COM-2).
//!
//! Each owner says to which position its partition's commit is to follow; one call carries the newest of all
//! partitions. A commit that fails goes with the next call, unless there is a newer one or the owner has given the
//! partition up: a commit that is made late could move the next owner's commit back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use keylane_broker::{BrokerError, Commit};
use tokio::sync::{Notify, oneshot};

use crate::pipeline::Subscription;
use crate::tasks::TaskKind;

/// The time between two calls (COM-2). The journal is the truth; the broker's commit only informs people and tools that
/// look at the group.
const COMMIT_MS: u64 = 1_000;

/// The commits of one pipeline that are to be made.
#[derive(Default)]
pub(crate) struct Committer {
    due: Mutex<Due>,
    more: Notify,
}

#[derive(Default)]
struct Due {
    waiting: BTreeMap<u32, Follow>,
    /// The commits of the call under way. A partition that was given up meanwhile is removed.
    under_way: BTreeMap<u32, Follow>,
    /// An owner waits for a commit, so the next call is made at once.
    hurry: bool,
    /// When the next call may be made.
    next_ms: u64,
}

struct Follow {
    commit: Commit,
    /// The owners' senders, which are dropped once the commit is made or has failed.
    told: Vec<oneshot::Sender<()>>,
}

impl Committer {
    /// The commit of `partition` is to follow to `commit`.
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

    /// The partition was given up: nothing more is committed for it.
    pub(crate) fn forget(&self, partition: u32) {
        let mut due = self.due();
        due.waiting.remove(&partition);
        due.under_way.remove(&partition);
    }

    /// Commits a partition as soon as possible. The receiver resolves when that is made or has failed; `None` if there
    /// is nothing to commit.
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

    /// Waits until a call may be made, and returns what it commits.
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

    /// The call under way ended in a panic, so its fate is unknown: its commits are made again.
    fn begin_anew(&self) {
        let mut due = self.due();
        for (partition, follow) in std::mem::take(&mut due.under_way) {
            due.waiting.entry(partition).or_insert(follow);
        }
    }

    /// Takes the results of the call under way.
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
        // Dropping the senders is what tells the waiting owners.
        drop(under_way);
    }
}

/// Makes the commits of a pipeline, until the caller drops this future.
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
