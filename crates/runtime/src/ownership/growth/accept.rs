//! Accepts, at an operator's request, that a topic has more partitions than before, which moved its keys (BRK-10).
//!
//! Each group that reads the topic decides once, in the journal of partition 0: where all partitions end at a moment
//! when every Keylane producer uses the new number and no owner reads by the old one. The decision is copied into the
//! journals of the partitions that existed before. Then the journals of the new partitions are made, each with a copy;
//! pipelines wait for them. If the process dies in between, another call goes on from there: an owner whose journal
//! lacks the copy adds it before it owns anything.

use std::ops::Range;

use futures_util::future::try_join_all;
use keylane_broker::{Broker, BrokerError, Topic};
use keylane_core::journal::{Command, CommandKind};
use keylane_core::{Acceptance, State};
use serde::Serialize;

use super::super::journal_client::{JOURNAL_EVERY_MS, JournalClient, command, wait};
use super::read_limit::{accepted_of, incarnation_of};
use crate::pipeline::Subscription;
use crate::{Error, Keylane, produce};

/// An owner that has written nothing for this long is dead: a draining owner writes at least every second, and one that
/// does not drain has noticed the new partitions by then.
const SILENCE_MS: u64 = 5_000;
/// How long an owner that goes on writing is waited for, beyond its handlers' time-out.
const PATIENCE_MS: u64 = 5_000;

/// The acceptance of more partitions for one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Accepted {
    /// The pipeline in this process that reads the topic.
    pub pipeline: String,
    /// The pipeline's group.
    pub group: String,
    /// How many partitions the topic had for the group.
    pub from: u32,
    /// How many it has now.
    pub to: u32,
}

impl Keylane {
    /// Accepts that `topic` has more partitions than before, for all groups whose pipelines run here. Returns nothing
    /// for groups that know it already. Messages newer than this moment are read once all older ones are settled.
    ///
    /// Add the partitions first, then wait until all producers use the new number, then accept. Keylane producers
    /// notice the number after some seconds, for which this call waits; other producers notice it at their next look,
    /// by default within five minutes. If the new number is a multiple of the old one, the messages of each key keep
    /// their order; otherwise messages that were produced between the two moments may run before older ones of their
    /// key.
    pub async fn accept(&self, topic: &str, who: &str) -> Result<Vec<Accepted>, Error> {
        let broker = &*self.inner.broker;
        let unknown = || BrokerError::UnknownTopic(topic.to_owned());
        let there = broker.topic(topic).await?.ok_or_else(unknown)?;
        let running: Vec<_> =
            self.running().into_iter().filter(|one| *one.subscription().topic == *topic).collect();
        if running.is_empty() {
            return Err(Error::Accept(topic.to_owned(), "no pipeline here reads it".to_owned()));
        }
        let mut open = Vec::new();
        for pipeline in &running {
            if let Some(from) = number_of(broker, pipeline.subscription(), &there).await? {
                open.push((pipeline, from));
            }
        }
        if open.is_empty() {
            return Ok(Vec::new());
        }
        self.producer().targets().look_at(topic).await;
        let clock = self.inner.clock;
        wait(clock, produce::KNOWN_MS).await;
        if self.producer().spill().is_some_and(|spill| spill.has_by_other(topic, there.partitions)) {
            let why = "messages that went by the old number are in this machine's spill (keylane spill ls); try again when they are sent, and those that failed are drained (keylane spill drain)";
            return Err(Error::Accept(topic.to_owned(), why.to_owned()));
        }
        let accepting = open.into_iter().map(async |(pipeline, from)| {
            let (at, to) = (pipeline.subscription(), there.partitions);
            decide(at, &there, from, who).await?;
            copy(at, from, 0..from, who).await?;
            broker.grow_journals(&at.group, topic, to).await?;
            copy(at, from, from..to, who).await?;
            tracing::warn!(topic, group = at.group, from, to, who, "more partitions were accepted");
            let (pipeline, group) = (pipeline.name().to_owned(), at.group.clone());
            Ok(Accepted { pipeline, group, from, to })
        });
        try_join_all(accepting).await
    }
}

/// The number of partitions by which a group goes; none if the group knows the topic's present number.
async fn number_of(broker: &dyn Broker, at: &Subscription, there: &Topic) -> Result<Option<u32>, Error> {
    let Some(made) = broker.journals(&at.group, &at.topic).await? else {
        return Ok(None);
    };
    let state = accepted_of(at, made).await?;
    if incarnation_of(&state).is_some_and(|recorded| recorded != there.incarnation) {
        return Err(BrokerError::Recreated(there.name.clone()).into());
    }
    let decided = decided(&state).unwrap_or(made);
    if there.partitions < decided {
        let why = format!("it has {} partitions, and {decided} are on record", there.partitions);
        return Err(Error::Accept(there.name.clone(), why));
    }
    // A call decided and died before it made the journals.
    let open = decided != there.partitions || made != there.partitions;
    Ok(open.then_some(if decided == there.partitions { made } else { decided }))
}

/// The number of partitions by which the journal of partition 0 goes.
fn decided(state: &State) -> Option<u32> {
    let accepted = state.accepted.last().map(Acceptance::to);
    accepted.or(state.source.map(|source| source.partitions))
}

/// Puts the decision on record, unless it is there already.
async fn decide(at: &Subscription, there: &Topic, from: u32, who: &str) -> Result<(), Error> {
    let broker = &*at.broker;
    let mut first = JournalClient::open(at, 0).await?;
    // Also if the journal of partition 0 has lost the decision and other journals have it.
    if decided(&accepted_of(at, from).await?) == Some(there.partitions) {
        return Ok(());
    }
    try_join_all((0..from).map(|partition| released(at, partition, there.partitions, who))).await?;
    let ends = broker.tails(&at.topic).await?;
    let accept = Acceptance { incarnation: there.incarnation, from, ends };
    if accept.to() != there.partitions {
        return Err(Error::Accept(at.topic.to_string(), "it is being changed; try again".to_owned()));
    }
    first.tell(Command { accept: Some(accept), ..command(at, CommandKind::Accept, who) }).await?;
    // Another process may have decided first; either way the decision counts once.
    match decided(&first.read_on().await?) {
        Some(decided) if decided == there.partitions => Ok(()),
        _ => {
            let why = "somebody else has accepted another number; look at it, and try again";
            Err(Error::Accept(at.topic.to_string(), why.to_owned()))
        }
    }
}

/// Copies the decisions that the journals of the first `from` partitions hold into the journals of the partitions `to`.
async fn copy(at: &Subscription, from: u32, to: Range<u32>, who: &str) -> Result<(), Error> {
    let decided = accepted_of(at, from).await?;
    try_join_all(to.map(async |partition| {
        let mut journal = JournalClient::open(at, partition).await?;
        let state = journal.read_on().await?;
        let has = |one: &Acceptance| state.accepted.iter().any(|known| known.to() >= one.to());
        for accept in decided.accepted.iter().filter(|one| one.to() > decided.opened && !has(one)) {
            let accept = Some(accept.clone());
            journal.tell(Command { accept, ..command(at, CommandKind::Accept, who) }).await?;
        }
        Ok::<(), Error>(())
    }))
    .await?;
    Ok(())
}

/// Tells a partition's owner, and all that may become its owner, how many partitions there are. Waits until no owner
/// goes by fewer: an owner that reads the command drains, and one that slept reads it before it starts anything.
async fn released(at: &Subscription, partition: u32, partitions: u32, who: &str) -> Result<(), Error> {
    let mut journal = JournalClient::open(at, partition).await?;
    if journal.read_on().await?.widened < partitions {
        journal
            .tell(Command { partitions: Some(partitions), ..command(at, CommandKind::Widen, who) })
            .await?;
    }
    let (began_ms, mut heard_ms) = (at.clock.now_ms(), at.clock.now_ms());
    loop {
        let read = journal.next();
        let state = journal.read_on().await?;
        let now_ms = at.clock.now_ms();
        if journal.next() != read {
            heard_ms = now_ms;
        }
        let knows = state.source.is_some_and(|source| source.partitions >= partitions);
        let Some(epoch) = state.epoch.filter(|epoch| !epoch.released && !knows) else {
            return Ok(());
        };
        if now_ms >= heard_ms + SILENCE_MS {
            return Ok(());
        }
        if now_ms >= began_ms + at.timeout_ms.saturating_add(PATIENCE_MS) {
            let why = format!("partition {partition} is still owned, by {}; stop that process", epoch.node);
            return Err(Error::Accept(at.topic.to_string(), why));
        }
        wait(at.clock, JOURNAL_EVERY_MS).await;
    }
}
