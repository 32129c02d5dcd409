//! `hold.p` of one partition: stores bodies and reports of dead letters, and pieces of snapshots, each before a record
//! names it (BRK-6).
//!
//! An entry means nothing until a counting record of the journal names its position; entries that are never named are
//! cut. An entry is a format byte (1), a kind (1 body, 2 report, 3 piece of a snapshot), a position as u64 little
//! endian (the message's position, or the journal position as of which the snapshot was made), and the bytes: the
//! message's frame as it was read, a JSON object, or what core made.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use keylane_broker::{AppendError, BrokerError, Journal};
use keylane_core::journal::Chunks;
use keylane_core::owner::StoredChunks;
use keylane_core::{Input, Stored, Storing};

use super::epoch::Epoch;
use super::event::{Event, Moved, Pieces};

const FORMAT: u8 = 1;
/// The bytes of an entry before its content.
const HEAD_BYTES: usize = 10;
/// The first wait before an entry is stored again, which doubles. Each try may leave a copy, but one copy is named.
const AGAIN_MS: u64 = 200;
/// The longest wait.
const AGAIN_MS_MAX: u64 = 10_000;

/// The kinds of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message's frame.
    Body = 1,
    /// The report about the message's failure.
    Report = 2,
    /// A piece of a snapshot.
    Piece = 3,
}

/// `hold.p` of one partition.
#[derive(Clone)]
pub(super) struct Hold(Arc<dyn Journal>);

impl Hold {
    pub(super) fn of(journal: Arc<dyn Journal>) -> Hold {
        Hold(journal)
    }

    /// Stores an entry, again and again until the broker acknowledges it, and returns its position. Fails only if the
    /// hold takes no entry any more.
    pub(super) async fn store(&self, kind: Kind, position: u64, bytes: &[u8]) -> Result<u64, BrokerError> {
        let mut entry = BytesMut::with_capacity(HEAD_BYTES + bytes.len());
        entry.put_u8(FORMAT);
        entry.put_u8(kind as u8);
        entry.put_u64_le(position);
        entry.put_slice(bytes);
        self.append(entry.freeze()).await
    }

    async fn append(&self, entry: Bytes) -> Result<u64, BrokerError> {
        let mut wait_ms = AGAIN_MS;
        loop {
            match self.0.append(entry.clone(), None).await {
                Ok(at) => return Ok(at),
                Err(AppendError::Stopped(why)) => return Err(BrokerError::Stopped(why)),
                Err(error) => {
                    tracing::error!(%error, "nothing could be stored beside a journal; what needs it waits, and it is tried again");
                    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                    wait_ms = (2 * wait_ms).min(AGAIN_MS_MAX);
                }
            }
        }
    }

    /// The entry at that position, with its head, if there is one.
    async fn entry(&self, at: u64) -> Result<Option<Bytes>, BrokerError> {
        // A page has at least one record, however large.
        let page = self.0.read(at, 1).await?;
        let first = page.records.into_iter().next();
        Ok(first.filter(|(position, _)| *position == at).map(|(_, entry)| entry))
    }

    /// The pieces at these positions; `None` if one of them is missing or is another kind of entry.
    pub(super) async fn pieces(&self, positions: &[u64]) -> Result<Option<Vec<Bytes>>, BrokerError> {
        let mut pieces = Vec::with_capacity(positions.len());
        for at in positions {
            let Some(mut entry) = self.entry(*at).await? else {
                return Ok(None);
            };
            if entry.len() < HEAD_BYTES || entry[..2] != [FORMAT, Kind::Piece as u8] {
                return Ok(None);
            }
            entry.advance(HEAD_BYTES);
            pieces.push(entry);
        }
        Ok(Some(pieces))
    }

    async fn store_pieces(&self, storing: Storing, chunks: Chunks) -> Result<StoredChunks, BrokerError> {
        let (as_of, mut positions) = (chunks.as_of(), Vec::new());
        // Each piece is made only after the one before is stored: so a state of millions is never copied as a whole,
        // and does not block the thread for long.
        for piece in chunks {
            positions.push(self.store(Kind::Piece, as_of, &piece).await?);
        }
        Ok(storing.chunks_acknowledged(positions))
    }

    /// Copies an entry to the end of the hold. If the entry cannot be read, the leave to store is given back.
    async fn copy(&self, from: u64, storing: Storing) -> Result<Result<Stored, Storing>, BrokerError> {
        match self.entry(from).await {
            Ok(Some(entry)) => {
                let at = self.append(entry).await?;
                Ok(Ok(storing.acknowledged(at)))
            }
            Ok(None) => Ok(Err(storing)),
            Err(error) => {
                tracing::warn!(%error, from, "what keeps a hold from being cut could not be read; it stays there");
                Ok(Err(storing))
            }
        }
    }
}

impl Epoch<'_> {
    /// Starts storing the pieces of a snapshot that does not fit into a record.
    pub(super) fn store_pieces(&mut self, storing: Storing, chunks: Chunks) {
        let hold = self.hold.clone();
        self.under_way.storing_pieces =
            Some(Box::pin(async move { hold.store_pieces(storing, chunks).await }));
    }

    /// Starts reading the pieces of a snapshot. No more of the journal is applied until they are there.
    pub(super) fn read_pieces(&mut self, position: u64, positions: Vec<u64>) {
        let hold = self.hold.clone();
        self.under_way.reading_pieces =
            Some(Box::pin(async move { Ok(Pieces { position, pieces: hold.pieces(&positions).await? }) }));
    }

    /// Starts copying a body to the end of the hold; at its old place it keeps the hold from being cut.
    pub(super) fn move_body(&mut self, position: u64, from: u64, storing: Storing) {
        let hold = self.hold.clone();
        self.under_way.moving =
            Some(Box::pin(async move { Ok(Moved { position, from, to: hold.copy(from, storing).await? }) }));
    }

    /// Starts a cut of the hold. A cut under way is replaced: the newest is enough.
    pub(super) fn cut_hold(&mut self, below: u64) {
        let hold = self.hold.clone();
        self.under_way.cutting_hold = Some(Box::pin(async move {
            if let Err(error) = hold.0.cut(below).await {
                tracing::warn!(%error, below, "a hold was not cut; it stays longer than it needs to be");
            }
        }));
    }

    /// Tells the owner what a call to the hold came to.
    pub(super) fn hold_answered(&mut self, event: HoldEvent) -> Result<keylane_core::Action, BrokerError> {
        Ok(match event {
            HoldEvent::Stored(stored) => self.step(Input::ChunksStored(stored?)),
            HoldEvent::Read(read) => {
                let Pieces { position, pieces } = read?;
                self.step(Input::Chunks { position, chunks: pieces.as_deref() })
            }
            HoldEvent::Moved(moved) => {
                let Moved { position, from, to } = moved?;
                match to {
                    Ok(to) => self.step(Input::Moved { position, from, to }),
                    Err(storing) => self.step(Input::GivenUp(storing)),
                }
            }
        })
    }
}

/// The answer of a call to `hold.p`.
pub(super) enum HoldEvent {
    Stored(Result<StoredChunks, BrokerError>),
    Read(Result<Pieces, BrokerError>),
    Moved(Result<Moved, BrokerError>),
}

impl From<HoldEvent> for Event {
    fn from(event: HoldEvent) -> Event {
        Event::Hold(event)
    }
}
