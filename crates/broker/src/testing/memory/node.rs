//! The memory broker as one process sees it: its [`Broker`], [`Reader`], [`Membership`] and [`Journal`].
//!
//! A call travels to the cluster, is carried out there in one step, and its answer travels back; a process that is cut
//! off meanwhile gets no answer, though its call may have been carried out. A waiting call registers its waker under
//! the same lock under which it read its condition, so no wake-up is missed.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use keylane_core::{Batch, Frames};

use super::Cluster;
use super::state::{GroupKey, JournalKey, State, journal_key};
use crate::contract::{
    AppendError, Broker, BrokerError, Change, Commit, Ends, Journal, JournalName, JournalPage, Membership,
    ProduceError, Reader, Topic, TopicSpec,
};
use crate::testing::waiters::OnDrop;

/// One process's handle to the cluster.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) cluster: Arc<Cluster>,
    pub(super) instance: u128,
}

impl Node {
    /// Carries `act` out on the cluster, after the call's latency and before the answer's.
    async fn call<T>(&self, act: impl FnOnce(&mut State, u64) -> T) -> Result<T, BrokerError> {
        let there = self.on_cluster(|state| state.travel())?;
        pause(there).await;
        let now_ms = self.cluster.now_ms();
        let (answer, back) = self.on_cluster(|state| (act(state, now_ms), state.travel()))?;
        pause(back).await;
        self.on_cluster(|_| answer)
    }

    /// Produces at once and waits for both latencies afterwards: calls take their places in the order in which they are
    /// made, as on a connection.
    async fn produce_in_order(
        &self,
        topic: &str,
        frames: &Frames,
    ) -> Result<Vec<Result<u64, ProduceError>>, BrokerError> {
        let now_ms = self.cluster.now_ms();
        let (answer, there_and_back) = self.on_cluster(|state| {
            let produced = state.produce(topic, frames, now_ms);
            (produced, state.travel() + state.travel())
        })?;
        pause(there_and_back).await;
        self.on_cluster(|_| answer)
    }

    fn on_cluster<T>(&self, act: impl FnOnce(&mut State) -> T) -> Result<T, BrokerError> {
        self.cluster.with(|state| state.admit(self.instance).map(|()| act(state)))
    }
}

async fn pause(duration: Duration) {
    // A sleep of zero would still let other tasks run first, which a test without latency does not expect.
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

#[async_trait]
impl Broker for Node {
    fn kind(&self) -> &'static str {
        "memory"
    }

    async fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        self.call(|state, _| state.create_topic(name, spec)).await?
    }

    async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError> {
        self.call(|state, _| state.describe(name)).await
    }

    async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        self.call(|state, _| state.topics.keys().filter_map(|name| state.describe(name)).collect()).await
    }

    async fn produce(&self, topic: &str, frames: Frames) -> Vec<Result<u64, ProduceError>> {
        let produced = self.produce_in_order(topic, &frames).await;
        produced.unwrap_or_else(|error| {
            let unavailable = ProduceError::Unavailable(error.to_string());
            vec![Err(unavailable); frames.len()]
        })
    }

    async fn reader(&self, topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError> {
        let (incarnation, ticket) = self
            .call(|state, _| {
                let ends = state.partition(topic, partition)?.ends;
                if from < ends.start || from > ends.end {
                    return Err(out_of_range(topic, partition, from, ends));
                }
                Ok((state.topic(topic)?.incarnation, state.ticket()))
            })
            .await??;
        Ok(Box::new(MemoryReader {
            node: self.clone(),
            topic: topic.to_owned(),
            partition,
            incarnation,
            from,
            ticket,
        }))
    }

    async fn ends(&self, topic: &str) -> Result<Vec<Ends>, BrokerError> {
        self.call(|state, _| {
            let partitions = &state.topic(topic)?.partitions;
            Ok(partitions.iter().map(|partition| partition.ends).collect())
        })
        .await?
    }

    async fn commit_all(
        &self,
        group: &str,
        topic: &str,
        commits: Vec<(u32, Commit)>,
    ) -> Vec<Result<(), BrokerError>> {
        let count = commits.len();
        let taken = self.call(|state, _| {
            let one = |(partition, mut commit): (u32, Commit)| {
                state.partition(topic, partition)?;
                if !state.keeps_metadata {
                    commit.metadata = Bytes::new();
                }
                // Accepts a commit from any process: no broker fences commits, and the journal is the truth.
                state.commit(group, topic, partition, commit);
                Ok(())
            };
            commits.into_iter().map(one).collect()
        });
        taken.await.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError> {
        self.call(|state, _| {
            state.partition(topic, partition)?;
            let key = (group.to_owned(), topic.to_owned(), partition);
            Ok(state.commits.get(&key).cloned())
        })
        .await?
    }

    async fn join(&self, group: &str, topic: &str, _node: &str) -> Result<Box<dyn Membership>, BrokerError> {
        let key = (group.to_owned(), topic.to_owned());
        // Made where the join is carried out: if the caller never gets the answer, dropping the membership leaves the
        // group.
        let mut joined = None;
        self.call(|state, _| {
            state.topic(topic)?;
            let id = state.ticket();
            let process = &state.processes[&self.instance];
            let name = process.name.clone();
            let (group, to_wake) = state.group_to_wake(&key);
            group.join(id, self.instance, &name, to_wake);
            let there = state.topic(topic)?;
            let (partitions, incarnation) = (there.spec.partitions, there.incarnation);
            let (node, key) = (self.clone(), key.clone());
            joined = Some(MemoryMembership { node, key, id, partitions, incarnation, left: false });
            Ok::<(), BrokerError>(())
        })
        .await??;
        Ok(Box::new(joined.expect("carried out")))
    }

    async fn journals(&self, group: &str, topic: &str) -> Result<Option<u32>, BrokerError> {
        let key = (group.to_owned(), topic.to_owned());
        self.call(|state, _| state.made_for.get(&key).copied()).await
    }

    async fn grow_journals(&self, group: &str, topic: &str, partitions: u32) -> Result<(), BrokerError> {
        let key = (group.to_owned(), topic.to_owned());
        self.call(|state, _| {
            let made_for = state.made_for.entry(key).or_default();
            *made_for = partitions.max(*made_for);
        })
        .await
    }

    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError> {
        let key = (name.group.clone(), name.topic.clone());
        let made_for = self.on_cluster(|state| state.made_for.get(&key).copied())?;
        if made_for.is_some_and(|made_for| name.partition >= made_for) {
            return Err(BrokerError::Invalid(format!(
                "there is no journal for partition {}",
                name.partition
            )));
        }
        Ok(Arc::new(MemoryJournal { node: self.clone(), key: journal_key(name) }))
    }
}

fn out_of_range(topic: &str, partition: u32, position: u64, ends: Ends) -> BrokerError {
    BrokerError::OutOfRange { topic: topic.to_owned(), partition, position, start: ends.start, end: ends.end }
}

struct MemoryReader {
    node: Node,
    topic: String,
    partition: u32,
    incarnation: u128,
    from: u64,
    ticket: u64,
}

impl MemoryReader {
    fn look(&self, state: &mut State, bytes_max: usize) -> Result<Option<Batch>, BrokerError> {
        // A topic that was made anew under this name is another topic, and its positions mean something else (BRK-10).
        if state.topic(&self.topic)?.incarnation != self.incarnation {
            return Err(BrokerError::UnknownTopic(self.topic.clone()));
        }
        let partition = state.partition(&self.topic, self.partition)?;
        if self.from < partition.ends.start {
            let ends = partition.ends;
            return Err(out_of_range(&self.topic, self.partition, self.from, ends));
        }
        Ok(partition.batch(self.partition, self.from, bytes_max))
    }
}

impl Reader for MemoryReader {
    fn poll_batch(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<Result<Batch, BrokerError>> {
        let looked = self.node.on_cluster(|state| {
            let found = self.look(state, bytes_max)?;
            if found.is_none() {
                let partition = state.partition(&self.topic, self.partition)?;
                partition.waiters.listen(self.ticket, cx.waker());
            }
            Ok(found)
        });
        match looked.flatten() {
            Ok(None) => Poll::Pending,
            Ok(Some(batch)) => {
                self.from = batch.next;
                Poll::Ready(Ok(batch))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for MemoryReader {
    fn drop(&mut self) {
        self.node.cluster.with(|state| {
            if let Ok(partition) = state.partition(&self.topic, self.partition) {
                partition.waiters.forget(self.ticket);
            }
        });
    }
}

struct MemoryMembership {
    node: Node,
    key: GroupKey,
    id: u64,
    /// The number of partitions when this member joined.
    partitions: u32,
    incarnation: u128,
    left: bool,
}

impl MemoryMembership {
    fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<Result<Change, BrokerError>> {
        self.node.cluster.with(|state| {
            let admitted = state.admit(self.node.instance);
            if admitted == Err(BrokerError::Closed) {
                return Poll::Ready(Err(BrokerError::Closed));
            }
            let there = state.topics.get(&self.key.1);
            let is_another = there.is_some_and(|there| there.incarnation != self.incarnation);
            let there = there.map(|topic| topic.spec.partitions);
            if let (Ok(()), Some(there)) = (&admitted, there.filter(|there| *there != self.partitions)) {
                let (topic, asked) = (self.key.1.clone(), self.partitions);
                return Poll::Ready(Err(BrokerError::Partitions { topic, there, asked }));
            }
            let (group, _) = state.group_to_wake(&self.key);
            let Some(member) = group.member(self.id) else {
                return Poll::Ready(Err(BrokerError::Closed));
            };
            // A process that is cut off hears nothing, and goes on believing what it believed.
            if admitted.is_ok() {
                match member.changes.pop_front() {
                    // The old topic's partitions are lost; of the new topic with the same name the member has none
                    // (BRK-10).
                    Some(change @ Change::Lost(_)) => return Poll::Ready(Ok(change)),
                    _ if is_another => return Poll::Ready(Err(BrokerError::Recreated(self.key.1.clone()))),
                    Some(change) => return Poll::Ready(Ok(change)),
                    None => {}
                }
            }
            member.waiters.listen(self.id, cx.waker());
            Poll::Pending
        })
    }

    fn depart(&mut self) {
        if !std::mem::replace(&mut self.left, true) {
            // This call fails for a process that is cut off or dead: its member stays until its session expires.
            let told = self.node.on_cluster(|state| {
                let (group, to_wake) = state.group_to_wake(&self.key);
                group.leave(self.id, to_wake);
            });
            if told.is_err() {
                self.node.cluster.with(|state| state.group_to_wake(&self.key).0.abandon(self.id));
            }
        }
    }
}

#[async_trait]
impl Membership for MemoryMembership {
    async fn changed(&mut self) -> Result<Change, BrokerError> {
        poll_fn(|cx| self.poll_changed(cx)).await
    }

    async fn confirm(&mut self, partition: u32) -> Result<bool, BrokerError> {
        let (key, id) = (self.key.clone(), self.id);
        self.node.call(move |state, _| state.group_to_wake(&key).0.confirm(id, partition)).await
    }

    async fn confirm_all(&mut self, partitions: &[u32]) -> Result<Vec<bool>, BrokerError> {
        let (key, id, partitions) = (self.key.clone(), self.id, partitions.to_vec());
        let confirm = move |state: &mut State, _: u64| {
            let group = state.group_to_wake(&key).0;
            partitions.iter().map(|partition| group.confirm(id, *partition)).collect()
        };
        self.node.call(confirm).await
    }

    async fn gave_up(&mut self, partition: u32) {
        let heard = self.node.on_cluster(|state| {
            let (group, to_wake) = state.group_to_wake(&self.key);
            group.gave_up(self.id, partition, to_wake);
        });
        if heard.is_err() {
            self.node
                .cluster
                .with(|state| state.group_to_wake(&self.key).0.gave_up_unheard(self.id, partition));
        }
    }

    fn proves_dead(&self, instance: u128) -> bool {
        self.node.cluster.with(|state| {
            let alive = state.processes.get(&instance).is_some_and(|process| process.alive);
            state.proves_dead && !alive
        })
    }

    fn instance(&self) -> u128 {
        self.node.instance
    }

    async fn leave(&mut self) {
        self.depart();
    }
}

impl Drop for MemoryMembership {
    fn drop(&mut self) {
        self.depart();
    }
}

struct MemoryJournal {
    node: Node,
    key: JournalKey,
}

#[async_trait]
impl Journal for MemoryJournal {
    async fn append(&self, record: Bytes, expect_end: Option<u64>) -> Result<u64, AppendError> {
        self.node
            .call(|state, _| state.append(&self.key, record, expect_end))
            .await
            .unwrap_or_else(|error| Err(AppendError::Unknown(error.to_string())))
    }

    fn conditional(&self) -> bool {
        self.node.cluster.with(|state| state.conditional)
    }

    async fn read(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        self.node.call(|state, _| state.journal(&self.key).page(from, bytes_max)).await
    }

    async fn beyond(&self, end: u64) -> Result<(), BrokerError> {
        let ticket = self.node.cluster.with(State::ticket);
        let _forget = OnDrop(|| {
            self.node.cluster.with(|state| state.journal(&self.key).waiters.forget(ticket));
        });
        poll_fn(|cx| {
            let waited = self.node.on_cluster(|state| {
                let journal = state.journal(&self.key);
                if journal.end() <= end {
                    journal.waiters.listen(ticket, cx.waker());
                    return Poll::Pending;
                }
                Poll::Ready(())
            });
            match waited {
                Ok(polled) => polled.map(Ok),
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }

    async fn cut(&self, below: u64) -> Result<(), BrokerError> {
        self.node.call(|state, _| state.journal(&self.key).cut(below)).await
    }
}
