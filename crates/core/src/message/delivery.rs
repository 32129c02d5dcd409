//! A message as it is read from a broker: a batch of frames, and each frame as a [`Delivery`] at its position.
//!
//! A [`Batch`] is what a broker hands out: frames of one partition in one buffer. A [`Delivery`] is one of these
//! messages at its position, read under an epoch; it shares the batch's buffer, so making one allocates nothing. Every
//! frame is checked once, when it is read, so that no code behind this file can meet a damaged frame.

use bytes::Bytes;

use super::frame::{
    FIXED, FrameError, HAS_APPENDED, HAS_DELIVER_AT, HAS_KEY, HAS_TTL, HAS_VERSION, NO_PAYLOAD, NUMBERS,
    PRIORITIES, PRIORITY_AT,
};

/// Messages of one partition, as a broker hands them out.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The partition that the messages lie in.
    pub partition: u32,
    /// The position that the frames' deltas count from.
    pub base: u64,
    /// The reader has passed every position below this one. Positions in between that are missing from the frames are
    /// gaps.
    pub next: u64,
    /// When the broker appended the batch, ms since 1970.
    pub appended_ms: u64,
    /// How many frames there are; used to reserve memory, so it need not be exact.
    pub count: u32,
    /// The frames, back to back.
    pub frames: Bytes,
}

impl Batch {
    /// Splits the batch into the part below `position` and the rest. A frame that cannot be read stays in the part
    /// below.
    pub fn split(self, position: u64) -> (Batch, Option<Batch>) {
        if self.next <= position {
            return (self, None);
        }
        let (mut cursor, mut at, mut count) = (self.cursor(0), self.frames.len(), 0);
        while let Some(found) = cursor.find_next() {
            match found {
                Ok(found) if found.position() >= position => {
                    at = found.at;
                    break;
                }
                Ok(_) => count += 1,
                Err(_) => return (self, None),
            }
        }
        let rest = Batch { count: self.count - count, frames: self.frames.slice(at..), ..self.clone() };
        let below = Batch { count, frames: self.frames.slice(..at), next: position.max(self.base), ..self };
        (below, Some(rest))
    }

    /// Walks the deliveries of this batch in order; each carries `epoch`.
    pub fn cursor(&self, epoch: u64) -> BatchCursor {
        BatchCursor {
            frames: self.frames.clone(),
            at: 0,
            base: self.base,
            appended_ms: self.appended_ms,
            epoch,
            partition: self.partition,
        }
    }
}

/// A place within a batch. Owns a reference to the buffer, so the shard can keep a cursor while a lane is full.
#[derive(Debug, Clone)]
pub struct BatchCursor {
    frames: Bytes,
    at: usize,
    base: u64,
    appended_ms: u64,
    epoch: u64,
    partition: u32,
}

/// Where a checked frame lies in its batch, and what the check found. The delivery is made later, once its way is
/// known: moving a delivery about costs as much as reading its frame.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    at: usize,
    length: usize,
    position: u64,
    appended_ms: u64,
    key_at: u32,
}

impl Found {
    /// The message's position in the partition.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that the message's delivery keeps in memory.
    #[inline]
    pub fn size(&self) -> usize {
        self.length
    }
}

impl BatchCursor {
    /// Checks the next frame and moves on.
    #[inline(always)]
    pub fn find_next(&mut self) -> Option<Result<Found, FrameError>> {
        let rest = &self.frames[self.at..];
        if rest.is_empty() {
            return None;
        }
        let length = match rest.first_chunk::<4>() {
            Some(length) => u32::from_le_bytes(*length) as usize + 4,
            None => return Some(Err(FrameError::Damaged(rest.len(), "no room for a length"))),
        };
        if length > rest.len() {
            return Some(Err(FrameError::Damaged(rest.len(), "longer than its batch")));
        }
        let at = self.at;
        self.at += length;
        let checked = match Checked::read(&rest[..length], self.appended_ms) {
            Ok(checked) => checked,
            Err(error) => return Some(Err(error)),
        };
        let position = self.base + u64::from(checked.delta);
        Some(Ok(Found { at, length, position, appended_ms: checked.appended_ms, key_at: checked.key_at }))
    }

    /// The key of a frame of this batch; an empty key is a key.
    #[inline(always)]
    pub fn key(&self, found: &Found) -> Option<&[u8]> {
        key(&self.frames[found.at..found.at + found.length], found.key_at)
    }

    /// The delivery of a frame of this batch. It shares the batch's buffer.
    #[inline(always)]
    pub fn delivery(&self, found: &Found) -> Delivery {
        Delivery {
            frame: self.frames.slice(found.at..found.at + found.length),
            position: found.position,
            epoch: self.epoch,
            appended_ms: found.appended_ms,
            partition: self.partition,
            key_at: found.key_at,
        }
    }
}

impl Iterator for BatchCursor {
    type Item = Result<Delivery, FrameError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.find_next().map(|found| found.map(|found| self.delivery(&found)))
    }
}

#[inline(always)]
fn key(frame: &[u8], key_at: u32) -> Option<&[u8]> {
    let key_at = key_at as usize;
    (frame[8] & HAS_KEY != 0).then(|| &frame[key_at..key_at + half(frame, 12) as usize])
}

/// A message at its position, read under an epoch. Shares the buffer of its batch.
#[derive(Debug, Clone)]
pub struct Delivery {
    frame: Bytes,
    position: u64,
    epoch: u64,
    appended_ms: u64,
    partition: u32,
    key_at: u32,
}

/// What the check of a frame found.
struct Checked {
    delta: u32,
    key_at: u32,
    appended_ms: u64,
}

impl Checked {
    /// Checks one frame. Everything is checked here, so that the accessors of [`Delivery`] cannot fail.
    #[inline(always)]
    fn read(frame: &[u8], batch_appended_ms: u64) -> Result<Checked, FrameError> {
        let damaged = |what| FrameError::Damaged(frame.len(), what);
        let Some(fixed) = frame.first_chunk::<FIXED>() else {
            return Err(damaged("shorter than its fixed part"));
        };
        let flags = fixed[8];
        if flags & !(HAS_KEY | NO_PAYLOAD | NUMBERS) != 0 {
            return Err(FrameError::Newer(flags));
        }
        if fixed[PRIORITY_AT] > *PRIORITIES.end() {
            return Err(damaged("its priority is above 10"));
        }
        let id_at = FIXED as u32 + 8 * (flags & NUMBERS).count_ones();
        let key_at = id_at + half(fixed, 10);
        let headers_at = key_at + half(fixed, 12);
        let payload_at = u64::from(headers_at) + u64::from(word(fixed, 16));
        if word(fixed, 0) as usize + 4 != frame.len() || payload_at > frame.len() as u64 {
            return Err(damaged("its parts do not fit"));
        }
        let id = &frame[id_at as usize..key_at as usize];
        if !id.is_ascii() && std::str::from_utf8(id).is_err() {
            return Err(damaged("its id is not UTF-8"));
        }
        if word(fixed, 16) != 0 || half(fixed, 14) != 0 {
            check_headers(&frame[headers_at as usize..payload_at as usize], half(fixed, 14))
                .map_err(damaged)?;
        }
        let appended_ms = match flags & HAS_APPENDED {
            0 => batch_appended_ms,
            _ => long(frame, id_at as usize - 8),
        };
        Ok(Checked { delta: word(fixed, 4), key_at, appended_ms })
    }
}

/// Checks that the headers fill their part exactly, and that their names are UTF-8.
fn check_headers(mut rest: &[u8], count: u32) -> Result<(), &'static str> {
    for _ in 0..count {
        let (name, value) = header_lengths(rest).ok_or("a header is cut off")?;
        if std::str::from_utf8(&rest[6..6 + name]).is_err() {
            return Err("a header's name is not UTF-8");
        }
        rest = &rest[6 + name + value..];
    }
    if rest.is_empty() { Ok(()) } else { Err("bytes behind the last header") }
}

#[inline]
fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

impl Delivery {
    /// Checks and reads a single frame.
    pub fn parse(
        frame: Bytes,
        base: u64,
        partition: u32,
        epoch: u64,
        appended_ms: u64,
    ) -> Result<Delivery, FrameError> {
        let checked = Checked::read(&frame, appended_ms)?;
        Ok(Delivery {
            frame,
            position: base + u64::from(checked.delta),
            epoch,
            appended_ms: checked.appended_ms,
            partition,
            key_at: checked.key_at,
        })
    }

    #[inline]
    fn flags(&self) -> u8 {
        self.frame[8]
    }

    fn id_at(&self) -> usize {
        self.key_at as usize - half(&self.frame, 10) as usize
    }

    #[inline]
    fn headers_at(&self) -> usize {
        self.key_at as usize + half(&self.frame, 12) as usize
    }

    #[inline]
    fn payload_at(&self) -> usize {
        self.headers_at() + word(&self.frame, 16) as usize
    }

    /// The message's id.
    pub fn id(&self) -> &str {
        std::str::from_utf8(&self.frame[self.id_at()..self.key_at as usize])
            .expect("checked when it was read")
    }

    /// The key; an empty key is a key.
    #[inline]
    pub fn key(&self) -> Option<&[u8]> {
        key(&self.frame, self.key_at)
    }

    /// The payload; `None` is a null payload, which differs from an empty one.
    pub fn payload(&self) -> Option<&[u8]> {
        (self.flags() & NO_PAYLOAD == 0).then(|| &self.frame[self.payload_at()..])
    }

    /// The payload, sharing the frame's buffer; empty for a null payload.
    pub fn payload_bytes(&self) -> Bytes {
        self.frame.slice(self.payload_at()..)
    }

    /// The headers in the order in which the producer gave them.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = &self.frame[self.headers_at()..self.payload_at()];
        std::iter::from_fn(move || {
            let (name, value) = header_lengths(rest)?;
            let (this, next) = rest.split_at(6 + name + value);
            rest = next;
            let text = std::str::from_utf8(&this[6..6 + name]).expect("checked when it was read");
            Some((text, &this[6 + name..]))
        })
    }

    /// The producer's version of the key, if it numbers them.
    pub fn version(&self) -> Option<u64> {
        self.number(HAS_VERSION, 0)
    }

    /// When the message is due, ms since 1970; `None` if it may run at once.
    pub fn deliver_at_ms(&self) -> Option<u64> {
        self.number(HAS_DELIVER_AT, HAS_VERSION)
    }

    /// How long after its append time the message is of use, in ms; `None` if there is no limit.
    pub fn ttl_ms(&self) -> Option<u64> {
        self.number(HAS_TTL, HAS_VERSION | HAS_DELIVER_AT)
    }

    /// The message's own priority among keys, 1 to 10, if it has one.
    pub fn priority(&self) -> Option<u8> {
        Some(self.frame[PRIORITY_AT]).filter(|priority| *priority != 0)
    }

    /// The number that belongs to `flag`. It stands behind the numbers of the flags in `before`.
    fn number(&self, flag: u8, before: u8) -> Option<u64> {
        let at = FIXED + 8 * (self.flags() & before).count_ones() as usize;
        (self.flags() & flag != 0).then(|| long(&self.frame, at))
    }

    /// When the producer made the message, ms since 1970.
    pub fn produced_ms(&self) -> u64 {
        long(&self.frame, 20)
    }

    /// When the broker appended the message, ms since 1970.
    pub fn appended_ms(&self) -> u64 {
        self.appended_ms
    }

    /// The partition that the message lies in.
    #[inline]
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// The message's position in the partition.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The epoch under which the message was read.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The whole frame, which is what `hold.p` stores of a message.
    pub fn frame(&self) -> &Bytes {
        &self.frame
    }

    /// Bytes that the delivery keeps in memory, for bounds.
    #[inline]
    pub fn size(&self) -> usize {
        self.frame.len()
    }

    /// Copies the frame out of its batch's buffer. A delivery that waits for long would otherwise keep its whole batch
    /// in memory.
    pub fn detach(&mut self) {
        self.frame = Bytes::copy_from_slice(&self.frame);
    }
}

fn header_lengths(rest: &[u8]) -> Option<(usize, usize)> {
    let fixed = rest.first_chunk::<6>()?;
    let name = usize::from(u16::from_le_bytes([fixed[0], fixed[1]]));
    let value = u32::from_le_bytes([fixed[2], fixed[3], fixed[4], fixed[5]]) as usize;
    (6 + name + value <= rest.len()).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::frame::{Draft, Frames, KEY_BYTES_MAX, put_frame};
    use proptest::prelude::*;

    fn read_back(frames: &Frames) -> Vec<Delivery> {
        let mut out = Vec::new();
        for (index, (_, frame)) in frames.iter().enumerate() {
            put_frame(&mut out, frame, index as u32);
        }
        let batch = Batch { partition: 3, base: 100, next: 0, appended_ms: 7, count: 0, frames: out.into() };
        batch.cursor(9).map(|delivery| delivery.expect("just encoded")).collect()
    }

    proptest! {
        /// MSG-1, MSG-3: every field is read back as it was, byte for byte.
        #[test]
        fn what_is_encoded_is_read_back(
            id in "[a-zA-Z0-9/é-]{1,40}",
            key in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..50)),
            payload in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300)),
            headers in proptest::collection::vec(("[a-z-]{0,9}", proptest::collection::vec(any::<u8>(), 0..9)), 0..5),
            version in proptest::option::of(any::<u64>()),
            appended_ms in proptest::option::of(any::<u64>()),
            deliver_at_ms in proptest::option::of(any::<u64>()),
            priority in proptest::option::of(PRIORITIES),
            ttl_ms in proptest::option::of(1..=u64::MAX),
        ) {
            let borrowed: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.as_slice())).collect();
            let draft = Draft { id: &id, key: key.as_deref(), payload: payload.as_deref(), headers: &borrowed,
                version, produced_ms: 42, appended_ms, deliver_at_ms, priority, ttl_ms };
            let mut frames = Frames::default();
            frames.push(1, &draft).expect("within bounds");
            frames.push(2, &draft).expect("within bounds");
            let back = read_back(&frames);
            prop_assert_eq!(back.len(), 2);
            let last = &back[1];
            prop_assert_eq!((last.position(), last.partition(), last.epoch()), (101, 3, 9));
            prop_assert_eq!(last.id(), id.as_str());
            prop_assert_eq!(last.key(), key.as_deref());
            prop_assert_eq!(last.payload(), payload.as_deref());
            prop_assert_eq!(last.version(), version);
            let later = (last.deliver_at_ms(), last.priority(), last.ttl_ms());
            prop_assert_eq!(later, (deliver_at_ms, priority, ttl_ms));
            prop_assert_eq!(last.produced_ms(), 42);
            prop_assert_eq!(last.appended_ms(), appended_ms.unwrap_or(7));
            prop_assert_eq!(last.headers().collect::<Vec<_>>(), borrowed);
        }

        /// Reading any bytes ends with an answer.
        #[test]
        fn damaged_bytes_are_refused_and_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let batch = Batch { partition: 0, base: 0, next: 0, appended_ms: 0, count: 0, frames: bytes.into() };
            for delivery in batch.cursor(0).take(300) {
                match delivery {
                    Ok(delivery) => {
                        let _ = (delivery.headers().count(), delivery.id(), delivery.payload());
                        let _ = (delivery.deliver_at_ms(), delivery.priority(), delivery.ttl_ms());
                    }
                    Err(_) => break,
                }
            }
        }
    }

    fn unhex(text: &str) -> Bytes {
        let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
        (0..text.len()).step_by(2).map(digits).collect()
    }

    /// MSG-1: frames from before deliver-at, priority and time to live existed are still read.
    #[test]
    fn frames_of_the_first_layout_are_read_as_ever() {
        let headers: [(&str, &[u8]); 2] = [("trace", b"x"), ("empty", b"")];
        let produced_ms = 1_700_000_000_000;
        let full = Draft {
            id: "m-1",
            key: Some(b"user-1"),
            payload: Some(b"{\"n\":1}"),
            headers: &headers,
            version: Some(7),
            produced_ms,
            appended_ms: Some(1_700_000_000_123),
            ..Draft::default()
        };
        let plain = Draft { headers: &[], version: None, appended_ms: None, ..full };
        for (draft, golden) in [
            (
                full,
                concat!(
                    "4f000000000000000b00030006000200170000000068e5cf8b01000007000000000000007b68e5cf8b010000",
                    "6d2d31757365722d31050001000000747261636578050000000000656d7074797b226e223a317d"
                ),
            ),
            (
                plain,
                "28000000000000000100030006000000000000000068e5cf8b0100006d2d31757365722d317b226e223a317d",
            ),
            (
                Draft { id: "m-2", key: None, payload: None, ..plain },
                "1b000000000000000400030000000000000000000068e5cf8b0100006d2d32",
            ),
            (
                Draft { id: "m-3", key: Some(b""), payload: Some(b""), version: Some(u64::MAX), ..plain },
                "23000000000000000300030000000000000000000068e5cf8b010000ffffffffffffffff6d2d33",
            ),
        ] {
            let golden = unhex(golden);
            let read = Delivery::parse(golden.clone(), 0, 0, 0, 5).expect("well formed");
            assert_eq!((read.id(), read.key(), read.payload()), (draft.id, draft.key, draft.payload));
            assert_eq!(read.headers().collect::<Vec<_>>(), draft.headers);
            assert_eq!((read.version(), read.produced_ms()), (draft.version, produced_ms));
            assert_eq!(read.appended_ms(), draft.appended_ms.unwrap_or(5));
            assert_eq!((read.deliver_at_ms(), read.priority(), read.ttl_ms()), (None, None, None));
            let mut written = bytes::BytesMut::new();
            draft.encode(&mut written).expect("within bounds");
            assert_eq!(written, golden);
        }
    }

    /// MSG-1: a frame that a newer version wrote is refused as a whole.
    #[test]
    fn an_unknown_flag_or_a_priority_above_ten_is_refused() {
        let mut frame = bytes::BytesMut::new();
        Draft { id: "a", priority: Some(10), ..Draft::default() }.encode(&mut frame).expect("valid");
        let parse = |frame: &[u8]| Delivery::parse(Bytes::copy_from_slice(frame), 0, 0, 0, 0);
        assert_eq!(parse(&frame).expect("valid").priority(), Some(10));
        for flag in [64, 128] {
            let mut newer = frame.clone();
            newer[8] |= flag;
            assert_eq!(parse(&newer).expect_err("unknown"), FrameError::Newer(NO_PAYLOAD | flag));
        }
        frame[PRIORITY_AT] = 11;
        assert!(matches!(parse(&frame), Err(FrameError::Damaged(..))));
    }

    #[test]
    fn a_null_payload_is_not_an_empty_one() {
        let mut frames = Frames::default();
        frames.push(0, &Draft { id: "a", payload: None, ..Draft::default() }).expect("valid");
        frames.push(0, &Draft { id: "b", payload: Some(b""), ..Draft::default() }).expect("valid");
        let back = read_back(&frames);
        assert_eq!((back[0].payload(), back[1].payload()), (None, Some(&b""[..])));
    }

    #[test]
    fn frames_that_are_shared_can_be_read_cloned_and_added_to() {
        let mut frames = Frames::default();
        frames.push(1, &Draft { id: "a", payload: Some(b"1"), ..Draft::default() }).expect("valid");
        let own: Vec<_> =
            frames.messages().map(|message| message.expect("just encoded").id().to_owned()).collect();
        frames.share();
        let mut more = frames.clone();
        let first = read_back(&frames).remove(0);
        more.push_frame(2, first.frame());
        let ids: Vec<_> = more
            .messages()
            .map(|message| message.expect("just encoded"))
            .map(|message| (message.partition(), message.position(), message.id().to_owned()))
            .collect();
        assert_eq!((own, frames.len()), (vec!["a".to_owned()], 1));
        assert_eq!(ids, [(1, 0, "a".to_owned()), (2, 0, "a".to_owned())]);
    }

    #[test]
    fn what_is_too_long_is_refused_and_adds_nothing() {
        let mut frames = Frames::default();
        let key = vec![0; KEY_BYTES_MAX + 1];
        let draft = Draft { id: "a", key: Some(&key), ..Draft::default() };
        assert_eq!(frames.push(0, &draft), Err(FrameError::Key(KEY_BYTES_MAX + 1)));
        assert_eq!(frames.push(0, &Draft::default()), Err(FrameError::Id(0)));
        let draft = Draft { id: "a", ..Draft::default() };
        assert_eq!(frames.push(0, &Draft { priority: Some(0), ..draft }), Err(FrameError::Priority(0)));
        assert_eq!(frames.push(0, &Draft { priority: Some(11), ..draft }), Err(FrameError::Priority(11)));
        assert_eq!(frames.push(0, &Draft { ttl_ms: Some(0), ..draft }), Err(FrameError::Ttl));
        assert_eq!((frames.len(), frames.bytes()), (0, 0));
    }
}
