//! One try at owning: from the claim to the end of the epoch. Does what core decides, without waiting for any of it.
//!
//! What takes time is put [`UnderWay`]; `event.rs` waits for all of it at once, and says what came first. Nothing is lost
//! on the way: an answer that did not come is `Unknown`, and what was handed over stays with the owner until it counts.

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

/// One try at owning.
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
    /// When the shard was last seen alive, and when that was looked at.
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

    /// Owns until it ends.
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

    /// Does what was decided. Waits for nothing.
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
            // Nothing is held or commanded yet, so that nothing of a lane changes by these.
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
                    // The shard was told nothing yet, so that nothing runs.
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
        // What is released waits a moment for the broker's commit: afterwards it could go back behind the next owner's.
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

    /// One cut at a time; the newest is enough.
    fn cut(&mut self, below: u64) {
        let journal = Arc::clone(&self.journal);
        self.under_way.cutting = Some(Box::pin(async move {
            if let Err(error) = journal.cut(below).await {
                tracing::warn!(%error, below, "a journal was not cut; it stays longer than it needs to be");
            }
        }));
    }

    /// The fence counts: opens the reader, from the lowest position that is not settled. An operator's reset is replaced
    /// by our own commit before anything starts (COM-3).
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

    /// The shard may read and handle.
    pub(super) fn start(&mut self, epoch: u64, reader: Box<dyn Reader>) -> Action {
        let settled = self.state().settled.clone();
        let (partition, low) = (self.own.partition, settled.low());
        let reader = self.own.limits.guard(partition, reader, low);
        self.epoch = Some(epoch);
        self.link = Arc::default();
        self.own.view.started(epoch, self.state(), Arc::clone(&self.link), Arc::clone(&self.own.limits));
        let topic = &*self.own.subscription.topic;
        tracing::info!(topic, partition, epoch, from = low, "a partition is owned");
        // A predecessor that died may not have mirrored all that counts.
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

    /// Another process has the partition, or had it meanwhile: what is left of it here is forgotten, and it is claimed
    /// again only once it is known to be assigned here. An append under way is not forgotten: the owner sends nothing
    /// before it knows how that went.
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

    /// Asks whether the partition is still assigned here, until somebody can say; only then goes on with `sure`.
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

    /// The shard forgets the partition.
    fn drop_shard(&mut self) {
        self.tell(|partition, epoch| ShardCommand::Drop { partition, epoch });
        self.burials.forget();
        self.under_way.forget_stored();
        // It could go back behind the next owner's.
        self.own.subscription.committer.forget(self.own.partition);
        self.listening.unsuspend();
        self.epoch = None;
    }

    /// Nothing is waited for any more. What the shard could not take yet is brought to it by a task of its own.
    pub(super) fn leave(mut self) {
        self.drop_shard();
        self.outbox.leave(&self.own.subscription.tasks);
    }

    pub(super) fn tell(&mut self, command: impl FnOnce(u32, u64) -> ShardCommand) {
        if let Some(epoch) = self.epoch {
            self.outbox.send(command(self.own.partition, epoch));
        }
    }

    /// A shard that stands still gives its partitions up (ORD-12).
    pub(super) fn look_at_shard(&mut self) -> Result<(), Ended> {
        let now_ms = self.now_ms();
        if self.epoch.is_some() && self.alive.stalled(self.link.ticked_ms(), now_ms) {
            return Err(Ended::Stalled);
        }
        Ok(())
    }
}

/// What follows an action.
pub(super) enum Next {
    /// Another one.
    Act(Action),
    /// Nothing, until something happens or this time comes.
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
