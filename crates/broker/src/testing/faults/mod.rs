//! A wrapper that makes any broker misbehave within the contract.
//!
//! [`Faulty`] injects what networks and processes do, by a seed and at given rates: calls are delayed, requests or
//! answers are lost, appends land twice or late, readers and memberships are disconnected, and everything fails for a
//! while. Invariants: whatever was acknowledged is there, and no call that may have landed is reported as certainly
//! failed. [`Faulty::calm`] stops all faults, so that a test can wait for a quiet end.

mod hang;
mod plans;
mod wrapped;

use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use keylane_core::Frames;

pub use self::hang::Hang;
use self::wrapped::{FaultyJournal, FaultyMembership, FaultyReader};
use crate::contract::{
    Backup, Broker, BrokerError, Commit, Ends, HeldBack, Journal, JournalName, Membership, ProduceError,
    Reader, Scrubbed, Topic, TopicSpec, Warning,
};
use plans::{Call, Fate, Plans};

/// How often each fault happens, in calls of 1,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    /// A call or its answer is delayed by up to `delay_max`.
    pub delay: u32,
    /// The longest delay of a call, and of its answer.
    pub delay_max: Duration,
    /// The request is lost: nothing happens, and the caller hears that the outcome is not known.
    pub drop_request: u32,
    /// The answer is lost: the call was carried out, and the caller hears that the outcome is not known.
    pub drop_answer: u32,
    /// An append is carried out, and once more within `late_max`.
    pub duplicate: u32,
    /// The caller of an append hears that the outcome is not known; the append lands within `late_max`, even if the
    /// caller is dead.
    pub late: u32,
    /// News of an assignment arrives late, by up to `late_max`.
    pub news: u32,
    /// The longest time until a repeated or late append lands.
    pub late_max: Duration,
    /// A reader, membership or wait is cut when something arrives for it.
    pub disconnect: u32,
    /// A call begins an outage: all connections are cut, and all calls fail for up to `outage_max`.
    pub outage: u32,
    /// The longest outage.
    pub outage_max: Duration,
}

impl Rates {
    /// No faults except those that a test asks for.
    pub fn none() -> Rates {
        Rates::default()
    }

    /// A rough time: each fault now and then, with short times, so that tests on a real clock are quick.
    pub fn rough() -> Rates {
        Rates {
            delay: 100,
            delay_max: Duration::from_millis(2),
            drop_request: 60,
            drop_answer: 60,
            duplicate: 60,
            late: 60,
            news: 60,
            late_max: Duration::from_millis(5),
            disconnect: 60,
            outage: 5,
            outage_max: Duration::from_millis(10),
        }
    }

    fn check(&self) {
        let fates = self.drop_request + self.drop_answer + self.duplicate + self.late;
        assert!(fates <= 1000, "a call has one fate; the rates add up to {fates} in 1,000");
    }
}

/// How often each fault has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// Calls and answers that were delayed.
    pub delayed: u64,
    /// Requests lost, those during outages included.
    pub requests_dropped: u64,
    /// Answers lost.
    pub answers_dropped: u64,
    /// Appends carried out twice.
    pub duplicated: u64,
    /// Appends that landed after their caller was told that the outcome is not known.
    pub late: u64,
    /// Readers, memberships and waits that were cut.
    pub disconnects: u64,
    /// Outages begun.
    pub outages: u64,
}

/// A broker with faults. Give it to the code under test as `Arc<dyn Broker>`, and keep an `Arc<Faulty>` to control it.
pub struct Faulty {
    inner: Arc<dyn Broker>,
    carrier: Arc<dyn Broker>,
    plans: Arc<Plans>,
}

impl Faulty {
    /// Wraps `inner`. Late and repeated appends land through `inner`, too.
    pub fn new(inner: Arc<dyn Broker>, seed: u64, rates: Rates) -> Arc<Faulty> {
        Faulty::with_carrier(inner.clone(), inner, seed, rates)
    }

    /// Like [`Faulty::new`], but late and repeated appends land through `carrier`: another handle to the same cluster,
    /// which still works when the process behind `inner` is cut off or dead.
    pub fn with_carrier(
        inner: Arc<dyn Broker>,
        carrier: Arc<dyn Broker>,
        seed: u64,
        rates: Rates,
    ) -> Arc<Faulty> {
        Arc::new(Faulty { inner, carrier, plans: Arc::new(Plans::new(seed, rates)) })
    }

    /// Stops all faults, a running outage included. Late appends still land.
    pub fn calm(&self) {
        self.plans.set_calm(true);
    }

    /// Stops all faults, and returns once every late append has landed.
    pub async fn quiet(&self) {
        self.calm();
        let ticket = self.plans.ticket();
        poll_fn(|cx| self.plans.poll_landed(ticket, cx)).await;
    }

    /// Injects faults again.
    pub fn resume(&self) {
        self.plans.set_calm(false);
    }

    /// Uses other rates from now on.
    pub fn set_rates(&self, rates: Rates) {
        self.plans.set_rates(rates);
    }

    /// Cuts every open reader, membership and wait now.
    pub fn disconnect(&self) {
        self.plans.cut_connections();
    }

    /// Fails every call for that long, from now on.
    pub fn outage(&self, duration: Duration) {
        self.plans.begin_outage(duration);
    }

    /// From now on calls of these kinds, and of no others, hang until [`Faulty::answer`] or [`Faulty::calm`]. Then they
    /// are carried out, unless their callers gave up.
    pub fn hang(&self, kinds: &[Hang]) {
        self.plans.set_hanging(kinds);
    }

    /// Lets calls of every kind answer again.
    pub fn answer(&self) {
        self.plans.set_hanging(&[]);
    }

    /// How often each fault has happened so far.
    pub fn counts(&self) -> FaultCounts {
        self.plans.counts()
    }
}

#[async_trait]
impl Broker for Faulty {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn health(&self) -> Result<(), BrokerError> {
        ask(&self.plans, self.inner.health()).await
    }

    async fn warnings(&self, topics: &[String]) -> Result<Vec<Warning>, BrokerError> {
        ask(&self.plans, self.inner.warnings(topics)).await
    }

    /// Never lost: a recall is what ends the calls that get no answer.
    async fn recall(&self) {
        self.inner.recall().await;
    }

    async fn takes(&self, topic: &str, partition: u32) -> Result<(), BrokerError> {
        ask(&self.plans, self.inner.takes(topic, partition)).await
    }

    async fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        ask(&self.plans, self.inner.create_topic(name, spec)).await
    }

    async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError> {
        ask(&self.plans, self.inner.topic(name)).await
    }

    async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        ask(&self.plans, self.inner.topics()).await
    }

    async fn produce(&self, topic: &str, frames: Frames) -> Vec<Result<u64, ProduceError>> {
        let carry = |broker: &Arc<dyn Broker>| {
            let (broker, topic, frames) = (broker.clone(), topic.to_owned(), frames.clone());
            async move { broker.produce(&topic, frames).await }
        };
        let lost = |what: &str| vec![Err(ProduceError::Unavailable(what.to_owned())); frames.len()];
        send(&self.plans, || carry(&self.inner), || carry(&self.carrier), lost).await
    }

    async fn reader(&self, topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError> {
        self.plans.hangs(Hang::Reader).await;
        let inner = ask(&self.plans, self.inner.reader(topic, partition, from)).await?;
        let connection = self.plans.connection();
        Ok(Box::new(FaultyReader { connection, inner }))
    }

    fn reads_ahead(&self, ahead_bytes: usize) -> usize {
        self.inner.reads_ahead(ahead_bytes)
    }

    async fn reader_ahead(
        &self,
        topic: &str,
        partition: u32,
        from: u64,
        ahead_bytes: usize,
    ) -> Result<Box<dyn Reader>, BrokerError> {
        let inner = ask(&self.plans, self.inner.reader_ahead(topic, partition, from, ahead_bytes)).await?;
        let connection = self.plans.connection();
        Ok(Box::new(FaultyReader { connection, inner }))
    }

    async fn ends(&self, topic: &str) -> Result<Vec<Ends>, BrokerError> {
        ask(&self.plans, self.inner.ends(topic)).await
    }

    async fn commit_all(
        &self,
        group: &str,
        topic: &str,
        commits: Vec<(u32, Commit)>,
    ) -> Vec<Result<(), BrokerError>> {
        let carry = |broker: &Arc<dyn Broker>| {
            let (broker, commits) = (broker.clone(), commits.clone());
            let (group, topic) = (group.to_owned(), topic.to_owned());
            async move { broker.commit_all(&group, &topic, commits).await }
        };
        let lost = |what: &str| vec![Err(BrokerError::Unavailable(what.to_owned())); commits.len()];
        self.plans.hangs(Hang::Commit).await;
        send(&self.plans, || carry(&self.inner), || carry(&self.carrier), lost).await
    }

    async fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError> {
        self.plans.hangs(Hang::Committed).await;
        ask(&self.plans, self.inner.committed(group, topic, partition)).await
    }

    async fn join(&self, group: &str, topic: &str, node: &str) -> Result<Box<dyn Membership>, BrokerError> {
        let inner = ask(&self.plans, self.inner.join(group, topic, node)).await?;
        Ok(Box::new(FaultyMembership {
            plans: self.plans.clone(),
            connection: self.plans.connection(),
            inner,
            on_its_way: None,
        }))
    }

    async fn tails(&self, topic: &str) -> Result<Vec<u64>, BrokerError> {
        ask(&self.plans, self.inner.tails(topic)).await
    }

    async fn silence(&self, topic: &str, partitions: &[u32]) -> Vec<Option<Duration>> {
        self.inner.silence(topic, partitions).await
    }

    async fn journals(&self, group: &str, topic: &str) -> Result<Option<u32>, BrokerError> {
        ask(&self.plans, self.inner.journals(group, topic)).await
    }

    async fn grow_journals(&self, group: &str, topic: &str, partitions: u32) -> Result<(), BrokerError> {
        ask(&self.plans, self.inner.grow_journals(group, topic, partitions)).await
    }

    async fn configured(&self, groups: &[(String, String)]) -> Result<(), BrokerError> {
        self.inner.configured(groups).await
    }

    async fn forget_group(&self, group: &str, topic: &str) -> Result<bool, BrokerError> {
        self.inner.forget_group(group, topic).await
    }

    async fn backup(&self, target: &Path) -> Result<Backup, BrokerError> {
        self.inner.backup(target).await
    }

    async fn held_back(&self, topic: &str) -> Result<Vec<HeldBack>, BrokerError> {
        self.inner.held_back(topic).await
    }

    fn scrubbed(&self) -> Scrubbed {
        self.inner.scrubbed()
    }

    fn threads_ended(&self) -> u64 {
        self.inner.threads_ended()
    }

    async fn troubles(&self) -> Vec<BrokerError> {
        self.inner.troubles().await
    }

    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError> {
        let both = async {
            let inner = self.inner.journal(name).await?;
            Ok((inner, self.carrier.journal(name).await?))
        };
        let (inner, carrier) = ask(&self.plans, both).await?;
        Ok(Arc::new(FaultyJournal { plans: self.plans.clone(), kind: name.kind, inner, carrier }))
    }
}

/// One text for both, since a caller cannot tell a lost request from a lost answer.
const NO_ANSWER: &str = "a fault was injected: no answer";

/// Carries out a question as its plan says.
async fn ask<T>(
    plans: &Plans,
    question: impl Future<Output = Result<T, BrokerError>>,
) -> Result<T, BrokerError> {
    let plan = plans.plan(Call::Ask);
    pause(plan.there).await;
    if plan.fate == Fate::DropRequest {
        return Err(BrokerError::Unavailable(NO_ANSWER.to_owned()));
    }
    let answer = question.await;
    pause(plan.back).await;
    if plan.fate == Fate::DropAnswer {
        return Err(BrokerError::Unavailable(NO_ANSWER.to_owned()));
    }
    answer
}

/// Carries out an append as its plan says: `now` makes it through the caller's handle, `later` through the carrier's.
async fn send<T, N, L>(
    plans: &Arc<Plans>,
    now: impl FnOnce() -> N,
    later: impl FnOnce() -> L,
    lost: impl Fn(&str) -> T,
) -> T
where
    T: Send + 'static,
    N: Future<Output = T>,
    L: Future<Output = T> + Send + 'static,
{
    let plan = plans.plan(Call::Append);
    match plan.fate {
        Fate::DropRequest => {
            pause(plan.there).await;
            lost(NO_ANSWER)
        }
        Fate::Late(after) => {
            land_later(OnItsWay(plans.clone()), plan.there + after, later());
            pause(plan.there).await;
            lost(NO_ANSWER)
        }
        Fate::Carry | Fate::DropAnswer | Fate::Duplicate(_) => {
            let repeated = match plan.fate {
                Fate::Duplicate(after) => Some((OnItsWay(plans.clone()), after)),
                _ => None,
            };
            pause(plan.there).await;
            let answer = now().await;
            if let Some((on_its_way, after)) = repeated {
                // The repetition lands only behind the first append: otherwise an append on condition would get `Moved`
                // because of its own repetition.
                land_later(on_its_way, after, later());
            }
            pause(plan.back).await;
            if plan.fate == Fate::DropAnswer {
                return lost(NO_ANSWER);
            }
            answer
        }
    }
}

/// Appends in a task of its own, so that the append lands whatever becomes of its caller.
fn land_later<T: Send + 'static>(
    on_its_way: OnItsWay,
    after: Duration,
    append: impl Future<Output = T> + Send + 'static,
) {
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        append.await;
        drop(on_its_way);
    });
}

/// Counts an append as late until it has landed, or until its caller was cancelled before the append was sent.
struct OnItsWay(Arc<Plans>);

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.landed();
    }
}

async fn pause(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}
