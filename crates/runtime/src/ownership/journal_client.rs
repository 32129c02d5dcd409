//! A partition's journal for a caller that does not own the partition: reads it to its end, and appends commands.
//!
//! `keylane_core::apply` decides whether a command counts; the caller reads on to learn it. A command may land more
//! than once without harm, so a command whose fate is unknown is sent again.

use std::sync::Arc;

use keylane_broker::{AppendError, BrokerError, Journal, LogKind};
use keylane_core::journal::{Command, CommandKind};
use keylane_core::{Ranges, Record, Replay, State, Stop};

use super::hold::Hold;
use crate::clock::Clock;
use crate::pipeline::Subscription;

/// Bytes of a journal read at a time.
const PAGE_BYTES: usize = 512 * 1024;
/// How often a command is sent again if its fate is unknown.
const TRIES: u32 = 10;
/// The wait before a command is sent again, and between two looks at a journal while waiting for a change.
pub(super) const JOURNAL_EVERY_MS: u64 = 200;

/// The journal of a partition that the caller does not own.
pub(super) struct JournalClient<'a> {
    at: &'a Subscription,
    partition: u32,
    journal: Arc<dyn Journal>,
    replay: Replay,
}

impl<'a> JournalClient<'a> {
    /// Opens the journal of that partition of the pipeline's topic, without reading it.
    pub(super) async fn open(at: &'a Subscription, partition: u32) -> Result<JournalClient<'a>, BrokerError> {
        Ok(JournalClient::of(at, partition, at.journal(partition, LogKind::Journal).await?))
    }

    /// Uses a journal that is open already.
    pub(super) fn of(at: &'a Subscription, partition: u32, journal: Arc<dyn Journal>) -> JournalClient<'a> {
        JournalClient { at, partition, journal, replay: Replay::default() }
    }

    /// Everything below this position was read.
    pub(super) fn next(&self) -> u64 {
        self.replay.next()
    }

    /// Reads on to the journal's end and returns the state there.
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

    /// If the snapshot at that position lies in pieces in the partition's hold, reads the pieces.
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

    /// Appends a command and waits for the acknowledgement. Whether the command counts is seen by reading on.
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
