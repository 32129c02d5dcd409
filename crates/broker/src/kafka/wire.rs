//! A message on Kafka's wire, and back.
//!
//! Key, payload and headers stand where every Kafka client has them, a null payload apart from an empty one. What Kafka
//! has no place for goes into headers of ours, as text, so that any client can read them. A record of somebody else's
//! has none of them: its id is then where it lies (MSG-1), and it was produced when it was appended.

use bytes::BytesMut;
use keylane_core::frame::ID_BYTES_MAX;
use keylane_core::{Delivery, Draft, FrameError};
use rdkafka::message::{Header, OwnedHeaders};

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
}

impl Place {
    pub(crate) fn new(topic: &str, partition: u32) -> Place {
        let text = format!("{topic}/{partition}/");
        Place { before: text.len(), text }
    }

    /// At an offset. Written by hand: it is done for every record of somebody else's, and formatting it anew would
    /// take longer than copying the record.
    pub(crate) fn at(&mut self, offset: u64) -> &str {
        let (mut digits, mut left) = ([0; DIGITS_MAX], offset);
        let mut first = DIGITS_MAX;
        loop {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.text.truncate(self.before);
        self.text.push_str(std::str::from_utf8(&digits[first..]).expect("digits are text"));
        &self.text
    }
}

/// Digits of the largest offset.
const DIGITS_MAX: usize = 20;

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
    let mut others: Vec<(&str, &[u8])> = Vec::new();
    for (name, value) in headers {
        match name.strip_prefix(OURS.as_bytes()) {
            // One that we could not have made is somebody else's, and says nothing.
            Some(b"id") => {
                id = std::str::from_utf8(value).ok().filter(|id| (1..=ID_BYTES_MAX).contains(&id.len()))
            }
            Some(b"version") => version = number(value),
            Some(b"produced-at") => produced_ms = number(value),
            Some(b"appended-at") => appended_ms = number(value).unwrap_or(appended_ms),
            // One that is not UTF-8 is left out: it cannot be told apart from another.
            _ => others.extend(std::str::from_utf8(name).map(|name| (name, value))),
        }
    }
    let id = match id {
        Some(id) => id,
        None => place.at(record.offset),
    };
    let at = frames.len();
    let draft = Draft {
        id,
        key: record.key,
        payload: record.payload,
        headers: &others,
        version,
        produced_ms: produced_ms.unwrap_or(record.appended_ms),
        appended_ms: (appended_ms != batch_ms).then_some(appended_ms),
    };
    draft.encode(frames)?;
    frames[at + 4..at + 8].copy_from_slice(&delta.to_le_bytes());
    Ok(())
}

/// Digits as [`u64`] reads them; by hand, since it is done twice for every message.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The headers of a message that is produced. It was parsed with 0 as its append time, unless it carries one.
pub(crate) fn headers_of(message: &Delivery) -> OwnedHeaders {
    let produced = message.produced_ms().to_string();
    let mut headers = OwnedHeaders::new_with_capacity(3)
        .insert(Header { key: ID, value: Some(message.id()) })
        .insert(Header { key: PRODUCED_AT, value: Some(&produced) });
    if let Some(version) = message.version() {
        headers = headers.insert(Header { key: VERSION, value: Some(&version.to_string()) });
    }
    if message.appended_ms() != 0 {
        headers =
            headers.insert(Header { key: APPENDED_AT, value: Some(&message.appended_ms().to_string()) });
    }
    for (name, value) in message.headers() {
        headers = headers.insert(Header { key: name, value: Some(value) });
    }
    headers
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
    use keylane_core::Batch;

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
        for offset in [0, 7, 10, 99, 100, 12_345_678, 1 << 53, u64::MAX, 5] {
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
        assert_eq!(number(format!("{largest}0").as_bytes()), None);
    }
}
