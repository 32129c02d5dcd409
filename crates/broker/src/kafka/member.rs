//! A member of a consumer group: told by the cluster what it may read, and the one who commits.
//!
//! A thread of its own polls the group's client. What is assigned is noted and never fetched here: readers have their
//! own clients, and begin where the journal says. What is revoked is given up at once, so that nobody waits for this
//! member; the journal's `released` is what its successor waits for (ORD-9, BRK-7).

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset, Statistics, TopicPartitionList};
use tokio::sync::Notify;

use super::context::Context;
use super::errors::broker_error;
use super::lock;
use super::options::KafkaOptions;
use super::topics::{Admin, blocking};
use crate::contract::{BrokerError, Change, Commit, Membership, Topic};
use crate::threads::Apart;

/// How long a poll waits for something to happen.
const POLL: Duration = Duration::from_millis(100);
/// How often it is looked whether the topic is still the one that was joined.
const TOPIC_EVERY: Duration = Duration::from_secs(2);
/// How long a group's coordinator has to be found and to tell a commit.
const COORDINATOR: Duration = Duration::from_secs(5);
/// How often, and how long between, a group without a coordinator is asked about: the first one of a cluster makes
/// Kafka's own topic of commits.
const COORDINATOR_TRIES: u32 = 100;
const COORDINATOR_WAIT: Duration = Duration::from_millis(100);

/// The thread that polls it.
const SERVING: &str = "kafka-member";

/// What the group's client told.
#[derive(Default)]
struct Assignments {
    owned: BTreeSet<u32>,
    changes: VecDeque<Change>,
    failed: Option<BrokerError>,
}

/// A member, as its polling thread and its owner share it.
pub(crate) struct Member {
    pub(super) consumer: Apart<BaseConsumer<Rebalance>>,
    topic: String,
    /// Polls that ended.
    polls: AtomicU64,
    leaving: AtomicBool,
    left: Notify,
}

/// Hears of assignments.
pub(super) struct Rebalance {
    context: Context,
    topic: String,
    assignments: Arc<Mutex<Assignments>>,
    news: Arc<Notify>,
}

/// What a group says to a member that it will never take as it is.
const WRONG: [RDKafkaErrorCode; 4] = [
    RDKafkaErrorCode::InvalidSessionTimeout,
    RDKafkaErrorCode::InvalidGroupId,
    RDKafkaErrorCode::InconsistentGroupProtocol,
    RDKafkaErrorCode::GroupMaxSizeReached,
];

impl Rebalance {
    /// A group that does not let us in tells so when it is polled, and would be waited for in vain.
    fn refused(&self, error: &KafkaError) {
        let code = error.rdkafka_error_code();
        let told = match (error, broker_error(&self.topic, error)) {
            (KafkaError::MessageConsumptionFatal(RDKafkaErrorCode::FencedInstanceId), _) => {
                BrokerError::Stopped(format!(
                    "another member has joined the group of topic {} under the same group.instance.id; give each process its own and restart this one",
                    self.topic
                ))
            }
            (KafkaError::MessageConsumptionFatal(code), _) => {
                BrokerError::Stopped(format!("the group's client cannot go on ({code}); restart Keylane"))
            }
            (_, error @ (BrokerError::Denied { .. } | BrokerError::Credentials(_))) => error,
            (_, error) if code.is_some_and(|code| WRONG.contains(&code)) => error,
            _ => return,
        };
        lock(&self.assignments).failed = Some(told);
        self.news.notify_one();
    }
}

impl ClientContext for Rebalance {
    fn stats(&self, told: Statistics) {
        self.context.stats(told);
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.context.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.context.error(error, reason);
    }
}

impl ConsumerContext for Rebalance {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        what: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let numbers: Vec<u32> =
            partitions.elements_for_topic(&self.topic).iter().map(|at| at.partition() as u32).collect();
        let assigned = what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let lost = consumer.assignment_lost();
        let done = match assigned {
            // Somewhere to begin: it is paused before anything is fetched.
            true => partitions
                .set_all_offsets(Offset::Offset(0))
                .and_then(|()| consumer.incremental_assign(partitions))
                .and_then(|()| consumer.pause(partitions)),
            false => consumer.incremental_unassign(partitions),
        };
        let mut assignments = lock(&self.assignments);
        if let Err(error) = done {
            assignments.failed = Some(broker_error(&self.topic, &error));
        }
        for partition in numbers {
            let change = match (assigned, lost) {
                (true, _) => assignments.owned.insert(partition).then_some(Change::Assigned(partition)),
                (false, true) => assignments.owned.remove(&partition).then_some(Change::Lost(partition)),
                (false, false) => assignments.owned.remove(&partition).then_some(Change::Revoked(partition)),
            };
            assignments.changes.extend(change);
        }
        drop(assignments);
        self.news.notify_one();
    }
}

impl Member {
    /// Commits positions of partitions, in one call. What Kafka keeps is a mirror; the journal is the truth.
    pub(crate) async fn commit_all(self: &Arc<Self>, commits: Vec<(u32, Commit)>) -> Result<(), BrokerError> {
        let member = Arc::clone(self);
        let done =
            blocking(move || member.consumer.commit(&positions(&member.topic, &commits)?, CommitMode::Sync));
        // Not patiently: whoever commits as an owner tries again itself, with what is newer by then.
        done.await?.map_err(|error| broker_error(&self.topic, &error))
    }
}

impl Member {
    /// The group's last commit of a partition.
    pub(crate) async fn committed(self: &Arc<Self>, partition: u32) -> Result<Option<Commit>, BrokerError> {
        let member = Arc::clone(self);
        let asked = patiently(&self.topic, move || committed_now(&member.consumer, &member.topic, partition));
        // A group that does not let us in says so to its member, beside the call, which only times out.
        let refused = || lock(&self.consumer.client().context().assignments).failed.clone();
        asked.await.map_err(|error| match (error, refused()) {
            (BrokerError::Unavailable(_), Some(refused)) => refused,
            (error, _) => error,
        })
    }
}

/// Positions of partitions.
fn positions(topic: &str, commits: &[(u32, Commit)]) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(commits.len());
    for (partition, commit) in commits {
        let mut element = list.add_partition(topic, *partition as i32);
        element.set_offset(Offset::Offset(commit.position as i64))?;
        element.set_metadata(String::from_utf8_lossy(&commit.metadata));
    }
    Ok(list)
}

/// Asks a group's coordinator until it answers, or says something that does not pass: a group that is asked for the
/// first time may have none yet, and one that moves is loaded elsewhere first.
#[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
async fn patiently<T: Send + 'static>(
    topic: &str,
    ask: impl Fn() -> Result<T, KafkaError> + Clone + Send + 'static,
) -> Result<T, BrokerError> {
    let mut tries = 0;
    loop {
        let asked = blocking(ask.clone()).await?;
        match asked.as_ref().err().and_then(KafkaError::rdkafka_error_code) {
            Some(
                RDKafkaErrorCode::NotCoordinator
                | RDKafkaErrorCode::CoordinatorNotAvailable
                | RDKafkaErrorCode::CoordinatorLoadInProgress,
            ) if tries < COORDINATOR_TRIES => tries += 1,
            _ => return asked.map_err(|error| broker_error(topic, &error)),
        }
        tokio::time::sleep(COORDINATOR_WAIT).await;
    }
}

/// Commits positions for a group that nobody here is a member of.
pub(crate) async fn commit_alone<C: ConsumerContext + 'static>(
    consumer: Arc<Apart<BaseConsumer<C>>>,
    topic: &str,
    commits: Vec<(u32, Commit)>,
) -> Result<(), BrokerError> {
    let (name, commits) = (topic.to_owned(), Arc::new(commits));
    patiently(topic, move || consumer.commit(&positions(&name, &commits)?, CommitMode::Sync)).await
}

/// A group's last commit of a partition.
pub(crate) async fn committed<C: ConsumerContext + 'static>(
    consumer: Arc<Apart<BaseConsumer<C>>>,
    topic: &str,
    partition: u32,
) -> Result<Option<Commit>, BrokerError> {
    let name = topic.to_owned();
    patiently(topic, move || committed_now(&consumer, &name, partition)).await
}

fn committed_now<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: u32,
) -> Result<Option<Commit>, KafkaError> {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, partition as i32);
    let answer = consumer.committed_offsets(list, COORDINATOR)?;
    let elements = answer.elements();
    let Some(element) = elements.first() else {
        return Ok(None);
    };
    element.error()?;
    let Offset::Offset(position) = element.offset() else {
        return Ok(None);
    };
    Ok(Some(Commit { position: position as u64, metadata: element.metadata().to_owned().into() }))
}

/// Joins a group that reads `joined`.
pub(crate) fn join(
    options: &KafkaOptions,
    context: &Context,
    admin: &Arc<Admin>,
    group: &str,
    joined: Topic,
    instance: u128,
) -> Result<(Arc<Member>, KafkaMembership), BrokerError> {
    let topic = joined.name.as_str();
    let (assignments, news) = (Arc::<Mutex<Assignments>>::default(), Arc::<Notify>::default());
    let rebalance = Rebalance {
        context: context.clone(),
        topic: topic.to_owned(),
        assignments: Arc::clone(&assignments),
        news: Arc::clone(&news),
    };
    let failed = |error: KafkaError| broker_error(topic, &error);
    let consumer: BaseConsumer<Rebalance> =
        options.joining(group, topic).create_with_context(rebalance).map_err(failed)?;
    consumer.subscribe(&[topic]).map_err(failed)?;
    let member = Arc::new(Member {
        consumer: Apart::new(consumer),
        topic: topic.to_owned(),
        polls: AtomicU64::new(0),
        leaving: AtomicBool::new(false),
        left: Notify::new(),
    });
    context.serve(member.clone());
    let (polled, ended) = (Arc::clone(&member), (Arc::clone(&assignments), Arc::clone(&news)));
    // Nobody knows what it was about to tell: the group is joined anew.
    let ended = move |why: &str| {
        lock(&ended.0).failed = Some(BrokerError::Unavailable(why.to_owned()));
        ended.1.notify_one();
    };
    let started = context.threads.keep(SERVING, move || poll(&polled), ended);
    started.map_err(|error| BrokerError::Unavailable(error.to_string()))?;
    let admin = Arc::clone(admin);
    let look = Box::pin(look(Arc::clone(&admin), joined.clone()));
    Ok((Arc::clone(&member), KafkaMembership { member, assignments, news, admin, joined, look, instance }))
}

fn poll(member: &Member) {
    while !member.leaving.load(Ordering::Relaxed) {
        if let Some(Err(error)) = member.consumer.poll(POLL) {
            tracing::debug!(topic = member.topic, %error, "kafka: a group's client");
            member.consumer.client().context().refused(&error);
        }
        member.polls.fetch_add(1, Ordering::Release);
        member.consumer.client().context().context.threads.may_be_struck(SERVING);
    }
    // Tells the coordinator, so that others need not wait for the session to end.
    member.consumer.unsubscribe();
    // A client that has failed for good is not in the group any more, and never says that it has left.
    let leaves = member.consumer.client().fatal_error().is_none() && member.consumer.close_queue().is_ok();
    while leaves && !member.consumer.closed() {
        member.consumer.poll(POLL);
    }
    member.left.notify_one();
}

type Look = Pin<Box<dyn Future<Output = Result<(), BrokerError>> + Send>>;

/// The owner's side.
pub(crate) struct KafkaMembership {
    member: Arc<Member>,
    assignments: Arc<Mutex<Assignments>>,
    news: Arc<Notify>,
    admin: Arc<Admin>,
    joined: Topic,
    /// Looks at the topic while the group is listened to: a question may take long, and a change must not wait for it.
    look: Look,
    instance: u128,
}

/// After a while, an error if the topic is not the one that was joined. One that is away for a moment is not gone.
#[allow(clippy::disallowed_methods, reason = "waits for a cluster, whose time cannot be simulated")]
async fn look(admin: Arc<Admin>, joined: Topic) -> Result<(), BrokerError> {
    tokio::time::sleep(TOPIC_EVERY).await;
    match admin.glance(&joined.name, TOPIC_EVERY / 2).await {
        Ok(Some(there)) if (there.id, there.partitions) != (joined.incarnation, joined.partitions) => {
            // Looked at once more by itself, so that all clients hear of what was added.
            match admin.topic(&joined.name).await {
                Ok(Some(there)) => joined.same(&there),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl Membership for KafkaMembership {
    async fn changed(&mut self) -> Result<Change, BrokerError> {
        loop {
            {
                let mut assignments = lock(&self.assignments);
                if let Some(change) = assignments.changes.pop_front() {
                    match change {
                        // It was added since: keys have moved.
                        Change::Assigned(partition) if partition >= self.joined.partitions => {
                            let (topic, asked) = (self.joined.name.clone(), self.joined.partitions);
                            return Err(BrokerError::Partitions { topic, there: partition + 1, asked });
                        }
                        change => return Ok(change),
                    }
                }
                if let Some(failed) = assignments.failed.take() {
                    return Err(failed);
                }
            }
            tokio::select! {
                () = self.news.notified() => {}
                looked = &mut self.look => {
                    self.look = Box::pin(look(Arc::clone(&self.admin), self.joined.clone()));
                    looked?;
                }
            }
        }
    }

    async fn confirm(&mut self, partition: u32) -> Result<bool, BrokerError> {
        Ok(self.confirm_all(&[partition]).await?[0])
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "waits for a client's thread, whose time cannot be simulated"
    )]
    async fn confirm_all(&mut self, partitions: &[u32]) -> Result<Vec<bool>, BrokerError> {
        // The poll under way may have begun before a pause of the process; the one behind it has seen what came.
        let seen = self.member.polls.load(Ordering::Acquire) + 2;
        while self.member.polls.load(Ordering::Acquire) < seen {
            if self.member.leaving.load(Ordering::Relaxed) {
                return Ok(vec![false; partitions.len()]);
            }
            tokio::time::sleep(POLL / 10).await;
        }
        let lost = self.member.consumer.assignment_lost();
        let assignments = lock(&self.assignments);
        Ok(partitions.iter().map(|partition| !lost && assignments.owned.contains(partition)).collect())
    }

    /// Kafka has it back already: see the head of this file.
    async fn gave_up(&mut self, _partition: u32) {}

    /// Kafka does not know which process was which.
    fn proves_dead(&self, _instance: u128) -> bool {
        false
    }

    fn instance(&self) -> u128 {
        self.instance
    }

    async fn leave(&mut self) {
        if !self.member.leaving.swap(true, Ordering::Relaxed) {
            self.member.left.notified().await;
        }
    }
}

impl Drop for KafkaMembership {
    fn drop(&mut self) {
        self.member.leaving.store(true, Ordering::Relaxed);
    }
}
