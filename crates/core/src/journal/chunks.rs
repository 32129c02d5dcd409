//! A state in pieces that fit into `hold.p`, one after the other.
//!
//! The state that is written shares its memory with the one that goes on, and each piece is made when it is asked for:
//! so a snapshot of millions holds nobody up. A piece begins with the position as of which the snapshot is, its own
//! number, and whether it is the last. The first has all but what is held or dead.

use bytes::Bytes;

use super::encoding::{Malformed, put_varint, take_flag, take_varint};
use super::entries::Reading;
use super::state::State;

/// The pieces of a state, as of where it was read to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chunks {
    state: State,
    as_of: u64,
    bytes_max: usize,
    /// How many were made.
    number: u64,
    /// Where the entries begin that are in none of them.
    from: Option<u64>,
    done: bool,
}

impl Chunks {
    /// The pieces of a state, as of that position of the journal, each of about `bytes_max` at most.
    pub fn of(state: State, as_of: u64, bytes_max: usize) -> Chunks {
        Chunks { state, as_of, bytes_max, number: 0, from: None, done: false }
    }

    /// The state that all pieces of a snapshot give.
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

    /// The position of the journal up to which its writer had read.
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
