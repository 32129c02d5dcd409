//! The loop: read, send, remove.
//!
//! Rows of one read are sent in waves. A wave has the next rows of each key, up to the first that the broker might
//! refuse for what it is: those behind it wait for the answer, or they would overtake it. What is refused for good
//! blocks its key; a topic that cannot take anything now waits, and others go on.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use keylane_broker::{BrokerError, ProduceError};
use tokio::sync::watch;

use super::database::{Database, RefusedRows, Sent, Trouble};
use super::row::Row;
use super::table::Table;
use super::{OutboxOptions, OutboxState, OutboxStatus};
use crate::produce::{Call, Producer};
use crate::tasks::TaskKind;
use crate::{Error, Keylane, WhenAway};

/// The first wait for more rows, for a topic, or for the database; each further one is twice as long.
const WAIT_MIN: Duration = Duration::from_millis(20);
/// The longest wait for a topic that takes nothing, or for a database that is away.
const AWAY_MAX: Duration = Duration::from_secs(5);
/// Rows are counted this often while there are always more.
const COUNT_EVERY_MS: u64 = 2_000;
/// How often a statement is tried that met a lock: with the session goes the table's lock, and whoever takes that
/// repeats messages that are durable already.
const TRIES: u32 = 10;

/// A key of a topic.
type Lane = (String, Bytes);

pub(super) struct Relay {
    keylane: Keylane,
    options: OutboxOptions,
    table: Table,
    status: watch::Sender<OutboxStatus>,
    stop: watch::Receiver<bool>,
    /// Topics that take nothing now: until when, and the wait after that.
    waiting: BTreeMap<String, (u64, Duration)>,
    /// Rows whose messages are durable, and which are not removed yet: nothing is sent before that, or a table that
    /// keeps its rows would be sent over and over.
    owed: Vec<Sent>,
    again_ms: u64,
    counted_ms: u64,
}

/// However it ends: nothing may be shown as relaying that is not.
impl Drop for Relay {
    fn drop(&mut self) {
        self.status.send_modify(|status| status.state = OutboxState::Stopped);
    }
}

/// What became of the rows of a wave.
#[derive(Default)]
struct Outcome {
    durable: Vec<Sent>,
    refused: RefusedRows,
}

impl Relay {
    pub(super) fn new(
        keylane: Keylane,
        options: OutboxOptions,
        table: Table,
        status: watch::Sender<OutboxStatus>,
        stop: watch::Receiver<bool>,
    ) -> Relay {
        let (waiting, owed) = (BTreeMap::new(), Vec::new());
        Relay { keylane, options, table, status, stop, waiting, owed, again_ms: 0, counted_ms: 0 }
    }

    /// Runs until told to stop.
    pub(super) async fn run(&mut self) {
        let mut wait = WAIT_MIN;
        while !self.is_stopped() {
            let tasks = self.keylane.inner.tasks.clone();
            let trouble = match tasks.supervise(TaskKind::Relay, self.session(&mut wait)).await {
                Ok(Ok(())) => break,
                Ok(Err(trouble)) => trouble.told(),
                // What was sent and not removed is sent again.
                Err(why) => why,
            };
            self.status.send_modify(|status| status.state = OutboxState::Connecting);
            match self.owed.len() {
                0 => self.note(&trouble),
                rows => self.note(&format!(
                    "{trouble}; {rows} rows that were sent are not removed yet, and nothing is sent before they are"
                )),
            }
            self.rest(wait).await;
            wait = (wait * 2).min(AWAY_MAX);
        }
    }

    /// One session with the database, until it is lost or we are told to stop.
    async fn session(&mut self, wait: &mut Duration) -> Result<(), Trouble> {
        let opening = Database::open(&self.options.url, &self.table, self.options.create);
        let mut stop = self.stop.clone();
        let mut database = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            opened = opening => opened?,
        };
        while !database.lock(&self.options.url).await? {
            self.status.send_modify(|status| status.state = OutboxState::StandingBy);
            *wait = WAIT_MIN;
            self.rest(self.options.poll).await;
            if self.is_stopped() {
                return Ok(());
            }
        }
        database.check_removing().await?;
        self.remove_owed(&mut database, false).await?;
        // At once: whoever starts a relay may have repaired what failed.
        self.again_ms = self.now_ms();
        let mut idle = WAIT_MIN;
        while !self.is_stopped() {
            if self.now_ms() >= self.again_ms {
                database.again().await?;
                self.again_ms = self.now_ms() + self.options.retry.as_millis() as u64;
            }
            let found = self.pass(&mut database).await?;
            // Only now: connecting and locking may work where reading does not.
            *wait = WAIT_MIN;
            self.status.send_modify(|status| status.state = OutboxState::Relaying);
            idle = match found {
                true => WAIT_MIN,
                false => {
                    self.rest(idle).await;
                    (idle * 2).min(self.options.poll)
                }
            };
        }
        database.close().await;
        Ok(())
    }

    /// Reads once and sends what was read; false if there was nothing to read.
    async fn pass(&mut self, database: &mut Database) -> Result<bool, Trouble> {
        let now_ms = self.now_ms();
        let waiting: Vec<String> = self
            .waiting
            .iter()
            .filter(|(_, (until, _))| *until > now_ms)
            .map(|(topic, _)| topic.clone())
            .collect();
        let read = database.read(&waiting, self.options.batch).await?;
        let found = !read.rows.is_empty() || !read.unreadable.is_empty();
        self.refuse(database, &read.unreadable).await?;
        self.relay(database, read.rows).await?;
        if !found && self.counted_ms + COUNT_EVERY_MS / 4 < now_ms
            || self.counted_ms + COUNT_EVERY_MS < now_ms
        {
            let counts = database.count().await?;
            self.counted_ms = now_ms;
            self.status.send_modify(|status| {
                (status.pending, status.failed) = (counts.pending, counts.failed);
            });
        }
        Ok(found)
    }

    async fn relay(&mut self, database: &mut Database, rows: Vec<Row>) -> Result<(), Trouble> {
        let mut rest = rows;
        let mut blocked = HashSet::new();
        while !rest.is_empty() {
            let outcome = self.wave(&mut rest, &mut blocked).await;
            self.settle(database, outcome).await?;
            if self.is_stopped() {
                break;
            }
        }
        Ok(())
    }

    /// Sends the next rows; what has to wait for the answer stays in `rest`, what may not be sent now goes from it.
    async fn wave(&mut self, rest: &mut Vec<Row>, blocked: &mut HashSet<Lane>) -> Outcome {
        // What is only on this machine is not durable for whoever takes over on another: the table is the better place.
        let producer = self.keylane.producer().when_away(WhenAway::Fail);
        let now_ms = producer.wall_ms();
        let mut outcome = Outcome::default();
        let mut calls: BTreeMap<String, (Call, Vec<Row>)> = BTreeMap::new();
        let (mut doubtful, mut later, mut shut) = (HashSet::new(), Vec::new(), HashSet::new());
        for row in rest.drain(..) {
            let lane = row.key.clone().map(|key| (row.topic.clone(), key));
            if lane.as_ref().is_some_and(|lane| blocked.contains(lane)) || shut.contains(&row.topic) {
                continue;
            }
            if lane.as_ref().is_some_and(|lane| doubtful.contains(lane)) {
                later.push(row);
                continue;
            }
            let error = match begin(&producer, &mut calls, &row.topic).await {
                Ok((call, rows)) => match push(call, &row, now_ms) {
                    Ok(is_sure) => {
                        rows.push(row);
                        doubtful.extend(lane.filter(|_| !is_sure));
                        continue;
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if error.is_final() {
                outcome.refuse(row.seq, &error);
                blocked.extend(lane);
            } else {
                self.put_off(&row.topic, &error);
                shut.insert(row.topic);
            }
        }
        *rest = later;
        let sent = calls.into_iter().map(async |(topic, (call, rows))| (topic, rows, call.send().await));
        for (topic, rows, answers) in join_all(sent).await {
            self.answered(&topic, rows, answers, &mut outcome, blocked);
        }
        rest.retain(|row| !self.is_waiting(&row.topic));
        outcome
    }

    fn answered(
        &mut self,
        topic: &str,
        rows: Vec<Row>,
        answers: Result<Vec<Result<crate::Receipt, ProduceError>>, Error>,
        outcome: &mut Outcome,
        blocked: &mut HashSet<Lane>,
    ) {
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return self.put_off(topic, &Refusal::of(error)),
        };
        let mut all_taken = true;
        for (row, answer) in rows.into_iter().zip(answers) {
            let Err(error) = answer else {
                outcome.durable.extend(row.id().map(|id| (row.seq, id.to_owned())));
                continue;
            };
            if error == ProduceError::Behind {
                // Not sent, since one of its key before it was refused: it waits for that one.
                blocked.extend(row.key.map(|key| (row.topic, key)));
                continue;
            }
            let error = Refusal::of(error.into());
            match error.is_final() {
                true => {
                    outcome.refuse(row.seq, &error);
                    blocked.extend(row.key.map(|key| (row.topic, key)));
                }
                false if all_taken => {
                    all_taken = false;
                    self.put_off(topic, &error);
                }
                false => {}
            }
        }
        if all_taken {
            self.waiting.remove(topic);
        }
    }

    /// Removes what is durable and marks what was refused.
    async fn settle(&mut self, database: &mut Database, outcome: Outcome) -> Result<(), Trouble> {
        self.owed = outcome.durable;
        self.remove_owed(database, true).await?;
        self.refuse(database, &outcome.refused).await
    }

    /// Removes what is owed. `at_once`: the rows were read a moment ago, and their numbers are still theirs.
    async fn remove_owed(&mut self, database: &mut Database, at_once: bool) -> Result<(), Trouble> {
        if self.owed.is_empty() {
            return Ok(());
        }
        let mut wait = WAIT_MIN;
        for tried in 1.. {
            let removed = match at_once && tried == 1 {
                true => database.remove(&self.owed).await,
                false => database.remove_left(&self.owed).await,
            };
            match removed {
                Ok(()) => break,
                Err(trouble) if trouble.passes() && tried < TRIES => {
                    self.note(&trouble.to_string());
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(AWAY_MAX);
                }
                Err(trouble) => return Err(trouble),
            }
        }
        let count = std::mem::take(&mut self.owed).len() as u64;
        self.status.send_modify(|status| {
            status.relayed += count;
            status.pending = status.pending.saturating_sub(count);
        });
        Ok(())
    }

    async fn refuse(&mut self, database: &mut Database, refused: &RefusedRows) -> Result<(), Trouble> {
        if let Some(error) = refused.keys().next() {
            self.note(error);
            database.fail(refused).await?;
            self.counted_ms = 0;
        }
        Ok(())
    }

    /// A topic that takes nothing now is left alone for a while.
    fn put_off(&mut self, topic: &str, error: &Refusal) {
        self.note(&format!("topic {topic}: {error}"));
        let wait = self.waiting.get(topic).map_or(WAIT_MIN * 5, |(_, wait)| *wait);
        let until = self.now_ms() + wait.as_millis() as u64;
        self.waiting.insert(topic.to_owned(), (until, (wait * 2).min(AWAY_MAX)));
    }

    fn is_waiting(&self, topic: &str) -> bool {
        self.waiting.get(topic).is_some_and(|(until, _)| *until > self.now_ms())
    }

    /// An error is told when it is new, not each time that it is met.
    fn note(&self, error: &str) {
        if self.status.borrow().last_error.as_deref() != Some(error) {
            tracing::warn!(table = self.table.name, error, "outbox");
            self.status.send_modify(|status| status.last_error = Some(error.to_owned()));
        }
    }

    async fn rest(&self, wait: Duration) {
        let mut stop = self.stop.clone();
        let _woken_or_not = tokio::time::timeout(wait, stop.wait_for(|stop| *stop)).await;
    }

    fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    fn now_ms(&self) -> u64 {
        self.keylane.inner.clock.now_ms()
    }
}

impl Outcome {
    fn refuse(&mut self, row: i64, why: &Refusal) {
        self.refused.entry(why.to_string()).or_default().push(row);
    }
}

/// Why a row was not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Row(String),
    #[error("{0}")]
    Broker(Error),
}

impl Refusal {
    pub(super) fn of(error: Error) -> Refusal {
        Refusal::Broker(error)
    }

    /// True if the row has to change, or its topic: waiting alone does not help.
    pub(super) fn is_final(&self) -> bool {
        use {BrokerError as B, ProduceError as P};
        match self {
            Refusal::Row(_) => true,
            Refusal::Broker(Error::Broker(B::UnknownTopic(_) | B::Invalid(_) | B::Partitions { .. })) => true,
            Refusal::Broker(Error::Produce(
                P::TooLarge { .. } | P::TooLargeThere(_) | P::UnknownTopic(_) | P::Invalid(_) | P::Keyless(_),
            )) => true,
            Refusal::Broker(_) => false,
        }
    }
}

async fn begin<'a>(
    producer: &Producer,
    calls: &'a mut BTreeMap<String, (Call, Vec<Row>)>,
    topic: &str,
) -> Result<&'a mut (Call, Vec<Row>), Refusal> {
    if !calls.contains_key(topic) {
        let mut call = producer.call(topic).await.map_err(Refusal::of)?;
        call.stop_at_refused();
        calls.insert(topic.to_owned(), (call, Vec::new()));
    }
    Ok(calls.get_mut(topic).expect("it was put there"))
}

/// Adds a row to its topic's call. False if the broker might refuse it for what it is: nothing of its key may be sent
/// behind it. A message counts as such from half of the topic's limit on, since brokers count a little more.
fn push(call: &mut Call, row: &Row, now_ms: u64) -> Result<bool, Refusal> {
    let bytes = row.with_draft(now_ms, |draft| call.push_measured(draft)).map_err(Refusal::Row)?;
    let is_sure = bytes.is_some_and(|bytes| bytes <= call.message_bytes_max() / 2);
    Ok(is_sure && !row.was_refused && !row.has_reserved_header())
}
