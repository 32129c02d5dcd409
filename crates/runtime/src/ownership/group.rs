//! A pipeline's part in its group: follows which partitions are assigned to it, and runs an owner for each of them.
//!
//! A revoked partition is given back to the group at once, so that other members never wait for it. Its owner drains it
//! meanwhile, and the next owner waits for `released` in the journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use keylane_broker::{BrokerError, Change, Ends, Membership, Topic};
use keylane_core::ErrorCode;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::assignment::{Assignment, AssignmentReceiver, AssignmentSender, assignment};
use super::follow::OwnerRuns;
use super::growth::{ReadLimits, growth_of, lift_limits};
use super::task::Own;
use crate::pipeline::{PartitionView, Subscription, Views, all};
use crate::shard::{Pauses, ShardCommand, Wakes};
use crate::status::PartitionState;
use crate::tasks::{TaskKind, Tasks};

/// Questions on their way from owners to the group's membership; owners wait for the answer.
const QUESTIONS_MAX: usize = 64;

/// A coordinator that takes longer than this to confirm an assignment counts as one that did not answer.
const CONFIRM_MS_MAX: u64 = 5_000;

/// The time between two tries to join the group.
const REJOIN_MS: u64 = 1_000;

type Asking = (Question, oneshot::Sender<Option<bool>>);
type Asked = mpsc::Receiver<Asking>;
type Stop = watch::Receiver<Stopping>;

/// How an owner asks the group's membership.
#[derive(Clone)]
pub(crate) struct Asks {
    questions: mpsc::Sender<Asking>,
}

#[derive(Debug, Clone, Copy)]
enum Question {
    /// Is this partition still assigned to this process? The coordinator is asked anew.
    Assigned(u32),
    /// Does the broker prove that the process with this number is dead?
    Dead(u128),
}

impl Asks {
    /// Questions that stay without an answer.
    #[cfg(test)]
    pub(crate) fn nobody() -> Asks {
        Asks { questions: mpsc::channel(QUESTIONS_MAX).0 }
    }

    /// Whether the coordinator, asked anew, says that the partition is still assigned here. `None`: no answer.
    pub(crate) async fn confirm(&self, partition: u32) -> Option<bool> {
        self.ask(Question::Assigned(partition)).await
    }

    /// Whether the broker proves that the process with this number is dead.
    pub(crate) async fn proves_dead(&self, instance: u128) -> bool {
        self.ask(Question::Dead(instance)).await == Some(true)
    }

    async fn ask(&self, question: Question) -> Option<bool> {
        let (answer, answered) = oneshot::channel();
        // The task that follows the group tells its owners before it ends; a drain must not fail for want of an answer.
        self.questions.send((question, answer)).await.ok()?;
        answered.await.ok()?
    }
}

/// The shard that handles a partition's messages, as the partition's owner reaches it.
#[derive(Clone)]
pub(crate) struct ShardDoor {
    pub(crate) commands: mpsc::Sender<ShardCommand>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) pauses: Arc<Pauses>,
}

/// What is needed to follow the group's assignment.
pub(crate) struct Assign {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) membership: Box<dyn Membership>,
    pub(crate) topic: Topic,
    pub(crate) ends: Vec<Ends>,
    pub(crate) shards: Vec<ShardDoor>,
    pub(crate) views: Views,
    pub(crate) tasks: Tasks,
    pub(crate) stop: watch::Receiver<Stopping>,
    /// The group was left, since the topic must not be read.
    pub(crate) left: bool,
    pub(crate) limits: Arc<ReadLimits>,
    pub(crate) owner_runs: OwnerRuns,
}

/// How far stopping has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stopping {
    /// The pipeline runs.
    No,
    /// The pipeline drains.
    Drain,
    /// The deadline of the drain has passed: attempts and completions that are left are dropped.
    Drop,
}

struct Owned {
    sender: AssignmentSender,
    task: JoinHandle<()>,
}

impl Owned {
    /// Waits until the owner has drained. If its successor's partition is lost, this owner's is dropped too.
    async fn end(mut self, successor: &mut AssignmentReceiver) {
        self.sender.tell(Assignment::Revoked);
        tokio::select! {
            biased;
            _ = &mut self.task => return,
            () = successor.lost() => self.sender.tell(Assignment::Lost),
        }
        let _ = self.task.await;
    }
}

impl Assign {
    /// Follows the assignment until the pipeline is told to stop, then drains what is owned.
    pub(crate) async fn run(mut self) {
        let mut stop = self.stop.clone();
        while self.goes_on(&mut stop).await && self.follow_group(&mut stop).await {}
        self.leave().await;
    }

    /// Waits until the topic's number of partitions is accepted (BRK-10) and the group is joined. False: the pipeline
    /// was told to stop.
    async fn goes_on(&mut self, stop: &mut Stop) -> bool {
        let mut again = self.left;
        loop {
            let tried = tokio::select! {
                biased;
                () = reached(stop, Stopping::Drain) => return false,
                tried = self.try_to_go_on(again) => tried,
            };
            match tried {
                Ok(()) => return true,
                Err(BrokerError::Closed) => return false,
                Err(error) if ends_it(&error) => {
                    let why = said(&error);
                    if !again {
                        tracing::error!(topic = &*self.subscription.topic, why, "a pipeline cannot start");
                    }
                    self.leave().await;
                    self.show_stopped(&why);
                }
                Err(error) => {
                    if !again {
                        tracing::warn!(%error, "a pipeline cannot go on yet; trying again");
                    }
                    self.show_refusal(&error);
                }
            }
            again = true;
            let at = &self.subscription;
            let until = at.clock.instant(at.clock.now_ms() + REJOIN_MS);
            tokio::select! {
                biased;
                () = reached(stop, Stopping::Drain) => return false,
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    async fn try_to_go_on(&mut self, again: bool) -> Result<(), BrokerError> {
        let at = Arc::clone(&self.subscription);
        if again {
            self.look_again().await?;
        }
        let growth = growth_of(&at, &self.topic).await?;
        if self.left {
            self.membership = join_after_pause(&at, &self.topic).await?;
            self.left = false;
        }
        self.limits = ReadLimits::new(growth);
        let (limits, at) = (Arc::downgrade(&self.limits), Arc::downgrade(&at));
        self.tasks.keep(TaskKind::ReadLimits, move || lift_limits(limits.clone(), at.clone()));
        for view in all(&self.views) {
            view.set(PartitionState::Idle, None);
        }
        Ok(())
    }

    /// Reads the topic anew: it may have more partitions by now.
    async fn look_again(&mut self) -> Result<(), BrokerError> {
        let at = &self.subscription;
        let there = at.topic_there().await?;
        if there.incarnation != self.topic.incarnation {
            return Err(BrokerError::Recreated(there.name));
        }
        let ends = at.broker.ends(&at.topic).await?;
        if ends.len() != there.partitions as usize {
            return Err(BrokerError::Unavailable(format!("{} is being changed", at.topic)));
        }
        let mut views = self.views.write().expect("no holder panics");
        for (partition, ends) in (0..).zip(&ends).skip(views.len()) {
            views.push(Arc::new(PartitionView::new(partition, ends.start)));
        }
        (self.topic, self.ends) = (there, ends);
        Ok(())
    }

    /// Follows the assignment. True if the topic got more partitions, which somebody has to accept.
    async fn follow_group(&mut self, stop: &mut Stop) -> bool {
        let (questions, mut asked) = mpsc::channel(QUESTIONS_MAX);
        let asks = Asks { questions };
        let mut owned: BTreeMap<u32, Owned> = BTreeMap::new();
        loop {
            tokio::select! {
                biased;
                () = reached(stop, Stopping::Drain) => break,
                // Before questions: owners ask again until they are answered, and would keep changes unheard.
                change = self.membership.changed() => {
                    let error = match change {
                        Ok(change) => {
                            self.follow(change, &asks, &mut owned).await;
                            continue;
                        }
                        Err(error) if ends_it(&error) => error,
                        Err(BrokerError::Closed) => break,
                        Err(error) => {
                            tracing::warn!(%error, "the group's assignment cannot be followed; joining again");
                            self.show_refusal(&error);
                            match self.join_again(&mut asked, &mut owned, stop).await {
                                Ok(()) => continue,
                                Err(BrokerError::Closed) => break,
                                Err(error) => error,
                            }
                        }
                    };
                    return self.stop_all(&error, &mut owned, &mut asked, stop).await;
                }
                Some(first) = asked.recv() => self.answer(first, &mut asked).await,
            }
        }
        drop(asks);
        self.give_all_up(owned, asked).await;
        false
    }

    /// The topic changed, so that keys or positions mean something else. Running attempts finish and go on record, and
    /// nothing more starts until an operator acts (BRK-10, P10). False: the pipeline was told to stop.
    async fn stop_all(
        &mut self,
        error: &BrokerError,
        owned: &mut BTreeMap<u32, Owned>,
        asked: &mut Asked,
        stop: &mut Stop,
    ) -> bool {
        let why = said(error);
        tracing::error!(topic = &*self.subscription.topic, why, "a pipeline has stopped");
        for own in owned.values() {
            own.sender.tell(Assignment::Revoked);
        }
        self.leave().await;
        let tasks: Vec<_> = std::mem::take(owned).into_values().map(|own| (own.sender, own.task)).collect();
        let (senders, tasks): (Vec<_>, Vec<_>) = tasks.into_iter().unzip();
        let mut ended = Box::pin(join_all(tasks));
        let mut drained = false;
        let mut dropping = stop.clone();
        loop {
            tokio::select! {
                biased;
                () = reached(&mut dropping, Stopping::Drop) => {
                    senders.iter().for_each(|sender| sender.tell(Assignment::Lost));
                    return false;
                }
                Some(first) = asked.recv() => self.answer(first, asked).await,
                _ = &mut ended, if !drained => {
                    drained = true;
                    self.show_stopped(&why);
                    if matches!(error, BrokerError::Partitions { .. }) {
                        return true;
                    }
                }
                () = reached(stop, Stopping::Drain), if drained => return false,
            }
        }
    }

    async fn leave(&mut self) {
        if !std::mem::replace(&mut self.left, true) {
            self.membership.leave().await;
        }
    }

    fn show_stopped(&self, why: &str) {
        for view in all(&self.views) {
            view.set(PartitionState::Stopped, Some(why.to_owned()));
        }
    }

    /// Shows in the status that the group does not let this process in. The pipeline goes on when the right is granted.
    fn show_refusal(&self, error: &BrokerError) {
        if matches!(error, BrokerError::Denied { .. } | BrokerError::Credentials(_) | BrokerError::Invalid(_))
        {
            self.show_stopped(&said(error));
        }
    }

    /// A membership ends with its first error. What it would have reported is unknown, so all its partitions are given
    /// up and the group is joined anew. An error if joining again does not help; `Closed` if there is nothing left to
    /// join.
    async fn join_again(
        &mut self,
        asked: &mut Asked,
        owned: &mut BTreeMap<u32, Owned>,
        stop: &mut Stop,
    ) -> Result<(), BrokerError> {
        for own in owned.values() {
            own.sender.tell(Assignment::Revoked);
        }
        self.membership.leave().await;
        let (subscription, topic) = (Arc::clone(&self.subscription), self.topic.clone());
        let mut joining = Box::pin(join_after_pause(&subscription, &topic));
        loop {
            tokio::select! {
                biased;
                () = reached(stop, Stopping::Drain) => return Err(BrokerError::Closed),
                Some(first) = asked.recv() => self.answer(first, asked).await,
                joined = &mut joining => match joined {
                    Ok(membership) => {
                        self.membership = membership;
                        return Ok(());
                    }
                    Err(error) if ends_it(&error) || error == BrokerError::Closed => return Err(error),
                    Err(error) => {
                        tracing::warn!(%error, "the group was not joined; trying again");
                        self.show_refusal(&error);
                        joining = Box::pin(join_after_pause(&subscription, &topic));
                    }
                },
            }
        }
    }

    /// Answers all waiting questions, those about the assignment with one confirmation, since no change is heard
    /// meanwhile. If the confirmation fails, the owners ask again.
    async fn answer(&mut self, first: Asking, asked: &mut Asked) {
        let (mut partitions, mut answers) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some((question, answer)) = next {
            match question {
                Question::Assigned(partition) => {
                    partitions.push(partition);
                    answers.push(answer);
                }
                Question::Dead(instance) => drop(answer.send(Some(self.membership.proves_dead(instance)))),
            }
            next = asked.try_recv().ok();
        }
        if partitions.is_empty() {
            return;
        }
        let patience = Duration::from_millis(CONFIRM_MS_MAX);
        let said = tokio::time::timeout(patience, self.membership.confirm_all(&partitions)).await;
        let assigned = said.ok().and_then(Result::ok);
        for (at, answer) in answers.into_iter().enumerate() {
            let _ = answer.send(assigned.as_ref().and_then(|assigned| assigned.get(at).copied()));
        }
    }

    async fn follow(&mut self, change: Change, asks: &Asks, owned: &mut BTreeMap<u32, Owned>) {
        match change {
            Change::Assigned(partition) => {
                let own = self.owner_of(partition, asks.clone(), owned.remove(&partition));
                owned.insert(partition, own);
            }
            Change::Revoked(partition) => {
                if let Some(own) = owned.get(&partition) {
                    own.sender.tell(Assignment::Revoked);
                }
                self.membership.gave_up(partition).await;
            }
            Change::Lost(partition) => {
                if let Some(own) = owned.get(&partition) {
                    own.sender.tell(Assignment::Lost);
                }
            }
            _ => {}
        }
    }

    /// Starts an owner for a partition. If an earlier owner still drains it, that one ends first.
    fn owner_of(&self, partition: u32, asks: Asks, before: Option<Owned>) -> Owned {
        let door = self.shards[partition as usize % self.shards.len()].clone();
        let (sender, assignment) = assignment();
        let own = Own {
            subscription: Arc::clone(&self.subscription),
            topic: self.topic.clone(),
            partition,
            instance: self.membership.instance(),
            start: self.ends[partition as usize].start,
            shard: door.commands,
            wakes: door.wakes,
            pauses: door.pauses,
            assignment,
            asks,
            view: Arc::clone(&self.views.read().expect("no holder panics")[partition as usize]),
            limits: Arc::clone(&self.limits),
        };
        let runs = self.owner_runs.clone();
        let task = self.tasks.spawn(async move {
            // Dropped last: the receiver's end means that the owner has let go of everything.
            let _runs = runs;
            let mut own = own;
            if let Some(before) = before {
                before.end(&mut own.assignment).await;
            }
            // The partition may have been revoked meanwhile.
            if own.assignment.is_yours() {
                own.run().await;
            }
        });
        Owned { sender, task }
    }

    /// Drains all partitions, and drops those that have not drained when the deadline passes.
    async fn give_all_up(&mut self, owned: BTreeMap<u32, Owned>, asked: Asked) {
        // Waiting questions end with their channel: an owner would wait for their answer for ever.
        drop(asked);
        let mut senders = Vec::new();
        let mut tasks = Vec::new();
        for own in owned.into_values() {
            own.sender.tell(Assignment::Revoked);
            senders.push(own.sender);
            tasks.push(own.task);
        }
        let mut all = join_all(tasks);
        tokio::select! {
            biased;
            _ = &mut all => return,
            () = reached(&mut self.stop, Stopping::Drop) => {}
        }
        for sender in senders {
            sender.tell(Assignment::Lost);
        }
        all.await;
    }
}

/// Returns once stopping has come that far, or its sender is gone.
pub(crate) async fn reached(stop: &mut watch::Receiver<Stopping>, far: Stopping) {
    let _ = stop.wait_for(|stopping| *stopping >= far).await;
}

/// The text that the status shows for a pipeline that stops.
fn said(error: &BrokerError) -> String {
    match *error {
        BrokerError::Partitions { there, asked, .. } => {
            let why = keylane_core::Stop::OtherPartitions { recorded: asked, found: there };
            format!("{}: {why}", ErrorCode::OtherPartitionCount)
        }
        _ => format!("{}: {error}", crate::error::broker_code(error)),
    }
}

/// True for errors that joining again does not mend.
fn ends_it(error: &BrokerError) -> bool {
    matches!(error, BrokerError::Partitions { .. } | BrokerError::Recreated(_) | BrokerError::Stopped(_))
}

/// Joins the group after a pause. The topic must still be the one that was joined before.
async fn join_after_pause(at: &Subscription, before: &Topic) -> Result<Box<dyn Membership>, BrokerError> {
    tokio::time::sleep_until(at.clock.instant(at.clock.now_ms() + REJOIN_MS)).await;
    let mut membership = at.broker.join(&at.group, &at.topic, &at.node).await?;
    // Compared after joining: a topic never becomes again what it was, so it was the same while joining too.
    match at.topic_there().await.and_then(|there| before.same(&there)) {
        Ok(()) => Ok(membership),
        Err(error) => {
            membership.leave().await;
            Err(error)
        }
    }
}
