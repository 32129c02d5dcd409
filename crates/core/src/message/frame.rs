//! Encodes a message as a frame, the bytes in which every broker stores it.
//!
//! A [`Draft`] borrows what a producer gives; [`Frames`] is an arena of encoded drafts, each with its partition, and is
//! what a broker is asked to append. `delivery.rs` reads frames back.
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
//! A frame with an unknown flag was written by a newer version, and is refused as a whole rather than read in part.
//!
//! A broker with its own message format puts what that format has no place for into headers. The names and texts of
//! those headers stand here, so that all such brokers use the same.

use bytes::{BufMut, Bytes, BytesMut};

use super::delivery::Delivery;

/// The longest key (MSG-3).
pub const KEY_BYTES_MAX: usize = 4096;
/// The longest id: long enough for any id in the shape of a URL, short enough for a header.
pub const ID_BYTES_MAX: usize = 1024;
/// The most headers of one message. More are a mistake, and each one costs a parse at delivery.
pub const HEADERS_MAX: usize = 256;
/// The most bytes of all headers of one message.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;
/// Positions stay below 2^53, so that every JSON reader can hold one (MSG-3).
pub const POSITION_MAX: u64 = 1 << 53;

/// The priorities that a message can have, from lowest to highest (MSG-7).
pub const PRIORITIES: std::ops::RangeInclusive<u8> = 1..=10;
/// The priority of a message that names none (MSG-7).
pub const PRIORITY: u8 = 5;

/// The header that carries [`Draft::deliver_at_ms`]: ms since 1970, in digits.
pub const DELIVER_AT_HEADER: &str = "keylane-deliver-at";
/// The header that carries [`Draft::priority`]: 1 to 10, in digits.
pub const PRIORITY_HEADER: &str = "keylane-priority";
/// The header that carries [`Draft::ttl_ms`]: ms, in digits, not zero.
pub const TTL_HEADER: &str = "keylane-ttl";

pub(super) const FIXED: usize = 28;
/// The offset of the priority byte.
pub(super) const PRIORITY_AT: usize = 9;
/// The smallest frame: the fixed part and an id of one byte.
pub(crate) const FRAME_BYTES_MIN: usize = FIXED + 1;
pub(super) const HAS_KEY: u8 = 1;
pub(super) const HAS_VERSION: u8 = 2;
pub(super) const NO_PAYLOAD: u8 = 4;
pub(super) const HAS_APPENDED: u8 = 8;
pub(super) const HAS_DELIVER_AT: u8 = 16;
pub(super) const HAS_TTL: u8 = 32;
/// The flags that add a number of eight bytes each.
pub(super) const NUMBERS: u8 = HAS_VERSION | HAS_APPENDED | HAS_DELIVER_AT | HAS_TTL;

/// A message that is about to be encoded. Borrows all of its parts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Draft<'a> {
    /// The producer's id, or one that was made for the message. Never empty.
    pub id: &'a str,
    /// The key, if the message has one; an empty key is a key.
    pub key: Option<&'a [u8]>,
    /// The payload; `None` is a null payload, which differs from an empty one.
    pub payload: Option<&'a [u8]>,
    /// The headers, in order.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The producer's version of the key, if it numbers them.
    pub version: Option<u64>,
    /// When the producer made the message, ms since 1970.
    pub produced_ms: u64,
    /// The append time, if it differs from that of the batch (Kafka records of other producers).
    pub appended_ms: Option<u64>,
    /// When the message is due, ms since 1970, if it must not run at once.
    pub deliver_at_ms: Option<u64>,
    /// The priority among keys, within [`PRIORITIES`]; a message without one has [`PRIORITY`].
    pub priority: Option<u8>,
    /// How long after its append time the message is of use, in ms; not zero.
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
    /// There are too many headers, or they are too large.
    #[error("{0} headers with {1} bytes; at most {HEADERS_MAX} with {HEADER_BYTES_MAX} bytes are taken")]
    Headers(usize, usize),
    /// The priority is outside of [`PRIORITIES`].
    #[error("the priority is {0}; it must be 1 to 10")]
    Priority(u8),
    /// The time to live is zero.
    #[error("the time to live is 0; it must be at least 1 ms")]
    Ttl,
    /// The frame is cut off or its parts contradict each other.
    #[error("a frame of {0} bytes is damaged: {1}")]
    Damaged(usize, &'static str),
    /// A newer version wrote the frame.
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

/// Encoded messages on their way to a broker, in one buffer, each with the partition that it goes to.
#[derive(Debug, Clone, Default)]
pub struct Frames {
    arena: Arena,
    entries: Vec<FrameAt>,
    stops_at_refused: bool,
}

/// The buffer of the frames: owned while frames are added, shared once it should be cheap to clone.
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
    /// Empty frames with room for `messages` messages and `bytes` bytes.
    pub fn with_capacity(messages: usize, bytes: usize) -> Frames {
        let (arena, entries) = (Arena::Own(BytesMut::with_capacity(bytes)), Vec::with_capacity(messages));
        Frames { arena, entries, stops_at_refused: false }
    }

    /// Asks the broker to send no message of a key behind one of that key that it refused. For callers that keep the
    /// refused message and try it again: a later message sent first would be reordered.
    pub fn stop_at_refused(&mut self) {
        self.stops_at_refused = true;
    }

    /// True if [`Frames::stop_at_refused`] was asked for.
    pub fn stops_at_refused(&self) -> bool {
        self.stops_at_refused
    }

    /// Encodes one more message for `partition`. On an error nothing is added.
    pub fn push(&mut self, partition: u32, draft: &Draft<'_>) -> Result<(), FrameError> {
        let arena = self.arena.own();
        let start = arena.len();
        draft.encode(arena)?;
        self.entries.push(FrameAt { partition, start, end: arena.len(), has_id: true });
        Ok(())
    }

    /// Like [`Frames::push`], for a message whose id no producer chose. A broker that can name the message by its
    /// position need not store the id.
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

    /// Adds a frame that was read back from a log, for `partition`.
    pub fn push_frame(&mut self, partition: u32, frame: &[u8]) {
        let arena = self.arena.own();
        let start = arena.len();
        arena.extend_from_slice(frame);
        arena[start + 4..start + 8].fill(0);
        self.entries.push(FrameAt { partition, start, end: arena.len(), has_id: true });
    }

    /// Makes clones cheap. A later push copies the whole buffer first.
    pub fn share(&mut self) {
        if let Arena::Own(bytes) = &mut self.arena {
            self.arena = Arena::Shared(std::mem::take(bytes).freeze());
        }
    }

    /// The messages in the order in which they were pushed, at no position yet. Copies each frame, unless the buffer is
    /// shared.
    pub fn messages(&self) -> impl Iterator<Item = Result<Delivery, FrameError>> {
        self.entries.iter().map(|at| self.parse(at))
    }

    /// The message at `index` of [`Frames::messages`].
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

    /// How many messages were pushed.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if no message was pushed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all frames together.
    pub fn bytes(&self) -> usize {
        self.arena.bytes().len()
    }

    /// The frames in the order in which they were pushed: partition and bytes, the delta still zero.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, &[u8])> {
        let arena = self.arena.bytes();
        self.entries.iter().map(move |at| (at.partition, &arena[at.start..at.end]))
    }
}

/// Appends a frame to `out` with its delta filled in, as a broker does when it lays out a batch.
pub fn put_frame(out: &mut Vec<u8>, frame: &[u8], delta: u32) {
    let at = out.len();
    out.extend_from_slice(frame);
    out[at + 4..at + 8].copy_from_slice(&delta.to_le_bytes());
}
