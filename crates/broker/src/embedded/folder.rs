//! An open data folder: takes its lock, opens and makes its topics and its two logs of journals, and closes
//! everything.
//!
//! In: a path. Out: logs by name. If a log cannot be opened (damaged bytes, read errors of the disk, a missing file),
//! the folder keeps the reason in the log's place and opens the other logs. What a closed log stops:
//!
//! - A topic: producing to the topic, and reading it.
//! - The journals: reading any topic in a group, because an owner learns only from its journal what is settled; and
//!   retention, because without commits no message may be deleted. Producing goes on until a topic has reached its
//!   bound.
//! - The holds: reading any topic in a group, because a dead letter could not be stored.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::sync::watch;

use super::data::{Captured, refuse_restoring};
use super::failure::{Action, Failure, OpenError};
use super::groups::{Groups, Standing};
use super::journals::{JournalLog, Role, latest, parse_commit, parse_name};
use super::membership::Members;
use super::options::{Host, Options};
use super::scrub::Scrub;
use super::segment::Sizes;
use super::segment::make::{check_unused, make_dir};
use super::topic::TopicLog;
use super::writer::{Drive, drive};
use super::{lock, meta};
use crate::contract::{BrokerError, Topic, TopicSpec};
use crate::threads;

/// The first segment of the journals and of the holds. Small, because many installations never need another.
const JOURNAL_SEGMENT_FIRST: u64 = 1 << 20;

/// An open folder.
pub(crate) struct Folder {
    root: PathBuf,
    pub options: Options,
    /// Identifies this process in claims. Random, and new each time the folder is opened.
    pub instance: u128,
    pub groups: Arc<Groups>,
    topics: Mutex<BTreeMap<String, TopicState>>,
    journals: Kept,
    holds: Kept,
    pub members: Arc<Members>,
    /// Held while a topic is made or altered, so that two calls never write the same topic's files at once.
    making: Mutex<()>,
    /// Write-locked while a backup is made, read-locked while a group is forgotten. Forgetting changes two logs one
    /// after the other, and a backup in between would contain half of it.
    pub backing_up: Arc<tokio::sync::RwLock<()>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub closed: watch::Sender<bool>,
    pub scrub: Arc<Scrub>,
    folder_lock: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

/// The log of a topic, or the reason why the log is closed.
type TopicState = Result<Arc<TopicLog>, BrokerError>;
/// The log of all journals or of all holds, or the reason why it is closed.
type Kept = Result<Arc<JournalLog>, BrokerError>;

/// At most this many threads open topics at the start. Each of them reads segment after segment, and a disk has
/// hardly more to give to further threads.
const OPENING_MAX: usize = 8;

impl Folder {
    /// Locks the folder, which is made if it does not exist, and opens every log in it.
    pub fn open(root: &Path, options: Options) -> Result<Folder, OpenError> {
        let host = options.host.clone();
        let topics_dir = root.join("topics");
        make_dir(&host, root)?;
        let folder_lock = host.disk.lock(&root.join("lock")).map_err(|error| {
            match error.kind() == std::io::ErrorKind::WouldBlock {
                true => OpenError::Locked(root.to_owned()),
                false => Failure::io(Action::Lock, root)(error).into(),
            }
        })?;
        refuse_restoring(&host, root)?;
        make_dir(&host, &topics_dir)?;
        let groups = Arc::new(Groups::default());
        make_private(&host, root);
        let (journals, holds) = match open_journals(root, &options) {
            Ok(identities) => identities,
            Err(failure) => {
                let why = closed("the journals and the holds", &failure);
                (Err(why.clone()), Err(why))
            }
        };
        let journals = journals.and_then(|journals| match load_groups(&journals, &groups) {
            Ok(()) => Ok(journals),
            Err(failure) => Err(closed("the log of all journals", &failure)),
        });
        if journals.is_err() {
            groups.unknown();
        }
        let folder = Folder {
            instance: host.entropy.u128()?,
            groups,
            topics: Mutex::default(),
            journals,
            holds,
            members: Arc::default(),
            making: Mutex::default(),
            backing_up: Arc::default(),
            threads: Mutex::default(),
            closed: watch::Sender::new(false),
            scrub: Arc::default(),
            folder_lock: Mutex::new(Some(folder_lock)),
            root: root.to_owned(),
            options,
        };
        for (name, log) in [("journals", &folder.journals), ("holds", &folder.holds)] {
            if let Ok(log) = log {
                folder.start(name, log.clone())?;
            }
        }
        folder.open_all_topics(host.disk.list(&topics_dir).map_err(Failure::io(Action::List, &topics_dir))?);
        Ok(folder)
    }

    /// The log of all journals.
    pub fn journals(&self) -> Result<&Arc<JournalLog>, BrokerError> {
        self.journals.as_ref().map_err(Clone::clone)
    }

    /// The log of all holds.
    pub fn holds(&self) -> Result<&Arc<JournalLog>, BrokerError> {
        self.holds.as_ref().map_err(Clone::clone)
    }

    /// The path of the data folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A snapshot of every log: the journals, the holds, then each topic. Each is taken when the iterator reaches it.
    pub fn captured(&self) -> impl Iterator<Item = Captured> {
        let journals = [&self.journals, &self.holds].into_iter().flatten().map(|log| log.capture());
        journals.chain(self.open_topics().into_iter().map(|log| log.capture()))
    }

    /// Stops all cutting and deleting in every log until the returned guard is dropped.
    pub fn stand_still(&self) -> Still<'_> {
        self.groups.stand_still(true);
        [&self.journals, &self.holds].into_iter().flatten().for_each(|log| log.stand_still(true));
        // A writer thread may already have decided to delete segments; after the end of its turn it has done so.
        self.open_topics().iter().for_each(|log| log.end_of_turn());
        Still(self)
    }

    /// The reason why no message at all can be taken; `Ok` if at least one topic takes messages, or if there are no
    /// topics.
    pub fn health(&self) -> Result<(), BrokerError> {
        let topics = lock(&self.topics);
        let mut states = topics.values().map(topic_health);
        let first = states.next().unwrap_or(Ok(()));
        if first.is_ok() || states.any(|state| state.is_ok()) { Ok(()) } else { first }
    }

    /// The reason of every log that has stopped, refuses for now, or is closed, and all damage that the scrubber
    /// found.
    pub fn troubles(&self) -> Vec<BrokerError> {
        let health = |log: &Kept| log.as_ref().map_err(Clone::clone).and_then(|log| log.health());
        let topics = lock(&self.topics);
        let all = [health(&self.journals), health(&self.holds)].into_iter();
        let all = all.chain(topics.values().map(topic_health)).filter_map(Result::err);
        all.chain(self.scrub.found()).collect()
    }

    fn topic_dir(&self, name: &str) -> PathBuf {
        self.root.join("topics").join(name)
    }

    fn start(&self, name: &str, log: Arc<dyn Drive>) -> Result<(), Failure> {
        if self.options.host.threads {
            let thread = drive(name, log, &self.options.host.panics)
                .map_err(Failure::io(Action::StartThread, &self.root))?;
            lock(&self.threads).push(thread);
        }
        Ok(())
    }

    /// Opens the topics when the folder is opened, several at once.
    fn open_all_topics(&self, names: Vec<String>) {
        let at_once = if self.options.host.threads { OPENING_MAX } else { 1 };
        let opened = threads::all(at_once, names, |name| (name.clone(), self.open_topic(&name)));
        let opened = opened.into_iter().filter_map(|(name, state)| Some((name, state.transpose()?)));
        lock(&self.topics).extend(opened);
    }

    /// Opens a topic. `None`: there is no topic of that name. If the opening fails, the error is kept in the topic's
    /// place.
    fn open_topic(&self, name: &str) -> Result<Option<Arc<TopicLog>>, BrokerError> {
        let dir = self.topic_dir(name);
        let open = || {
            let host = &self.options.host;
            let Some(topic) = meta::read_topic(host, &dir, name)? else {
                // Without the file `topic`, this folder belongs to an unfinished topic or to somebody else. Segments
                // that hold messages are the exception: then the file was lost, and the topic counts as damaged.
                return if host.disk.list(&dir).is_ok() {
                    check_unused(host, &dir).map(|()| None)
                } else {
                    Ok(None)
                };
            };
            let log = TopicLog::open(&dir, topic, &self.options, Arc::clone(&self.groups))?;
            let log = Arc::new(log);
            self.start(name, log.clone())?;
            Ok(Some(log))
        };
        open().map_err(|failure: Failure| closed(&format!("topic {name}"), &failure))
    }

    /// The log of a topic that is open.
    pub fn log(&self, name: &str) -> Result<Arc<TopicLog>, BrokerError> {
        if *self.closed.borrow() {
            return Err(BrokerError::Closed);
        }
        let unknown = || Err(BrokerError::UnknownTopic(name.to_owned()));
        lock(&self.topics).get(name).cloned().unwrap_or_else(unknown)
    }

    /// Like [`Folder::log`], if the topic has that partition.
    pub fn partition(&self, topic: &str, partition: u32) -> Result<Arc<TopicLog>, BrokerError> {
        let log = self.log(topic)?;
        match partition < log.topic.partitions {
            true => Ok(log),
            false => Err(BrokerError::Invalid(format!(
                "topic {topic} has {} partitions, and {partition} is asked for",
                log.topic.partitions
            ))),
        }
    }

    /// All topics that are open, by name.
    pub fn open_topics(&self) -> Vec<Arc<TopicLog>> {
        lock(&self.topics).values().flatten().cloned().collect()
    }

    /// The names of the topics that are closed, in order.
    pub fn closed_topics(&self) -> Vec<String> {
        let topics = lock(&self.topics);
        topics.iter().filter(|(_, state)| state.is_err()).map(|(name, _)| name.clone()).collect()
    }

    /// Makes a topic. If the topic exists, gives it the bounds in `spec`.
    pub fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        if !meta::is_topic_name(name) {
            let text = format!("'{name}' is no topic name: 1 to 255 of A-Z a-z 0-9 . _ -, and not . or ..");
            return Err(BrokerError::Invalid(text));
        }
        if spec.partitions == 0 {
            return Err(BrokerError::Invalid(format!("topic {name} needs at least one partition")));
        }
        let _one_at_a_time = lock(&self.making);
        self.find_topic(name)?;
        match self.log(name) {
            Ok(log) if log.topic().spec == *spec => return Ok(log.topic()),
            Ok(log) => return self.alter(&log, spec),
            Err(BrokerError::UnknownTopic(_)) => {}
            Err(error) => return Err(error),
        }
        let host = &self.options.host;
        let dir = self.topic_dir(name);
        let topic = Topic {
            name: name.to_owned(),
            partitions: spec.partitions,
            incarnation: host.entropy.u128()?,
            spec: spec.clone(),
        };
        let log = TopicLog::create(&dir, topic.clone(), &self.options, Arc::clone(&self.groups))?;
        meta::write_topic(host, &dir, &topic)?;
        let log = Arc::new(log);
        self.start(name, log.clone())?;
        lock(&self.topics).insert(name.to_owned(), Ok(log));
        Ok(topic)
    }

    /// Opens a topic that an earlier call made except for its last step: the file `topic` exists, but its sync or the
    /// start of the thread failed.
    fn find_topic(&self, name: &str) -> Result<(), BrokerError> {
        let topics = self.root.join("topics");
        let names = self.options.host.disk.list(&topics).unwrap_or_default();
        // Compares the exact name: on a file system that ignores case, the folder `orders` would also open as
        // `Orders`.
        if names.iter().any(|there| there == name)
            && matches!(self.log(name), Err(BrokerError::UnknownTopic(_)))
            && let Some(log) = self.open_topic(name)?
        {
            lock(&self.topics).insert(name.to_owned(), Ok(log));
        }
        Ok(())
    }

    /// Changes the bounds of a topic.
    pub fn alter_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        let _one_at_a_time = lock(&self.making);
        self.alter(&*self.log(name)?, spec)
    }

    fn alter(&self, log: &TopicLog, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        let Topic { name, partitions, .. } = &log.topic;
        if *partitions != spec.partitions {
            let (topic, there, asked) = (name.clone(), *partitions, spec.partitions);
            return Err(BrokerError::Partitions { topic, there, asked });
        }
        let topic = Topic { spec: spec.clone(), ..log.topic() };
        meta::write_topic(&self.options.host, &self.topic_dir(name), &topic)?;
        log.set_spec(spec.clone());
        Ok(topic)
    }

    /// Closes all logs, waits for their threads, and then unlocks the folder.
    pub fn close(&self) {
        if self.closed.send_replace(true) {
            return;
        }
        self.scrub.close();
        // Waits for a topic that is being made: it must be among the topics that are closed below. No other can begin
        // after `closed` is set. Otherwise its thread would never end, and would write to the folder after another
        // process has it.
        drop(lock(&self.making));
        let topics = self.open_topics();
        topics.iter().for_each(|log| log.close());
        let journals = [&self.journals, &self.holds];
        journals.into_iter().flatten().for_each(|log| log.close());
        if self.options.host.threads {
            for thread in std::mem::take(&mut *lock(&self.threads)) {
                // A writer thread that panicked has logged its panic, and acknowledged nothing after it.
                let _panicked = thread.join();
            }
        } else {
            topics.iter().for_each(|log| log.finish());
            journals.into_iter().flatten().for_each(|log| log.finish());
        }
        // The lock goes last: another process that opens the folder earlier would find files that still change.
        lock(&self.folder_lock).take();
    }
}

/// A guard: while it exists, nothing is cut or deleted in any log.
pub(crate) struct Still<'a>(&'a Folder);

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.0.groups.stand_still(false);
        [&self.0.journals, &self.0.holds].into_iter().flatten().for_each(|log| log.stand_still(false));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.close();
    }
}

fn topic_health(state: &TopicState) -> Result<(), BrokerError> {
    state.as_ref().map_err(Clone::clone)?.health()
}

/// Takes away the access that an earlier version gave to other users. The data folder itself is changed only if it
/// holds the file `broker`, because a folder without it may serve other programs too. Failing is no reason not to
/// start.
fn make_private(host: &Host, root: &Path) {
    let dirs =
        |dir: &Path| host.disk.list(dir).unwrap_or_default().into_iter().map(|name| dir.join(name)).collect();
    let mut paths: Vec<PathBuf> = ["lock", "broker", "topics"].map(|name| root.join(name)).into();
    let names = host.disk.list(root).unwrap_or_default();
    paths.retain(|path| names.iter().any(|name| path.ends_with(name)));
    if paths.contains(&root.join("broker")) {
        paths.push(root.to_owned());
    }
    let topics: Vec<PathBuf> = dirs(&root.join("topics"));
    for dir in topics.into_iter().chain(["journals", "holds"].map(|name| root.join(name))) {
        let files: Vec<PathBuf> = dirs(&dir);
        if !files.is_empty() {
            paths.push(dir);
            paths.extend(files);
        }
    }
    for path in paths {
        if let Err(error) = host.disk.make_private(&path) {
            tracing::warn!(%error, path = %path.display(), "others may read this: its permissions cannot be changed");
        }
    }
}

/// Logs that a log stays closed, and returns the error for its callers. Opening is not retried before the next start,
/// so the error is never one that tells callers to wait.
fn closed(what: &str, failure: &Failure) -> BrokerError {
    tracing::error!(%failure, "{what} cannot be opened and stays closed");
    match failure {
        Failure::Damaged { .. } => BrokerError::Damaged(format!("{what} is closed: {failure}")),
        Failure::Newer { .. } => BrokerError::Newer(format!("{what} is closed: {failure}")),
        Failure::Io { .. } => BrokerError::Stopped(format!("{what} is closed: {failure}")),
    }
}

/// Opens the log of the journals and that of the holds; makes both if the folder is new.
fn open_journals(root: &Path, options: &Options) -> Result<(Kept, Kept), Failure> {
    let host = &options.host;
    let sizes = |max: u64| Sizes { first: JOURNAL_SEGMENT_FIRST.min(max), max, reserve: 0 };
    let (small, large) = (sizes(options.journal_segment_bytes), sizes(options.segment_bytes));
    let (journals_dir, holds_dir) = (root.join("journals"), root.join("holds"));
    if let Some((journals, holds)) = meta::read_broker(host, root)? {
        let open = |name, dir: &Path, log, sizes| {
            let opened = JournalLog::open(name, host, dir, log, sizes);
            opened.map(Arc::new).map_err(|failure| closed(&format!("the log of all {name}"), &failure))
        };
        return Ok((
            open("journals", &journals_dir, journals, small),
            open("holds", &holds_dir, holds, large),
        ));
    }
    // A folder with topics has had the file `broker`. If the file is missing, the identities of the journals are
    // lost, and new journals would hide that every position was settled already.
    let topics_dir = root.join("topics");
    for name in host.disk.list(&topics_dir).map_err(Failure::io(Action::List, &topics_dir))? {
        if meta::read_topic(host, &topics_dir.join(&name), &name).is_ok_and(|topic| topic.is_none()) {
            continue;
        }
        let what = "the file is missing, though there are topics";
        return Err(Failure::damaged(&root.join("broker"), 0, what));
    }
    for dir in [&journals_dir, &holds_dir] {
        check_unused(host, dir)?;
    }
    let (journals, holds) = (host.entropy.u128()?, host.entropy.u128()?);
    let made = (
        Ok(Arc::new(JournalLog::create("journals", host, &journals_dir, journals, small)?)),
        Ok(Arc::new(JournalLog::create("holds", host, &holds_dir, holds, large)?)),
    );
    meta::write_broker(host, root, journals, holds)?;
    Ok(made)
}

fn load_groups(journals: &JournalLog, groups: &Groups) -> Result<(), Failure> {
    for (name, record) in latest(journals, Role::Known)? {
        if let Some((_, group, topic, _)) = parse_name(&name)
            && let Some(standing) = Standing::parse(&record)
        {
            groups.know(group, topic, standing);
        }
    }
    for (name, record) in latest(journals, Role::Commit)? {
        if let Some((_, group, topic, partition)) = parse_name(&name)
            && let Some(commit) = parse_commit(&record)
        {
            groups.commit(group, topic, partition, commit);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;
    use crate::embedded::disk::{Disk, DiskDir, DiskFile, RealDisk};

    /// A disk that reports when the first file of a topic is about to be made, and then waits for permission.
    #[derive(Debug)]
    struct Gated {
        begun: SyncSender<()>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Disk for Gated {
        fn create_dir(&self, dir: &Path) -> io::Result<()> {
            RealDisk.create_dir(dir)
        }
        fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
            RealDisk.list(dir)
        }
        fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
            RealDisk.open(path)
        }
        fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
            if path.ends_with("topics/orders/spare-new") {
                self.begun.send(()).expect("it is waited for");
                lock(&self.go_on).recv().expect("it may go on");
            }
            RealDisk.create(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            RealDisk.rename(from, to)
        }
        fn remove(&self, path: &Path) -> io::Result<()> {
            RealDisk.remove(path)
        }
        fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn DiskDir>> {
            RealDisk.open_dir(dir)
        }
        fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
            RealDisk.free_bytes(dir)
        }
        fn lock(&self, path: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
            RealDisk.lock(path)
        }
    }

    /// BRK-1, P10: after the folder is unlocked nothing writes to it any more, not even a topic that was being made.
    #[test]
    fn a_topic_that_is_being_made_is_closed_with_its_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let ((begun, is_begun), (goes_on, go_on)) = (sync_channel(1), sync_channel(1));
        let mut options = Options::default();
        options.host.disk = Arc::new(Gated { begun, go_on: Mutex::new(go_on) });
        let folder = Arc::new(Folder::open(dir.path(), options).expect("a new folder"));
        let (made_in, closed) = (Arc::clone(&folder), Arc::clone(&folder));
        let spec = TopicSpec { partitions: 1, ..TopicSpec::default() };
        let making = std::thread::spawn(move || made_in.create_topic("orders", &spec));
        is_begun.recv().expect("it is made");
        let closing = std::thread::spawn(move || closed.close());
        while !*folder.closed.borrow() {
            std::thread::yield_now();
        }
        goes_on.send(()).expect("it waits");
        making.join().expect("no panic").expect("room");
        closing.join().expect("no panic");
        let left: Vec<_> = folder.open_topics().iter().map(|log| log.health()).collect();
        assert_eq!(left, [Err(BrokerError::Closed)]);
    }
}
