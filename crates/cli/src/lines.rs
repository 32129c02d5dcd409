//! Cuts a file or a pipe into batches that `keylane produce` can send.
//!
//! In: bytes. Out: bodies of newline-delimited messages, with the number of the line behind each message, so that the
//! user finds a refused message in the file. Invariants: a payload has exactly the bytes of its line; every line is
//! sent, named as too long or, among message objects, blank; memory is bounded by one line and one batch.

use std::io::{self, BufRead, BufReader, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;

/// Lines of one batch: a thousand make the cost of a round trip small, and a refusal of the batch concerns few lines.
const BATCH_LINES_MAX: usize = 1_000;
/// A batch ends with the line that brings it to this size: far below the server's 16 MiB for a request.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Bytes of the longest line. As base64, with a key and behind an almost full batch, the line still fits in a request
/// of 16 MiB.
pub const LINE_BYTES_MAX: usize = 11 << 20;
/// Bytes read from the input at a time: about a batch.
const READ_BYTES: usize = 1 << 20;

/// What a line of the input contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// Each line is a payload, and all messages have the same key.
    Payload {
        /// The key, if there is one.
        key: Option<String>,
    },
    /// Each line is a message object as in the HTTP API. Blank lines are skipped.
    Message,
}

/// Messages that are sent in one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LineBatch {
    /// The body of the request: a message object on each line.
    pub body: Vec<u8>,
    /// For each message, the number of its line in the input, from 1.
    pub numbers: Vec<u64>,
    /// Numbers of the lines that are too long to send.
    pub too_long: Vec<u64>,
    /// Bytes of the input that were read for this batch.
    pub input_bytes: u64,
}

/// Cuts the input into batches.
pub struct Lines<R> {
    input: BufReader<R>,
    format: Format,
    number: u64,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// Reads `input` as lines of `format`.
    pub fn new(input: R, format: Format) -> Lines<R> {
        Lines { input: BufReader::with_capacity(READ_BYTES, input), format, number: 0, line: Vec::new() }
    }

    /// The next batch; none at the end of the input. Once the batch has a line, this does not wait for input that has
    /// not arrived yet, so that a line typed at a terminal is sent at once.
    pub fn next_batch(&mut self) -> io::Result<Option<LineBatch>> {
        let mut batch = LineBatch::default();
        while batch.numbers.len() < BATCH_LINES_MAX && batch.body.len() < BATCH_BYTES_MAX {
            let something = !batch.numbers.is_empty() || !batch.too_long.is_empty();
            if something && !self.input.buffer().contains(&b'\n') {
                break;
            }
            match self.read_line(&mut batch.input_bytes)? {
                None if something => break,
                None => return Ok(None),
                Some(Length::TooLong) => batch.too_long.push(self.number),
                Some(Length::Fits) => self.put(&mut batch),
            }
        }
        Ok(Some(batch))
    }

    fn put(&self, batch: &mut LineBatch) {
        match &self.format {
            Format::Payload { key } => {
                let key = key.as_ref().map_or_else(String::new, |key| {
                    format!("\"key\":{},", serde_json::Value::from(key.as_str()))
                });
                let payload = match json(&self.line) {
                    Some(json) => format!("\"payload\":{json}"),
                    None => format!("\"payload_base64\":\"{}\"", STANDARD.encode(&self.line)),
                };
                batch.body.extend_from_slice(format!("{{{key}{payload}}}").as_bytes());
            }
            Format::Message if self.line.trim_ascii().is_empty() => return,
            Format::Message => batch.body.extend_from_slice(&self.line),
        }
        batch.body.push(b'\n');
        batch.numbers.push(self.number);
    }

    /// Reads a line into `self.line`, without its line break. The bytes of a line that is too long are dropped.
    fn read_line(&mut self, read_bytes: &mut u64) -> io::Result<Option<Length>> {
        self.line.clear();
        let mut length = Length::Fits;
        let mut any = false;
        loop {
            let buffer = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            if buffer.is_empty() {
                break;
            }
            any = true;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            if self.line.len() + part.len() > LINE_BYTES_MAX {
                length = Length::TooLong;
                self.line.clear();
            }
            if length == Length::Fits {
                self.line.extend_from_slice(part);
            }
            let taken = part.len() + usize::from(end.is_some());
            self.input.consume(taken);
            *read_bytes += taken as u64;
            if end.is_some() {
                break;
            }
        }
        self.number += u64::from(any);
        Ok(any.then_some(length))
    }
}

/// The line, if it is JSON and nothing else: such a payload reaches a handler as JSON, as it would if it were sent over
/// HTTP. `null` is left out, since a payload of that is none; so is JSON amid blanks, which the server would drop.
fn json(line: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(line).ok().filter(|text| text.trim_ascii() == *text && *text != "null")?;
    serde_json::from_str::<IgnoredAny>(text).is_ok().then_some(text)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Fits,
    TooLong,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::value::RawValue;

    use super::*;

    fn all(input: &[u8], format: Format) -> Vec<LineBatch> {
        let mut lines = Lines::new(input, format);
        std::iter::from_fn(|| lines.next_batch().expect("memory can be read")).collect()
    }

    fn payloads(batches: &[LineBatch]) -> Vec<Vec<u8>> {
        let bodies = batches.iter().flat_map(|batch| batch.body.split(|byte| *byte == b'\n'));
        bodies
            .filter(|line| !line.is_empty())
            .map(|line| {
                let message: BTreeMap<&str, &RawValue> =
                    serde_json::from_slice(line).expect("a message object");
                match message.get("payload") {
                    Some(json) => json.get().as_bytes().to_vec(),
                    None => {
                        let encoded: String =
                            serde_json::from_str(message["payload_base64"].get()).expect("text");
                        STANDARD.decode(encoded).expect("base64")
                    }
                }
            })
            .collect()
    }

    /// ADM-8.
    #[test]
    fn a_payload_line_keeps_every_byte_but_its_end() {
        let input = b"plain\n\xff\x00raw\r\n\n{\"n\": 1}\nlast without an end";
        let batches = all(input, Format::Payload { key: None });
        let expected: [&[u8]; 5] = [b"plain", b"\xff\x00raw\r", b"", b"{\"n\": 1}", b"last without an end"];
        assert_eq!(payloads(&batches), expected);
        let numbers: Vec<u64> = batches.iter().flat_map(|batch| batch.numbers.clone()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let read: u64 = batches.iter().map(|batch| batch.input_bytes).sum();
        assert_eq!(read, input.len() as u64);
    }

    /// ADM-8, ING-5: a line that is JSON is sent as JSON, or a handler would be told that it is bytes.
    #[test]
    fn a_line_of_json_is_sent_as_json_and_any_other_as_bytes() {
        let input = b"{\"n\": [1, 2]}\n42\n\"text\"\nplain\n{\"n\":\n {}\nnull\n\"\xff\"\n";
        let batches = all(input, Format::Payload { key: None });
        let body = String::from_utf8(batches[0].body.clone()).expect("text");
        let sent: Vec<&str> = body.lines().collect();
        assert_eq!(sent[..3], [r#"{"payload":{"n": [1, 2]}}"#, r#"{"payload":42}"#, r#"{"payload":"text"}"#]);
        assert!(sent[3..].iter().all(|line| line.contains("payload_base64")), "{sent:?}");
        let lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        assert_eq!(payloads(&batches), lines);
    }

    /// ADM-8.
    #[test]
    fn a_key_with_quotes_stays_that_key() {
        let key = Some("a\"b\\\n".to_owned());
        let batches = all(b"x\n", Format::Payload { key: key.clone() });
        let message: serde_json::Value = serde_json::from_slice(&batches[0].body).expect("a message object");
        assert_eq!(message["key"].as_str(), key.as_deref());
    }

    /// ADM-8.
    #[test]
    fn message_lines_pass_as_they_are_and_blank_ones_keep_their_number() {
        let batches = all(b"{\"payload\":1}\n\n  \r\n{bad\n", Format::Message);
        assert_eq!(batches.len(), 1);
        assert_eq!(batches[0].body, b"{\"payload\":1}\n{bad\n");
        assert_eq!(batches[0].numbers, [1, 4]);
    }

    /// ADM-8.
    #[test]
    fn a_line_that_cannot_be_sent_is_named_and_the_next_one_goes_on() {
        let mut input = vec![b'x'; LINE_BYTES_MAX + 1];
        input.extend_from_slice(b"\nnext\n");
        let batches = all(&input, Format::Payload { key: None });
        let too_long: Vec<u64> = batches.iter().flat_map(|batch| batch.too_long.clone()).collect();
        assert_eq!(too_long, [1]);
        assert_eq!(payloads(&batches), [b"next"]);
    }

    /// ADM-8.
    #[test]
    fn the_longest_line_fits_in_a_request() {
        let mut input = vec![b'y'; BATCH_BYTES_MAX / 2];
        input.push(b'\n');
        input.extend(std::iter::repeat_n(b'x', LINE_BYTES_MAX));
        input.push(b'\n');
        let key = Some("k".repeat(4_096));
        let batches = all(&input, Format::Payload { key });
        assert_eq!(payloads(&batches).len(), 2);
        assert!(batches.iter().all(|batch| batch.body.len() < 16 << 20));
    }

    /// ADM-8.
    #[test]
    fn a_long_input_is_cut_into_batches_of_a_thousand() {
        let batches = all(&b"m\n".repeat(2_500), Format::Payload { key: None });
        let lengths: Vec<usize> = batches.iter().map(|batch| batch.numbers.len()).collect();
        assert_eq!(lengths, [1_000, 1_000, 500]);
        assert_eq!(batches[2].numbers.last(), Some(&2_500));
    }

    /// ADM-8.
    #[test]
    fn what_was_typed_is_handed_out_before_more_comes() {
        struct Typed(Vec<&'static [u8]>);
        impl Read for Typed {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                if self.0.is_empty() {
                    return Ok(0);
                }
                let part = self.0.remove(0);
                out[..part.len()].copy_from_slice(part);
                Ok(part.len())
            }
        }
        let mut lines = Lines::new(Typed(vec![b"one\n", b"two\nthr", b"ee\n"]), Format::Message);
        let mut next = || lines.next_batch().expect("memory can be read").map(|batch| batch.body);
        assert_eq!(next().as_deref(), Some(&b"one\n"[..]));
        assert_eq!(next().as_deref(), Some(&b"two\n"[..]));
        assert_eq!(next().as_deref(), Some(&b"three\n"[..]));
        assert_eq!(next(), None);
    }
}
