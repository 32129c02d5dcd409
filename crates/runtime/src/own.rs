//! Owning one partition: a task that does what `keylane_core::Owner` decides, and tells it what happened.
//!
//! Comes in: assignment, mail of the shard, records of the journal, time. Goes out: commands to the shard, records,
//! the mirrored commit. Every rule is core's; this file appends, reads, waits, and loses nothing on the way: an answer
//! that did not come is `Unknown`, and what was handed over stays with the owner until it counts.

mod mail;
mod mirror;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use keylane_broker::{AppendError, BrokerError, Journal, Topic};
use keylane_core::{Action, Appended, Input, Owner, Record, Setup, State, StepBack, Stop};
use tokio::sync::mpsc;

use self::mail::Alive;
use crate::assign::Asks;
use crate::growth::{self, Gates};
use crate::link::{Command, Link, Pauses, Start};
use crate::news::{News, Told};
use crate::spawn::TaskKind;
use crate::status::PartitionState;
use crate::subscription::Subscription;
use crate::view::PartitionView;
use crate::wake::Wakes;

/// Bytes of a journal read at a time: a take-over reads one snapshot and about as much again.
const PAGE_BYTES: usize = 512 * 1024;
/// Between two tries of something that a broker did not do.
const AGAIN_MS: u64 = 200;
/// Between two commits (COM-2): the journal is the truth, and the broker's commit is for who looks at the group.
const COMMIT_MS: u64 = 1_000;
/// How often an owner looks whether its shard is alive.
const LOOK_MS: u64 = 10_000;

/// What one partition's owner works with.
pub(crate) struct Own {
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) topic: Topic,
    pub(crate) partition: u32,
    pub(crate) instance: u128,
    pub(crate) start: u64,
    pub(crate) shard: mpsc::Sender<Command>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) pauses: Arc<Pauses>,
    pub(crate) news: News,
    pub(crate) asks: Asks,
    pub(crate) view: Arc<PartitionView>,
    pub(crate) gates: Arc<Gates>,
}

/// How owning ended.
pub(crate) enum Ended {
    /// The broker has the partition elsewhere.
    GivenUp,
    /// Something that may pass: try again.
    Again(String),
    /// Somebody must look at it (P10).
    Failed(String),
}

/// One try at owning: from the claim to the end of the epoch.
struct Epoch<'a> {
    own: &'a mut Own,
    owner: Owner,
    journal: Arc<dyn Journal>,
    hold: Arc<dyn Journal>,
    link: Arc<Link>,
    epoch: Option<u64>,
    appending: Option<BoxFuture<'static, Result<Appended, Ended>>>,
    committing: Option<BoxFuture<'static, Result<(), BrokerError>>>,
    commit: Option<u64>,
    committed: Option<u64>,
    /// Where the broker's commit stood when it was read last.
    mirrored: Option<u64>,
    commit_again_ms: u64,
    quiet: bool,
    paused_ms: Option<u64>,
    /// Why the partition cannot be read.
    broken: Option<BrokerError>,
    ending: bool,
    /// When the shard was last seen alive, and when that was looked at.
    alive: Alive,
    /// Pauses that had been noticed when the journal was read last.
    pauses: u64,
}

/// What the task waited for.
enum Event {
    Told(Told),
    Appended(Result<Appended, Ended>),
    Committed(Result<(), BrokerError>),
    Mail,
    Landed(Result<(), BrokerError>),
    Time,
}

impl Own {
    /// Owns the partition until it is given up for good.
    pub(crate) async fn run(mut self) {
        loop {
            let tasks = self.subscription.tasks.clone();
            let ended = match tasks.supervise(TaskKind::Owner, self.own_once()).await {
                Ok(ended) => ended,
                Err(why) => {
                    // Nobody puts on record what its shard does now: that must not go on.
                    let _ = self.shard.send(Command::Forget { partition: self.partition }).await;
                    self.wakes.wake();
                    Ended::Again(why)
                }
            };
            match ended {
                Ended::GivenUp => break,
                Ended::Again(why) => {
                    tracing::warn!(partition = self.partition, why, "a partition starts over");
                    self.view.set(PartitionState::Claiming, Some(why));
                    if self.news.given_up() || self.pause(AGAIN_MS * 5).await.is_some() {
                        break;
                    }
                }
                Ended::Failed(why) => {
                    tracing::error!(partition = self.partition, why, "a partition has stopped");
                    self.view.set(PartitionState::Stopped, Some(why));
                    // Nothing is guessed: it stays as it is until somebody acts, or it is assigned elsewhere.
                    if !self.news.given_up() {
                        self.news.next().await;
                    }
                    break;
                }
            }
        }
        self.view.idle();
    }

    /// Waits, unless there is news.
    async fn pause(&mut self, ms: u64) -> Option<Told> {
        let until = self.subscription.clock.instant(self.subscription.clock.now_ms() + ms);
        tokio::select! {
            biased;
            told = self.news.next() => Some(told),
            () = tokio::time::sleep_until(until) => None,
        }
    }

    async fn own_once(&mut self) -> Ended {
        let subscription = Arc::clone(&self.subscription);
        let (journal, hold) = match subscription.journals(self.partition).await {
            Ok(journals) => journals,
            Err(error) => return ended(error),
        };
        self.view.set(PartitionState::Claiming, None);
        if let Err(error) = growth::complete(&subscription, &self.gates, &*journal).await {
            return ended(error);
        }
        let owner = subscription.flaws.owner(Setup {
            instance: self.instance,
            node: subscription.node.clone(),
            seed: subscription.random(),
            conditional: journal.conditional(),
            source: keylane_core::Source {
                incarnation: self.topic.incarnation,
                partitions: self.topic.partitions,
            },
            former: self.gates.former(),
            format: subscription.flaws.format(),
            order: subscription.order,
            start: self.start,
            handler_timeout_ms: subscription.timeout_ms,
            bounds: subscription.bounds.within(journal.bytes_max()),
        });
        let mut epoch = Epoch {
            own: self,
            owner,
            journal,
            hold,
            link: Arc::default(),
            epoch: None,
            appending: None,
            committing: None,
            commit: None,
            committed: None,
            mirrored: None,
            commit_again_ms: 0,
            quiet: false,
            paused_ms: None,
            pauses: 0,
            broken: None,
            ending: false,
            alive: Alive::default(),
        };
        let ended = epoch.run().await.unwrap_or_else(|ended| ended);
        epoch.drop_shard().await;
        ended
    }
}

/// What a broker's error means for owning.
fn ended(error: BrokerError) -> Ended {
    match error {
        // A topic that is away while brokers come and go is not gone; one that is made anew is told by its id (BRK-10).
        BrokerError::Unavailable(_) | BrokerError::UnknownTopic(_) => Ended::Again(error.to_string()),
        // Somebody else makes it, and then it goes on.
        BrokerError::NotMade { .. } => {
            Ended::Again(format!("{}: {error}", crate::error::broker_code(&error)))
        }
        BrokerError::Closed => Ended::GivenUp,
        _ => Ended::Failed(format!("{}: {error}", crate::error::broker_code(&error))),
    }
}

impl Epoch<'_> {
    async fn run(&mut self) -> Result<Ended, Ended> {
        let mut action = self.tick();
        loop {
            action = match action {
                Action::Append { record, expect } => {
                    if matches!(&*record, Record::Facts(facts) if facts.released) {
                        self.commit_last().await;
                    }
                    let (journal, bytes) = (Arc::clone(&self.journal), self.owner.encode(&record));
                    self.appending = Some(Box::pin(append(journal, bytes, expect)));
                    self.tick()
                }
                Action::Read { .. } => self.read(false).await?,
                Action::ReadCommit => {
                    let committed = self.read_commit().await?;
                    self.step(Input::Committed(committed))
                }
                Action::Wait { until_ms } => self.wait(until_ms).await?,
                Action::Start { epoch } => {
                    self.start(epoch).await?;
                    self.tick()
                }
                Action::Resume => {
                    let pauses = self.pauses;
                    let verified = |partition, epoch| Command::Verified { partition, epoch, pauses };
                    self.tell(verified).await;
                    self.tick()
                }
                Action::Counted { epoch, dead, low, .. } => {
                    self.counted(epoch, dead.iter().map(|dead| dead.position).collect(), low).await?;
                    self.tick()
                }
                Action::Cut { below } => {
                    if let Err(error) = self.journal.cut(below).await {
                        tracing::warn!(%error, below, "a journal was not cut; it stays longer than it needs to be");
                    }
                    self.tick()
                }
                Action::Drain => {
                    self.tell(|partition, epoch| Command::Drain { partition, epoch }).await;
                    self.own.view.set(PartitionState::Draining, None);
                    self.tick()
                }
                Action::StepBack(why) => {
                    self.step_back(why).await;
                    self.confirm(Input::Confirmed).await
                }
                Action::Stop(why) => {
                    return Ok(self.broken.take().map_or_else(|| stopped(&why), ended));
                }
            };
        }
    }

    fn now_ms(&self) -> u64 {
        self.own.subscription.clock.now_ms()
    }

    fn tick(&mut self) -> Action {
        let now_ms = self.now_ms();
        self.step(Input::Tick(now_ms))
    }

    fn step(&mut self, input: Input<'_>) -> Action {
        self.owner.tell_time(self.now_ms());
        self.owner.step(input)
    }

    /// Reads the journal from where the owner is to its end; or, of what has `landed`, what is at hand: enough to see
    /// what counts, and not enough to go on after a pause.
    async fn read(&mut self, landed: bool) -> Result<Action, Ended> {
        loop {
            let next = self.owner.next();
            let page = match landed {
                true => self.journal.read_landed(next, PAGE_BYTES).await,
                false => {
                    self.pauses = self.own.pauses.count();
                    self.journal.read(next, PAGE_BYTES).await
                }
            };
            let page = page.map_err(ended)?;
            let next = page.records.last().map_or(page.end, |(position, _)| position + 1);
            for (position, bytes) in &page.records {
                let action = match self.owner.decode(bytes) {
                    Ok(record) => {
                        let bytes = bytes.len();
                        self.step(Input::Read { position: *position, record: &record, bytes })
                    }
                    Err(error) => self.step(Input::Unreadable { position: *position, error }),
                };
                // What is not asked for again must be done now; the rest of the page is read again.
                if !matches!(action, Action::Wait { .. } | Action::Read { .. }) {
                    if *position + 1 < page.end {
                        // A later fence may stand in the rest, if the process slept behind its own: what starts now
                        // starts nothing until the end was read (ORD-12).
                        self.pauses = Pauses::UNSURE;
                    }
                    return Ok(action);
                }
            }
            if next >= page.end && landed {
                return Ok(self.tick());
            }
            if next >= page.end {
                let now_ms = self.now_ms();
                return Ok(self.step(Input::CaughtUp { start: page.start, end: page.end, now_ms }));
            }
        }
    }

    /// Waits until something happens, and says what it means.
    async fn wait(&mut self, until_ms: u64) -> Result<Action, Ended> {
        if let Some(predecessor) = self.owner.predecessor()
            && self.own.asks.proves_dead(predecessor).await
        {
            return Ok(self.step(Input::PredecessorDead(predecessor)));
        }
        if let Some(action) = self.rest_of_mail().await {
            return Ok(action);
        }
        self.commit_next();
        let now_ms = self.now_ms();
        if self.epoch.is_some() && self.alive.stalled(self.link.ticked_ms(), now_ms) {
            return Err(Ended::Failed("its shard has not moved for a minute".to_owned()));
        }
        let until_ms = until_ms.min(now_ms + LOOK_MS);
        match self.event(until_ms).await {
            Event::Told(told) => Ok(self.told(told)),
            Event::Appended(appended) => {
                self.appending = None;
                Ok(self.step(Input::Appended(appended?)))
            }
            Event::Committed(result) => {
                self.committing = None;
                if let Err(error) = result {
                    tracing::warn!(%error, "the broker's commit did not follow; it is tried again");
                    self.own.subscription.counters.commit_failed();
                    self.commit = self.commit.max(self.committed.take());
                    self.commit_again_ms = now_ms + 5 * AGAIN_MS;
                } else {
                    self.own.subscription.counters.commit_done();
                    self.commit_again_ms = now_ms + COMMIT_MS;
                }
                Ok(self.tick())
            }
            Event::Mail => self.mail().await,
            // A take-over goes on only from where the journal ends.
            Event::Landed(Ok(())) => self.read(self.epoch.is_some()).await,
            Event::Landed(Err(error)) => Err(ended(error)),
            Event::Time => Ok(self.tick()),
        }
    }

    async fn event(&mut self, until_ms: u64) -> Event {
        let clock = self.own.subscription.clock;
        let commit_at_ms = if self.commit.is_some() { self.commit_again_ms.max(1) } else { u64::MAX };
        let until = clock.instant(until_ms.min(commit_at_ms.max(clock.now_ms() + 1)));
        let next = self.owner.next();
        tokio::select! {
            biased;
            told = self.own.news.next() => Event::Told(told),
            appended = optional(&mut self.appending) => Event::Appended(appended),
            committed = optional(&mut self.committing) => Event::Committed(committed),
            () = self.link.arrives(), if self.epoch.is_some() => Event::Mail,
            landed = self.journal.beyond(next), if self.appending.is_none() => Event::Landed(landed),
            () = tokio::time::sleep_until(until) => Event::Time,
        }
    }

    fn told(&mut self, told: Told) -> Action {
        match told {
            Told::Yours | Told::Revoked => self.step(Input::Revoked),
            Told::Lost => self.step(Input::Lost),
        }
    }

    /// The fence counts: the shard may read, from the lowest position that is not settled.
    async fn start(&mut self, epoch: u64) -> Result<(), Ended> {
        let at = Arc::clone(&self.own.subscription);
        self.own.gates.learn(self.state());
        let settled = self.state().settled.clone();
        let ahead_bytes = at.ahead_bytes / self.own.topic.partitions.max(1) as usize;
        let reader = at.broker.reader_ahead(&at.topic, self.own.partition, settled.low(), ahead_bytes);
        let reader = reader.await.map_err(ended)?;
        let reader = self.own.gates.guard(self.own.partition, reader, settled.low());
        self.epoch = Some(epoch);
        self.link = Arc::default();
        self.own.view.started(epoch, &settled, Arc::clone(&self.link), Arc::clone(&self.own.gates));
        tracing::info!(
            topic = &*at.topic,
            partition = self.own.partition,
            epoch,
            from = settled.low(),
            "a partition is owned"
        );
        let start = Start {
            partition: self.own.partition,
            epoch,
            settled,
            reader,
            link: Arc::clone(&self.link),
            pauses: self.pauses,
        };
        // A predecessor that died may not have mirrored all that counts.
        self.commit = Some(start.settled.low()).filter(|low| self.mirrored != Some(*low));
        self.link.tick(self.now_ms());
        self.send(Command::Start(Box::new(start))).await;
        Ok(())
    }

    fn state(&self) -> &State {
        self.owner.state().expect("an owner has read its journal")
    }

    async fn step_back(&mut self, why: StepBack) {
        tracing::info!(partition = self.own.partition, ?why, "another process has the partition");
        self.own.view.set(PartitionState::Claiming, None);
        self.drop_shard().await;
        // An append under way is not forgotten: the owner sends nothing before it knows how that went.
        self.committing = None;
        self.commit = None;
        self.committed = None;
    }

    /// Asks whether the partition is still assigned here, until somebody can say; only then goes on with `sure`.
    async fn confirm(&mut self, sure: Input<'_>) -> Action {
        loop {
            match self.own.asks.confirm(self.own.partition).await {
                Some(true) => return self.step(sure),
                Some(false) => return self.step(Input::Lost),
                None => {
                    if let Some(told) = self.own.pause(AGAIN_MS * 5).await {
                        return self.told(told);
                    }
                }
            }
        }
    }

    /// The shard forgets the partition.
    async fn drop_shard(&mut self) {
        self.tell(|partition, epoch| Command::Drop { partition, epoch }).await;
        self.epoch = None;
    }

    async fn tell(&mut self, command: impl FnOnce(u32, u64) -> Command) {
        if let Some(epoch) = self.epoch {
            self.send(command(self.own.partition, epoch)).await;
        }
    }

    async fn send(&mut self, command: Command) {
        // A shard that is gone has dropped everything by itself.
        let _ = self.own.shard.send(command).await;
        self.own.wakes.wake();
    }
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

/// Waits for something that may not be there.
async fn optional<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
