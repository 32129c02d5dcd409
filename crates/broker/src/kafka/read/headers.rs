//! A record's headers, read where the client has them.
//!
//! The client's own way is to copy them into a list, with allocations for each, and a few even for a record without
//! any: more than all the rest of reading a record takes. So, with exactly the version whose layout is written down
//! here, the bytes are read as Kafka sent them. Any other version is asked for its list.
#![allow(unsafe_code, reason = "calls librdkafka, and reads what it keeps")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::LazyLock;

use rdkafka::bindings as rd;
use rdkafka::types::RDKafkaRespErr;

use super::feed::bytes;

/// The version that [`Message`] was read from: 2.12.1.
const LAYOUT_OF: c_int = 0x020c_01ff;

/// The client's `rd_kafka_msg_t`, in `rdkafka_msg.h`, as far as it is needed.
#[repr(C)]
struct Message {
    public: rd::rd_kafka_message_t,
    link: [*mut c_void; 2],
    flags: c_int,
    time_kind: c_uint,
    time: i64,
    listed: *mut rd::rd_kafka_headers_t,
    status: c_uint,
    broker: i32,
    /// Of what follows; nothing in formats that have no headers.
    length: i32,
    /// Headers as Kafka sent them, in the buffer of their fetch.
    sent: *const c_void,
}

/// Headers in order: names, which may be any bytes, and values.
pub(crate) enum Headers<'a> {
    /// As Kafka sent them: how many are left, and their bytes.
    Sent(u64, &'a [u8]),
    /// In the client's list, from an index on.
    Listed(*mut rd::rd_kafka_headers_t, usize),
}

impl<'a> Headers<'a> {
    /// The headers of a record, which lives as long as they do.
    ///
    /// # Safety
    /// The client gave out the message as a record, not as an error, and did not take it back yet.
    pub(super) unsafe fn of(message: &'a rd::rd_kafka_message_t) -> Headers<'a> {
        if !layout_is_known() {
            // SAFETY: as above.
            return unsafe { Headers::listed(message) };
        }
        // SAFETY: a message that is given out is the first field of the client's own; its layout is that of this
        // version. Length and bytes are the client's, who keeps them as long as the message.
        let sent = unsafe {
            let message = &*ptr::from_ref(message).cast::<Message>();
            bytes(message.sent, usize::try_from(message.length).unwrap_or(0))
        };
        let headers = Headers::sent(sent.unwrap_or_default());
        // What the suite reads from a real cluster is read both ways.
        debug_assert!(
            // SAFETY: as above.
            headers.again().eq(unsafe { Headers::listed(message) }),
            "the layout is another one"
        );
        headers
    }

    fn sent(mut sent: &'a [u8]) -> Headers<'a> {
        let count = number(&mut sent).and_then(|count| u64::try_from(count).ok());
        Headers::Sent(count.unwrap_or(0), sent)
    }

    /// # Safety
    /// As for [`Headers::of`].
    unsafe fn listed(message: &'a rd::rd_kafka_message_t) -> Headers<'a> {
        let mut list = ptr::null_mut();
        // SAFETY: the message lives; its list lives as long as it does.
        let found = unsafe { rd::rd_kafka_message_headers(message, &raw mut list) };
        match found {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Headers::Listed(list, 0),
            _ => Headers::Sent(0, &[]),
        }
    }

    fn again(&self) -> Headers<'a> {
        match *self {
            Headers::Sent(left, rest) => Headers::Sent(left, rest),
            Headers::Listed(list, index) => Headers::Listed(list, index),
        }
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        match self {
            Headers::Sent(0, _) => None,
            Headers::Sent(left, rest) => {
                *left -= 1;
                sent_header(rest)
            }
            Headers::Listed(list, index) => {
                *index += 1;
                listed_header(*list, *index - 1)
            }
        }
    }
}

/// Whether the client is of the version whose layout is known here, at compile time and now.
#[inline]
fn layout_is_known() -> bool {
    static NOW: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: it only says a number.
        unsafe { rd::rd_kafka_version() == LAYOUT_OF }
    });
    rd::RD_KAFKA_VERSION == LAYOUT_OF && *NOW
}

/// The first header of some; a value that is null counts as empty. None if it is cut off, which Kafka's checksum rules
/// out: the client ends there too.
fn sent_header<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let length = number(rest)?;
    let name = rest.split_off(..usize::try_from(length).ok()?)?;
    let value = match number(rest)? {
        -1 => &[],
        length => rest.split_off(..usize::try_from(length).ok()?)?,
    };
    Some((name, value))
}

/// A number as Kafka's records have it: seven bits a byte, the lowest first, the sign in the lowest bit.
#[inline]
fn number(rest: &mut &[u8]) -> Option<i64> {
    // Nearly always one byte.
    if let [byte @ 0..0x80, ..] = *rest {
        *rest = &rest[1..];
        return Some(i64::from(byte >> 1) ^ -i64::from(byte & 1));
    }
    let mut read = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        read |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((read >> 1) as i64 ^ -((read & 1) as i64));
        }
    }
    None
}

/// Header number `index` of a list, if there are so many.
fn listed_header<'a>(list: *mut rd::rd_kafka_headers_t, index: usize) -> Option<(&'a [u8], &'a [u8])> {
    let (mut name, mut value, mut size) = (ptr::null::<c_char>(), ptr::null::<c_void>(), 0);
    // SAFETY: the list lives as long as its message; the rest is ours.
    let found =
        unsafe { rd::rd_kafka_header_get_all(list, index, &raw mut name, &raw mut value, &raw mut size) };
    if found != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        return None;
    }
    // SAFETY: names end with a zero; values are as long as the client says.
    let (name, value) = unsafe { (CStr::from_ptr(name), bytes(value, size)) };
    Some((name.to_bytes(), value.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_client_that_is_built_in() {
        assert!(
            layout_is_known(),
            "librdkafka is another version, and headers are read the slow way: compare rd_kafka_msg_t in rdkafka_msg.h with Message, then change LAYOUT_OF"
        );
    }

    /// MSG-3.
    #[test]
    fn headers_are_read_as_kafka_sends_them() {
        // Three: a=1, a= (null), and one with a long value.
        let mut sent = vec![6, 2, b'a', 2, b'1', 2, b'a', 1, 2, b'b', 0x90, 3];
        sent.extend([b'v'; 200]);
        let headers: Vec<_> = Headers::sent(&sent).collect();
        assert_eq!(headers, [(&b"a"[..], &b"1"[..]), (b"a", b""), (b"b", &[b'v'; 200])]);
        assert_eq!(Headers::sent(&[0]).next(), None);
        assert_eq!(Headers::sent(&[]).next(), None);
        // Cut off anywhere, it ends there.
        for cut in 0..sent.len() {
            assert!(Headers::sent(&sent[..cut]).count() < 3);
        }
    }

    #[test]
    fn numbers_have_a_sign_and_any_length() {
        for (bytes, expected) in [
            (&[0][..], Some(0)),
            (&[1], Some(-1)),
            (&[2], Some(1)),
            (&[0x80, 1], Some(64)),
            (&[0xff; 10], None),
            (&[0x80], None),
        ] {
            assert_eq!(number(&mut &bytes[..]), expected, "{bytes:?}");
        }
    }
}
