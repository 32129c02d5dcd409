//! The embedded broker (BRK-1): a durable partitioned log in a local folder, for which nothing else has to be
//! installed.
//!
//! ```text
//! <data>/lock                  held by the one process that uses the folder
//! <data>/broker                identities of the two logs below (meta.rs)
//! <data>/topics/<name>/topic   partitions, bounds, incarnation (meta.rs)
//! <data>/topics/<name>/*.seg   the log of a topic, shared by its partitions (segment/)
//! <data>/topics/<name>/end     how far that log reaches (segment/end.rs); the two below have one, too
//! <data>/journals/*.seg        all journals, commits and known groups
//! <data>/holds/*.seg           all holds
//! ```
//!
//! Each log has one writer thread. Callers put what they want written into the log's queue, and one group commit (one
//! write, one fdatasync) serves all callers that wait. A caller is acknowledged, and a reader sees a message, only
//! after the fdatasync. A log whose fdatasync fails stops and reports why (P10); the other logs go on.
//!
//! Continue with: `topic/log.rs` (the way of a message), `segment/bytes.rs` (the format), `segment/scan.rs` (how a
//! torn tail is told from damage), `journals/log.rs` (journals, cuts, and the rewriting of mostly dead segments),
//! `topic/retention.rs`.

pub mod data;
pub mod disk;
mod entrance;
mod failure;
mod folder;
mod groups;
mod journals;
mod membership;
mod meta;
mod options;
mod refusal;
mod scrub;
mod segment;
mod topic;
mod upkeep;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use async_trait::async_trait;
use futures_util::future::join_all;
use keylane_core::Frames;

use crate::contract::{
    Backup, Broker, BrokerError, Commit, Ends, HeldBack, Journal, JournalName, LogKind, Membership,
    ProduceError, Reader, Scrubbed, Topic, TopicSpec,
};
pub use failure::OpenError;
use failure::{Action, Failure};
use folder::Folder;
use groups::Standing;
use journals::{JournalHandle, Role, commit_record, stream_name, streams_of};
use membership::Member;
#[cfg(feature = "flaws")]
pub use options::Flaws;
pub use options::Options;
use topic::PartitionReader;
use writer::Urgency;

use crate::threads;

/// A broker in a local folder. Dropping it closes the folder.
pub struct Embedded {
    folder: Arc<Folder>,
    scrubber: Mutex<Option<JoinHandle<()>>>,
}

impl Embedded {
    /// Opens the folder, or makes it if it does not exist. Recovers every log after a crash, and cuts off torn tails.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Embedded, OpenError> {
        let folder = Arc::new(Folder::open(path.as_ref(), options)?);
        let scrubber = match folder.options.host.threads {
            true => {
                let (scrub, scrubbed) = (Arc::clone(&folder.scrub), Arc::clone(&folder));
                let started = threads::thread(scrub::NAME, move || scrub.run(&scrubbed));
                Some(started.map_err(Failure::io(Action::StartThread, path.as_ref()))?)
            }
            false => None,
        };
        Ok(Embedded { folder, scrubber: Mutex::new(scrubber) })
    }

    /// Like [`Embedded::open`], for an async caller that must not block on the disk. If the future is dropped, the
    /// opening finishes in the background and the folder is closed again.
    pub async fn open_elsewhere(path: PathBuf, options: Options) -> Result<Embedded, OpenError> {
        match threads::blocking(move || Embedded::open(path, options)).await {
            Ok(opened) => opened,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(error) => Err(OpenError::Io {
                action: "wait for".to_owned(),
                path: PathBuf::from("a thread"),
                error: std::io::Error::other(error),
            }),
        }
    }

    /// Writes and syncs all that callers have queued, stops every log, and unlocks the folder. Readers and callers
    /// that still wait get the error `Closed`.
    pub fn close(&self) {
        self.folder.close();
        if let Some(scrubber) = lock(&self.scrubber).take() {
            // A scrubber that panicked has logged its panic, and has written nothing to the folder.
            let _panicked = scrubber.join();
        }
    }

    /// Reads every full segment once and without pauses: a round of the thread `log-scrub`, on demand.
    #[cfg(feature = "testing")]
    pub fn scrub_once(&self) {
        self.folder.scrub.round(&self.folder, std::time::Duration::ZERO);
    }

    /// Changes the bounds of an existing topic. The number of partitions in `spec` must be the topic's own.
    pub async fn alter_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        let (folder, name, spec) = (Arc::clone(&self.folder), name.to_owned(), spec.clone());
        let host = self.folder.options.host.clone();
        host.blocking(move || folder.alter_topic(&name, &spec)).await?
    }

    /// Records durably whether a pipeline is configured for the group and topic.
    async fn stands(&self, group: &str, topic: &str, standing: Standing) -> Result<(), BrokerError> {
        let journals = self.folder.journals()?;
        let name = stream_name(Role::Known, group, topic, 0)?;
        let stream = lock(&journals.streams).number(&name);
        journals.replace(stream, standing.record(), Urgency::Now).await
    }

    /// Copies the whole folder to `target`, which is empty or does not exist, while the broker is in use. The copying
    /// goes on if the caller drops the future.
    async fn copy_to(&self, target: &Path) -> Result<Backup, BrokerError> {
        let (folder, target) = (Arc::clone(&self.folder), target.to_owned());
        let host = self.folder.options.host.clone();
        host.blocking(move || data::back_up(&folder, &target)).await?
    }

    /// Runs one group commit of every log, as the log's thread does otherwise: writes, syncs and acknowledges what
    /// waits.
    #[cfg(feature = "testing")]
    pub fn commit_once(&self) {
        use writer::Drive;
        [self.folder.journals(), self.folder.holds()].into_iter().flatten().for_each(|log| log.commit_once());
        for log in self.folder.open_topics() {
            log.commit_once();
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // Closes explicitly, because a call still under way may keep the `Folder` alive beyond this broker.
        self.close();
    }
}

impl Embedded {
    async fn commit_one(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
        commit: Commit,
    ) -> Result<(), BrokerError> {
        let log = self.folder.partition(topic, partition)?;
        let name = stream_name(Role::Commit, group, topic, partition)?;
        let journals = self.folder.journals()?;
        let stream = lock(&journals.streams).number(&name);
        // A commit with metadata mirrors a journal and can wait for another caller's sync. A commit without metadata
        // comes from an operator, who waits for the answer.
        let urgency = match commit.metadata.is_empty() {
            true => Urgency::Now,
            false => Urgency::Lazy,
        };
        journals.replace(stream, commit_record(&commit), urgency).await?;
        self.folder.groups.commit(group, topic, partition, commit);
        log.settled_more();
        Ok(())
    }
}

#[async_trait]
impl Broker for Embedded {
    fn kind(&self) -> &'static str {
        "embedded"
    }

    async fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        let (folder, name, spec) = (Arc::clone(&self.folder), name.to_owned(), spec.clone());
        let host = self.folder.options.host.clone();
        host.blocking(move || folder.create_topic(&name, &spec)).await?
    }

    async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError> {
        match self.folder.log(name) {
            Ok(log) => Ok(Some(log.topic())),
            Err(BrokerError::UnknownTopic(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        Ok(self.folder.open_topics().iter().map(|log| log.topic()).collect())
    }

    async fn health(&self) -> Result<(), BrokerError> {
        self.folder.health()
    }

    async fn troubles(&self) -> Vec<BrokerError> {
        self.folder.troubles()
    }

    fn scrubbed(&self) -> Scrubbed {
        self.folder.scrub.figures()
    }

    fn threads_ended(&self) -> u64 {
        self.folder.options.host.panics.ended()
    }

    async fn produce(&self, topic: &str, frames: Frames) -> Vec<Result<u64, ProduceError>> {
        let refused = match self.folder.log(topic) {
            Ok(log) => return log.produce(frames).await,
            Err(BrokerError::UnknownTopic(name)) => ProduceError::UnknownTopic(name),
            Err(error) => ProduceError::Unavailable(error.to_string()),
        };
        vec![Err(refused); frames.len()]
    }

    async fn reader(&self, topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError> {
        let log = self.folder.partition(topic, partition)?;
        let threads = self.folder.options.host.threads;
        Ok(Box::new(PartitionReader::open(log, threads, partition, from)?))
    }

    async fn ends(&self, topic: &str) -> Result<Vec<Ends>, BrokerError> {
        Ok(self.folder.log(topic)?.ends())
    }

    async fn commit_all(
        &self,
        group: &str,
        topic: &str,
        commits: Vec<(u32, Commit)>,
    ) -> Vec<Result<(), BrokerError>> {
        // All commits enter the queue at the same time, so that one sync serves them all.
        let commits = commits.into_iter();
        join_all(commits.map(|(partition, commit)| self.commit_one(group, topic, partition, commit))).await
    }

    async fn committed(
        &self,
        group: &str,
        topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError> {
        self.folder.partition(topic, partition)?;
        // While the journals are closed, no commit is known. The answer `None` would make the caller start at the
        // beginning and run every message again.
        self.folder.journals()?;
        Ok(self.folder.groups.committed(group, topic, partition))
    }

    async fn join(&self, group: &str, topic: &str, _node: &str) -> Result<Box<dyn Membership>, BrokerError> {
        let log = self.folder.log(topic)?;
        self.folder.journals()?;
        let member = Member::join(
            &self.folder.members,
            group,
            topic,
            log.topic.partitions,
            self.folder.instance,
            self.folder.closed.subscribe(),
        )?;
        let joining = self.folder.groups.joining(group, topic);
        if !joining.is_recorded() {
            // The record must be durable before the member counts. Without the record a restart would not know the
            // group, and retention could delete unsettled messages before the pipeline is back.
            self.stands(group, topic, Standing::Configured).await?;
            joining.recorded();
        }
        Ok(Box::new(member))
    }

    async fn configured(&self, groups: &[(String, String)]) -> Result<(), BrokerError> {
        let now_ms = self.folder.options.host.now_ms();
        for (group, topic) in self.folder.groups.all() {
            let pair = (group, topic);
            let stays = groups.contains(&pair) || self.folder.members.has(&pair);
            let (group, topic) = (&pair.0, &pair.1);
            let standing = match (self.folder.groups.standing(group, topic), stays) {
                (Some(Standing::Removed(_)), true) => Standing::Configured,
                (Some(Standing::Configured), false) => Standing::Removed(now_ms),
                _ => continue,
            };
            if !stays {
                tracing::warn!(
                    group,
                    topic,
                    "no pipeline is configured for this group any more; what it has not settled is kept for a day, or until `keylane topics forget-group {topic} {group}`"
                );
            }
            self.stands(group, topic, standing).await?;
            self.folder.groups.know(group, topic, standing);
        }
        Ok(())
    }

    async fn forget_group(&self, group: &str, topic: &str) -> Result<bool, BrokerError> {
        let (journals, holds) = (Arc::clone(self.folder.journals()?), Arc::clone(self.folder.holds()?));
        // Checked before the first step: a backup that began between the two logs would make the second step fail,
        // and the group would stay half forgotten.
        let Ok(no_backup) = Arc::clone(&self.folder.backing_up).try_read_owned() else {
            let wait = "a backup is being made, and no group is forgotten before it is done";
            return Err(BrokerError::Unavailable(wait.to_owned()));
        };
        // No member may join the group while the group's journals are being removed.
        let kept_out = self.folder.members.keep_out(group, topic)?;
        if streams_of(&journals, group, topic).is_empty()
            && streams_of(&holds, group, topic).is_empty()
            && self.folder.groups.standing(group, topic).is_none()
        {
            return Ok(false);
        }
        let (folder, group, topic) = (Arc::clone(&self.folder), group.to_owned(), topic.to_owned());
        let forgotten = async move {
            let _until_all_is_done = (no_backup, kept_out);
            // The holds, with the bodies, go first. If a crash follows at once, the journals still name the group,
            // and the operator can forget it again.
            holds.forget(streams_of(&holds, &group, &topic)).await?;
            journals.forget(streams_of(&journals, &group, &topic)).await?;
            folder.groups.forget(&group, &topic);
            if let Ok(log) = folder.log(&topic) {
                log.settled_more();
            }
            Ok(true)
        };
        // Runs to its end even if the caller drops the future. Otherwise a journal could remain whose bodies are
        // gone, and the positions that it settled would still count.
        self.folder.options.host.to_the_end(forgotten).await?
    }

    async fn backup(&self, target: &Path) -> Result<Backup, BrokerError> {
        self.copy_to(target).await
    }

    async fn held_back(&self, topic: &str) -> Result<Vec<HeldBack>, BrokerError> {
        Ok(self.folder.log(topic)?.held_back())
    }

    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError> {
        let log = match name.kind {
            LogKind::Journal => self.folder.journals()?,
            LogKind::Hold => self.folder.holds()?,
        };
        Ok(Arc::new(JournalHandle::open(log, name)?))
    }
}

/// Takes a lock whose holder may have panicked: no code in this room leaves the data under a lock half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
