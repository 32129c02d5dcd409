//! What is wrong with a message that cannot be taken, in words of whoever sent it (ING-1): which field, what it may be,
//! and an example. Looked for only once reading has failed, so it may take its time.

use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Error;
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::message_json::Text;

/// Characters of what is wrong with a message.
const ERROR_CHARS_MAX: usize = 200;
/// A message as it should be.
const EXAMPLE: &str = r#"{"key":"user-1","payload":{"n":1}}"#;

/// What `error` means, which reading `text` as a message ended with.
pub(super) fn explain(text: &[u8], error: &Error) -> String {
    match error.classify() {
        Category::Data => wrong_type(text).unwrap_or_else(|| in_words(error)),
        Category::Eof if text.is_empty() => format!("there is no message; write it like this: {EXAMPLE}"),
        Category::Eof => {
            format!("the JSON ends too early (column {}); a quote or a bracket is not closed", error.column())
        }
        Category::Syntax | Category::Io => syntax(text, error),
    }
}

/// What is wrong with text that is no JSON, of a message or of an array of them.
pub(super) fn what_is_not_json(error: &Error) -> String {
    let mut what = in_words(error);
    for (theirs, ours) in WORDS {
        what = what.replace(theirs, ours);
    }
    format!("this is not JSON: {what}")
}

/// What the library calls a mistake, and what whoever sends JSON calls it.
const WORDS: [(&str, &str); 6] = [
    ("key must be a string", "a field's name must stand in quotes"),
    ("expected value", "a value must stand here, and text stands in quotes"),
    ("expected ident", "a word that is not true, false or null must stand in quotes"),
    ("expected `", "there must be `"),
    ("trailing comma", "a comma stands before a bracket that closes"),
    ("trailing characters", "something stands behind the end"),
];

/// What the library says, in its own words.
fn in_words(error: &Error) -> String {
    let text = error.to_string();
    // Without the library's line number, which counts within one message.
    match text.rfind(" at line ") {
        Some(at) if error.column() > 0 => format!("{} (column {})", cut(&text[..at]), error.column()),
        _ => cut(&text).to_owned(),
    }
}

fn syntax(text: &[u8], error: &Error) -> String {
    let behind = serde_json::Deserializer::from_slice(text).into_iter::<&RawValue>();
    // A whole message, and behind it another one on the next line.
    let mut values = behind;
    let first = matches!(values.next(), Some(Ok(_))).then(|| values.byte_offset());
    match first.map(|end| text[end..].trim_ascii_start()) {
        Some([b'{', ..]) => "another message begins behind this one; to send a message a line, say `Content-Type: application/x-ndjson`, or send an array".to_owned(),
        _ => what_is_not_json(error),
    }
}

/// Which field is of the wrong type, and what it may be. None if that is not what is wrong.
///
/// Each field is told by its first byte: values built of a body would take many times its size (SEC-2).
fn wrong_type(text: &[u8]) -> Option<String> {
    let text = text.trim_ascii_start();
    if text.first() != Some(&b'{') {
        let instead = match text.first() {
            Some(b'[') => "; an array of messages is sent alone, as `Content-Type: application/json`",
            _ => "",
        };
        return Some(format!("a message is an object such as {EXAMPLE}; this is {}{instead}", kind(text)));
    }
    first_wrong(text, |name, value| {
        let (may_be, example) = match (name, value.as_bytes()) {
            ("key" | "id" | "version" | "headers", [b'n', ..]) => return None,
            ("key" | "id" | "payload_base64", [b'"', ..]) => return None,
            ("version", _) if value.parse::<u64>().is_ok() => return None,
            ("headers", [b'{', ..]) => return wrong_header(value.as_bytes()),
            ("key", _) => ("text in quotes, or null", r#""key":"user-1""#),
            ("id", _) => ("text in quotes, or null", r#""id":"order-17""#),
            ("payload_base64", _) => ("text in quotes: bytes in base64", r#""payload_base64":"aGVsbG8=""#),
            ("version", _) => ("a whole number from 0 on, or null", r#""version":7"#),
            ("headers", _) => ("an object of text, or null", r#""headers":{"source":"shop"}"#),
            _ => return None,
        };
        Some(format!("`{name}` must be {may_be}, for example {example}; it is {}", kind(value.as_bytes())))
    })
}

/// Which header is no text.
fn wrong_header(headers: &[u8]) -> Option<String> {
    first_wrong(headers, |name, value| {
        (!value.starts_with('"')).then(|| {
            format!(
                "the header `{}` must be text in quotes, for example \"headers\":{{\"a\":\"1\"}}; it is {}",
                shown(name),
                kind(value.as_bytes())
            )
        })
    })
}

/// What `wrong` says of the first field of an object that it says something of. What stands behind it is not read.
fn first_wrong(object: &[u8], wrong: impl Fn(&str, &str) -> Option<String>) -> Option<String> {
    let mut said = None;
    let fields = Fields { wrong, said: &mut said };
    // It ends early with what was said, or with a mistake that is none of a type.
    let _ended = serde_json::Deserializer::from_slice(object).deserialize_map(fields);
    said
}

struct Fields<'s, F> {
    wrong: F,
    said: &'s mut Option<String>,
}

impl<'de, F: Fn(&str, &str) -> Option<String>> Visitor<'de> for Fields<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some((Text(name), value)) = fields.next_entry::<Text<'de>, &'de RawValue>()? {
            *self.said = (self.wrong)(&name, value.get());
            if self.said.is_some() {
                return Err(A::Error::custom("the first is enough"));
            }
        }
        Ok(())
    }
}

/// What JSON that begins with these bytes is.
fn kind(json: &[u8]) -> String {
    match json.first() {
        Some(b'n') => "null".to_owned(),
        Some(b't') => "true".to_owned(),
        Some(b'f') => "false".to_owned(),
        Some(b'"') => "text".to_owned(),
        Some(b'[') => "an array".to_owned(),
        Some(b'{') => "an object".to_owned(),
        _ => {
            let of_number = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
            let digits = json.iter().take(ERROR_CHARS_MAX).take_while(of_number);
            format!("the number {}", digits.map(|byte| char::from(*byte)).collect::<String>())
        }
    }
}

fn shown(name: &str) -> String {
    name.chars().take(80).flat_map(char::escape_debug).collect()
}

/// The beginning of a text: a wrong value is part of what the library says, however long it is.
fn cut(text: &str) -> &str {
    text.char_indices().nth(ERROR_CHARS_MAX).map_or(text, |(at, _)| &text[..at])
}
