//! Writes bytes as visible ASCII: keys, ids and headers leave the process as such text.
//!
//! A byte outside 0x21 to 0x7E becomes `%XX`, and so does `%` itself: without that, the key `%41` could not be told
//! from the key `A`. Any percent-decoder gives the original bytes back.

use std::borrow::Cow;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// `bytes` percent-encoded; borrowed if there is nothing to encode.
pub fn encode(bytes: &[u8]) -> Cow<'_, str> {
    encode_unless(bytes, is_plain)
}

/// `bytes` as (part of) the name of an HTTP header: bytes that no token may contain are encoded too.
pub(crate) fn encode_token(bytes: &[u8]) -> Cow<'_, str> {
    encode_unless(bytes, is_token)
}

fn encode_unless(bytes: &[u8], plain: fn(u8) -> bool) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.iter().all(|&byte| plain(byte)) => return Cow::Borrowed(text),
        _ => {}
    }
    let mut text = String::with_capacity(bytes.len() + 16);
    for &byte in bytes {
        if plain(byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.push(char::from(HEX[usize::from(byte >> 4)]));
            text.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    Cow::Owned(text)
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E) && byte != b'%'
}

/// RFC 9110's `tchar`, but for `%`.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(text: &str) -> Vec<u8> {
        let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
        while let Some((&first, after)) = rest.split_first() {
            if first == b'%' {
                let digits = std::str::from_utf8(&after[..2]).expect("two digits");
                bytes.push(u8::from_str_radix(digits, 16).expect("hexadecimal"));
                rest = &after[2..];
            } else {
                bytes.push(first);
                rest = after;
            }
        }
        bytes
    }

    proptest! {
        /// MSG-3, ING-5: a key is bytes, whatever they are, and arrives as such.
        #[test]
        fn any_bytes_become_visible_ascii_and_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let text = encode(&bytes);
            prop_assert!(text.bytes().all(|byte| matches!(byte, 0x21..=0x7E)));
            prop_assert_eq!(decode(&text), bytes.clone());
            let token = encode_token(&bytes);
            prop_assert!(token.bytes().all(|byte| is_token(byte) || byte == b'%'));
            prop_assert_eq!(decode(&token), bytes);
        }
    }

    /// ING-5.
    #[test]
    fn plain_text_is_left_as_it_is() {
        assert_eq!(encode(b"user-1/a:b"), "user-1/a:b");
        assert_eq!(encode("a b%é\u{7f}".as_bytes()), "a%20b%25%C3%A9%7F");
        assert_eq!(encode_token(b"a:b"), "a%3Ab");
    }
}
