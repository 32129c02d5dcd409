//! A message as bytes.
//!
//! A [`Draft`] borrows what a producer gives; [`Frames`] is an arena of encoded drafts, each with its partition: what
//! a broker is asked to append. Reading frames back is `delivery.rs`'s part.
//!
//! Layout of a frame, little endian:
//!
//! ```text
//!  0  u32  length      of all that follows this field
//!  4  u32  delta       position minus the base of its batch; written by the broker
//!  8  u8   flags       1 key, 2 version, 4 no payload (a null, not an empty one), 8 own append time,
//!                      16 deliver at, 32 time to live
//!  9  u8   priority    1 to 10; zero if the message has none of its own
//! 10  u16  id bytes
//! 12  u16  key bytes
//! 14  u16  headers
//! 16  u32  header bytes
//! 20  u64  produced at, ms since 1970
//! 28  u64  version     only with flag 2
//!     u64  deliver at  only with flag 16; ms since 1970
//!     u64  ttl         only with flag 32; ms from its append time, not zero
//!     u64  appended at only with flag 8
//!     id, key, headers (u16 name bytes, u32 value bytes, name, value)*, payload
//! ```
//!
//! A flag that is not known here was written by a newer version: the frame is refused, never half read.
//!
//! A broker whose messages are not frames keeps what it has no place for in headers; their names and texts stand here,
//! so that all of them agree.

use bytes::{BufMut, Bytes, BytesMut};

use super::delivery::Delivery;

/// A key is at most this long (MSG-3).
pub const KEY_BYTES_MAX: usize = 4096;
/// An id is at most this long: long enough for any URL-shaped id, short enough for a header.
pub const ID_BYTES_MAX: usize = 1024;
/// Headers of one message; more is a mistake, and each costs a parse at delivery.
pub const HEADERS_MAX: usize = 256;
/// Bytes of all headers of one message.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;
/// Positions stay below 2^53, so that every JSON reader can hold one (MSG-3).
pub const POSITION_MAX: u64 = 1 << 53;

/// The lowest priority, and the highest (MSG-7).
pub const PRIORITIES: std::ops::RangeInclusive<u8> = 1..=10;
/// The priority of a message that has none of its own (MSG-7).
pub const PRIORITY: u8 = 5;

/// The header for [`Draft::deliver_at_ms`]: ms since 1970, in digits.
pub const DELIVER_AT_HEADER: &str = "keylane-deliver-at";
/// The header for [`Draft::priority`]: 1 to 10, in digits.
pub const PRIORITY_HEADER: &str = "keylane-priority";
/// The header for [`Draft::ttl_ms`]: ms, in digits, and not zero.
pub const TTL_HEADER: &str = "keylane-ttl";

pub(super) const FIXED: usize = 28;
/// Where the priority stands.
pub(super) const PRIORITY_AT: usize = 9;
/// The smallest frame: fixed part and an id of one byte.
pub(crate) const FRAME_BYTES_MIN: usize = FIXED + 1;
pub(super) const HAS_KEY: u8 = 1;
pub(super) const HAS_VERSION: u8 = 2;
pub(super) const NO_PAYLOAD: u8 = 4;
pub(super) const HAS_APPENDED: u8 = 8;
pub(super) const HAS_DELIVER_AT: u8 = 16;
pub(super) const HAS_TTL: u8 = 32;
/// Flags with a number of eight bytes each.
pub(super) const NUMBERS: u8 = HAS_VERSION | HAS_APPENDED | HAS_DELIVER_AT | HAS_TTL;

/// A message about to be encoded. Borrows everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Draft<'a> {
    /// The caller's id, or one made for it. Never empty.
    pub id: &'a str,
    /// The key, if it has one; an empty key is a key.
    pub key: Option<&'a [u8]>,
    /// The payload; `None` is a null, which is not the same as an empty one.
    pub payload: Option<&'a [u8]>,
    /// Headers in order.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The caller's version of the key, if it numbers them.
    pub version: Option<u64>,
    /// When it was made, ms since 1970.
    pub produced_ms: u64,
    /// Append time, where it differs from its batch's (foreign Kafka records).
    pub appended_ms: Option<u64>,
    /// When it is due, ms since 1970, if it is not to run at once.
    pub deliver_at_ms: Option<u64>,
    /// Its priority among keys, of [`PRIORITIES`]; without one it has [`PRIORITY`].
    pub priority: Option<u8>,
    /// How long after its append time it is of use, in ms; not zero.
    pub ttl_ms: Option<u64>,
}

/// Why a message cannot be encoded, or a frame cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The id is empty or too long.
    #[error("the id has {0} bytes; it must have 1 to {ID_BYTES_MAX}")]
    Id(usize),
    /// The key is too long.
    #[error("the key has {0} bytes; at most {KEY_BYTES_MAX} are taken")]
    Key(usize),
    /// Too many headers, or too large.
    #[error("{0} headers with {1} bytes; at most {HEADERS_MAX} with {HEADER_BYTES_MAX} bytes are taken")]
    Headers(usize, usize),
    /// The priority is none.
    #[error("the priority is {0}; it must be 1 to 10")]
    Priority(u8),
    /// The time to live is over before it begins.
    #[error("the time to live is 0; it must be at least 1 ms")]
    Ttl,
    /// A frame ends early or contradicts itself.
    #[error("a frame of {0} bytes is damaged: {1}")]
    Damaged(usize, &'static str),
    /// A newer version wrote it.
    #[error("a frame has flags {0:#04x}, which this version does not know")]
    Newer(u8),
}

impl Draft<'_> {
    fn check(&self) -> Result<usize, FrameError> {
        if self.id.is_empty() || self.id.len() > ID_BYTES_MAX {
            return Err(FrameError::Id(self.id.len()));
        }
        if let Some(key) = self.key
            && key.len() > KEY_BYTES_MAX
        {
            return Err(FrameError::Key(key.len()));
        }
        let header_bytes = self.headers.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
        let name_too_long = self.headers.iter().any(|(name, _)| name.len() > usize::from(u16::MAX));
        if self.headers.len() > HEADERS_MAX || header_bytes > HEADER_BYTES_MAX || name_too_long {
            return Err(FrameError::Headers(self.headers.len(), header_bytes));
        }
        if let Some(priority) = self.priority.filter(|priority| !PRIORITIES.contains(priority)) {
            return Err(FrameError::Priority(priority));
        }
        if self.ttl_ms == Some(0) {
            return Err(FrameError::Ttl);
        }
        Ok(header_bytes)
    }

    /// Appends this message's frame to `arena`.
    pub fn encode(&self, arena: &mut BytesMut) -> Result<(), FrameError> {
        let header_bytes = self.check()?;
        let key = self.key.unwrap_or_default();
        let payload = self.payload.unwrap_or_default();
        let numbers = [self.version, self.deliver_at_ms, self.ttl_ms, self.appended_ms];
        let optional = 8 * numbers.iter().flatten().count();
        let total = FIXED + optional + self.id.len() + key.len() + header_bytes + payload.len();
        if u32::try_from(total).is_err() {
            return Err(FrameError::Damaged(total, "longer than 4 GiB"));
        }
        arena.reserve(total);
        arena.put_u32_le((total - 4) as u32);
        arena.put_u32_le(0);
        let flag = |bit: u8, set: bool| if set { bit } else { 0 };
        arena.put_u8(
            flag(HAS_KEY, self.key.is_some())
                | flag(HAS_VERSION, self.version.is_some())
                | flag(NO_PAYLOAD, self.payload.is_none())
                | flag(HAS_APPENDED, self.appended_ms.is_some())
                | flag(HAS_DELIVER_AT, self.deliver_at_ms.is_some())
                | flag(HAS_TTL, self.ttl_ms.is_some()),
        );
        arena.put_u8(self.priority.unwrap_or(0));
        arena.put_u16_le(self.id.len() as u16);
        arena.put_u16_le(key.len() as u16);
        arena.put_u16_le(self.headers.len() as u16);
        arena.put_u32_le(header_bytes as u32);
        arena.put_u64_le(self.produced_ms);
        numbers.iter().flatten().for_each(|number| arena.put_u64_le(*number));
        arena.put_slice(self.id.as_bytes());
        arena.put_slice(key);
        for (name, value) in self.headers {
            arena.put_u16_le(name.len() as u16);
            arena.put_u32_le(value.len() as u32);
            arena.put_slice(name.as_bytes());
            arena.put_slice(value);
        }
        arena.put_slice(payload);
        Ok(())
    }
}

/// Encoded messages on their way to a broker, in one arena, each with the partition it goes to.
#[derive(Debug, Clone, Default)]
pub struct Frames {
    arena: Arena,
    entries: Vec<FrameAt>,
    stops_at_refused: bool,
}

/// Where the frames lie: alone while they are written, shared once nothing more comes.
#[derive(Debug, Clone)]
enum Arena {
    Own(BytesMut),
    Shared(Bytes),
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::Own(BytesMut::new())
    }
}

impl Arena {
    fn bytes(&self) -> &[u8] {
        match self {
            Arena::Own(bytes) => bytes,
            Arena::Shared(bytes) => bytes,
        }
    }

    fn own(&mut self) -> &mut BytesMut {
        if let Arena::Shared(bytes) = self {
            *self = Arena::Own(BytesMut::from(&bytes[..]));
        }
        match self {
            Arena::Own(bytes) => bytes,
            Arena::Shared(_) => unreachable!("it was copied"),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct FrameAt {
    partition: u32,
    start: usize,
    end: usize,
    has_id: bool,
}

impl Frames {
    /// An empty arena with room for `bytes`.
    pub fn with_capacity(messages: usize, bytes: usize) -> Frames {
        let (arena, entries) = (Arena::Own(BytesMut::with_capacity(bytes)), Vec::with_capacity(messages));
        Frames { arena, entries, stops_at_refused: false }
    }

    /// Asks that nothing of a key is sent behind a message of it that is refused: for who keeps it and tries it again.
    pub fn stop_at_refused(&mut self) {
        self.stops_at_refused = true;
    }

    /// True if [`Frames::stop_at_refused`] was asked for.
    pub fn stops_at_refused(&self) -> bool {
        self.stops_at_refused
    }

    /// Encodes one more message, bound for `partition`. On an error nothing was added.
    pub fn push(&mut self, partition: u32, draft: &Draft<'_>) -> Result<(), FrameError> {
        let arena = self.arena.own();
        let start = arena.len();
        draft.encode(arena)?;
        self.entries.push(FrameAt { partition, start, end: arena.len(), has_id: true });
        Ok(())
    }

    /// As [`Frames::push`], of a message whose id nobody chose: a broker that can name it by its place need not keep
    /// the id.
    pub fn push_without_id(&mut self, partition: u32, draft: &Draft<'_>) -> Result<(), FrameError> {
        self.push(partition, draft)?;
        if let Some(last) = self.entries.last_mut() {
            last.has_id = false;
        }
        Ok(())
    }

    /// False for a message that was pushed with [`Frames::push_without_id`].
    pub fn has_id(&self, index: usize) -> bool {
        self.entries.get(index).is_none_or(|at| at.has_id)
    }

    /// Takes over a frame that was read back, bound for `partition`.
    pub fn push_frame(&mut self, partition: u32, frame: &[u8]) {
        let arena = self.arena.own();
        let start = arena.len();
        arena.extend_from_slice(frame);
        arena[start + 4..start + 8].fill(0);
        self.entries.push(FrameAt { partition, start, end: arena.len(), has_id: true });
    }

    /// Makes clones cheap. What is pushed afterwards copies all that is there.
    pub fn share(&mut self) {
        if let Arena::Own(bytes) = &mut self.arena {
            self.arena = Arena::Shared(std::mem::take(bytes).freeze());
        }
    }

    /// The frames in the order they were pushed, as messages that are not in a log yet. Copied, unless it is shared.
    pub fn messages(&self) -> impl Iterator<Item = Result<Delivery, FrameError>> {
        self.entries.iter().map(|at| self.parse(at))
    }

    /// One of [`Frames::messages`].
    pub fn message(&self, index: usize) -> Option<Result<Delivery, FrameError>> {
        self.entries.get(index).map(|at| self.parse(at))
    }

    fn parse(&self, at: &FrameAt) -> Result<Delivery, FrameError> {
        let frame = match &self.arena {
            Arena::Own(bytes) => Bytes::copy_from_slice(&bytes[at.start..at.end]),
            Arena::Shared(bytes) => bytes.slice(at.start..at.end),
        };
        Delivery::parse(frame, 0, at.partition, 0, 0)
    }

    /// How many messages are in it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all frames.
    pub fn bytes(&self) -> usize {
        self.arena.bytes().len()
    }

    /// The frames in the order they were pushed: partition and bytes, the delta still zero.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, &[u8])> {
        let arena = self.arena.bytes();
        self.entries.iter().map(move |at| (at.partition, &arena[at.start..at.end]))
    }
}

/// Copies a frame to the end of `out` with its delta filled in, as a broker does when it lays out a batch.
pub fn put_frame(out: &mut Vec<u8>, frame: &[u8], delta: u32) {
    let at = out.len();
    out.extend_from_slice(frame);
    out[at + 4..at + 8].copy_from_slice(&delta.to_le_bytes());
}
