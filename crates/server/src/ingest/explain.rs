//! Explains to a client what is wrong with a message that could not be read (ING-1): which field, its valid values, and
//! an example. This runs only after reading has failed, so it need not be fast.

use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Error;
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::message_json::Text;

/// Characters of an explanation at most.
const ERROR_CHARS_MAX: usize = 200;
/// A correct message, for explanations.
const EXAMPLE: &str = r#"{"key":"user-1","payload":{"n":1}}"#;

/// Explains `error`, with which reading `text` as a message ended.
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

/// Explains why a text (a message, or an array of messages) is not JSON.
pub(super) fn what_is_not_json(error: &Error) -> String {
    let mut what = in_words(error);
    for (theirs, ours) in WORDS {
        what = what.replace(theirs, ours);
    }
    format!("this is not JSON: {what}")
}

/// Messages of the library, each with the words that replace it.
const WORDS: [(&str, &str); 6] = [
    ("key must be a string", "a field's name must stand in quotes"),
    ("expected value", "a value must stand here, and text stands in quotes"),
    ("expected ident", "a word that is not true, false or null must stand in quotes"),
    ("expected `", "there must be `"),
    ("trailing comma", "a comma stands before a bracket that closes"),
    ("trailing characters", "something stands behind the end"),
];

/// The library's own message.
fn in_words(error: &Error) -> String {
    let text = error.to_string();
    // Leave out the library's line number: it counts within this message, and the client would look for it in the body.
    match text.rfind(" at line ") {
        Some(at) if error.column() > 0 => format!("{} (column {})", cut(&text[..at]), error.column()),
        _ => cut(&text).to_owned(),
    }
}

fn syntax(text: &[u8], error: &Error) -> String {
    let behind = serde_json::Deserializer::from_slice(text).into_iter::<&RawValue>();
    // Check for a whole message with another one behind it: the client probably meant newline-delimited JSON.
    let mut values = behind;
    let first = matches!(values.next(), Some(Ok(_))).then(|| values.byte_offset());
    match first.map(|end| text[end..].trim_ascii_start()) {
        Some([b'{', ..]) => "another message begins behind this one; to send a message a line, say `Content-Type: application/x-ndjson`, or send an array".to_owned(),
        _ => what_is_not_json(error),
    }
}

/// Which field has the wrong type, and its valid types. None if the mistake is another one.
///
/// The type of a field is recognised by its first byte: parsing a body into values would take many times its size
/// (SEC-2).
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

/// Which header is not text.
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

/// The first complaint of `wrong` about a field of an object. Fields behind it are not read.
fn first_wrong(object: &[u8], wrong: impl Fn(&str, &str) -> Option<String>) -> Option<String> {
    let mut said = None;
    let fields = Fields { wrong, said: &mut said };
    // The error carries no information: either `said` is set, or the mistake is not a wrong type.
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

/// The type of the JSON that begins with these bytes, in words.
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

/// The beginning of a message of the library. The message contains the client's wrong value, which may be long.
fn cut(text: &str) -> &str {
    text.char_indices().nth(ERROR_CHARS_MAX).map_or(text, |(at, _)| &text[..at])
}
