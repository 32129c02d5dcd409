//! Raises the format in which a topic's journals are written, once every node reads the new format (BRK-6).
//!
//! The caller names a topic. A command goes into the journal of each of its partitions, for each group whose pipelines
//! run here. `keylane_core::apply` decides whether the command counts, by the owner of the partition and its newest
//! claimant. Invariant: no journal is raised while one of these journals says that a node would be left behind.
//! Journals whose command did not count, or that a call did not reach, stay as they are; the call may be repeated
//! without harm.

use keylane_broker::BrokerError;
use keylane_core::State;
use keylane_core::journal::{Command, CommandKind};
use serde::Serialize;

use super::journal_client::{JournalClient, command};
use crate::pipeline::Subscription;
use crate::{Error, Keylane};

/// The journals of one group that were raised to a newer format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Upgraded {
    /// The pipeline in this process that reads the topic.
    pub pipeline: String,
    /// The pipeline's group.
    pub group: String,
    /// The oldest format that was in use.
    pub from: u8,
    /// The format that is in use now.
    pub to: u8,
    /// How many partitions had an older format.
    pub partitions: u32,
}

/// A journal that is to be raised.
struct Behind<'a> {
    partition: u32,
    journal: JournalClient<'a>,
    format: u8,
}

impl Keylane {
    /// Raises the journals of `topic` to the newest format that this version writes, for all groups whose pipelines run
    /// here. Returns nothing for groups whose journals have that format already. Until then owners write the format
    /// that is in use, so that nodes of an older version can take over from them.
    ///
    /// Call this once every node of those groups runs this version. The call is refused while a node that does not read
    /// the format owns a partition or is its newest claimant. A node that is neither cannot be seen from here; it stops
    /// with KL-1312 when it is given a partition. There is no way back.
    pub async fn upgrade(&self, topic: &str, who: &str) -> Result<Vec<Upgraded>, Error> {
        let broker = &*self.inner.broker;
        broker.topic(topic).await?.ok_or_else(|| BrokerError::UnknownTopic(topic.to_owned()))?;
        let running: Vec<_> =
            self.running().into_iter().filter(|one| *one.subscription().topic == *topic).collect();
        if running.is_empty() {
            return Err(Error::Upgrade(topic.to_owned(), "no pipeline here reads it".to_owned()));
        }
        // All journals are checked before the first is raised: a call that is refused changes nothing.
        let mut behind = Vec::new();
        for pipeline in &running {
            behind.push((pipeline, look(pipeline.subscription()).await?));
        }
        let mut upgraded = Vec::new();
        for (pipeline, behind) in behind {
            let at = pipeline.subscription();
            let (Some(from), to) = (behind.iter().map(|one| one.format).min(), at.flaws.format()) else {
                continue;
            };
            let partitions = behind.len() as u32;
            for one in behind {
                raise(at, one, to, who).await?;
            }
            tracing::warn!(topic, group = at.group, from, to, who, "the format of journals was raised");
            let (pipeline, group) = (pipeline.name().to_owned(), at.group.clone());
            upgraded.push(Upgraded { pipeline, group, from, to, partitions });
        }
        Ok(upgraded)
    }
}

/// The journals of a group with an older format than this version writes; an error if a node would be left behind.
async fn look(at: &Subscription) -> Result<Vec<Behind<'_>>, Error> {
    let newest = at.flaws.format();
    let mut behind = Vec::new();
    for partition in 0..at.broker.journals(&at.group, &at.topic).await?.unwrap_or(0) {
        let mut journal = JournalClient::open(at, partition).await?;
        let state = match journal.read_on().await {
            Err(BrokerError::Stopped(why)) => return Err(refused(at, partition, &why)),
            read => read?,
        };
        // A journal without a claim gets its format from its first owner.
        if state.claim.is_none() || state.format() >= newest {
            continue;
        }
        check(at, partition, &state, newest)?;
        behind.push(Behind { partition, journal, format: state.format() });
    }
    Ok(behind)
}

async fn raise(at: &Subscription, behind: Behind<'_>, to: u8, who: &str) -> Result<(), Error> {
    let Behind { partition, mut journal, .. } = behind;
    journal.tell(Command { format: Some(to), ..command(at, CommandKind::Upgrade, who) }).await?;
    let state = journal.read_on().await?;
    if state.format() >= to {
        return Ok(());
    }
    // A node of an older version may have claimed the partition in between.
    check(at, partition, &state, to)?;
    Err(refused(at, partition, "it changed hands at this moment; ask again"))
}

fn check(at: &Subscription, partition: u32, state: &State, to: u8) -> Result<(), Error> {
    let Some(old) = state.too_old_for(to) else {
        return Ok(());
    };
    let has = if old.owns { "owns it" } else { "was the last to claim it" };
    let why = format!(
        "node {} {has} and reads formats up to {} only, not {to}; run this version on all nodes, then ask again",
        old.node, old.reads
    );
    Err(refused(at, partition, &why))
}

fn refused(at: &Subscription, partition: u32, why: &str) -> Error {
    Error::Upgrade(at.topic.to_string(), format!("group {}, partition {partition}: {why}", at.group))
}
