//! A broker without I/O: one topic whose messages a [`Source`] makes, and journals in memory.
//!
//! On it a benchmark measures Keylane's own path only: reading, lanes, handlers, settlement, ledger, records, commits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use keylane_broker::{
    AppendError, Broker, BrokerError, Change, Commit, Ends, Journal, JournalName, JournalPage, Membership,
    ProduceError, Reader, Topic, TopicSpec,
};
use keylane_core::Frames;
use tokio::sync::watch;

use crate::flow::{Flow, FlowReader};
use crate::source::{PARTITIONS, Source};

/// The one topic.
pub(crate) const TOPIC: &str = "bench";

/// The broker without I/O.
pub(crate) struct SourceBroker {
    source: Arc<Source>,
    flow: Arc<Flow>,
    journals: Mutex<HashMap<JournalName, Arc<RamJournal>>>,
    /// By partition; there is one group.
    commits: Mutex<[Option<Commit>; PARTITIONS as usize]>,
}

impl SourceBroker {
    pub(crate) fn new(source: &Arc<Source>, flow: &Arc<Flow>) -> SourceBroker {
        SourceBroker {
            source: Arc::clone(source),
            flow: Arc::clone(flow),
            journals: Mutex::default(),
            commits: Mutex::default(),
        }
    }

    fn the_topic() -> Topic {
        Topic {
            name: TOPIC.to_owned(),
            partitions: PARTITIONS,
            incarnation: 1,
            spec: TopicSpec { partitions: PARTITIONS, ..TopicSpec::default() },
        }
    }
}

#[async_trait]
impl Broker for SourceBroker {
    fn kind(&self) -> &'static str {
        "bench"
    }

    async fn create_topic(&self, _name: &str, _spec: &TopicSpec) -> Result<Topic, BrokerError> {
        Ok(SourceBroker::the_topic())
    }

    async fn topic(&self, name: &str) -> Result<Option<Topic>, BrokerError> {
        Ok((name == TOPIC).then(SourceBroker::the_topic))
    }

    async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        Ok(vec![SourceBroker::the_topic()])
    }

    /// Acknowledges at once, and keeps nothing.
    async fn produce(&self, _topic: &str, frames: Frames) -> Vec<Result<u64, ProduceError>> {
        (0..frames.len() as u64).map(Ok).collect()
    }

    async fn reader(&self, _topic: &str, partition: u32, from: u64) -> Result<Box<dyn Reader>, BrokerError> {
        Ok(Box::new(FlowReader::new(&self.flow, &self.source, partition, from)))
    }

    async fn ends(&self, _topic: &str) -> Result<Vec<Ends>, BrokerError> {
        Ok(vec![Ends::default(); PARTITIONS as usize])
    }

    async fn commit_all(
        &self,
        _group: &str,
        _topic: &str,
        all: Vec<(u32, Commit)>,
    ) -> Vec<Result<(), BrokerError>> {
        let mut commits = self.commits.lock().expect("no holder panics");
        let one = |(partition, commit): (u32, Commit)| {
            commits[partition as usize] = Some(commit);
            Ok(())
        };
        all.into_iter().map(one).collect()
    }

    async fn committed(
        &self,
        _group: &str,
        _topic: &str,
        partition: u32,
    ) -> Result<Option<Commit>, BrokerError> {
        let commits = self.commits.lock().expect("no holder panics");
        Ok(commits[partition as usize].clone())
    }

    async fn join(
        &self,
        _group: &str,
        _topic: &str,
        _node: &str,
    ) -> Result<Box<dyn Membership>, BrokerError> {
        Ok(Box::new(OnlyMember { next: 0 }))
    }

    async fn journal(&self, name: &JournalName) -> Result<Arc<dyn Journal>, BrokerError> {
        let mut journals = self.journals.lock().expect("no holder panics");
        let journal = journals.entry(name.clone()).or_default();
        Ok(Arc::clone(journal) as Arc<dyn Journal>)
    }
}

/// A membership that has all partitions from the start.
struct OnlyMember {
    next: u32,
}

#[async_trait]
impl Membership for OnlyMember {
    async fn changed(&mut self) -> Result<Change, BrokerError> {
        if self.next == PARTITIONS {
            std::future::pending::<()>().await;
        }
        self.next += 1;
        Ok(Change::Assigned(self.next - 1))
    }

    async fn confirm(&mut self, _partition: u32) -> Result<bool, BrokerError> {
        Ok(true)
    }

    async fn gave_up(&mut self, _partition: u32) {}

    fn proves_dead(&self, _instance: u128) -> bool {
        true
    }

    fn instance(&self) -> u128 {
        1
    }

    async fn leave(&mut self) {}
}

/// A journal in memory.
struct RamJournal {
    records: Mutex<Records>,
    end: watch::Sender<u64>,
}

#[derive(Default)]
struct Records {
    start: u64,
    kept: std::collections::VecDeque<Bytes>,
}

impl Records {
    fn end(&self) -> u64 {
        self.start + self.kept.len() as u64
    }
}

impl Default for RamJournal {
    fn default() -> RamJournal {
        RamJournal { records: Mutex::default(), end: watch::Sender::new(0) }
    }
}

#[async_trait]
impl Journal for RamJournal {
    async fn append(&self, record: Bytes, expect_end: Option<u64>) -> Result<u64, AppendError> {
        let mut records = self.records.lock().expect("no holder panics");
        let end = records.end();
        if expect_end.is_some_and(|expected| expected != end) {
            return Err(AppendError::Moved { end });
        }
        records.kept.push_back(record);
        drop(records);
        self.end.send_replace(end + 1);
        Ok(end)
    }

    fn conditional(&self) -> bool {
        true
    }

    async fn read(&self, from: u64, bytes_max: usize) -> Result<JournalPage, BrokerError> {
        let records = self.records.lock().expect("no holder panics");
        let mut page = JournalPage { start: records.start, end: records.end(), records: Vec::new() };
        let mut bytes = 0;
        for (position, record) in (records.start..).zip(&records.kept).skip_while(|(at, _)| *at < from) {
            if bytes > 0 && bytes + record.len() > bytes_max {
                break;
            }
            bytes += record.len();
            page.records.push((position, record.clone()));
        }
        Ok(page)
    }

    async fn beyond(&self, end: u64) -> Result<(), BrokerError> {
        let mut ends = self.end.subscribe();
        match ends.wait_for(|now| *now > end).await {
            Ok(_) => Ok(()),
            Err(_) => Err(BrokerError::Closed),
        }
    }

    async fn cut(&self, below: u64) -> Result<(), BrokerError> {
        let mut records = self.records.lock().expect("no holder panics");
        while records.start < below && records.kept.pop_front().is_some() {
            records.start += 1;
        }
        Ok(())
    }
}
