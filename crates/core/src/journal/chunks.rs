//! Writes a large state into `hold.p` in pieces (chunks), and reads it back.
//!
//! [`Chunks`] makes each piece only when it is asked for, from a state that shares its memory with the owner's, so a
//! snapshot of millions of entries does not hold the owner up. Every piece begins with the snapshot's `as of` position,
//! the piece's number, and a flag that marks the last one. The first piece carries the whole state except the entries;
//! the others carry the entries.

use bytes::Bytes;

use super::encoding::{Malformed, put_varint, take_flag, take_varint};
use super::entries::Reading;
use super::state::State;

/// Iterates over the pieces of a state as of a journal position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chunks {
    state: State,
    as_of: u64,
    bytes_max: usize,
    /// How many pieces were made so far.
    number: u64,
    /// The key of the first block of entries that no piece carries yet.
    from: Option<u64>,
    done: bool,
}

impl Chunks {
    /// The pieces of `state` as of journal position `as_of`, each of about `bytes_max` bytes at most.
    pub fn of(state: State, as_of: u64, bytes_max: usize) -> Chunks {
        Chunks { state, as_of, bytes_max, number: 0, from: None, done: false }
    }

    /// Puts all pieces of one snapshot together again. A piece of another snapshot among them is an error.
    pub fn read(as_of: u64, chunks: &[Bytes]) -> Result<State, Malformed> {
        let (mut state, mut entries) = (None, Reading::default());
        for (number, chunk) in (0u64..).zip(chunks) {
            let mut bytes = &chunk[..];
            let head = (take_varint(&mut bytes)?, take_varint(&mut bytes)?, take_flag(&mut bytes)?);
            if head != (as_of, number, number + 1 == chunks.len() as u64) {
                return Err(Malformed("a chunk of another snapshot"));
            }
            match number {
                0 => state = Some(State::decode(bytes)?),
                _ => entries.blocks(bytes)?,
            }
        }
        let mut state = state.ok_or(Malformed("a snapshot without chunks"))?;
        state.entries = entries.done();
        Ok(state)
    }

    /// The journal position up to which the snapshot's writer had read.
    pub fn as_of(&self) -> u64 {
        self.as_of
    }
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut body = Vec::new();
        if self.number == 0 {
            self.state.encode_head(self.state.format(), &mut body);
            self.done = self.state.entries.is_empty();
        } else {
            self.from = self.state.entries.put_blocks(self.from, self.bytes_max, &mut body);
            self.done = self.from.is_none();
        }
        let mut out = Vec::with_capacity(body.len() + 24);
        put_varint(&mut out, self.as_of);
        put_varint(&mut out, self.number);
        out.push(u8::from(self.done));
        out.extend_from_slice(&body);
        self.number += 1;
        Some(out.into())
    }
}
