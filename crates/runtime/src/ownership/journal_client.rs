//! A partition's journal as somebody sees it who does not own the partition: read to its end, and told commands.
//!
//! Whether a command counts is for `keylane_core::apply` to say; whoever sends one reads on to learn it. A command may land
//! more than once without harm, so one whose fate is unknown is sent again.

use std::sync::Arc;

use keylane_broker::{AppendError, BrokerError, Journal, LogKind};
use keylane_core::journal::{Command, CommandKind};
use keylane_core::{Ranges, Record, Replay, State, Stop};

use super::hold::Hold;
use crate::clock::Clock;
use crate::pipeline::Subscription;

/// Bytes of a journal read at a time.
const PAGE_BYTES: usize = 512 * 1024;
/// How often a record is sent whose answer does not come.
const TRIES: u32 = 10;
/// The wait before a record is sent again, and between two looks at a journal that is being waited for.
pub(super) const JOURNAL_EVERY_MS: u64 = 200;

/// The journal of a partition that is not owned here.
pub(super) struct JournalClient<'a> {
    at: &'a Subscription,
    partition: u32,
    journal: Arc<dyn Journal>,
    replay: Replay,
}

impl<'a> JournalClient<'a> {
    /// Opens the journal of that partition of the pipeline's topic. Nothing of it is read yet.
    pub(super) async fn open(at: &'a Subscription, partition: u32) -> Result<JournalClient<'a>, BrokerError> {
        Ok(JournalClient::of(at, partition, at.journal(partition, LogKind::Journal).await?))
    }

    /// A journal that is open already.
    pub(super) fn of(at: &'a Subscription, partition: u32, journal: Arc<dyn Journal>) -> JournalClient<'a> {
        JournalClient { at, partition, journal, replay: Replay::default() }
    }

    /// Everything below this position was read.
    pub(super) fn next(&self) -> u64 {
        self.replay.next()
    }

    /// Reads on to the journal's end; its state there.
    pub(super) async fn read_on(&mut self) -> Result<State, BrokerError> {
        let newest = self.at.flaws.format();
        loop {
            let page = self.journal.read(self.replay.next(), PAGE_BYTES).await?;
            let lost = || BrokerError::Stopped(Stop::StateLost { start: page.start }.to_string());
            if self.replay.next() < page.start && page.start == page.end {
                return Err(lost());
            }
            for (position, bytes) in &page.records {
                let position = *position;
                let stop =
                    |error| BrokerError::Stopped(Stop::unreadable(position, error, newest).to_string());
                let record = Record::decode_up_to(newest, bytes).map_err(stop)?;
                self.replay.read(position, &record, bytes.len());
                self.provide_pieces(position).await?;
            }
            if page.records.last().map_or(page.end, |(position, _)| position + 1) >= page.end {
                return self.replay.state().cloned().ok_or_else(lost);
            }
        }
    }

    /// A snapshot that stands at that position may lie in pieces in the partition's hold.
    async fn provide_pieces(&mut self, position: u64) -> Result<(), BrokerError> {
        let Some(wanted) = self.replay.wanted().filter(|wanted| wanted.position == position) else {
            return Ok(());
        };
        let positions = wanted.chunks.clone();
        let hold = Hold::of(self.at.journal(self.partition, LogKind::Hold).await?);
        let pieces = hold.pieces(&positions).await?;
        self.replay.provide(position, pieces.as_deref());
        Ok(())
    }

    /// Appends a command. It is acknowledged then; whether it counts is seen by reading on.
    pub(super) async fn tell(&self, command: Command) -> Result<(), BrokerError> {
        let record = Record::Command(command).encode();
        let mut tries = 0;
        loop {
            match self.journal.append(record.clone(), None).await {
                Ok(_) => return Ok(()),
                Err(AppendError::Unknown(_)) if tries < TRIES => tries += 1,
                Err(error) => return Err(BrokerError::Unavailable(error.to_string())),
            }
            wait(self.at.clock, JOURNAL_EVERY_MS).await;
        }
    }
}

/// A command that is not about single messages.
pub(super) fn command(at: &Subscription, kind: CommandKind, who: &str) -> Command {
    Command {
        id: at.random(),
        kind,
        positions: Ranges::new(),
        as_of: None,
        body: None,
        accept: None,
        partitions: None,
        format: None,
        who: who.to_owned(),
        when_ms: at.clock.wall_ms(),
    }
}

pub(super) async fn wait(clock: Clock, ms: u64) {
    tokio::time::sleep_until(clock.instant(clock.now_ms() + ms)).await;
}
