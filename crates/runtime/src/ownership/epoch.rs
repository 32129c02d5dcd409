//! One try of an owner to own its partition, from the claim to the end of the epoch. Carries out the actions that
//! `keylane_core::Owner` decides, and waits for none of them.
//!
//! A call that takes time is put into [`UnderWay`]; `event.rs` waits for all such calls at once and says which was
//! answered first. Invariant: nothing is lost meanwhile. An append without an answer counts as `Unknown` and is sent
//! again, and positions that were handed over stay with the owner until they count.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylane_broker::{AppendError, BrokerError, Journal, Reader};
use keylane_core::{Action, Appended, Input, Owner, Record, Setup, State, StepBack, Stop};

use super::assignment::Assignment;
use super::bodies::Burials;
use super::commands::Outbox;
use super::event::{Sure, UnderWay};
use super::hold::Hold;
use super::journal::Listening;
use super::mail::{Alive, Letters};
use super::mirror::Mirror;
use super::task::{AGAIN_MS, Ended, Own, ended};
use crate::shard::{Link, ShardCommand, Start};
use crate::status::PartitionState;

/// One try to own a partition.
pub(super) struct Epoch<'a> {
    pub(super) own: &'a mut Own,
    pub(super) owner: Owner,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) link: Arc<Link>,
    /// The epoch that the shard was told to run.
    pub(super) epoch: Option<u64>,
    pub(super) under_way: UnderWay,
    pub(super) listening: Listening,
    pub(super) mirror: Mirror,
    pub(super) letters: Letters,
    pub(super) hold: Hold,
    pub(super) burials: Burials,
    pub(super) outbox: Outbox,
    /// When the shard last showed that it is alive, and when the owner last looked.
    pub(super) alive: Alive,
}

impl<'a> Epoch<'a> {
    pub(super) fn new(own: &'a mut Own, journal: Arc<dyn Journal>, hold: Arc<dyn Journal>) -> Epoch<'a> {
        let (at, hold) = (&own.subscription, Hold::of(hold));
        let owner = at.flaws.owner(Setup {
            instance: own.instance,
            node: at.node.clone(),
            seed: at.random(),
            conditional: journal.conditional(),
            source: keylane_core::Source {
                incarnation: own.topic.incarnation,
                partitions: own.topic.partitions,
            },
            former: own.limits.former(),
            format: at.flaws.format(),
            order: at.order,
            start: own.start,
            handler_timeout_ms: at.timeout_ms,
            bounds: at.bounds.within(journal.bytes_max()),
        });
        Epoch {
            owner,
            journal,
            link: Arc::default(),
            epoch: None,
            under_way: UnderWay::default(),
            listening: Listening::default(),
            mirror: Mirror::default(),
            letters: Letters::default(),
            burials: Burials::new(Arc::clone(at), hold.clone()),
            hold,
            outbox: Outbox::new(own.shard.clone(), Arc::clone(&own.wakes)),
            alive: Alive::default(),
            own,
        }
    }

    /// Claims and owns the partition until that ends, and returns why.
    pub(super) async fn run(&mut self) -> Ended {
        let mut action = self.tick();
        loop {
            let until_ms = match self.act(action) {
                ControlFlow::Continue(Next::Act(next)) => {
                    action = next;
                    continue;
                }
                ControlFlow::Continue(Next::Wait(until_ms)) => until_ms,
                ControlFlow::Break(ended) => return ended,
            };
            action = match self.before_waiting() {
                Ok(Some(next)) => next,
                Ok(None) => {
                    let event = self.event(until_ms).await;
                    match self.happened(event) {
                        Ok(next) => next,
                        Err(ended) => return ended,
                    }
                }
                Err(ended) => return ended,
            };
        }
    }

    /// Carries out one action, without waiting.
    fn act(&mut self, action: Action) -> ControlFlow<Ended, Next> {
        let gives_up_ms = self.owner.gives_up_ms();
        match action {
            Action::Append { record, expect } => self.append(&record, expect),
            Action::Read { .. } => {
                self.read();
                return ControlFlow::Continue(Next::Wait(gives_up_ms));
            }
            Action::ReadCommit => {
                self.ask_for_commit();
                return ControlFlow::Continue(Next::Wait(gives_up_ms));
            }
            Action::Wait { until_ms } => return ControlFlow::Continue(Next::Wait(until_ms)),
            Action::Start { epoch } => self.open_reader(epoch),
            Action::Resume => {
                if let Some(action) = self.resume() {
                    return ControlFlow::Continue(Next::Act(action));
                }
            }
            Action::Counted { epoch, dead, low, .. } => {
                self.counted(epoch, dead.iter().map(|dead| dead.position).collect(), low);
            }
            Action::Cut { below } => self.cut(below),
            // Nothing drives held messages or commands on single messages yet, so these change nothing of a lane.
            Action::Changed { .. } | Action::Due { .. } => {}
            Action::CutHold { below } => self.cut_hold(below),
            Action::Move { position, from, storing } => self.move_body(position, from, storing),
            Action::StoreChunks { storing, chunks } => self.store_pieces(storing, *chunks),
            Action::ReadChunks { position, chunks } => self.read_pieces(position, chunks),
            Action::StoreAgain { position } => {
                let why = format!("the body of the dead letter at {position} lies where its hold is cut");
                return ControlFlow::Break(Ended::Again(why));
            }
            Action::Drain => {
                self.own.view.set(PartitionState::Draining, None);
                if self.under_way.starting.take().is_some() {
                    // The shard was not told to start yet, so nothing runs.
                    return ControlFlow::Continue(Next::Act(self.step(Input::Quiet)));
                }
                self.tell(|partition, epoch| ShardCommand::Drain { partition, epoch });
            }
            Action::StepBack(why) => self.step_back(why),
            Action::Stop(why) => {
                let broken = self.letters.broken.take();
                return ControlFlow::Break(broken.map_or_else(|| stopped(&why), ended));
            }
        }
        ControlFlow::Continue(Next::Act(self.tick()))
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.own.subscription.clock.now_ms()
    }

    pub(super) fn tick(&mut self) -> Action {
        let now_ms = self.now_ms();
        self.step(Input::Tick(now_ms))
    }

    pub(super) fn step(&mut self, input: Input<'_>) -> Action {
        self.owner.tell_time(self.now_ms());
        self.owner.step(input)
    }

    pub(super) fn reassigned(&mut self, assignment: Assignment) -> Action {
        match assignment {
            Assignment::Yours | Assignment::Revoked => self.step(Input::Revoked),
            Assignment::Lost => self.step(Input::Lost),
        }
    }

    fn append(&mut self, record: &Record, expect: Option<u64>) {
        // Before `released` is appended, the broker's commit gets a moment to follow: made after it, the commit could
        // move the next owner's commit back.
        let last = match record {
            Record::Facts(facts) if facts.released => self.commit_last(),
            _ => None,
        };
        let (journal, bytes) = (Arc::clone(&self.journal), self.owner.encode(record));
        self.under_way.appending = Some(Box::pin(async move {
            if let Some(last) = last {
                last.await;
            }
            append(journal, bytes, expect).await
        }));
    }

    /// Starts a cut of the journal. A cut under way is replaced: the newest is enough.
    fn cut(&mut self, below: u64) {
        let journal = Arc::clone(&self.journal);
        self.under_way.cutting = Some(Box::pin(async move {
            if let Err(error) = journal.cut(below).await {
                tracing::warn!(%error, below, "a journal was not cut; it stays longer than it needs to be");
            }
        }));
    }

    /// The fence counts: opens the reader at the lowest unsettled position. If an operator has reset the broker's
    /// commit, our commit replaces theirs before anything starts (COM-3).
    fn open_reader(&mut self, epoch: u64) {
        let (at, partition) = (Arc::clone(&self.own.subscription), self.own.partition);
        self.own.limits.learn(self.state());
        let from = self.state().settled.low();
        let ahead_bytes = at.ahead_bytes / self.own.topic.partitions.max(1) as usize;
        let replaced = self.mirror.replaces.take().map(|low| self.commit_of(epoch, low));
        self.under_way.starting = Some(Box::pin(async move {
            if let Some(commit) = replaced {
                at.broker.commit(&at.group, &at.topic, partition, commit).await?;
            }
            let reader = at.broker.reader_ahead(&at.topic, partition, from, ahead_bytes).await?;
            Ok((epoch, reader))
        }));
    }

    /// Tells the shard to read the partition and to handle its messages.
    pub(super) fn start(&mut self, epoch: u64, reader: Box<dyn Reader>) -> Action {
        let settled = self.state().settled.clone();
        let (partition, low) = (self.own.partition, settled.low());
        let reader = self.own.limits.guard(partition, reader, low);
        self.epoch = Some(epoch);
        self.link = Arc::default();
        self.own.view.started(epoch, self.state(), Arc::clone(&self.link), Arc::clone(&self.own.limits));
        let topic = &*self.own.subscription.topic;
        tracing::info!(topic, partition, epoch, from = low, "a partition is owned");
        // A predecessor that died may not have mirrored everything that counts.
        if self.mirror.mirrored != Some(low) {
            self.commit(epoch, low);
        }
        self.link.tick(self.now_ms());
        let (link, pauses) = (Arc::clone(&self.link), self.sure_pauses());
        self.outbox.send(ShardCommand::Start(Box::new(Start {
            partition,
            epoch,
            settled,
            reader,
            link,
            pauses,
        })));
        self.tick()
    }

    pub(super) fn state(&self) -> &State {
        self.owner.state().expect("an owner has read its journal")
    }

    /// Another process has the partition, or had it meanwhile. What is left of it here is forgotten, and it is claimed
    /// again only once the group has confirmed the assignment. An append under way stays: the owner sends nothing else
    /// before it knows the fate of that record.
    fn step_back(&mut self, why: StepBack) {
        tracing::info!(partition = self.own.partition, ?why, "another process has the partition");
        self.own.view.set(PartitionState::Claiming, None);
        self.drop_shard();
        self.mirror = Mirror::default();
        self.letters.forget();
        let under_way = &mut self.under_way;
        (under_way.starting, under_way.asking) = (None, None);
        self.confirm(Sure::Confirmed);
    }

    /// Asks the group until it says whether the partition is still assigned to this process; then goes on with `sure`.
    pub(super) fn confirm(&mut self, sure: Sure) {
        let (asks, partition) = (self.own.asks.clone(), self.own.partition);
        let asked = async move {
            loop {
                match asks.confirm(partition).await {
                    Some(assigned) => return (sure, assigned),
                    None => tokio::time::sleep(Duration::from_millis(AGAIN_MS * 5)).await,
                }
            }
        };
        self.under_way.confirming = Some(Box::pin(asked));
    }

    /// Makes the shard forget the partition.
    fn drop_shard(&mut self) {
        self.tell(|partition, epoch| ShardCommand::Drop { partition, epoch });
        self.burials.forget();
        self.under_way.forget_stored();
        // A commit made from now on could move the next owner's commit back.
        self.own.subscription.committer.forget(self.own.partition);
        self.listening.unsuspend();
        self.epoch = None;
    }

    /// Ends this try. Commands that the shard's channel has no room for are sent by a task of their own.
    pub(super) fn leave(mut self) {
        self.drop_shard();
        self.outbox.leave(&self.own.subscription.tasks);
    }

    pub(super) fn tell(&mut self, command: impl FnOnce(u32, u64) -> ShardCommand) {
        if let Some(epoch) = self.epoch {
            self.outbox.send(command(self.own.partition, epoch));
        }
    }

    /// If the shard stands still, its owner gives the partition up (ORD-12).
    pub(super) fn look_at_shard(&mut self) -> Result<(), Ended> {
        let now_ms = self.now_ms();
        if self.epoch.is_some() && self.alive.stalled(self.link.ticked_ms(), now_ms) {
            return Err(Ended::Stalled);
        }
        Ok(())
    }
}

/// The step that follows an action.
pub(super) enum Next {
    /// Another action.
    Act(Action),
    /// Wait for the next event, at most until this time.
    Wait(u64),
}

fn stopped(why: &Stop) -> Ended {
    match why.code() {
        Some(code) => Ended::Failed(format!("{code}: {why}")),
        None => Ended::GivenUp,
    }
}

async fn append(journal: Arc<dyn Journal>, record: Bytes, expect: Option<u64>) -> Result<Appended, Ended> {
    match journal.append(record, expect).await {
        Ok(position) => Ok(Appended::At(position)),
        Err(AppendError::Moved { .. }) => Ok(Appended::Moved),
        Err(AppendError::Stopped(why)) => Err(ended(BrokerError::Stopped(why))),
        Err(error) => {
            tracing::warn!(%error, "a journal did not answer; the same record is sent again");
            tokio::time::sleep(Duration::from_millis(AGAIN_MS)).await;
            Ok(Appended::Unknown)
        }
    }
}
