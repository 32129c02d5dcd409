//! The folder: its lock, its topics, its two logs of journals; what is opened, made and closed.
//!
//! In: a path. Out: logs by name. A topic whose bytes are damaged is kept closed with the reason, so that one does not
//! keep the others from starting; damaged journals keep everything from starting, because owners know nothing else.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::sync::watch;

use super::appender::Sizes;
use super::failure::{Action, Failure, OpenError};
use super::groups::Groups;
use super::journal::{Role, latest, parse_commit, parse_name};
use super::journal_log::JournalLog;
use super::make::{check_unused, make_dir};
use super::membership::Members;
use super::options::Options;
use super::topic_log::TopicLog;
use super::writer::{Drive, drive};
use super::{lock, meta};
use crate::contract::{BrokerError, Topic, TopicSpec};

/// The first segment of journals and holds: small, because many installations need no more.
const JOURNAL_SEGMENT_FIRST: u64 = 1 << 20;

/// An open folder.
pub(crate) struct Folder {
    root: PathBuf,
    pub options: Options,
    /// Random, and new each time: names this process in claims.
    pub instance: u128,
    pub groups: Arc<Groups>,
    topics: Mutex<BTreeMap<String, TopicState>>,
    pub journals: Arc<JournalLog>,
    pub holds: Arc<JournalLog>,
    pub members: Arc<Members>,
    /// Held while a topic is made or changed: both take long, and must not happen twice.
    making: Mutex<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub closed: watch::Sender<bool>,
    folder_lock: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

/// A topic that can be used, or why not. One that is damaged does not keep the others from starting.
#[derive(Clone)]
enum TopicState {
    Open(Arc<TopicLog>),
    Damaged(BrokerError),
}

impl Folder {
    /// Opens the folder, or makes it.
    pub fn open(root: &Path, options: Options) -> Result<Folder, OpenError> {
        let host = options.host.clone();
        let topics_dir = root.join("topics");
        make_dir(&host, root)?;
        make_dir(&host, &topics_dir)?;
        let folder_lock = host.disk.lock(&root.join("lock")).map_err(|error| {
            match error.kind() == std::io::ErrorKind::WouldBlock {
                true => OpenError::Locked(root.to_owned()),
                false => Failure::io(Action::Lock, root)(error).into(),
            }
        })?;
        let (journals, holds) = open_journals(root, &options)?;
        let groups = Arc::new(Groups::default());
        load_groups(&journals, &groups)?;
        let folder = Folder {
            instance: host.entropy.u128()?,
            groups,
            topics: Mutex::default(),
            journals: Arc::new(journals),
            holds: Arc::new(holds),
            members: Arc::default(),
            making: Mutex::default(),
            threads: Mutex::default(),
            closed: watch::Sender::new(false),
            folder_lock: Mutex::new(Some(folder_lock)),
            root: root.to_owned(),
            options,
        };
        folder.start("journals", folder.journals.clone())?;
        folder.start("holds", folder.holds.clone())?;
        let names = host.disk.list(&topics_dir);
        for name in names.map_err(Failure::io(Action::List, &topics_dir))? {
            folder.open_topic(&name)?;
        }
        Ok(folder)
    }

    /// What has stopped, or cannot be used, if anything.
    pub fn health(&self) -> Result<(), BrokerError> {
        self.journals.health()?;
        self.holds.health()?;
        lock(&self.topics).values().try_for_each(|topic| match topic {
            TopicState::Open(log) => log.health(),
            TopicState::Damaged(why) => Err(why.clone()),
        })
    }

    fn topic_dir(&self, name: &str) -> PathBuf {
        self.root.join("topics").join(name)
    }

    fn start(&self, name: &str, log: Arc<dyn Drive>) -> Result<(), Failure> {
        if self.options.host.threads {
            let thread = drive(name, log).map_err(Failure::io(Action::StartThread, &self.root))?;
            lock(&self.threads).push(thread);
        }
        Ok(())
    }

    /// Opens a topic at the start. Damage is kept for whoever asks for it.
    fn open_topic(&self, name: &str) -> Result<(), Failure> {
        let dir = self.topic_dir(name);
        let opened = meta::read_topic(&self.options.host, &dir, name).and_then(|topic| {
            topic
                .map(|topic| TopicLog::open(&dir, topic, &self.options, Arc::clone(&self.groups)))
                .transpose()
        });
        let state = match opened {
            Ok(None) => return Ok(()),
            Ok(Some(log)) => {
                let log = Arc::new(log);
                self.start(name, log.clone())?;
                TopicState::Open(log)
            }
            Err(failure @ (Failure::Damaged { .. } | Failure::Newer { .. })) => {
                tracing::error!(topic = name, %failure, "the topic cannot be read and stays closed");
                TopicState::Damaged(failure.to_broker_error())
            }
            Err(failure) => return Err(failure),
        };
        lock(&self.topics).insert(name.to_owned(), state);
        Ok(())
    }

    /// The log of a topic, if it can be used.
    pub fn log(&self, name: &str) -> Result<Arc<TopicLog>, BrokerError> {
        if *self.closed.borrow() {
            return Err(BrokerError::Closed);
        }
        match lock(&self.topics).get(name) {
            Some(TopicState::Open(log)) => Ok(Arc::clone(log)),
            Some(TopicState::Damaged(why)) => Err(why.clone()),
            None => Err(BrokerError::UnknownTopic(name.to_owned())),
        }
    }

    /// The same, if it has that partition.
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

    /// All topics that can be used, by name.
    pub fn open_topics(&self) -> Vec<Arc<TopicLog>> {
        let topics = lock(&self.topics);
        let open = |state: &TopicState| match state {
            TopicState::Open(log) => Some(Arc::clone(log)),
            TopicState::Damaged(_) => None,
        };
        topics.values().filter_map(open).collect()
    }

    /// Makes a topic, or finds the one that is there.
    pub fn create_topic(&self, name: &str, spec: &TopicSpec) -> Result<Topic, BrokerError> {
        if !meta::is_topic_name(name) {
            let text = format!("'{name}' is no topic name: 1 to 255 of A-Z a-z 0-9 . _ -, and not . or ..");
            return Err(BrokerError::Invalid(text));
        }
        if spec.partitions == 0 {
            return Err(BrokerError::Invalid(format!("topic {name} needs at least one partition")));
        }
        let _one_at_a_time = lock(&self.making);
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
        lock(&self.topics).insert(name.to_owned(), TopicState::Open(log));
        Ok(topic)
    }

    /// Gives a topic other bounds.
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

    /// Ends all logs, then lets the lock go.
    pub fn close(&self) {
        if self.closed.send_replace(true) {
            return;
        }
        let topics = self.open_topics();
        topics.iter().for_each(|log| log.close());
        self.journals.close();
        self.holds.close();
        if self.options.host.threads {
            for thread in std::mem::take(&mut *lock(&self.threads)) {
                // A writer that panicked has said so, and synced nothing it acknowledged later.
                let _panicked = thread.join();
            }
        } else {
            topics.iter().for_each(|log| log.finish());
            self.journals.finish();
            self.holds.finish();
        }
        // Last: until here another process would find files that still change.
        lock(&self.folder_lock).take();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.close();
    }
}

/// The journals' and the holds' log, made if the folder is new.
fn open_journals(root: &Path, options: &Options) -> Result<(JournalLog, JournalLog), Failure> {
    let host = &options.host;
    let sizes = |max: u64| Sizes { first: JOURNAL_SEGMENT_FIRST.min(max), max };
    let (small, large) = (sizes(options.journal_segment_bytes), sizes(options.segment_bytes));
    let (journals_dir, holds_dir) = (root.join("journals"), root.join("holds"));
    if let Some((journals, holds)) = meta::read_broker(host, root)? {
        return Ok((
            JournalLog::open("journals", host, &journals_dir, journals, small)?,
            JournalLog::open("holds", host, &holds_dir, holds, large)?,
        ));
    }
    // A folder with topics has had its file: whoever took it away took the way to the journals.
    let topics_dir = root.join("topics");
    for name in host.disk.list(&topics_dir).map_err(Failure::io(Action::List, &topics_dir))? {
        if meta::read_topic(host, &topics_dir.join(&name), &name)?.is_some() {
            return Err(Failure::damaged(
                &root.join("broker"),
                0,
                "the file is missing, though there are topics",
            ));
        }
    }
    for dir in [&journals_dir, &holds_dir] {
        check_unused(host, dir)?;
    }
    let (journals, holds) = (host.entropy.u128()?, host.entropy.u128()?);
    let made = (
        JournalLog::create("journals", host, &journals_dir, journals, small)?,
        JournalLog::create("holds", host, &holds_dir, holds, large)?,
    );
    meta::write_broker(host, root, journals, holds)?;
    Ok(made)
}

fn load_groups(journals: &JournalLog, groups: &Groups) -> Result<(), Failure> {
    for (name, record) in latest(journals, Role::Known)? {
        if let Some((_, group, topic, _)) = parse_name(&name)
            && !record.is_empty()
        {
            groups.know(group, topic);
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
