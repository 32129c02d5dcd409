//! A message on Kafka's wire, and back.
//!
//! Key, payload and headers stand where every Kafka client has them, a null payload apart from an empty one. What Kafka
//! has no place for goes into headers of ours, as text, so that any client can read them; nearly always that is the id
//! alone, since headers cost more than all the rest of a record. A record without an id is called by where it lies
//! (MSG-1). It was produced when its id says so, if that is a UUIDv7, else at the record's time; only where that would
//! be wrong by more than a second has it a header for it.

use bytes::BytesMut;
use keylane_core::message::{DELIVER_AT_HEADER, ID_BYTES_MAX, PRIORITIES, PRIORITY_HEADER, TTL_HEADER};
use keylane_core::{Delivery, Draft, FrameError};

/// The message's id.
const ID: &str = "keylane-id";
/// The caller's version of the key.
const VERSION: &str = "keylane-version";
/// When it was produced, in ms since 1970.
const PRODUCED_AT: &str = "keylane-produced-at";
/// When it was first appended, in ms since 1970, if that was not here.
const APPENDED_AT: &str = "keylane-appended-at";
/// All names that begin so are ours.
const OURS: &str = "keylane-";

/// Bytes that a record has beyond its frame, at most: our headers' names, and what Kafka puts around a batch.
pub(crate) const AROUND: usize = 512;

/// Where the records of one partition lie, as text: `topic/partition/offset`.
pub(crate) struct Place {
    text: String,
    /// Bytes before the offset.
    before: usize,
    /// The offset that it says now.
    offset: Option<u64>,
}

impl Place {
    pub(crate) fn new(topic: &str, partition: u32) -> Place {
        let text = format!("{topic}/{partition}/");
        Place { before: text.len(), text, offset: None }
    }

    /// At an offset. It is done for every record of somebody else's, and nearly always for the one behind the last.
    pub(crate) fn at(&mut self, offset: u64) -> &str {
        if self.offset.is_some_and(|last| last.checked_add(1) == Some(offset))
            && let Some(last @ '0'..='8') = self.text.pop()
        {
            self.text.push(char::from(last as u8 + 1));
        } else {
            self.text.truncate(self.before);
            self.text.push_str(digits(&mut [0; DIGITS_MAX], offset));
        }
        self.offset = Some(offset);
        &self.text
    }
}

/// Digits of the largest number.
const DIGITS_MAX: usize = 20;

/// A number as text. By hand: it is done for records of somebody else's, and formatting would take longer than copying
/// one.
fn digits(room: &mut [u8; DIGITS_MAX], number: u64) -> &str {
    let (mut first, mut left) = (DIGITS_MAX, number);
    loop {
        first -= 1;
        room[first] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    std::str::from_utf8(&room[first..]).expect("digits are text")
}

/// A record as it was read, borrowed from the client.
pub(crate) struct Record<'a> {
    pub(crate) offset: u64,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) payload: Option<&'a [u8]>,
    pub(crate) appended_ms: u64,
}

/// Appends a record's frame to `frames`, at `delta` behind the batch's base. `batch_ms` is what the batch says about
/// append times; a record with another carries its own. `place` is its partition's.
pub(crate) fn put_record<'a>(
    frames: &mut BytesMut,
    record: &Record<'_>,
    place: &mut Place,
    headers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    batch_ms: u64,
    delta: u32,
) -> Result<(), FrameError> {
    let (mut id, mut version, mut produced_ms, mut appended_ms) = (None, None, None, record.appended_ms);
    let (mut deliver_at_ms, mut priority, mut ttl_ms) = (None, None, None);
    let mut others: Vec<(&str, &[u8])> = Vec::new();
    for (name, value) in headers {
        let is = |ours: &str| name == ours.as_bytes();
        // A value that we could not have made is somebody else's, and says nothing.
        if is(ID) {
            id = std::str::from_utf8(value).ok().filter(|id| (1..=ID_BYTES_MAX).contains(&id.len()));
        } else if is(PRODUCED_AT) {
            produced_ms = number(value);
        } else if is(VERSION) {
            version = number(value);
        } else if is(APPENDED_AT) {
            appended_ms = number(value).unwrap_or(appended_ms);
        } else if is(DELIVER_AT_HEADER) {
            deliver_at_ms = number(value);
        } else if is(PRIORITY_HEADER) {
            priority =
                number(value).and_then(|one| u8::try_from(one).ok()).filter(|one| PRIORITIES.contains(one));
        } else if is(TTL_HEADER) {
            ttl_ms = number(value).filter(|ttl_ms| *ttl_ms > 0);
        } else {
            // One whose name is not UTF-8 is left out: it cannot be told apart from another.
            others.extend(std::str::from_utf8(name).map(|name| (name, value)));
        }
    }
    let at = frames.len();
    let draft = Draft {
        id: match id {
            Some(id) => id,
            None => place.at(record.offset),
        },
        key: record.key,
        payload: record.payload,
        headers: &others,
        version,
        produced_ms: produced_ms.or_else(|| id.and_then(made_ms)).unwrap_or(record.appended_ms),
        appended_ms: (appended_ms != batch_ms).then_some(appended_ms),
        deliver_at_ms,
        priority,
        ttl_ms,
    };
    draft.encode(frames)?;
    frames[at + 4..at + 8].copy_from_slice(&delta.to_le_bytes());
    Ok(())
}

/// Digits as [`u64`] reads them; by hand, since it is done for every message.
fn number(text: &[u8]) -> Option<u64> {
    let (mut read, mut rest) = (0u64, text);
    while let Some((eight, behind)) = rest.split_first_chunk() {
        read = read.checked_mul(100_000_000)?.checked_add(eight_digits(*eight)?)?;
        rest = behind;
    }
    for digit in rest {
        let digit = char::from(*digit).to_digit(10)?;
        read = read.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!text.is_empty()).then_some(read)
}

/// Eight digits at once: neighbours are put together three times, into pairs, fours and all.
fn eight_digits(text: [u8; 8]) -> Option<u64> {
    let values = u64::from_le_bytes(text) ^ 0x3030_3030_3030_3030;
    // Above 9, or no digit at all: a high half that is not zero, perhaps only with 6 more.
    if (values | values.wrapping_add(0x0606_0606_0606_0606)) & 0xf0f0_f0f0_f0f0_f0f0 != 0 {
        return None;
    }
    let pairs = (values.wrapping_mul(10) + (values >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100) + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours.wrapping_mul(10_000) + (fours >> 32)) & 0xffff_ffff)
}

/// How far the time in an id, or a record's own, may be from when a message was produced to stand for it.
const NEAR_MS: u64 = 1_000;

/// When an id was made, in ms since 1970, if it is a UUIDv7 as text: its first 48 bits.
fn made_ms(id: &str) -> Option<u64> {
    let id = id.as_bytes();
    if id.len() != 36 || (id[8], id[13], id[14], id[18], id[23]) != (b'-', b'-', b'7', b'-', b'-') {
        return None;
    }
    let digits = id[..8].iter().chain(&id[9..13]);
    digits
        .into_iter()
        .try_fold(0, |made, digit| char::from(*digit).to_digit(16).map(|digit| made << 4 | u64::from(digit)))
}

/// Digits of a header.
struct Digits {
    room: [u8; DIGITS_MAX],
    bytes: usize,
}

impl Digits {
    fn of(number: u64) -> Digits {
        let mut room = [0; DIGITS_MAX];
        let bytes = digits(&mut room, number).len();
        Digits { room, bytes }
    }

    fn text(&self) -> &[u8] {
        &self.room[DIGITS_MAX - self.bytes..]
    }
}

/// The headers of a message that is produced.
pub(crate) struct Headers<'a> {
    message: &'a Delivery,
    id: Option<&'a str>,
    produced: Option<Digits>,
    /// Names and values of others that few messages have.
    rare: [(&'static str, Option<Digits>); 5],
}

impl<'a> Headers<'a> {
    /// `has_id`: the id was chosen by somebody, and goes with it. `now_ms` is what the record is stamped with. The message
    /// was parsed with 0 as its append time, unless it carries one.
    pub(crate) fn of(message: &'a Delivery, has_id: bool, now_ms: u64) -> Headers<'a> {
        let id = has_id.then(|| message.id());
        let produced_ms = message.produced_ms();
        // What a reader would take it for.
        let told_ms = id.and_then(made_ms).unwrap_or(now_ms);
        Headers {
            message,
            id,
            produced: (told_ms.abs_diff(produced_ms) > NEAR_MS).then(|| Digits::of(produced_ms)),
            rare: [
                (VERSION, message.version().map(Digits::of)),
                (APPENDED_AT, (message.appended_ms() != 0).then(|| Digits::of(message.appended_ms()))),
                (DELIVER_AT_HEADER, message.deliver_at_ms().map(Digits::of)),
                (PRIORITY_HEADER, message.priority().map(|priority| Digits::of(priority.into()))),
                (TTL_HEADER, message.ttl_ms().map(Digits::of)),
            ],
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let id = self.id.map(|id| (ID, id.as_bytes()));
        let produced = self.produced.as_ref().map(|digits| (PRODUCED_AT, digits.text()));
        let rare = self.rare.iter().filter_map(|(name, digits)| Some((*name, digits.as_ref()?.text())));
        id.into_iter().chain(produced).chain(rare).chain(self.message.headers())
    }
}

/// The name of a header that a caller cannot use, if there is one: it would be taken for ours.
pub(crate) fn reserved(message: &Delivery) -> Option<String> {
    let name =
        |(name, _): (&str, &[u8])| (name.starts_with(OURS) || name.contains('\0')).then(|| name.to_owned());
    message.headers().find_map(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use keylane_core::{Batch, Frames};

    fn read(frames: BytesMut) -> Delivery {
        let batch =
            Batch { partition: 2, base: 40, next: 44, appended_ms: 9, count: 1, frames: frames.freeze() };
        batch.cursor(1).next().expect("one frame").expect("well formed")
    }

    fn record(key: Option<&'static [u8]>, payload: Option<&'static [u8]>) -> Record<'static> {
        Record { offset: 43, key, payload, appended_ms: 9 }
    }

    fn place() -> Place {
        Place::new("orders", 2)
    }

    /// MSG-1, P3: an id that no producer of ours makes does not stop a partition.
    #[test]
    fn an_id_that_cannot_be_one_gives_way_to_the_place() {
        let long = [b'x'; ID_BYTES_MAX + 1];
        for id in [&b""[..], &long[..], &[0xff, 0xfe][..]] {
            let (mut frames, headers) = (BytesMut::new(), [(ID.as_bytes(), id)]);
            put_record(&mut frames, &record(None, None), &mut place(), headers.into_iter(), 9, 3)
                .expect("it is taken");
            assert_eq!(read(frames).id(), "orders/2/43");
        }
    }

    /// MSG-1.
    #[test]
    fn a_place_is_written_as_it_would_be_formatted() {
        let mut place = place();
        for offset in [0, 7, 8, 9, 10, 11, 99, 100, 1 << 53, u64::MAX, 0, 1, 1, 5] {
            assert_eq!(place.at(offset), format!("orders/2/{offset}"));
        }
    }

    /// MSG-1.
    #[test]
    fn a_record_of_somebody_elses_is_named_by_its_place() {
        let mut frames = BytesMut::new();
        let foreign = [(&b"trace"[..], &b"x"[..]), (b"\xff", b"y")];
        put_record(&mut frames, &record(None, None), &mut place(), foreign.into_iter(), 9, 3).expect("fits");
        let read = read(frames);
        assert_eq!((read.id(), read.position(), read.version()), ("orders/2/43", 43, None));
        assert_eq!((read.key(), read.payload(), read.produced_ms()), (None, None, 9));
        assert_eq!(read.headers().collect::<Vec<_>>(), [("trace", &b"x"[..])]);
    }

    /// MSG-1, MSG-3.
    #[test]
    fn what_is_ours_comes_back_from_its_headers() {
        let mut frames = BytesMut::new();
        let headers = [(ID, &b"a-1"[..]), (VERSION, b"7"), ("h", b""), (PRODUCED_AT, b"5"), ("h", b"2")];
        let headers = headers.map(|(name, value)| (name.as_bytes(), value));
        put_record(&mut frames, &record(Some(b""), Some(b"")), &mut place(), headers.into_iter(), 8, 3)
            .expect("fits");
        let read = read(frames);
        assert_eq!((read.id(), read.version(), read.produced_ms()), ("a-1", Some(7), 5));
        assert_eq!((read.key(), read.payload(), read.appended_ms()), (Some(&b""[..]), Some(&b""[..]), 9));
        assert_eq!(read.headers().collect::<Vec<_>>(), [("h", &b""[..]), ("h", b"2")]);
    }

    /// MSG-1, BRK-2: without a header the time is the id's, if it is a UUIDv7, else the record's. Records that have the header,
    /// as all did once, read as ever.
    #[test]
    fn when_a_message_was_produced_is_told_by_its_id_or_its_record() {
        let id = "0192f3a1-b2c3-7000-8000-0123456789ab";
        for (headers, expected) in [
            (vec![(ID, id.as_bytes())], 0x0192_f3a1_b2c3),
            (vec![(ID, &b"0192f3a1-b2c3-4000-8000-0123456789ab"[..])], 9),
            (vec![(ID, b"0192f3a1-b2c3-7000-8000-0123456789a")], 9),
            (vec![(ID, "\u{e9}192f3a1-b2c3-7000-8000-0123456789a".as_bytes())], 9),
            (vec![(ID, b"own")], 9),
            (vec![], 9),
            (vec![(ID, id.as_bytes()), (PRODUCED_AT, b"5")], 5),
        ] {
            let (mut frames, shown) = (BytesMut::new(), format!("{headers:?}"));
            let headers = headers.into_iter().map(|(name, value)| (name.as_bytes(), value));
            put_record(&mut frames, &record(None, None), &mut place(), headers, 9, 3).expect("fits");
            assert_eq!(read(frames).produced_ms(), expected, "{shown}");
        }
    }

    /// MSG-1, MSG-7: what a message has beyond key and payload comes back from the headers that it is sent with.
    #[test]
    fn all_that_a_message_can_have_goes_there_and_back() {
        let headers = [("h", &b"1"[..])];
        let draft = Draft {
            id: "own",
            key: Some(b"k"),
            headers: &headers,
            version: Some(7),
            produced_ms: 5,
            deliver_at_ms: Some(11),
            priority: Some(9),
            ttl_ms: Some(12),
            ..Draft::default()
        };
        let mut sent = Frames::default();
        sent.push(2, &draft).expect("fits");
        let sent = sent.message(0).expect("one").expect("well formed");
        let written = Headers::of(&sent, true, 1_000_000);
        let mut frames = BytesMut::new();
        let headers = written.iter().map(|(name, value)| (name.as_bytes(), value));
        put_record(&mut frames, &record(Some(b"k"), None), &mut place(), headers, 9, 3).expect("fits");
        let read = read(frames);
        assert_eq!((read.id(), read.version(), read.produced_ms()), ("own", Some(7), 5));
        assert_eq!((read.deliver_at_ms(), read.priority(), read.ttl_ms()), (Some(11), Some(9), Some(12)));
        assert_eq!(read.headers().collect::<Vec<_>>(), [("h", &b"1"[..])]);
        assert!(Headers::of(&sent, true, 5).iter().all(|(name, _)| name != PRODUCED_AT), "it is near");
    }

    /// MSG-1: what was moved here from elsewhere keeps the time of its first append.
    #[test]
    fn an_append_time_of_ours_goes_before_the_brokers() {
        let mut frames = BytesMut::new();
        let headers = [(APPENDED_AT.as_bytes(), &b"4"[..])];
        put_record(&mut frames, &record(None, None), &mut place(), headers.into_iter(), 9, 3).expect("fits");
        assert_eq!(read(frames).appended_ms(), 4);
    }

    #[test]
    fn a_number_is_digits_and_nothing_else() {
        let largest = u64::MAX.to_string();
        assert_eq!(number(largest.as_bytes()), Some(u64::MAX));
        for (text, expected) in [("0", Some(0)), ("007", Some(7)), ("", None), ("-1", None), (" 1", None)] {
            assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        }
        for read in [9, 12_345_678, 99_999_999, 123_456_789, 1_790_000_000_123, 9_876_543_210_123_456] {
            assert_eq!(number(read.to_string().as_bytes()), Some(read));
        }
        // Any byte but a digit, at any of eight places.
        for (place, byte) in (0..8).flat_map(|place| (0..=255).map(move |byte| (place, byte))) {
            let mut text = *b"12345678";
            text[place] = byte;
            assert_eq!(number(&text).is_some(), byte.is_ascii_digit(), "{byte} at {place}");
        }
        assert_eq!(number(format!("{largest}0").as_bytes()), None);
    }
}
