//! Reads the messages of a body one after another.
//!
//! In: the text of a body. Out: one message at a time, or the reason why it is refused. No list of all messages is
//! made: for a body with two bytes per message, such a list would take hundreds of times the body's size.

use axum::http::StatusCode;
use keylane::ErrorCode;
use serde_json::Deserializer;
use serde_json::value::RawValue;

use super::explain::what_is_not_json;
use super::message_json::MessageJson;
use super::{Form, malformed};
use crate::http::Problem;

/// Messages of one request at most (SEC-2). Each message costs far more than its bytes: an id, a frame, and its part of
/// the answer.
pub(crate) const MESSAGES_MAX: usize = 100_000;

/// Reads the messages of a body in turn.
#[derive(Debug, Clone)]
pub(super) struct Items<'a> {
    rest: &'a [u8],
    shape: Shape,
    count: usize,
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    One,
    Array,
    Lines,
}

impl<'a> Items<'a> {
    /// The messages of `body`.
    pub(super) fn new(form: Form, body: &'a [u8]) -> Result<Items<'a>, Problem> {
        let text = body.trim_ascii();
        let (shape, rest) = match (form, text) {
            (_, []) => return Err(malformed("the body is empty; it must hold a message")),
            (Form::Json, [b'[', rest @ ..]) => (Shape::Array, rest.trim_ascii_start()),
            (Form::Json, _) => (Shape::One, text),
            (Form::Lines, _) => (Shape::Lines, text),
        };
        match (shape, rest) {
            (Shape::Array, [b']']) => Err(malformed("the array is empty; it must hold a message")),
            (Shape::Array, []) => Err(malformed("the body is not an array of messages: it is not closed")),
            _ => Ok(Items { rest, shape, count: 0 }),
        }
    }

    /// The next message, or the reason why it is refused; none at the end. The outer error refuses the whole body.
    #[allow(clippy::type_complexity, reason = "three answers, each of which a caller tells apart")]
    pub(super) fn next(&mut self) -> Result<Option<Result<MessageJson<'a>, String>>, Problem> {
        let line = match self.shape {
            _ if self.rest.is_empty() => return Ok(None),
            Shape::One => MessageJson::parse(std::mem::take(&mut self.rest)),
            Shape::Array => self.next_of_array()?,
            Shape::Lines => self.next_line(),
        };
        self.count += 1;
        if self.count > MESSAGES_MAX {
            return Err(too_many());
        }
        Ok(Some(line))
    }

    fn next_of_array(&mut self) -> Result<Result<MessageJson<'a>, String>, Problem> {
        let broken = |count: usize, why: &str| {
            malformed(format!("the body is not an array of messages: at its index {count}: {why}"))
        };
        let mut values = Deserializer::from_slice(self.rest).into_iter::<&RawValue>();
        let raw = match values.next() {
            Some(Ok(raw)) => raw,
            Some(Err(error)) => return Err(broken(self.count, &what_is_not_json(&error))),
            None => return Err(broken(self.count, "a message is missing")),
        };
        let behind = self.rest[values.byte_offset()..].trim_ascii_start();
        self.rest = match behind {
            [b']'] => &[],
            [b']', ..] => return Err(broken(self.count, "something stands behind the array")),
            [b',', more @ ..] => match more.trim_ascii_start() {
                [] => return Err(broken(self.count + 1, "the array is not closed")),
                more => more,
            },
            [] => return Err(broken(self.count, "the array is not closed")),
            _ => return Err(broken(self.count, "a comma is missing behind it")),
        };
        Ok(MessageJson::of_raw(raw))
    }

    /// Reads the next line that is not blank. There is one: the text was trimmed, so it ends with such a line.
    fn next_line(&mut self) -> Result<MessageJson<'a>, String> {
        loop {
            let end = self.rest.iter().position(|byte| *byte == b'\n');
            let line = self.rest[..end.unwrap_or(self.rest.len())].trim_ascii();
            self.rest = end.map_or(&[], |end| &self.rest[end + 1..]);
            if !line.is_empty() {
                return MessageJson::parse(line);
            }
        }
    }
}

fn too_many() -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::RequestTooLarge,
        "the request is too large",
        format!("a request has at most {MESSAGES_MAX} messages; nothing was kept; send them in several"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The payloads of a body, with none for each refused message; or the code of the error that refuses the body.
    fn read(form: Form, body: &str) -> Result<Vec<Option<String>>, &'static str> {
        let mut items = Items::new(form, body.as_bytes()).map_err(|problem| problem.code.as_str())?;
        let mut all = Vec::new();
        while let Some(line) = items.next().map_err(|problem| problem.code.as_str())? {
            all.push(line.ok().map(|line| String::from_utf8(line.payload.bytes().to_vec()).expect("text")));
        }
        Ok(all)
    }

    /// ING-1.
    #[test]
    fn an_array_that_is_broken_anywhere_is_void_as_a_whole() {
        for body in [
            "[",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1]2",
            "[1]]",
            "[{\"payload\":1},",
            "[1,,2]",
            "[\"a",
            "[tru]",
        ] {
            assert_eq!(read(Form::Json, body), Err("KL-1207"), "{body}");
        }
        assert_eq!(read(Form::Json, " [ ] "), Err("KL-1207"));
        assert_eq!(
            read(Form::Json, " [ {\"payload\":1} ,2,true, {\"payload\":[ 3 ]}\n] "),
            Ok(vec![Some("1".to_owned()), None, None, Some("[ 3 ]".to_owned())])
        );
    }

    /// SEC-2.
    #[test]
    fn one_message_too_many_voids_the_request() {
        let array = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        assert_eq!(read(Form::Json, &array(MESSAGES_MAX)).map(|all| all.len()), Ok(MESSAGES_MAX));
        assert_eq!(read(Form::Json, &array(MESSAGES_MAX + 1)), Err("KL-1210"));
        let lines = |count: usize| "1\n\n".repeat(count);
        assert_eq!(read(Form::Lines, &lines(MESSAGES_MAX)).map(|all| all.len()), Ok(MESSAGES_MAX));
        assert_eq!(read(Form::Lines, &lines(MESSAGES_MAX + 1)), Err("KL-1210"));
    }

    proptest! {
        /// ING-1: item by item, an array is what a JSON reader takes it for.
        #[test]
        fn an_array_is_read_as_any_json_reader_does(text in "[\\[\\]{},:\" 1a\\\\]{0,24}") {
            let text = format!("[{text}");
            let whole: Result<Vec<&RawValue>, _> = serde_json::from_str(&text);
            match (read(Form::Json, &text), whole) {
                (Ok(items), Ok(whole)) => prop_assert_eq!(items.len(), whole.len()),
                (Err(_), Ok(whole)) => prop_assert!(whole.is_empty(), "{}", text),
                (Err(_), Err(_)) => {}
                (Ok(_), Err(error)) => prop_assert!(false, "{}: {}", text, error),
            }
        }
    }
}
